"""What a sketch assumes where a step reads a value that is unknown, and the line of the script that reads it.

A read that only logs changes nothing. One that steers Python (a flag, an integer, a number that is compared) may lead
to another step than the one that would run, and one while the model is built to another model: headlines say those.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from foretrace.errors import ForetraceError
from foretrace.record.guard.side_effects import INSTALLED, OURS, script_line
from foretrace.record.sketch.shares import EVERY_MASK, EVERY_NUMBER, SHARE, SHARES, THIS_SHARE, UNFOLLOWED, VARIABLE
from foretrace.record.sketch.values import (
    ALIKE,
    CHANCE,
    CHECKED,
    COUNTED,
    DRAWN,
    EVEN,
    FINITE,
    LONGEST,
    RANKED,
    SHUFFLED,
)

TORCHS = str(Path(str(torch.__file__)).parent) + os.sep
DISPATCH = tuple(
    f"{TORCHS}{name}"
    for name in ("_compile.py", "_dynamo", "_ops.py", "_subclasses", "_tensor.py", "overrides.py", f"utils{os.sep}_")
)
"""Where calls pass through on their way to a sketch; no code that reads values."""
SCALING = f"{TORCHS}optim{os.sep}_adafactor.py"
"""It compares norms to bound by how much it scales an update, which changes no call."""
DATA = f"{TORCHS}utils{os.sep}data{os.sep}"
"""Loaders read random seeds and permutations, which change no shape."""
MAX_READS = 10_000
"""Times that one line may read assumed values in a step, with other calls in between, before it is an endless loop."""
MAX_CALLS = 1_000_000
"""The same of calls in a step, once a line has read `MANY_READS` times."""
MANY_READS = 200
MAX_PLACES = 4
"""Lines that a note names, before the rest are counted."""
FLAG, INTEGER = "False for a flag", "1 for an integer, perhaps a size"
NUMBER, COMPARED = "1 for a number", "1 for a number that is compared"
ARRAY = "1 for each number of an array, which may decide something"
PASSED = "PyTorch's own checks of values pass"
VALUE = r"-?\d*\.?\d+(?:e-?\d+)?"
SETTING = rf"({EVERY_MASK}|{EVERY_NUMBER}|.+:\d+)=(?:([1-9]\d*)x)?({VALUE})(?:/({VALUE}))?"
"""A place and its value; of a loop, how often it is read there, and the value that ends the loop."""
SPECIFIED = f"what {VARIABLE} says"
STEERING = (FLAG, INTEGER, COMPARED, ARRAY, CHECKED, RANKED, CHANCE, *SHARES)
"""What may lead to another step than the one that would run."""
BUILDING, WARM_UP, STEP = "building", "warm-up", "step"


class Assumptions:
    """Values that were assumed, with the lines that read them.

    >>> assumptions = Assumptions()
    >>> assumptions.start(STEP)
    >>> assumptions.unknown(torch.float32, calls=1), assumptions.unknown(torch.bool, calls=2)
    (1.0, False)
    >>> [note.partition(" (")[0] for note in assumptions.notes()]
    ['assumed in the step, and decisive: False for a flag', '1 value read on the host']
    """

    def __init__(self) -> None:
        self._stage = BUILDING
        self._found: dict[tuple[str, str], dict[str, int]] = {}
        self._reads: dict[str, int] = {}
        self._begun = self._last = 0
        self._settings = settings_of(os.environ.get(VARIABLE, ""))
        self._shared = ""
        """The first line of the stage of which a share was assumed."""
        self.numbers = 0
        """How many numbers were assumed so far."""
        self.number = self._settings.get(EVERY_NUMBER)
        """What numbers are assumed to be that no line is specified for; None for 1, and for draws."""

    def start(self, stage: str, calls: int = 0) -> None:
        """A stage begins: building, warm-up or the step itself, after so many calls."""
        self._stage, self._reads, self._shared = stage, {}, ""
        self._begun = self._last = calls

    @property
    def in_step(self) -> bool:
        """Whether the step itself is sketched, and not its warm-up."""
        return self._stage == STEP

    def unknown(self, dtype: torch.dtype, calls: int, number: str = NUMBER) -> bool | int | float:
        """What is assumed for a value that is read: False for a flag, otherwise 1."""
        reader, line = _reader()
        self._bound(line, calls)
        if (said := self._settings.get(line.partition(" ")[0])) is not None:
            self._note(SPECIFIED, line)
            said = said.read() if isinstance(said, Repeated) else said
            return said if dtype.is_floating_point else said != 0 if dtype == torch.bool else int(said)
        if dtype.is_floating_point or dtype.is_complex:
            self.numbers += 1
            self._note(number, line)
            return 1.0 if self.number is None else self.number
        if not reader.startswith(DATA):
            self._note(FLAG if dtype == torch.bool else INTEGER, line)
        return False if dtype == torch.bool else 1

    def share(self, what: str) -> tuple[float, str]:
        """The share of elements that is assumed where values are unknown, and what that rests on."""
        line = _reader()[1].partition(" ")[0]
        said = self._settings.get(line, self._settings.get(EVERY_MASK))
        if said is not None:
            return min(1.0, max(0.0, said)), SPECIFIED
        self._shared = self._shared or line
        return SHARE, what

    def known(self, assumed: frozenset[str], calls: int) -> None:
        """A value is read that rests on assumptions."""
        if assumed == {SHUFFLED}:
            return
        reader, line = _reader()
        self._bound(line, calls)
        for why in assumed:
            # PyTorch's own checks end in an error where they fail; others may choose another way.
            self._note(PASSED if why == CHECKED and reader.startswith(TORCHS) else why, line)

    def tracked(self, value: float) -> float:
        """The number that a step gets: it tells where it decides something."""
        return AssumedFloat.made(value, self._decides, self.unfollowed)

    def unfollowed(self) -> None:
        """An assumed number becomes a plain one, unless it is only printed, collected or added up."""
        for frame in _frames():
            name = frame.f_code.co_filename
            if not name.startswith(("<", OURS, TORCHS)):
                if not _is_logged(name, frame.f_lineno):
                    self._note(UNFOLLOWED, _reader()[1])
                return

    def notes(self) -> list[str]:
        """What to tell the reader."""
        built = self._read_at(BUILDING, *STEERING, NUMBER)
        notes = [f"assumed while the model was built: {_listed(built)}"] if built else []
        if decisive := self._read_at(STEP, *STEERING):
            shared = self._shared and not decisive.keys().isdisjoint(SHARES)
            way_out = f"; {THIS_SHARE}: {VARIABLE}={self._shared}=0.1 sets another" if shared else ""
            notes.append(f"assumed in the step, and decisive: {_listed(decisive)}{way_out}")
        for lines in self._read_at(STEP, NUMBER).values():
            count = sum(lines.values())
            read = "value read on the host (.item()) was" if count == 1 else "values read on the host (.item()) were"
            notes.append(f"{count:,} {read} assumed to be 1{_places(lines)}")
        if lost := self._read_at(STEP, UNFOLLOWED):
            notes.append(_listed(lost))
        usual = {
            **self._read_at(BUILDING, DRAWN, SPECIFIED),
            **self._read_at(STEP, FINITE, PASSED, DRAWN, ALIKE, LONGEST, EVEN, COUNTED, SPECIFIED),
        }
        return [*notes, f"assumed: {_listed(usual)}"] if usual else notes

    def steered(self) -> str:
        """What was assumed so far, in whatever stage, that may have led astray."""
        found: dict[str, dict[str, int]] = {}
        for (_, what), lines in self._found.items():
            if what in STEERING:
                found[what] = {**found.get(what, {}), **lines}
        return _listed(found)

    def _read_at(self, stage: str, *kinds: str) -> dict[str, dict[str, int]]:
        """The lines that read values of some kinds; of those while building, the ones that the step does not repeat.

        A step function that builds nothing is called twice, and its first call takes the place of building.
        """
        found = {}
        for what in kinds:
            again = self._found.get((STEP, what), {}) if stage == BUILDING else {}
            lines = self._found.get((stage, what), {})
            found[what] = {line: count for line, count in lines.items() if line not in again}
        return {what: lines for what, lines in found.items() if lines}

    def _decides(self) -> None:
        reader, line = _reader()
        if reader != SCALING:
            self._note(COMPARED, line)

    def _note(self, what: str, line: str) -> None:
        lines = self._found.setdefault((self._stage, what), {})
        lines[line] = lines.get(line, 0) + 1

    def _bound(self, line: str, calls: int) -> None:
        """Refuse a loop that waits for a value which never comes."""
        if calls <= self._last + 1:  # the elements of one tensor
            self._last = calls
            return
        self._last = calls
        reads = self._reads[line] = self._reads.get(line, 0) + 1
        if reads > MAX_READS or (reads > MANY_READS and calls - self._begun > MAX_CALLS):
            raise ForetraceError(
                f"the step does not end: {line or 'a library'} has read a value {reads:,} times that is unknown in a "
                "sketch, and was assumed",
                f"Say how often it goes round, as in {VARIABLE}={line.partition(' ')[0] or 'train.py:12'}=20x1/0: 1 is "
                "read 20 times, and then 0. Or bound the loop by a number that the script knows, or record a real run.",
            )


@cache
def _is_logged(file: str, line: int) -> bool:
    """Whether the innermost statement on a line only calls something, as print or append, or adds to a sum."""
    try:
        nodes = ast.walk(ast.parse("".join(linecache.getlines(file))))
    except (SyntaxError, ValueError, RecursionError):
        return False
    spans = [n for n in nodes if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    return isinstance(max(spans, key=lambda node: node.lineno, default=None), (ast.Expr, ast.AugAssign))


class Repeated(float):
    """A value that is read a number of times, and then the one that ends the loop which waits for it.

    >>> flag = Repeated(1.0, 2, 0.0)
    >>> [flag.read() for _ in range(4)]
    [1.0, 1.0, 0.0, 1.0]
    """

    _times: int
    _end: float
    _reads: int

    def __new__(cls, value: float, times: int, end: float) -> Repeated:
        """The value, how often it is read, and what is read then."""
        made = super().__new__(cls, value)
        made._times, made._end, made._reads = times, end, 0
        return made

    def read(self) -> float:
        """What is read next."""
        self._reads = (self._reads + 1) % (self._times + 1)
        return float(self) if self._reads else self._end


def settings_of(variable: str) -> dict[str, float]:
    """What the variable says: by line, the value that is read there, or the share that a mask passes.

    >>> settings_of("train.py:12=0.1, mask=0.3")
    {'train.py:12': 0.1, 'mask': 0.3}
    """
    found: dict[str, float] = {}
    for part in filter(None, map(str.strip, variable.split(","))):
        if not (match := re.fullmatch(SETTING, part)) or (match[4] and not match[2]):
            raise ForetraceError(
                f"{VARIABLE} has {part!r}, which is no line and its value",
                f"Write lines of the script, and the share for all other masks: {VARIABLE}=train.py:12=0.1,mask=0.3",
            )
        place, times, value, end = match.groups()
        last = float(end) if end else float(not float(value))
        found[place] = Repeated(float(value), int(times), last) if times else float(value)
    return found


def _listed(found: dict[str, dict[str, int]]) -> str:
    return "; ".join(f"{what}{_places(lines)}" for what, lines in found.items())


def _places(lines: dict[str, int]) -> str:
    """The lines that read values, most of them in brackets.

    >>> _places({"a.py:3": 1, "a.py:5": 2}), _places({"": 1})
    (' (a.py:3, a.py:5 2 times)', '')
    """
    shown = [f"{line}{f' {count:,} times' if count > 1 else ''}" for line, count in lines.items() if line]
    more = len(shown) - MAX_PLACES
    shown = [*shown[:MAX_PLACES], f"and {more} more lines"] if more > 0 else shown
    return f" ({', '.join(shown)})" if shown else ""


def _reader() -> tuple[str, str]:
    """The file of the code that reads a value, and its line: the user's, and where a library reads also the library's.

    As ``train.py:12``, or ``train.py:12 through timm/layers/drop.py:80``.
    """
    for frame in _frames():
        name = frame.f_code.co_filename
        if name.startswith(("<", OURS, *DISPATCH)):
            continue
        line = script_line()
        library = next((name.rpartition(part)[2] for part in INSTALLED if part in name), "")
        if library and not name.startswith(TORCHS):
            return name, f"{line}{' through ' if line else ''}{library}:{frame.f_lineno}"
        return name, line
    return "", script_line()


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


class AssumedFloat(float):
    """A number that was assumed, and so are those computed from it; it tells where it decides something.

    >>> decided = []
    >>> half = AssumedFloat.made(1.0, lambda: decided.append("here")) / 2
    >>> f"{half:.2f}", decided, half < 3, decided
    ('0.50', ['here'], True, ['here'])
    """

    _decides: Callable[[], None]
    _leaves: Callable[[], None]

    @classmethod
    def made(cls, value: float, decides: Callable[[], None], leaves: Callable[[], None] = lambda: None) -> AssumedFloat:
        """The number, what it calls where it decides something, and where it becomes a number that does not."""
        made = cls(value)
        made._decides, made._leaves = decides, leaves
        return made

    def like(self, value: Any) -> Any:
        """What was computed from it: a number is as assumed as it is, and an integer may be a size."""
        if type(value) is int:
            self._decides()
        return AssumedFloat.made(value, self._decides, self._leaves) if isinstance(value, float) else value

    def __float__(self) -> float:
        self._leaves()
        return float.__add__(self, 0.0)

    def __round__(self, digits: Any = None) -> Any:
        if digits is None:
            self._decides()
        return float.__round__(self, digits)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """What NumPy computes of it."""
        plain = [float.__add__(value, 0.0) if isinstance(value, AssumedFloat) else value for value in inputs]
        value = getattr(ufunc, method)(*plain, **options)
        if isinstance(value, np.bool_):
            self._decides()
        return self.like(value)

    def __reduce__(self) -> Any:
        """Copies are plain numbers."""
        return float, (float(self),)

    __hash__ = float.__hash__


def _arithmetic(name: str) -> Any:
    original = getattr(float, name)

    def call(self: AssumedFloat, *others: Any) -> Any:
        return self.like(original(self, *others))

    return call


def _decisive(name: str) -> Any:
    original = getattr(float, name)

    def call(self: AssumedFloat, *others: Any) -> Any:
        if not any(other is self or (isinstance(other, float) and not isfinite(other)) for other in others):
            self._decides()
        return original(self, *others)

    return call


def followed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `math` whose results are as assumed as what it is given."""

    def call(*args: Any) -> Any:
        args = tuple(arg.item() if isinstance(arg, torch.Tensor) else arg for arg in args)
        value = function(*args)
        given = next((arg for arg in args if isinstance(arg, AssumedFloat)), None)
        return value if given is None else given.like(value)

    return call


ARITHMETIC = "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs"
MATH = "sqrt exp expm1 log log2 log10 log1p pow sin cos tan tanh asin acos atan atan2 hypot fabs fmod floor ceil trunc"
"""Functions of `math` by which sizes are computed."""
for _name in ARITHMETIC.split():
    setattr(AssumedFloat, f"__{_name}__", _arithmetic(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "floor", "ceil", "trunc"):
    setattr(AssumedFloat, f"__{_name}__", _decisive(f"__{_name}__"))
