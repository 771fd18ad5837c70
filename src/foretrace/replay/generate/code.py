"""A plan as Python: ``step.py``, with one line per call and one function per phase, and ``inputs.py``."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from foretrace.graph import Content, Tensor, Value, tensors_in
from foretrace.graph.op import contiguous_strides
from foretrace.graph.operators import LAYOUTS, NAMESPACES
from foretrace.graph.programs import Program
from foretrace.replay.generate.contents import CONTENT_KINDS
from foretrace.replay.generate.lines import Lines
from foretrace.replay.generate.literals import NotWritableError, describe, device_name, literal, safe_name
from foretrace.replay.generate.plan import Argument, Input, Name, Plan, PlanCall, Result

WIDTH = 120


@dataclass(frozen=True)
class Code:
    """The text of a benchmark's files, and by number the calls it can't make, with the reason."""

    step: str
    inputs: str
    stand_ins: dict[int, str]
    regions: str = ""
    """Functions of compiled programs, as calls; empty where there are none."""


def code_of(plan: Plan, packages: Mapping[str, str] | None = None, modules: bool = True) -> Code:
    """Write the code of a benchmark; with ``modules``, comments name the modules of calls.

    ``packages`` are namespaces of operators that may be called besides PyTorch's own, and what registers each, if any.
    """
    lines = Lines(tuple(packages or ()), modules, plan.groups)
    regions, lines.unknown_regions = regions_code(plan.programs, packages or {}, plan.groups)
    made = sections(plan)
    body: list[str] = []
    for section in made:
        body += ["", "", *_function(section, lines, section is made[-1], plan.tail_us)]
    lines.harness_functions.add("begin")
    step = [*_head(plan, lines, packages or {}), *body, "", "", *_step(made, plan)]
    return Code("\n".join(step) + "\n", _inputs(plan), lines.stand_ins, regions)


def _head(plan: Plan, lines: Lines, packages: Mapping[str, str]) -> Iterator[str]:
    yield f'"""One training step as {len(plan.recorded)} calls, in the original\'s order, freeing memory where it did.'
    yield ""
    yield "The number after a call is its index in calls.json. Edit the lines as you like: run.py runs what it finds."
    yield '"""'
    yield ""
    yield from _imported(lines, packages)


def _imported(lines: Lines, packages: Mapping[str, str]) -> Iterator[str]:
    """Imports, and variables that all calls may use."""
    yield "from math import inf, nan  # noqa: F401"
    yield ""
    yield "import torch"
    used = {{**packages, **NAMESPACES}[namespace] for namespace in lines.namespaces} - {""}
    yield from (f"import {package}  # noqa: F401" for package in sorted(used))
    grouped = lines.group_variables.harness_functions | (lines.harness_functions & {"wait"})
    yield from _imports("harness.host", (lines.harness_functions - grouped) | ({"device"} if lines.devices else set()))
    yield from _imports("harness.ranks", grouped)
    yield ""
    yield from (f"{namespace} = torch.ops.{namespace}" for namespace in sorted(lines.namespaces))
    yield from _devices(lines.devices)
    yield from lines.group_variables.lines()


def regions_code(
    programs: Mapping[int, Program], packages: Mapping[str, str], groups: Mapping[str, tuple[int, ...]]
) -> tuple[str, dict[int, str]]:
    """The functions of compiled programs, and by number why some can't be written."""
    lines, reasons, body = Lines(tuple(packages), False, groups), dict[int, str](), list[str]()
    for number, program in programs.items():
        try:
            body += ["", "", *_region(number, program, lines)]
        except NotWritableError as problem:
            reasons[number] = f"the graph of a compiled program has {problem}"
    if len(reasons) == len(programs):
        return "", reasons
    head = [
        '"""Graphs of compiled programs, call by call: harness/regions.py compiles each where the benchmark runs."""',
        "",
        *_imported(lines, packages),
    ]
    return "\n".join([*head, *body]) + "\n", reasons


