"""Choices of the user about a benchmark: which calls of the step it takes, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from foretrace.errors import suggestion
from foretrace.graph import PHASES, ForetraceError, Op
from foretrace.graph.op import COMPILED_PROGRAM
from foretrace.graph.operators import COLLECTIVE_CALLS, is_identifier

LOOKS_UP = ("embedding", "index_select", "lookup")
CALL_KINDS: dict[str, Callable[[Op], bool]] = {
    "communication": lambda op: op.name.startswith(COLLECTIVE_CALLS),
    "lookup": lambda op: any(part in op.name for part in LOOKS_UP),
    "compute": lambda op: not op.name.startswith(COLLECTIVE_CALLS),
}


@dataclass(frozen=True)
class Selection:
    """Part of a step. Ops are named like ``aten::mm``, ``mm``, or ``aten::_foreach*``.

    ``first`` and ``last`` may end in ``#N``: the N-th call of that name, counted from 0.
    """

    phase: str | None = None
    first: str | None = None
    last: str | None = None
    only: str | None = None
    without: tuple[str, ...] = ()
    module: str | None = None
    """A module and those inside it, forward and backward: ``Model.encoder``."""


def select(ops: Sequence[Op], selection: Selection) -> list[int]:
    """Positions of the selected ops.

    >>> step = [Op("aten::mm", phase="forward"), Op("aten::relu", phase="forward"), Op("aten::mm", phase="backward")]
    >>> select(step, Selection(phase="forward")), select(step, Selection(without=("relu",)))
    ([0, 1], [0, 2])
    >>> select(step, Selection(first="relu")), select(step, Selection(last="mm#0"))
    ([1, 2], [0])
    >>> select([Op("aten::mm", module="Net.up"), Op("aten::mm", module="Net.upper")], Selection(module="Net.up"))
    [0]
    """
    for pattern in selection.without:
        if not _rows(ops, pattern):
            raise _unknown(ops, pattern)
    begin = 0 if selection.first is None else _find(ops, selection.first, last=False)
    end = len(ops) - 1 if selection.last is None else _find(ops, selection.last, last=True)
    if selection.phase is not None and selection.phase not in PHASES:
        raise ForetraceError(f"there is no phase {selection.phase!r}", f"Phases are {', '.join(PHASES)}.")
    if selection.only is not None and selection.only not in CALL_KINDS:
        raise ForetraceError(f"there are no calls of kind {selection.only!r}", f"Kinds are {', '.join(CALL_KINDS)}.")
    if selection.module is not None and not any(_inside(op.module, selection.module) for op in ops):
        modules = {op.module for op in ops if op.module}
        advice = suggestion(selection.module, modules, "It has") if modules else "Its calls name no modules."
        raise ForetraceError(f"the step has no module {selection.module!r}", advice)
    wanted = CALL_KINDS[selection.only] if selection.only else lambda op: True
    taken = [
        row
        for row in range(begin, end + 1)
        if selection.phase in (None, ops[row].phase)
        and (selection.module is None or _inside(ops[row].module, selection.module))
        and wanted(ops[row])
        and not any(matches(ops[row].name, pattern) for pattern in selection.without)
    ]
    if not any(not ops[row].is_side_call or ops[row].name == COMPILED_PROGRAM for row in taken):
        raise ForetraceError("nothing is left of the step", "Choose another phase, other ops, or leave fewer out.")
    return taken


def _inside(module: str, outer: str) -> bool:
    return module == outer or module.startswith(f"{outer}.")


def matches(name: str, pattern: str) -> bool:
    """Whether the name of an op matches a pattern, with or without its namespace.

    >>> matches("aten::_foreach_add_", "_foreach*"), matches("aten::mm", "aten::mm"), matches("aten::addmm", "mm")
    (True, True, False)
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("::")[2], pattern)


def _find(ops: Sequence[Op], pattern: str, last: bool) -> int:
    name, hash_, number = pattern.partition("#")
    rows = _rows(ops, name)
    if not rows:
        raise _unknown(ops, name)
    if not hash_:
        return rows[-1] if last else rows[0]
    if number.isdecimal() and int(number) < len(rows):
        return rows[int(number)]
    calls = f"{len(rows)} calls, {name}#0 to {name}#{len(rows) - 1}" if len(rows) > 1 else f"one call, {name}#0"
    raise ForetraceError(f"the step has no call {pattern!r}", f"Of {name} it has {calls}.")


def _rows(ops: Sequence[Op], pattern: str) -> list[int]:
    return [row for row, op in enumerate(ops) if matches(op.name, pattern)]


def _unknown(ops: Sequence[Op], pattern: str) -> ForetraceError:
    """The error for a name that no op has, with similar names."""
    advice = suggestion(pattern, {op.name for op in ops}, "It has")
    return ForetraceError(f"the step has no call {pattern!r}", advice)


def packages(entries: Iterable[str]) -> dict[str, str]:
    """Custom namespaces of operators that the user allows, and the package that registers each, if any.

    >>> packages(["fbgemm=fbgemm_gpu", "mine"])
    {'fbgemm': 'fbgemm_gpu', 'mine': ''}
    """
    found = dict(entry.partition("=")[::2] for entry in entries)
    for namespace, package in found.items():
        if not is_identifier(namespace) or not all(is_identifier(part) for part in package.split(".") if package):
            raise ForetraceError(
                f"{namespace}{'=' if package else ''}{package} names no operators",
                "Give a namespace and the package that registers it: --ops fbgemm=fbgemm_gpu.",
            )
    return found


@dataclass(frozen=True)
class Choices:
    """Options of a benchmark: the part of the step that it takes, and how it is written."""

    selection: Selection = field(default_factory=Selection)
    packages: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of operators that may be called besides PyTorch's own, and the package that registers each, if any."""
    dtype: str | None = None
    """Floating-point dtype to run in; by default each tensor's own."""
    obfuscate: bool = False
    """Omit every name but those of operators."""
    ranks: int | None = None
    """Number of ranks of a job to take, from the first on; all by default."""
    batch: str | None = None
    """Batch size: 64, or 64/16 where the recorded 16 can't be found; as recorded by default."""
