"""Shape propagation: a size changes in a step's inputs, and every call after them follows.

Shapes are propagated through the calls on PyTorch's meta device. An integer among the arguments (a size of a view, the
end of a range) may hold the size or not, so each call takes its likeliest interpretation that fits. Where a later call
does not fit, the search backtracks to the latest call with another interpretation, then to other choices of inputs.

The search uses a probe size that nothing else in the step has, so that nothing fits by coincidence. Its result is then
applied to any size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from foretrace.graph.op import Tensor
from foretrace.transforms.dataflow import Dataflow, SlotCall, substitute
from foretrace.transforms.meta_device import MetaTensor, argument_key
from foretrace.transforms.resize.arguments import UNCHANGED, Interpretation, SizeChange, interpretations
from foretrace.transforms.resize.shapes import Dims, StepShapes

MAX_TRIES = 2000
"""Conflicts after which the search gives up."""
MAX_NEAR_INPUTS, MAX_REPAIR_DEPTH = 8, 3
"""Where a call does not fit, so many of the nearest inputs are tried with other dimensions, so many of them at once."""


class PropagationError(Exception):
    """A call that a size can't be propagated through, and why."""

    def __init__(self, call: SlotCall, why: str) -> None:
        super().__init__(f"call {call.row}, {call.op.name} ({why})")


@dataclass
class InputChoice:
    """Inputs that change together, as a weight and its momentum, and options for their dimensions, likeliest first."""

    slots: tuple[int, ...]
    options: list[Dims]
    taken: int = 0

    @property
    def dims(self) -> Dims:
        """The dimensions that change."""
        return self.options[self.taken]


@dataclass
class Propagation:
    """How a size goes through a step: which dimensions of each input change, and which integers of each call."""

    inputs: dict[int, Dims]
    interpretations: list[Interpretation]
    kinds: list[int]
    """Equal for calls that stay equal for any size; -1 for calls that do not change."""


def propagate(shapes: StepShapes, found: Propagation, change: SizeChange) -> dict[int, Tensor]:
    """The tensor of every slot for a size; raises `PropagationError` where a call does not take it."""
    shapes.change = change
    shapes.set_inputs(found.inputs)
    templates: dict[int, list[MetaTensor]] = {}
    for call, interpretation, kind in zip(shapes.step.calls, found.interpretations, found.kinds):
        if kind < 0:
            shapes.now.update(call.made)
        elif kind in templates:
            shapes.now.update(shapes.from_template(call, templates[kind]))
        else:
            made = shapes.results(call, interpretation)
            if isinstance(made, str):
                raise PropagationError(call, made)
            shapes.now.update(made)
            templates[kind] = shapes.as_template(call, made)
    return shapes.now


@dataclass
class _CallState:
    """The interpretations of a call that fit, and the one that is taken."""

    options: list[tuple[Interpretation, dict[int, Tensor]]] = field(default_factory=list)
    first: int = 0
    """The first option that is still to be tried."""
    taken: int = 0
    complete: bool = False
    """Whether the options are all there are."""


