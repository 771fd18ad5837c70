"""A step with another size: its inputs change, and every call after them follows.

Shapes are carried through the calls on PyTorch's meta device, which computes nothing. A number among the arguments (a
size of a view, the end of a range) may hold the size or not. Each call takes the likeliest reading that fits. Where a
later call can't go on, the search goes back to the latest call that could be read otherwise, and tries that.

The search uses a size that nothing else in the step has, so that nothing fits by chance. What it found serves for every
other size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from foretrace.graph.tensor import Tensor
from foretrace.transforms.dataflow import Call, Dataflow, substitute
from foretrace.transforms.meta_device import MetaTensor, argument_key
from foretrace.transforms.resize.arguments import UNCHANGED, Interpretation, SizeChange, interpretations
from foretrace.transforms.resize.shapes import Dims, StepShapes

MOST_TRIES = 2000
NEAREST, DEEPEST = 8, 3
"""Where a call can't go on, inputs near to it are changed otherwise: so many are tried, and so many of them at once."""


class PropagationError(Exception):
    """A call that a size can't be carried through, and why."""

    def __init__(self, call: Call, why: str) -> None:
        super().__init__(f"call {call.row}, {call.op.name} ({why})")


@dataclass
class Propagation:
    """What a search found: which dimensions of each input change, and which numbers of each call."""

    inputs: dict[int, Dims]
    interpretations: list[Interpretation]
    kinds: list[int]
    """Equal for calls that become the same, whatever the size; -1 for calls that stay as they were."""


@dataclass
class _Place:
    """The ways to read a call that fit, and the one that is taken."""

    options: list[tuple[Interpretation, dict[int, Tensor]]] = field(default_factory=list)
    first: int = 0
    """The first of them that is still to be tried."""
    taken: int = 0
    whole: bool = False
    """Whether the options are all there are."""


@dataclass
class InputChoice:
    """Inputs that change together, as a weight and its momentum, and which dimensions may change; likely ways first."""

    slots: tuple[int, ...]
    options: list[Dims]
    taken: int = 0

    @property
    def dims(self) -> Dims:
        """The dimensions that change."""
        return self.options[self.taken]


def find_propagation(step: Dataflow, choices: Sequence[InputChoice], scale: SizeChange) -> Propagation:
    """Find readings that fit all calls; raises `PropagationError` where there are none.

    Parameters
    ----------
    step
        The calls.
    choices
        Inputs that may change.
    scale
        From the recorded size to the one to search with.
    """
    return _Search(step, choices, scale).found()


