"""Calls as lines of ``step.py``: frees before a call, pacing, streams, and the call itself or a stand-in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from foretrace.graph import Constant
from foretrace.graph.op import COMPILED_PROGRAM, RESIZE
from foretrace.graph.operators import NAMESPACES, is_identifier, operator_path
from foretrace.replay.generate.literals import (
    NUMBER,
    GroupVariables,
    NotWritableError,
    describe,
    literal,
    safe_name,
    safe_text,
)
from foretrace.replay.generate.plan import Argument, Name, PlanCall, Result

MIN_GAP_US = 1.0
"""Shorter gaps between calls are not paced one by one: looking at the clock takes time as well."""
MAX_DESCRIBED = 3
"""Results that the comment of a call describes."""
SIDE_CALL_FUNCTIONS = {
    "cuda::event_record": "record_event",
    "cuda::stream_wait_event": "wait_event",
    "cuda::event_synchronize": "synchronize_event",
    "cuda::stream_synchronize": "synchronize_stream",
    "cuda::device_synchronize": "synchronize",
    RESIZE: "resize",
    "c10d::wait": "wait",
}
"""Functions of the harness for calls that do not pass the dispatcher."""
FUNCTIONAL = ("_c10d_functional::",)
OPERATOR_HELPERS = {
    COMPILED_PROGRAM: "region",
    "aten::record_stream": "record_stream",
    "aten::_pin_memory": "pin_memory",
    "_c10d_functional::_wrap_tensor_autograd": "unwrapped",
    "aten::set_.source_Storage": "take_storage",
    "aten::set_.source_Storage_storage_offset": "take_storage",
}
"""Functions of the harness for operators whose arguments only the harness has; some with their overload."""


class Lines:
    """Writes calls one after the other, and collects the names that they need.

    >>> lines = Lines()
    >>> call = PlanCall(7, "aten::relu", "default", args=(Name("t0"),), results=(Name("t1"),), gap_us=12.34, waits=True)
    >>> print(*lines.of(call, [Name("t9")]), sep="\\n")
    del t9
    pace(12.34)
    t1 = aten.relu.default(t0)  # 7
    resume()
    >>> lines.namespaces, sorted(lines.harness_functions)
    ({'aten'}, ['pace', 'resume'])
    """

    def __init__(
        self, namespaces: Sequence[str] = (), modules: bool = True, groups: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        self.stand_ins: dict[int, str] = {}
        """By number of a call that can't be made, the reason."""
        self.unknown_regions: dict[int, str] = {}
        """By number of a compiled program whose graph can't be written, the reason."""
        self.namespaces: set[str] = set()
        self.harness_functions: set[str] = set()
        """Functions of the harness."""
        self.devices: set[str] = set()
        self.group_variables = GroupVariables(groups or {})
        self._allowed = namespaces
        self._modules = modules
        self._module, self._stream, self._due = "", 0, 0.0

    def of(self, call: PlanCall, frees: Sequence[Name]) -> Iterator[str]:
        """The lines of one call."""
        if frees:
            yield f"del {', '.join(frees)}"
        if self._modules and call.module != self._module:
            self._module = call.module
            if call.module:
                yield f"# {safe_name(call.module)}"
        self._due += call.gap_us
        if call.gap_us >= MIN_GAP_US:
            yield from self.pace()
        if call.stream != self._stream:
            self._stream = call.stream
            self.harness_functions.add("use_stream")
            yield f"use_stream({int(call.stream)})"
        yield from self._side_call(call) if call.name in SIDE_CALL_FUNCTIONS else self.call(call)
        self._due += call.host_us
        if call.waits:
            self.harness_functions.add("resume")
            yield "resume()"

    def end(self, tail_us: float) -> Iterator[str]:
        """Lines after the last call: the original's host time to the end of the step, and back to the first stream."""
        yield from self.pace(tail_us)
        if self._stream:
            self._stream = 0
            yield "use_stream(0)"

    def pace(self, more_us: float = 0.0) -> Iterator[str]:
        """The line that waits until the original's host would be here."""
        due, self._due = self._due + more_us, 0.0
        if due > 0:
            self.harness_functions.add("pace")
            yield f"pace({due:.4g})"

    def call(self, call: PlanCall) -> Iterator[str]:
        """The line of a call of an operator, or of its stand-in."""
        made: list[str] = []
        with suppress(NotWritableError):
            made = [describe(tensor) for tensor in call.made.values()]
        more = f", … {len(made)} in all" if len(made) > MAX_DESCRIBED else ""
        comment = f"{call.number}  {', '.join(made[:MAX_DESCRIBED])}{more}".rstrip()
        results = _results(call.results)
        try:
            target, arguments = self._target(call), self._arguments(call)
            if call.ends:  # handed over in a list, which the program empties
                number, _, given = arguments.partition(", ")
                yield f"given = [{given}]"
                yield f"del {', '.join(call.ends)}"
                arguments = f"{number}, given"
            written = f"{target}({arguments})"
            if call.sized_by_data:
                self.harness_functions.add("fitted")
                written = f"fitted({call.number}, {written})"
        except NotWritableError as problem:
            if call.is_side_call:
                return  # a work that no call issued need not be waited for
            if call.ends:
                yield f"del {', '.join(call.ends)}"
            self.stand_ins[call.number] = str(problem)
            self.harness_functions.add("stand_in")
            written = f"stand_in({call.number})"
            comment += f"  {safe_name(call.name)}: {safe_text(str(problem))}"
        yield f"{results}{written}  # {comment}" if call.number >= 0 else f"{results}{written}"
        if re.search(r"\b_\b", results):
            yield "del _"

    def _target(self, call: PlanCall) -> str:
        helper = OPERATOR_HELPERS.get(call.name) or OPERATOR_HELPERS.get(f"{call.name}.{call.overload}")
        if call.name == COMPILED_PROGRAM and (why := self.unknown_regions.get(call.args[0])):  # type: ignore[arg-type]
            raise NotWritableError(why)
        if helper is not None:
            self.harness_functions.add(helper)
            return helper
        found = operator_path(call.name, call.overload, self._allowed)
        if found is None:
            namespace = call.name.partition("::")[0]
            custom = is_identifier(namespace) and namespace not in NAMESPACES
            raise NotWritableError(f"needs --ops {namespace}" if custom else "an operator that is not allowed")
        self.namespaces.add(found.partition(".")[0])
        return found

    def _arguments(self, call: PlanCall) -> str:
        functional = call.name.startswith(FUNCTIONAL)
        positional = [self.literal(value, functional) for value in call.args]
        if not all(is_identifier(key) for key in call.kwargs):
            raise NotWritableError("an argument without a proper name")
        return ", ".join([*positional, *(f"{key}={self.literal(value)}" for key, value in call.kwargs.items())])

    def literal(self, value: Argument, functional: bool = False) -> str:
        """The text of an argument; ``functional`` collectives name their group by a string."""
        self.devices.update(_devices(value))
        return literal(self.group_variables.named(value, functional))

    def _side_call(self, call: PlanCall) -> Iterator[str]:
        function = SIDE_CALL_FUNCTIONS[call.name]
        arguments = [int(a.value) if isinstance(a, Constant) and NUMBER.fullmatch(a.value) else a for a in call.args]
        if any(not isinstance(a, (int, Name)) for a in arguments):
            return  # no variable on that storage
        self.harness_functions.add(function)
        yield f"{function}({', '.join(map(str, arguments))})"


def _results(results: tuple[Result, ...]) -> str:
    """The left side of a call; empty where it makes nothing new."""
    texts = [_result(result) for result in results]
    if all(text == "_" for text in texts):
        return ""
    return f"{', '.join(texts)} = "


def _result(result: Result) -> str:
    if isinstance(result, list):
        texts = [_result(item) for item in result]
        return f"[{', '.join(texts)}]" if any(text != "_" for text in texts) else "_"
    return str(result) if result is not None else "_"


def _devices(value: Argument) -> Iterator[str]:
    if isinstance(value, Constant) and value.kind == "device":
        literal(value)  # raises for a device that does not exist
        yield value.value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _devices(item)
