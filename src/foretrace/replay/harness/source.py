"""The source of the step: translated to the device, with lines that fail replaced by stand-ins."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from . import translations
from .collectives import adapted, emulate, received
from .files import MACHINE_ERRORS, WRITE_AGAIN, BenchmarkError, line_of, read_text, short_path, summarize_error
from .host import declared_bytes, runtime, stand_in
from .memory import SPARE_BYTES, BoundedStorages, is_out_of_memory, memory_limit
from .ranks import gather_from_ranks, rank_state

CALL = re.compile(r"^(?P<space>\s*)(?P<left>[\w\[\], ]+ = )?(?P<call>\w[\w.]*\(.*\))  # (?P<number>\d+)\b.*$")
PACE = re.compile(r"^\s*(begin|pace|resume)\(.*\)$")
COLLECTIVE = re.compile(r"(?P<name>(?:c10d|_c10d_functional)\.\w+)\.\w+\((?P<rest>.*)")
MAX_FAILURES = 1000


@dataclass
class Failure:
    """A call that failed, as written in ``step.py``, and its error."""

    number: int
    call: str
    error: str


class Source:
    """The text of ``step.py`` and its function `step`, for a kind of device."""

    def __init__(self, path: Path, kind: str) -> None:
        self.failures: list[Failure] = []
        self.translated: dict[int, str] = {}
        """By number of a call that this kind of device has no operator for, what replaces it."""
        self.collectives_via = "emulate"
        """Name of the function that collectives are called through; empty where they are called as written."""
        self._path = str(path)
        self._lines = [self._on(line, kind) for line in read_text(path).splitlines()]
        self.step: Callable[..., Any] = self._compiled(self._lines)

    def unpaced(self) -> Callable[..., Any]:
        """The function `step` without the lines that pace the host."""
        return self._compiled("" if PACE.match(line) else line for line in self._lines)

    def clocked(self, clock: Callable[[int], None]) -> Callable[..., Any]:
        """The source of the step that calls ``clock`` with the number of each call right before the call."""
        return self._compiled(chain.from_iterable(map(_clocked, self._lines)), clock=clock)

    @property
    def stand_ins(self) -> list[int]:
        """Numbers of the calls that were written as stand-ins."""
        failed = {failure.number for failure in self.failures}
        found = (CALL.match(line) for line in self._lines)
        numbers = (int(m["number"]) for m in found if m and m["call"].startswith("stand_in("))
        return [number for number in numbers if number not in failed]

    @property
    def numbers(self) -> list[int]:
        """Numbers of all its calls."""
        return [int(found["number"]) for line in self._lines if (found := CALL.match(line))]

    def _on(self, line: str, kind: str) -> str:
        found, other = CALL.match(line), translated(line, kind)
        if found and other != line:
            self.translated[int(found["number"])] = (
                "translations." + other.partition("translations.")[2].partition("(")[0]
            )
        return other

    def make_runnable(self, inputs: Sequence[torch.Tensor], peak: int | None = None, kind: str = "cpu") -> None:
        """Run the step, replacing lines that fail, until none does; a line that takes more than the recorded peak does.

        ``peak`` is in bytes, None for no limit; ``kind`` is that of the device that it runs on.
        """
        if peak is None:
            self._run_until_clean(inputs, nullcontext)
            return
        seen = partial(BoundedStorages, peak + SPARE_BYTES, self._declared, inputs)
        with memory_limit(peak, kind) as is_held:
            if is_held and self._run_until_clean(
                inputs, partial(seen, "cpu") if kind == "cuda" else nullcontext, is_out_of_memory
            ):
                return
        # Some call takes more than the recording says. Finding it costs seconds: PyTorch loads its compiler.
        self._run_until_clean(inputs, seen)

    def _run_until_clean(
        self,
        inputs: Sequence[torch.Tensor],
        inside: Callable[[], AbstractContextManager[Any]],
        gives_up: Callable[[Exception], bool] = lambda error: False,
    ) -> bool:
        """Run the step in a context until no line fails; False where an error makes it give up."""
        while True:
            try:
                with inside():
                    self.step(*inputs)
                return True
            except Exception as error:
                if gives_up(error):
                    return False
                if not self._replace_failing_line(error):
                    raise

    def _declared(self) -> int:
        """Bytes that the line being executed makes according to the recording."""
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename != self._path:
            frame = frame.f_back
        inside = frame.f_code.co_filename == self._path
        found = CALL.match(self._lines[frame.f_lineno - 1]) if inside else None
        return declared_bytes(int(found["number"])) if found else 0

    def make_runnable_on_all_ranks(self, inputs: Sequence[torch.Tensor]) -> None:
        """Run the step with the other ranks, replacing lines that fail, until none does on any rank."""
        lacks_ranks = any(len(group["ranks"]) < group["of"] for group in rank_state.members.values())
        self.collectives_via = "adapted" if lacks_ranks or runtime.delayed else ""
        self.step = self._compiled(self._lines)
        failed = True
        while failed:
            failed = False
            try:
                self.step(*inputs)
            except Exception as error:
                failed = self._replace_failing_line(error)
                if not failed:
                    raise
            failed = any(gather_from_ranks(failed))

    def _replace_failing_line(self, error: Exception) -> bool:
        """Put a stand-in on the line of an error; False where that is no call, or the call is not to blame."""
        line = line_of(error, self._path)
        found = CALL.match(self._lines[line - 1]) if line else None
        if not found or found["call"].startswith("stand_in(") or any(text in str(error) for text in MACHINE_ERRORS):
            return False
        if isinstance(error, (torch.cuda.OutOfMemoryError, NameError)) or len(self.failures) >= MAX_FAILURES:
            return False  # NameError: a line was removed
        number = int(found["number"])
        if copy := translations.reshape_for_view(found["call"], str(error)):
            self._lines[line - 1] = self._lines[line - 1].replace(found["call"], copy, 1)
            self.translated[number] = copy.partition("(")[0]
        else:
            self.failures.append(Failure(number, found["call"], summarize_error(error)))
            self._lines[line - 1] = f"{found['space']}{found['left'] or ''}stand_in({number})  # {number}"
        self.step = self._compiled(self._lines)
        return True

    def _compiled(self, lines: Iterable[str], **more: Any) -> Callable[..., Any]:
        text = "\n".join((_via(self.collectives_via, line) for line in lines) if self.collectives_via else lines) + "\n"
        names: dict[str, Any] = {"__name__": "step", "__file__": self._path, "stand_in": stand_in}
        names |= {"emulate": emulate, "adapted": adapted, **more}
        names["translations"] = translations
        exec(compile(text, self._path, "exec"), names)
        linecache.cache[self._path] = (len(text), None, text.splitlines(keepends=True), self._path)
        if not callable(names.get("step")):
            raise BenchmarkError(
                f"{short_path(Path(self._path))} has no function step; name it so again, or {WRITE_AGAIN}"
            )
        return names["step"]  # type: ignore[no-any-return]


def translated(line: str, kind: str) -> str:
    """The line, with a call that a kind of device has no operator for replaced.

    >>> translated("    t1 = aten.cudnn_batch_norm.default(t0)  # 3", "cpu")
    '    t1 = translations.batch_norm(t0)  # 3'
    """
    found = CALL.match(line)
    other = translations.translate_call(found["call"], kind) if found else None
    return line.replace(found["call"], other, 1) if found and other else line


def _clocked(line: str) -> list[str]:
    """The line, preceded by one that reports its call to ``clock``; lines that pace the host are dropped.

    >>> _clocked("    t1 = aten.relu.default(t0)  # 3  float32[8]")
    ['    clock(3)', '    t1 = aten.relu.default(t0)  # 3  float32[8]']
    """
    found = CALL.match(line)
    before = [f"{found['space']}clock({found['number']})"] if found else []
    return [] if PACE.match(line) else [*before, line]


def _via(function: str, line: str) -> str:
    """The line, with a collective called through a function.

    >>> _via("emulate", "    _, w0 = c10d.allreduce_.default([t1], group_0, reduce_sum, None)  # 7")
    "    _, w0 = emulate(7, 'c10d.allreduce_', [t1], group_0, reduce_sum, None)  # 7"
    """
    found = CALL.match(line)
    collective = COLLECTIVE.match(found["call"]) if found else None
    if not found or not collective:
        return line
    left = f"{found['space']}{found['left'] or ''}"
    return f"{left}{function}({found['number']}, {collective['name']!r}, {collective['rest']}  # {found['number']}"


def read_inputs(path: Path) -> dict[str, torch.Tensor]:
    """The tensors that ``inputs.py`` makes, by name; what other ranks send is stored for `emulate`."""
    names: dict[str, Any] = {"__name__": "inputs", "__file__": str(path)}
    exec(compile(read_text(path), str(path), "exec"), names)
    received.clear()
    received.update(names.get("received", {}))
    return {name: value for name, value in names.items() if re.fullmatch(r"t\d+", name)}


def arguments(step: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The inputs in the order of the step's parameters."""
    names = step.__code__.co_varnames[: step.__code__.co_argcount]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise BenchmarkError(f"inputs.py makes no {', '.join(missing)}, which step.py asks for; {WRITE_AGAIN}")
    return [inputs[name] for name in names]