def _region(number: int, program: Program, lines: Lines) -> Iterator[str]:
    """The function of a compiled program."""
    names: dict[int, Name] = {}

    def named(value: Value) -> Argument:
        if isinstance(value, Tensor):
            return names.get(value.id, value)  # one of no call can't be written
        if isinstance(value, list):
            return [named(item) for item in value]
        return value

    def new(value: Value) -> Result:
        if isinstance(value, Tensor):
            return names.setdefault(value.id, Name(f"t{len(names)}"))
        return [new(item) for item in value] if isinstance(value, list) else None

    given = [new(tensor) for tensor in tensors_in(list(program.given))]
    calls = []
    for place, op in enumerate(program.ops):
        args, kwargs = tuple(map(named, op.args)), {key: named(value) for key, value in op.kwargs.items()}
        before = set(names)
        made = tuple(new(value) for value in op.outputs)
        fresh = {names[tensor.id]: tensor for tensor in op.produced if tensor.id not in before}
        results = tuple(_fresh(result, fresh) for result in made)
        calls.append(PlanCall(place, op.name, op.overload, args=args, kwargs=kwargs, results=results, made=fresh))
    returned = literal([named(value) for value in program.returned])
    last = {name: place for place, call in enumerate(calls) for name in (*call.variables, *call.new)}
    ended: dict[int, list[Name]] = {}
    for name, place in last.items():
        if name not in given and name not in returned.strip("[]").split(", "):
            ended.setdefault(place, []).append(name)
    written: list[str] = []
    for place, call in enumerate(calls):
        written += lines.call(call)
        if place in lines.stand_ins:
            raise NotWritableError(f"{safe_name(call.name)}, {lines.stand_ins.pop(place)}")
        if place in ended:
            written.append(f"del {', '.join(ended[place])}")
    yield from _wrapped(f"def region_{int(number)}(", [str(name) for name in given], "):")
    yield from (f"    {line}" for line in [*written, f"return {returned}"])


def _fresh(result: Result, made: Mapping[Name, Tensor]) -> Result:
    """The result without variables that there were before: those of arguments that were changed in place."""
    if isinstance(result, list):
        return [_fresh(item, made) for item in result]
    return result if result in made else None


def _imports(module: str, names: Iterable[str]) -> list[str]:
    return [f"from {module} import {', '.join(sorted(names))}"] if names else []


def _devices(devices: Iterable[str]) -> list[str]:
    return [f'{device_name(text)} = device("{text}")' for text in sorted(devices)]


def _function(section: Section, lines: Lines, last: bool, tail_us: float) -> Iterator[str]:
    yield from _wrapped(f"def {section.name}(", ["live", *section.inputs], "):")
    inner: list[str] = []
    if section.incoming:
        inner += [*_wrapped("[", section.incoming, "] = live"), "live.clear()"]
    for call, frees in zip(section.calls, section.frees):
        inner += lines.of(call, frees)
    if last:
        inner += lines.end(tail_us)
    if section.outgoing:
        inner += _wrapped("live += [", section.outgoing, "]")
    yield from (f"    {line}" for line in inner or ["pass"])


def _step(made: Sequence[Section], plan: Plan) -> Iterator[str]:
    yield from _wrapped("def step(", [entry.name for entry in plan.inputs], "):")
    yield '    """The whole step. Returns what outlives it."""'
    yield "    live = []"
    yield "    begin()"
    for section in made:
        yield from (f"    {line}" for line in _wrapped(f"{section.name}(", ["live", *section.inputs], ")"))
    yield "    return live"


def _wrapped(begin: str, names: Sequence[str], end: str) -> list[str]:
    """Names between brackets, wrapped to the line length."""
    text = f"{begin}{', '.join(names)}{end}"
    if len(text) <= WIDTH - 8:
        return [text]
    inside = textwrap.wrap(f"{', '.join(names)},", WIDTH - 12)
    return [begin, *(f"    {line}" for line in inside), end]


def _inputs(plan: Plan) -> str:
    on_memory = Counter(entry.memory.name for entry in plan.inputs if entry.memory is not None)
    lines: list[str] = []
    made: set[Name] = set()
    harness_functions: set[str] = set()
    devices: set[str] = set()
    for entry in plan.inputs:
        for line in _input(entry, on_memory, made):
            lines.append(line)
            harness_functions.add(line.partition(" = ")[2].partition("(")[0])
        devices.add(entry.tensor.device or "cpu")
    kinds = {entry.content.kind for entry in plan.inputs if not entry.parts}
    kinds |= {content.kind for content in plan.received.values()}
    if plan.received:
        lines += ["", "# What other ranks would send, where one runs alone: by the number of the receiving call."]
        brought = (f"{int(number)}: {content_text(content)}" for number, content in plan.received.items())
        lines += _wrapped("received = {", list(brought), "}")
    head = [
        '"""Tensors that exist before the step, as descriptions without data. Edit sizes and contents as you like."""',
        "",
        "from math import inf, nan  # noqa: F401",
        "",
        "import torch",
        *_imports("harness.host", ["device"]),
        *_imports("harness.inputs", kinds | harness_functions),
        "",
        *_devices(devices),
        "",
    ]
    return "\n".join([*head, *lines]) + "\n"