class _Search:
    def __init__(self, step: Dataflow, choices: Sequence[InputChoice], scale: SizeChange) -> None:
        self._shapes = StepShapes(step, scale)
        self._choices = choices
        self._choice_of = {slot: choice for choice in choices for slot in choice.slots}
        self._calls = step.calls
        self._places = [_Place() for _ in step.calls]
        self._problem, self._tries = "", 0
        self._run()

    def _dims(self) -> dict[int, Dims]:
        return {slot: choice.dims for slot, choice in self._choice_of.items() if choice.dims}

    def _run(self) -> None:
        self._shapes.take(self._dims())
        stuck: PropagationError | None = None
        start, last = 0, len(self._places) - 1
        while (place := self._advance(start, last)) is not None:
            stuck = stuck or PropagationError(self._calls[place], self._problem)
            if self._tries > MOST_TRIES or not any(self._repair(place, depth) for depth in range(1, DEEPEST + 1)):
                raise stuck
            start = place + 1
        if not self._dims() and stuck:
            raise stuck

    def _advance(self, place: int, until: int) -> int | None:
        """Carry the size on up to a call.

        Returns None where that worked. Otherwise it returns the place of the furthest call that could be reached, past
        which no other reading of earlier calls leads.
        """
        furthest = -1
        while place <= until:
            problem = self._carry(place)
            if problem is None:
                place += 1
                continue
            if place > furthest:
                furthest, self._problem = place, problem
            self._tries += 1
            back = self._back(self._calls[place]) if self._tries < MOST_TRIES else None
            if back is None and place < furthest:  # what was read otherwise for that one led nowhere
                back = self._back(self._calls[furthest])
            if back is None:
                return furthest
            self._forget(back, furthest)
            place = back
        return None

    def _forget(self, back: int, furthest: int) -> None:
        """Read anew what depends on a call that is read otherwise; the others stay as they were read."""
        touched = set(self._calls[back].made)
        for number in range(back + 1, furthest + 1):
            place, call = self._places[number], self._calls[number]
            if touched.isdisjoint(call.reads):
                place.first = place.taken
            else:
                place.first = 0
                touched.update(call.made)

    def _restart(self, until: int) -> int | None:
        self._shapes.take(self._dims())
        self._shapes.scale.sums.clear()  # what was joined with other inputs may hold the size more often now
        for place in self._places:
            place.first = 0
        return self._advance(0, until)

    def _repair(self, place: int, depth: int, held: Sequence[InputChoice] = ()) -> bool:
        """Change some inputs otherwise, near ones first, until a call can go on; they stay so if that helps.

        At most ``depth`` are changed at once. Those in ``held`` were just changed for this: to change them back would
        lead in circles.
        """
        near = self._before(self._calls[place])[1]
        free = [choice for choice in near if len(choice.options) > 1 and choice not in held]
        before = [choice.taken for choice in self._choices]
        for choice in free[:NEAREST]:
            was = choice.taken
            for option in range(len(choice.options)):
                if option == was or self._tries > MOST_TRIES:
                    continue
                choice.taken = option
                if self._dims():  # of a step that nothing of the size is in any more, nobody learns anything
                    where = self._restart(place)
                    if where is None:
                        return True
                    if depth > 1 and self._repair(where, depth - 1, [*held, choice]) and self._restart(place) is None:
                        return True
                for one, taken in zip(self._choices, before):
                    one.taken = taken
        return False

    def _back(self, call: Call) -> int | None:
        """Read the latest call before this one otherwise; where that was."""
        for number in sorted(self._before(call)[0], reverse=True):
            place = self._places[number]
            if not place.whole:
                taken = place.options[place.taken]
                self._find(self._calls[number], place)
                place.options = [taken, *(option for option in place.options if option[0] != taken[0])]
                place.taken = 0
            if place.taken + 1 < len(place.options):
                place.first = place.taken + 1
                return number
        return None

    def _before(self, call: Call) -> tuple[set[int], list[InputChoice]]:
        """The calls and the inputs that a call's arguments come from."""
        seen: set[int] = set()
        waiting = deque(call.reads)
        makers: set[int] = set()
        given: list[InputChoice] = []  # those near to it first
        while waiting:
            slot = waiting.popleft()
            if slot in seen:
                continue
            seen.add(slot)
            maker = self._shapes.maker.get(slot)
            if maker is not None:
                if maker not in makers:
                    makers.add(maker)
                    waiting += self._calls[maker].reads
            elif slot in self._choice_of and self._choice_of[slot] not in given:
                given.append(self._choice_of[slot])
        return makers, given

    def _carry(self, number: int) -> str | None:
        """Find the shapes of what a call makes; what is wrong where none fit."""
        place, call = self._places[number], self._calls[number]
        if place.first == 0:
            if self._shapes.untouched(call):
                # Nothing has reached it: it is as it was, unless a later call says that its numbers hold the size.
                place.options, place.whole = [(UNCHANGED, call.made)], False
            else:
                problem = self._find(call, place)
                if problem is not None:
                    return problem
        if place.first >= len(place.options):
            return "no other way to read its numbers"
        place.taken = place.first
        self._shapes.now.update(place.options[place.taken][1])
        return None

    def _find(self, call: Call, place: _Place) -> str | None:
        """All readings of a call that fit; first those in which its results change with its arguments."""
        ahead: list[tuple[Interpretation, dict[int, Tensor]]] = []
        behind: list[tuple[Interpretation, dict[int, Tensor]]] = []
        problem = ""
        shapes = self._shapes
        first = call.reads[0] if call.reads else None
        was, now = (shapes.was[first], shapes.now[first]) if first is not None else (None, None)
        for reading in interpretations(call, was, now, shapes.scale):
            made = shapes.made(call, reading)
            if isinstance(made, str):
                problem = problem or made
            else:
                (ahead if shapes.follows(call, made) else behind).append((reading, made))
        place.options, place.whole = ahead + behind, True
        return None if place.options else problem or "no reading of its numbers fits"

    def found(self) -> Propagation:
        """Which inputs and numbers change."""
        taken = [place.options[place.taken][0] for place in self._places]
        numbers: dict[Hashable, int] = {}
        kinds = []
        for call, reading in zip(self._calls, taken):
            same = not reading and self._shapes.untouched(call)
            kinds.append(-1 if same else numbers.setdefault(self._kind(call, reading), len(numbers)))
        return Propagation(self._dims(), taken, kinds)

    def _kind(self, call: Call, reading: Interpretation) -> Hashable:
        """Equal for calls with the same arguments before and now."""
        was, now = self._shapes.was, self._shapes.now
        if call.row < 0 or any(was[slot].layout != "strided" for slot in (*call.reads, *call.made)):
            return id(call)
        given = [(was[slot].shape, was[slot].stride, was[slot].dtype, now[slot].shape) for slot in call.reads]
        numbers = argument_key([substitute(list(call.args), lambda slot: 0), substitute(call.kwargs, lambda slot: 0)])
        makes = tuple(tensor.shape for tensor in call.made.values())
        return (call.op.name, call.op.overload, reading, tuple(given), numbers, makes)


def propagate(shapes: StepShapes, found: Propagation, scale: SizeChange) -> dict[int, Tensor]:
    """What every slot looks like with a size; raises `PropagationError` where a call does not take it."""
    shapes.scale = scale
    shapes.take(found.inputs)
    alike: dict[int, list[MetaTensor]] = {}
    for call, reading, kind in zip(shapes.step.calls, found.interpretations, found.kinds):
        if kind < 0:
            shapes.now.update(call.made)
        elif kind in alike:
            shapes.now.update(shapes.like(call, alike[kind]))
        else:
            made = shapes.made(call, reading)
            if isinstance(made, str):
                raise PropagationError(call, made)
            shapes.now.update(made)
            alike[kind] = shapes.told(call, made)
    return shapes.now
