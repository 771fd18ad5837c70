"""A step with another batch: its inputs get longer or shorter, and every call after them follows.

Shapes are carried through the calls on PyTorch's meta device, which computes nothing. Numbers among the arguments (the
sizes of a view, the end of a range) may hold the batch or not: each call first tries them as they are, and where a
later call can't go on, the latest call that could have read its numbers otherwise does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foretrace.graph import ForetraceError, Tensor
from foretrace.replay.allowed import target
from foretrace.replay.batch_inputs import Scale, batch_of, check_batch, choices_of, lengthened
from foretrace.replay.batch_numbers import readings
from foretrace.replay.literals import Name
from foretrace.replay.on_meta import called, on_meta, pairs
from foretrace.replay.plan import Argument, Call, Plan
from foretrace.replay.selection import COMMUNICATES
from foretrace.replay.sparse import JOINS, PARTS

MOST_TRIES = 500


def rebatched(plan: Plan, new: int, old: int | None = None) -> Plan:
    """The plan with another batch.

    Parameters
    ----------
    plan
        The plan of a whole step, or of a part of it.
    new
        Samples in the new batch.
    old
        Samples in the recorded one; found by the sizes of the inputs where it is left out.
    """
    scale = Scale(old or batch_of(plan), new)
    if scale.old == scale.new:
        return plan
    return _Carried(plan, scale).plan()


def with_batch(plan: Plan, text: str) -> Plan:
    """The plan with the batch that a text like 64, or 64/16 (instead of 16), names."""
    new, _, old = text.partition("/")
    numbers = [int(part) if part.isdecimal() and len(part) < 10 else 0 for part in (new, old or "1")]
    if not all(numbers) or text.endswith("/"):
        raise ForetraceError(f"{text!r} is no batch", "Write a number, like 64, or 64/16 for 64 instead of 16.")
    if old:
        check_batch(plan, numbers[1])
    return rebatched(plan, numbers[0], numbers[1] if old else None)


@dataclass
class _Step:
    """A call, the ways to read its numbers, and the one that is taken."""

    call: Call
    options: list[tuple[tuple[Argument, ...], dict[Name, Tensor]]] = field(default_factory=list)
    """Arguments that fit, and what is made of them."""
    first: int = 0
    """The first of them that is still to be tried."""
    taken: int = 0


class _Carried:
    """The search for shapes that fit all calls."""

    def __init__(self, plan: Plan, scale: Scale) -> None:
        self._plan, self._scale = plan, scale
        self._inputs = {entry.name: choices_of(entry, plan, scale) for entry in plan.inputs}
        self._chosen = dict.fromkeys(self._inputs, 0)
        self._shapes: dict[Name, Tensor] = {}
        self._recorded: dict[Name, Tensor] = {entry.name: entry.tensor for entry in plan.inputs}
        self._steps = [_Step(call) for call in plan.calls]
        self._parts: dict[Name, list[Name]] = {entry.name: list(entry.parts) for entry in plan.inputs if entry.parts}
        """Indices and values of each sparse tensor."""
        self._maker: dict[Name, int] = {}
        for number, call in enumerate(plan.calls):
            self._recorded.update(call.made)
            self._maker.update(dict.fromkeys(call.new, number))
            if call.name in JOINS:
                self._parts.update(dict.fromkeys(call.new, list(call.variables)[-2:]))
            elif call.made and all(tensor.layout != "strided" for tensor in call.made.values()):
                given = next((self._parts[name] for name in call.variables if name in self._parts), [])
                self._parts.update(dict.fromkeys(call.new, given))
        self._run()

    def _run(self) -> None:
        place, tries = 0, 0
        stuck: ForetraceError | None = None
        self._take_inputs()
        while place < len(self._steps):
            problem = self._carry(self._steps[place])
            if problem is None:
                place += 1
                continue
            tries += 1
            stuck = stuck or self._stuck(self._steps[place].call, problem)
            back = self._back(self._steps[place].call) if tries < MOST_TRIES else None
            if back is None:
                raise stuck
            for step in self._steps[back + 1 : place + 1]:
                step.first = 0
            place = max(back, 0)
        if all(self._shapes[entry.name] == entry.tensor for entry in self._plan.inputs):
            raise stuck or ForetraceError(f"no input of {self._plan.source} holds a batch of {self._scale.old}")

    def _stuck(self, call: Call, problem: str) -> ForetraceError:
        old, new = self._scale.old, self._scale.new
        return ForetraceError(
            f"a batch of {new} can't be carried through call {call.number}, {call.name} ({problem})",
            f"The batch was taken to be {old}; say another with --batch {new}/OLD.",
        )

    def _take_inputs(self) -> None:
        for name, options in self._inputs.items():
            self._shapes[name] = options[self._chosen[name]]

    def _back(self, call: Call) -> int | None:
        """Read the numbers of the latest call before this one otherwise, or take an input otherwise; where that was."""
        seen: set[Name] = set()
        waiting = list(call.variables)
        makers: set[int] = set()
        given: list[Name] = []
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self._maker:
                makers.add(self._maker[name])
                waiting += self._steps[self._maker[name]].call.variables
            elif name in self._inputs:
                given.append(name)
        for maker in sorted(makers, reverse=True):
            step = self._steps[maker]
            if step.taken + 1 < len(step.options):
                step.first = step.taken + 1
                return maker
        for name in given:
            if self._chosen[name] + 1 < len(self._inputs[name]):
                self._chosen[name] += 1
                self._take_inputs()
                for step in self._steps:
                    step.first = 0
                return -1
        return None

    def _carry(self, step: _Step) -> str | None:
        """Find the shapes of what a call makes; what is wrong where none fit."""
        if step.first == 0:
            problem = self._find(step)
            if problem is not None:
                return problem
        if step.first >= len(step.options):
            return "no other way to read its numbers"
        step.taken = step.first
        self._shapes.update(step.options[step.taken][1])
        return None

    def _find(self, step: _Step) -> str | None:
        """All ways to read the numbers of a call that fit; first those in which its results grow with its arguments."""
        ahead: list[tuple[tuple[Argument, ...], dict[Name, Tensor]]] = []
        behind: list[tuple[tuple[Argument, ...], dict[Name, Tensor]]] = []
        problem = ""
        for args in readings(step.call.args, self._scale):
            made = self._made(step.call, args)
            if isinstance(made, str):
                problem = problem or made
            else:
                (ahead if self._follows(step.call, made) else behind).append((args, made))
        step.options = ahead + behind
        return None if step.options else problem

    def _follows(self, call: Call, made: dict[Name, Tensor]) -> bool:
        """Whether a result that has the size of a grown argument has grown too."""
        grown = self._grown_sizes(call)
        alike = any(size in grown for tensor in call.made.values() for size in tensor.shape)
        return not alike or any(made[name].shape != tensor.shape for name, tensor in call.made.items())

    def _grown_sizes(self, call: Call) -> set[int]:
        """Recorded sizes of the arguments that are others now."""
        return {
            was
            for name in call.variables
            if name in self._recorded
            for was, now in zip(self._recorded[name].shape, self._shapes[name].shape)
            if was != now
        }

    def _made(self, call: Call, args: tuple[Argument, ...]) -> dict[Name, Tensor] | str:
        if call.is_side_call:
            return {}
        if call.name.startswith(COMMUNICATES):
            return self._exchanged(call, args)
        known = target(call.name, call.overload)
        there = all(self._shapes[name].layout == "strided" for name in call.variables if name in self._shapes)
        if known is None or not there or any(tensor.layout != "strided" for tensor in call.made.values()):
            return self._alike(call)
        try:
            results = self._results(call, known, args, self._shapes)
        except NotImplementedError:
            return self._alike(call)
        except Exception as error:
            if "meta tensors" in str(error):
                return self._alike(call)
            return str(error).strip().partition("\n")[0] or type(error).__name__
        made: dict[Name, Tensor] = {}
        for name, shape in results.items():
            was = call.made[name]
            if _fits(shape.shape, was.shape, self._scale):
                made[name] = replace(was, shape=shape.shape, stride=shape.stride)
            elif self._is_known(call, known, name):
                return f"it would make {shape.shape} of {was.shape}"
            else:  # the meta device makes something else than real ones do
                made[name] = self._alike(call)[name]
        return made

    def _is_known(self, call: Call, known: str, name: Name) -> bool:
        """Whether the meta device makes of the recorded arguments what was made of them."""
        try:
            return self._results(call, known, call.args, self._recorded)[name].shape == call.made[name].shape
        except Exception:
            return False

    def _results(
        self, call: Call, known: str, args: tuple[Argument, ...], shapes: dict[Name, Tensor]
    ) -> dict[Name, Tensor]:
        """What a call makes of tensors of these shapes."""
        kwargs = {key: on_meta(value, shapes) for key, value in call.kwargs.items()}
        result = called(known, [on_meta(value, shapes) for value in args], kwargs)
        return {
            name: replace(call.made[name], shape=tuple(value.shape), stride=tuple(value.stride()))
            for name, value in pairs(call.results, result)
        }

    def _alike(self, call: Call) -> dict[Name, Tensor]:
        """What a call makes that the meta device does not know: sizes grow that are those of grown arguments."""
        if call.name in PARTS:
            return self._part(call)
        grown = self._grown_sizes(call)
        made = {}
        for name, tensor in call.made.items():
            shape = tuple(self._scale.of(n) if n in grown else n for n in tensor.shape)
            made[name] = tensor if shape == tensor.shape else replace(tensor, shape=shape, stride=None)
        return made

    def _part(self, call: Call) -> dict[Name, Tensor]:
        """Indices or values of a sparse tensor: of its parts, or as many as its maker's arguments have it."""
        whole, side = next(call.variables, Name()), PARTS[call.name]
        parts = self._parts.get(whole)
        made = {}
        for name, tensor in call.made.items():
            shape = list(tensor.shape)
            if parts:
                shape = list(self._shapes[parts[side]].shape)
            elif (
                len(shape) > 1 - side
                and whole in self._maker
                and self._grown_sizes(self._steps[self._maker[whole]].call)
            ):
                shape[1 - side] = self._scale.of(shape[1 - side])
            made[name] = replace(tensor, shape=tuple(shape), stride=None)
        return made

    def _exchanged(self, call: Call, args: tuple[Argument, ...]) -> dict[Name, Tensor] | str:
        """A collective: what it gives and gets grow together, and so do the parts for each rank."""
        names = [name for name in call.variables if name in self._recorded]
        grown = {self._shapes[name].numel * self._scale.old == self._recorded[name].numel * self._scale.new
                 for name in names if self._recorded[name].numel}  # fmt: skip
        if len(grown) > 1:
            return "one side of it grows, and the other does not"
        for was, now in zip(call.args, args):
            if isinstance(was, list) and was and isinstance(was[0], int) and (was != now) != (True in grown):
                return "its parts grow, and its buffers do not"
        return self._alike(call)

    def plan(self) -> Plan:
        """The plan with the shapes that were found."""
        calls = []
        for step in self._steps:
            made = {name: self._shapes[name] for name in step.call.made}
            calls.append(replace(step.call, args=step.options[step.taken][0], made=made))
        return lengthened(self._plan, calls, self._shapes, self._scale)


def _fits(shape: Sequence[int], was: Sequence[int], scale: Scale) -> bool:
    """Whether a shape is the recorded one with some sizes grown."""
    return len(shape) == len(was) and all(
        now in (old, scale.of(old), scale.of(old - 1) + 1) for now, old in zip(shape, was)
    )