def _input(entry: Input, on_memory: dict[Name, int], made: set[Name]) -> Iterator[str]:
    tensor = entry.tensor
    where = device_name(tensor.device or "cpu")
    describe(tensor)  # raises for a dtype that does not exist
    dtype, shape = f"torch.{tensor.dtype}", _numbers(tensor.shape)
    if tensor.layout not in LAYOUTS:
        raise NotWritableError(f"a layout {tensor.layout!r}")
    if tensor.layout != "strided":
        indices, values = entry.parts if len(entry.parts) == 2 else ("None", "None")
        yield f"{entry.name} = sparse({indices}, {values}, {shape}, {dtype}, {where})"
        return
    content = content_text(entry.content)
    memory = entry.memory
    assert memory is not None
    dense = tensor.offset == 0 and tensor.stride in (None, contiguous_strides(tensor.shape))
    if on_memory[memory.name] == 1 and dense and memory.nbytes == tensor.nbytes:
        yield f"{entry.name} = tensor({shape}, {dtype}, {where}, {content})"
        return
    if memory.name not in made:
        made.add(memory.name)
        yield f"{memory.name} = memory({literal(int(memory.nbytes))}, {where})"
    stride = _numbers(tensor.stride or contiguous_strides(tensor.shape))
    yield f"{entry.name} = view({memory.name}, {shape}, {stride}, {literal(int(tensor.offset))}, {dtype}, {content})"


def _numbers(numbers: Iterable[int]) -> str:
    return literal([int(number) for number in numbers])


def content_text(content: Content) -> str:
    """A content as a call of the harness.

    >>> content_text(Content("normal", {"mean": 0.0, "std": 0.125}))
    'normal(mean=0.0, std=0.125)'
    """
    needed, more, _ = CONTENT_KINDS.get(content.kind, ((), (), None))
    if content.kind not in CONTENT_KINDS or not set(content.facts) <= {*needed, *more}:
        raise NotWritableError(f"a content {content.kind!r}")
    facts = (f"{name}={literal(value)}" for name, value in content.facts.items())  # type: ignore[arg-type]
    return f"{content.kind}({', '.join(facts)})"


MAX_SECTIONS = 64
"""A step that changes its phase more often is written as one function."""


@dataclass
class Section:
    """Consecutive calls of one phase; variables come in from the sections before, and go out to those after."""

    name: str
    calls: list[PlanCall]
    inputs: list[Name] = field(default_factory=list)
    incoming: list[Name] = field(default_factory=list)
    outgoing: list[Name] = field(default_factory=list)
    frees: list[list[Name]] = field(default_factory=list)
    """Variables to delete before each call."""


def sections(plan: Plan) -> list[Section]:
    """The sections of a plan, in order.

    >>> relu = PlanCall(0, "aten::relu", args=(Name("t0"),), results=(Name("t1"),), phase="forward")
    >>> grad = PlanCall(1, "aten::mul", args=(Name("t1"),), results=(Name("t2"),), phase="backward")
    >>> [(s.name, s.incoming, s.outgoing) for s in sections(Plan([], [], [relu, grad]))]
    [('forward', [], ['t1']), ('backward', ['t1'], ['t1', 't2'])]
    """
    made = [Section(phase, list(calls)) for phase, calls in groupby(plan.calls, key=lambda call: call.phase)]
    if len(made) > MAX_SECTIONS:
        made = [Section("whole", list(plan.calls))]
    seen: Counter[str] = Counter()
    for section in made:
        seen[section.name] += 1
        if seen[section.name] > 1:
            section.name = f"{section.name}_{seen[section.name]}"
    _pass_variables(made, plan)
    return made


def _pass_variables(made: Sequence[Section], plan: Plan) -> None:
    given = {entry.name for entry in plan.inputs}
    last_read: dict[Name, int] = {}
    for number, section in enumerate(made):
        for call in section.calls:
            last_read.update(dict.fromkeys(call.variables, number))
    alive: list[Name] = []
    storage: dict[Name, int] = {}
    for number, section in enumerate(made):
        section.incoming = list(alive)
        scope = dict.fromkeys(alive)
        inputs: dict[Name, None] = {}
        for call in section.calls:
            ended = [name for name in call.frees if name in scope]
            section.frees.append(ended)
            for name in (*ended, *(name for name in call.ends if name in scope)):
                del scope[name]
            inputs.update(dict.fromkeys(name for name in call.variables if name in given))
            scope.update(dict.fromkeys(call.new))
            storage.update({name: tensor.storage for name, tensor in call.made.items()})
        section.inputs = list(inputs)
        alive = section.outgoing = _live_after(
            list(scope), storage, plan.before, {n for n, s in last_read.items() if s > number}
        )


def _live_after(scope: list[Name], storage: dict[Name, int], lasting: set[int], read_later: set[Name]) -> list[Name]:
    """Variables that outlive a section: those read later, and one on each storage that outlives the step."""
    live = [name for name in scope if name in read_later]
    held = {storage[name] for name in live if storage.get(name, -1) >= 0} | lasting
    for name in scope:
        number = storage.get(name, -1)
        if name not in read_later and (number < 0 or number not in held):
            live.append(name)
            held.add(number)
    return sorted(live, key=scope.index)