class PropagationSearch:
    """Searches for interpretations that fit all calls, with a probe size; raises `PropagationError` if none do."""

    def __init__(self, step: Dataflow, choices: Sequence[InputChoice], probe: SizeChange) -> None:
        self._shapes = StepShapes(step, probe)
        self._choices = choices
        self._choice_of = {slot: choice for choice in choices for slot in choice.slots}
        self._calls = step.calls
        self._states = [_CallState() for _ in step.calls]
        self._problem, self._tries = "", 0
        self._run()

    def _dims(self) -> dict[int, Dims]:
        return {slot: choice.dims for slot, choice in self._choice_of.items() if choice.dims}

    def _run(self) -> None:
        self._shapes.set_inputs(self._dims())
        error: PropagationError | None = None
        start, last = 0, len(self._states) - 1
        while (place := self._advance(start, last)) is not None:
            error = error or PropagationError(self._calls[place], self._problem)
            depths = range(1, MAX_REPAIR_DEPTH + 1)
            if self._tries > MAX_TRIES or not any(self._repair(place, depth) for depth in depths):
                raise error
            start = place + 1
        if not self._dims() and error:
            raise error

    def _advance(self, place: int, until: int) -> int | None:
        """Propagate up to a call.

        Returns None on success, else the position of the furthest call that was reached and that no other
        interpretation of earlier calls helps.
        """
        furthest = -1
        while place <= until:
            problem = self._propagate(place)
            if problem is None:
                place += 1
                continue
            if place > furthest:
                furthest, self._problem = place, problem
            self._tries += 1
            back = self._backtrack(self._calls[place]) if self._tries < MAX_TRIES else None
            if back is None and place < furthest:  # the other interpretation that was tried for it led nowhere
                back = self._backtrack(self._calls[furthest])
            if back is None:
                return furthest
            self._reset_dependents(back, furthest)
            place = back
        return None

    def _reset_dependents(self, back: int, furthest: int) -> None:
        """Interpret anew what depends on a call with another interpretation; other calls keep theirs."""
        touched = set(self._calls[back].made)
        for number in range(back + 1, furthest + 1):
            state, call = self._states[number], self._calls[number]
            if touched.isdisjoint(call.reads):
                state.first = state.taken
            else:
                state.first = 0
                touched.update(call.made)

    def _restart(self, until: int) -> int | None:
        self._shapes.set_inputs(self._dims())
        self._shapes.change.sums.clear()  # concatenated sizes may hold the size more often with other inputs
        for state in self._states:
            state.first = 0
        return self._advance(0, until)

    def _repair(self, place: int, depth: int, held: Sequence[InputChoice] = ()) -> bool:
        """Change other dimensions of some inputs, nearest first, until a call fits; they stay so on success.

        At most ``depth`` are changed at once. Those in ``held`` were just changed: changing them back would loop.
        """
        near = self._ancestors(self._calls[place])[1]
        free = [choice for choice in near if len(choice.options) > 1 and choice not in held]
        before = [choice.taken for choice in self._choices]
        for choice in free[:MAX_NEAR_INPUTS]:
            was = choice.taken
            for option in range(len(choice.options)):
                if option == was or self._tries > MAX_TRIES:
                    continue
                choice.taken = option
                if self._dims():  # a step in which nothing changes fits trivially
                    where = self._restart(place)
                    if where is None:
                        return True
                    if depth > 1 and self._repair(where, depth - 1, [*held, choice]) and self._restart(place) is None:
                        return True
                for one, taken in zip(self._choices, before):
                    one.taken = taken
        return False

    def _backtrack(self, call: SlotCall) -> int | None:
        """Take another interpretation of the latest possible call that a call depends on; its position."""
        for number in sorted(self._ancestors(call)[0], reverse=True):
            state = self._states[number]
            if not state.complete:
                taken = state.options[state.taken]
                self._find_options(self._calls[number], state)
                state.options = [taken, *(option for option in state.options if option[0] != taken[0])]
                state.taken = 0
            if state.taken + 1 < len(state.options):
                state.first = state.taken + 1
                return number
        return None

    def _ancestors(self, call: SlotCall) -> tuple[set[int], list[InputChoice]]:
        """The calls and the inputs that a call's arguments come from."""
        seen: set[int] = set()
        queue = deque(call.reads)
        makers: set[int] = set()
        inputs: list[InputChoice] = []  # nearest first
        while queue:
            slot = queue.popleft()
            if slot in seen:
                continue
            seen.add(slot)
            maker = self._shapes.maker.get(slot)
            if maker is not None:
                if maker not in makers:
                    makers.add(maker)
                    queue += self._calls[maker].reads
            elif slot in self._choice_of and self._choice_of[slot] not in inputs:
                inputs.append(self._choice_of[slot])
        return makers, inputs

    def _propagate(self, number: int) -> str | None:
        """Find the shapes of a call's results; why, if none fit."""
        state, call = self._states[number], self._calls[number]
        if state.first == 0:
            if self._shapes.untouched(call):
                # No change has reached it: it stays, unless a later call shows that its integers hold the size.
                state.options, state.complete = [(UNCHANGED, call.made)], False
            else:
                problem = self._find_options(call, state)
                if problem is not None:
                    return problem
        if state.first >= len(state.options):
            return "no other interpretation of its integers"
        state.taken = state.first
        self._shapes.now.update(state.options[state.taken][1])
        return None

    def _find_options(self, call: SlotCall, state: _CallState) -> str | None:
        """All interpretations of a call that fit; first those in which its results change with its arguments."""
        likely: list[tuple[Interpretation, dict[int, Tensor]]] = []
        unlikely: list[tuple[Interpretation, dict[int, Tensor]]] = []
        problem = ""
        shapes = self._shapes
        first = call.reads[0] if call.reads else None
        was, now = (shapes.was[first], shapes.now[first]) if first is not None else (None, None)
        for interpretation in interpretations(call, was, now, shapes.change):
            made = shapes.results(call, interpretation)
            if isinstance(made, str):
                problem = problem or made
            else:
                (likely if shapes.follows(call, made) else unlikely).append((interpretation, made))
        state.options, state.complete = likely + unlikely, True
        return None if state.options else problem or "no interpretation of its integers fits"

    def result(self) -> Propagation:
        """Which inputs and integers change."""
        taken = [state.options[state.taken][0] for state in self._states]
        numbers: dict[Hashable, int] = {}
        kinds = []
        for call, interpretation in zip(self._calls, taken):
            same = not interpretation and self._shapes.untouched(call)
            kinds.append(-1 if same else numbers.setdefault(self._kind(call, interpretation), len(numbers)))
        return Propagation(self._dims(), taken, kinds)

    def _kind(self, call: SlotCall, interpretation: Interpretation) -> Hashable:
        """Equal for calls with the same arguments before and after."""
        was, now = self._shapes.was, self._shapes.now
        if call.row < 0 or any(was[slot].layout != "strided" for slot in (*call.reads, *call.made)):
            return id(call)
        read = [(was[slot].shape, was[slot].stride, was[slot].dtype, now[slot].shape) for slot in call.reads]
        constants = argument_key([substitute(list(call.args), lambda slot: 0), substitute(call.kwargs, lambda slot: 0)])
        makes = tuple(tensor.shape for tensor in call.made.values())
        return (call.op.name, call.op.overload, interpretation, tuple(read), constants, makes)
