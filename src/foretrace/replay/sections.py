"""A step in functions, one a phase, and what goes from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from foretrace.replay.literals import Name
from foretrace.replay.plan import Call, Plan

MOST_SECTIONS = 64
"""A step that changes its phase more often than that is one function."""


@dataclass
class Section:
    """Calls in a row of one phase. ``taken`` comes from the sections before, ``left`` goes to those after."""

    name: str
    calls: list[Call]
    inputs: list[Name] = field(default_factory=list)
    taken: list[Name] = field(default_factory=list)
    left: list[Name] = field(default_factory=list)
    frees: list[list[Name]] = field(default_factory=list)
    """What ends before each call, of what is still there."""


def sections(plan: Plan) -> list[Section]:
    """The sections of a plan, in order.

    >>> relu = Call(0, "aten::relu", args=(Name("t0"),), results=(Name("t1"),), phase="forward")
    >>> grad = Call(1, "aten::mul", args=(Name("t1"),), results=(Name("t2"),), phase="backward")
    >>> [(s.name, s.taken, s.left) for s in sections(Plan([], [], [relu, grad]))]
    [('forward', [], ['t1']), ('backward', ['t1'], ['t1', 't2'])]
    """
    made = [Section(phase, list(calls)) for phase, calls in groupby(plan.calls, key=lambda call: call.phase)]
    if len(made) > MOST_SECTIONS:
        made = [Section("whole", list(plan.calls))]
    _name(made)
    _hand_over(made, plan)
    return made


def _name(made: Sequence[Section]) -> None:
    """Second sections of the same phase get a number."""
    seen: dict[str, int] = {}
    for section in made:
        seen[section.name] = seen.get(section.name, 0) + 1
        if seen[section.name] > 1:
            section.name = f"{section.name}_{seen[section.name]}"


def _hand_over(made: Sequence[Section], plan: Plan) -> None:
    given = {entry.name for entry in plan.inputs}
    last_read: dict[Name, int] = {}
    for number, section in enumerate(made):
        for call in section.calls:
            last_read.update(dict.fromkeys(call.variables, number))
    alive: list[Name] = []
    storage: dict[Name, int] = {}
    for number, section in enumerate(made):
        section.taken = list(alive)
        scope = dict.fromkeys(alive)
        inputs: dict[Name, None] = {}
        for call in section.calls:
            ended = [name for name in call.frees if name in scope]
            section.frees.append(ended)
            for name in ended:
                del scope[name]
            inputs.update(dict.fromkeys(name for name in call.variables if name in given))
            scope.update(dict.fromkeys(call.new))
            storage.update({name: tensor.storage for name, tensor in call.made.items()})
        section.inputs = list(inputs)
        alive = section.left = _kept(list(scope), storage, plan.before, {n for n, s in last_read.items() if s > number})


def _kept(scope: list[Name], storage: dict[Name, int], lasting: set[int], read_later: set[Name]) -> list[Name]:
    """What must outlive a section: what is read later, and one variable on each storage that the step leaves behind."""
    kept = [name for name in scope if name in read_later]
    held = {storage[name] for name in kept if storage.get(name, -1) >= 0} | lasting
    for name in scope:
        number = storage.get(name, -1)
        if name not in read_later and (number < 0 or number not in held):
            kept.append(name)
            held.add(number)
    return sorted(kept, key=scope.index)
