"""What is there before a step: its data, its weights, and the state of its optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from math import log2
from typing import Any

from foretrace.graph.tensor import Tensor
from foretrace.transforms.dataflow import Call, Dataflow, Slot, is_sequence, slots_in

EMBEDDING_BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
BEFORE = ("forward", "other")
"""Phases in which data and weights are read first."""


class StepInputs:
    """The inputs of a step by what they are for.

    Attributes
    ----------
    data
        Slots of what is no weight: nothing that the optimizer works on, first read before the backward pass.
    weights
        Slots of what the model reads and the optimizer changes.
    state
        Slots that nobody but the optimizer reads.
    """

    def __init__(self, step: Dataflow) -> None:
        trained = {
            tensor.storage
            for call in step.calls
            if call.op.phase == "optimizer"
            for tensor in call.op.tensors
            if tensor.storage >= 0
        }
        first: dict[int, str] = {}
        for call in step.calls:
            for slot in call.reads:
                first.setdefault(slot, call.op.phase)
        self.data: dict[int, Tensor] = {}
        self.weights: dict[int, Tensor] = {}
        self.state: dict[int, Tensor] = {}
        # What is given room in the step holds nothing before it: weights that FSDP gathers.
        roomy = {call.op.resized[1] for call in step.calls if call.op.resized}
        early = {step.inputs[slot].storage for slot, phase in first.items() if slot in step.inputs and phase in BEFORE}
        for slot, tensor in step.inputs.items():
            if tensor.storage in trained:
                (self.weights if tensor.storage in early else self.state)[slot] = tensor
            elif first[slot] in BEFORE and tensor.layout == "strided" and tensor.storage not in roomy:
                self.data[slot] = tensor
        self._ids = {call.reads[1] for call in step.calls if call.op.name in EMBEDDING_BAGS and len(call.reads) > 1}

    @property
    def batch(self) -> int | None:
        """Samples in a batch, by the sizes of the data; ids of bags do not count, since a sample has many of them."""
        return common_size([tensor for slot, tensor in self.data.items() if slot not in self._ids])


def is_per_channel(tensor: Tensor) -> bool:
    """Whether a tensor is like those that norms keep: a number for each channel."""
    return len(tensor.shape) == 1 and not tensor.dtype.startswith("int")


def common_size(tensors: list[Tensor]) -> int | None:
    """The size that most tensors begin with a multiple of: the batch of a step's data. None where none shows.

    >>> common_size([Tensor((64, 13), "float32"), Tensor((6400,), "int64"), Tensor((64,), "int64")])
    64
    """
    sizes = [tensor.shape[0] for tensor in tensors if tensor.shape and not is_per_channel(tensor)]
    counts = Counter(size for size in sizes if size > 1)
    if not counts:
        return None
    return max(counts, key=lambda size: log2(size) * sum(n for other, n in counts.items() if other % size == 0))


# --- was transforms.companions: Which inputs of a step must keep one shape: a weight, its momentum, and every other look at their storages.


def tied_inputs(step: Dataflow) -> list[tuple[int, ...]]:
    """Inputs by those that the optimizer works on together, each group in the order of the step.

    >>> from foretrace.graph import Op, Tensor
    >>> weight, momentum, data = (Tensor((4,), "float32", id=n, storage=n) for n in range(3))
    >>> read = Op("aten::mul", (weight, data), phase="forward")
    >>> tied_inputs(Dataflow([read, Op("aten::_foreach_add_", ([weight], [momentum]), phase="optimizer")]))
    [(0, 2), (1,)]
    """
    together = _Together()
    storages: dict[int, int] = {}
    for slot, tensor in step.inputs.items():
        together.find(slot)
        if tensor.storage >= 0:
            together.join(slot, storages.setdefault(tensor.storage, slot))
    shapes = {slot: tensor.shape for slot, tensor in step.inputs.items()}
    for call in step.calls:
        shapes.update({slot: tensor.shape for slot, tensor in call.made.items()})
        if call.op.phase == "optimizer":
            for first, *others in _side_by_side(call):
                for other in others:
                    if shapes[first] == shapes[other]:
                        together.join(first, other)
    return together.groups(step.inputs)


def _side_by_side(call: Call) -> Iterator[list[int]]:
    """Slots that a call works on at once: its arguments, and those at the same place of its lists."""
    values: list[Any] = [*call.args, *call.kwargs.values(), *call.results]
    alone = [value.number for value in values if isinstance(value, Slot)]
    lists = [value for value in values if is_sequence(value)]
    if alone:
        yield alone
    for row in zip_longest(*lists):
        found = [value.number for value in row if isinstance(value, Slot)]
        if found:
            yield found


class _Together:
    """Sets that grow together."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def find(self, slot: int) -> int:
        above = self._above.setdefault(slot, slot)
        while above != self._above[above]:
            above = self._above[above] = self._above[self._above[above]]
        return above

    def join(self, first: int, second: int) -> None:
        a, b = sorted((self.find(first), self.find(second)))
        self._above[b] = a

    def groups(self, slots: Iterable[int]) -> list[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for slot in slots:
            found.setdefault(self.find(slot), []).append(slot)
        return [tuple(group) for group in found.values()]


# --- was transforms.members: Which of several weights each call after the forward pass works for.


class WeightOwners:
    """The weight that each call of the backward pass and of the optimizer works for.

    What a call makes of a weight's gradient belongs to that weight, and so does what the optimizer keeps beside it. A
    call of the optimizer that touches nobody's tensors, such as one that counts steps, goes with the next one that
    does.

    Parameters
    ----------
    step
        The calls.
    known
        The slots that are somebody's to begin with: weights and their gradients.
    but
        Rows of calls that are not looked at.
    """

    def __init__(self, step: Dataflow, known: Mapping[int, int], but: set[int]) -> None:
        self._of = dict(known)
        self._calls = [c for c in step.calls if c.op.phase in ("backward", "optimizer") and c.row not in but]
        size = -1
        while size != len(self._of):  # what is kept beside a weight may be read before it meets it
            size = len(self._of)
            for call in self._calls:
                self._spread(call)
        self.of_row = self._rows()
        """The owner of each row that is somebody's."""

    def _spread(self, call: Call) -> None:
        if (lists := foreach_lists(call)) is not None:
            for values, owner in zip(zip(*lists), self.places(call)):
                self._give(slots_in(list(values)), owner)
        else:
            slots = [*call.reads, *call.made]
            self._give(slots, self._only(slots))

    def _give(self, slots: Iterable[int], owner: int | None) -> None:
        if owner is not None:
            for slot in slots:
                self._of.setdefault(slot, owner)

    def _only(self, slots: Iterable[int]) -> int | None:
        """The one whose slots these are; None for nobody's, and for those of several."""
        owners = {self._of[slot] for slot in slots if slot in self._of}
        return owners.pop() if len(owners) == 1 else None

    def _rows(self) -> dict[int, int]:
        found: dict[int, int] = {}
        waiting: list[int] = []
        for call in self._calls:
            if foreach_lists(call) is not None:
                waiting = []
                continue
            slots = (*call.reads, *call.made)
            owner = self._only(slots)
            if call.op.phase == "optimizer" and self._of.keys().isdisjoint(slots):
                waiting.append(call.row)
            elif owner is None:
                waiting = []
            else:
                found.update(dict.fromkeys([*waiting, call.row], owner))
                waiting = []
        return found

    def slots(self, owner: int) -> set[int]:
        """What is somebody's."""
        return {slot for slot, of in self._of.items() if of == owner}

    def places(self, call: Call) -> list[int | None]:
        """For a call over lists, the owner of each place; counts of steps stand where the weights do."""
        owners = self._of_places(call)
        if any(owner is not None for owner in owners):
            return owners
        alike = (self._of_places(other) for other in self._calls if foreach_lists(other))
        known = (found for found in alike if len(found) == len(owners) and any(owner is not None for owner in found))
        return next(known, owners)

    def _of_places(self, call: Call) -> list[int | None]:
        return [self._only(slots_in(list(slots))) for slots in zip(*foreach_lists(call) or [])]


def foreach_lists(call: Call) -> list[list[Any]] | None:
    """The lists of tensors that a call walks side by side; None for a call of another kind."""
    if not call.op.name.startswith(("aten::_foreach_", "aten::_fused_")):
        return None
    return [value for value in _values(call) if is_sequence(value) and any(isinstance(v, Slot) for v in value)]


def _values(call: Call) -> Iterator[Any]:
    yield from call.args
    yield from call.kwargs.values()
    yield from call.results
