"""Roles of a step's inputs: data, weights and optimizer state; and which of them belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import zip_longest
from math import log2, prod
from typing import Any

from foretrace.graph.op import Tensor, tensors_in
from foretrace.graph.operators import EMBEDDING_BAGS
from foretrace.transforms.dataflow import Dataflow, Slot, SlotCall, is_sequence, slots_in

VIEWS = ("t", "transpose", "permute", "detach", "_to_copy", "view", "alias", "as_strided", "expand")
FACTORS = {"mm": 1, "addmm": 2, "matmul": 1, "linear": 1, "convolution": 1, "embedding": 0, "_embedding_bag": 0}
"""Calls of layers, and which of the tensors that they read is a weight."""
STRANGE_LAYERS = 0.25
"""Share of layers that may be given something else than whole samples: experts, pooled tokens, a bias of positions."""
BEFORE_BACKWARD = ("forward", "other")
"""Phases in which data and weights are first read."""


class StepInputs:
    """The inputs of a step by their role; ``held`` are storages of modules, which are no data, frozen or not."""

    def __init__(self, step: Dataflow, held: Collection[int] = ()) -> None:
        optimized = {
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
        """Slots that are not weights: not used by the optimizer, and first read before backward."""
        self.weights: dict[int, Tensor] = {}
        """Slots that the model reads and the optimizer updates."""
        # A storage that is resized in the step holds nothing before it: weights that FSDP gathers.
        without_data = {*held, *(call.op.resized[1] for call in step.calls if call.op.resized)}
        # Averages of weights are changed in place.
        weights = {*held, *optimized}
        shapes = {tensor.shape for tensor in step.inputs.values() if tensor.storage in weights}
        without_data.update(
            tensor.storage
            for call in step.calls
            if call.op.name.endswith("_") and call.op.args
            for tensor in tensors_in(call.op.args[0])
            if tensor.shape in shapes
        )
        early = {
            step.inputs[slot].storage
            for slot, phase in first.items()
            if slot in step.inputs and phase in BEFORE_BACKWARD
        }
        for slot, tensor in step.inputs.items():
            if tensor.storage in optimized:
                if tensor.storage in early:
                    self.weights[slot] = tensor
            elif first[slot] in BEFORE_BACKWARD and tensor.layout == "strided" and tensor.storage not in without_data:
                self.data[slot] = tensor
        self._certain = bool(held)
        self._layer_rows = list(_layer_rows(step))
        self._batchless = _without_batch(step)
        self._ends = {call.reads[2] for call in step.calls if call.op.name in EMBEDDING_BAGS and _has_last_offset(call)}

    @property
    def batch(self) -> int | None:
        """The batch size, by the sizes of the data; None where there are none, or they disagree.

        Where modules are known, all data must agree; elsewhere there may be buffers among it, and most must, and what
        layers are given must be whole samples.
        """
        found = max(self.first_sizes, key=self._likelihood, default=None)
        if found is None:
            return None
        others = [size for size in self.first_sizes if size % found]
        if others and (self._certain or 2 * len(others) >= len(self.first_sizes)):
            return None
        strange = sum(rows % found > 0 for rows in self._layer_rows)
        return None if not self._certain and strange > STRANGE_LAYERS * len(self._layer_rows) else found

    def _likelihood(self, batch: int) -> float:
        return log2(batch) * sum(size % batch == 0 for size in self.first_sizes)

    @property
    def first_sizes(self) -> list[int]:
        """First dimensions of the data that may hold a batch."""
        sizes = (
            tensor.shape[0] - (slot in self._ends)
            for slot, tensor in self.data.items()
            if tensor.shape and slot not in self._batchless and not is_per_channel(tensor)
        )
        return [size for size in sizes if size > 1]


def _layer_rows(step: Dataflow) -> Iterator[int]:
    """Rows of what the step makes and gives to layers of the forward: samples, or tokens of samples."""
    views: dict[int, int] = {}
    tensors = step.tensors
    for call in (call for call in step.calls if call.op.phase in BEFORE_BACKWARD):
        name, slots = call.op.name.removeprefix("aten::").rstrip("_"), call.reads
        if name in VIEWS and len(call.made) == 1 and slots:
            views[next(iter(call.made))] = views.get(slots[0], slots[0])
        factor = FACTORS.get(name, 0)
        origins = [views.get(slot, slot) for slot in slots]
        if factor and len(slots) > factor and origins[factor] in step.inputs and origins[factor - 1] not in step.inputs:
            shape = tensors[slots[factor - 1]].shape
            yield shape[0] if name == "convolution" or not shape else prod(shape[:-1])


def _has_last_offset(call: SlotCall) -> bool:
    """Whether the offsets of bags have one entry more than there are bags."""
    return len(call.reads) > 2 and len(call.args) > 7 and call.args[7] is True


def _without_batch(step: Dataflow) -> set[int]:
    """Inputs that hold no batch: ids of bags, since a sample has many; matrices that data is multiplied with and tables
    that it is looked up in; data sets of which samples are picked.
    """
    views: dict[int, int] = {}
    found, picked, read = set[int](), set[int](), set[int]()
    for call in (call for call in step.calls if call.op.phase in BEFORE_BACKWARD):
        name = call.op.name.removeprefix("aten::").rstrip("_")
        origins = [views.get(slot, slot) for slot in call.reads]
        if name in VIEWS and len(call.made) == 1:
            views[next(iter(call.made))] = origins[0]
        if name in FACTORS and len(origins) > FACTORS[name]:
            found.add(origins[FACTORS[name]])
        if call.op.name in EMBEDDING_BAGS and len(origins) > 1:
            found.add(origins[1])
        (picked if name == "select" and call.args[1:2] == (0,) else read).update(origins)
    return found | (picked - read)


def is_per_channel(tensor: Tensor) -> bool:
    """Whether a tensor looks like the statistics of a norm: one floating number per channel."""
    return len(tensor.shape) == 1 and not tensor.dtype.startswith("int")


def tied_inputs(step: Dataflow) -> list[tuple[int, ...]]:
    """Groups of inputs that must keep one shape: a weight, its optimizer state, and all views of their storages."""
    groups = {slot: {slot} for slot in step.tensors}

    def tie(one: int, other: int) -> None:
        if groups[one] is not groups[other]:
            groups[one] |= groups[other]
            groups.update(dict.fromkeys(groups[other], groups[one]))

    storages: dict[int, int] = {}
    for slot, tensor in step.inputs.items():
        if tensor.storage >= 0:
            tie(slot, storages.setdefault(tensor.storage, slot))
    shapes = {slot: tensor.shape for slot, tensor in step.tensors.items()}
    for call in step.calls:
        if call.op.phase == "optimizer":
            for first, *others in _used_together(call):
                for other in others:
                    if shapes[first] == shapes[other]:
                        tie(first, other)
    found: dict[int, list[int]] = {}
    for slot in step.inputs:
        found.setdefault(id(groups[slot]), []).append(slot)
    return [tuple(group) for group in found.values()]


def _used_together(call: SlotCall) -> Iterator[list[int]]:
    """Slots that a call combines: its arguments, and the elements at one position of its lists."""
    values: list[Any] = [*call.args, *call.kwargs.values(), *call.results]
    single = [value.number for value in values if isinstance(value, Slot)]
    lists = [value for value in values if is_sequence(value)]
    if single:
        yield single
    for row in zip_longest(*lists):
        found = [value.number for value in row if isinstance(value, Slot)]
        if found:
            yield found


class WeightOwners:
    """The owner (one of several weights) of each call of backward and the optimizer.

    What a call makes of a weight's gradient belongs to that weight, and so does its optimizer state. An optimizer call
    without tensors of any weight, such as one that counts steps, belongs to the next one that has some. ``known`` are
    owners of slots to start with: weights and their gradients. Rows in ``excluded`` are skipped.
    """

    def __init__(self, step: Dataflow, known: Mapping[int, int], excluded: set[int]) -> None:
        self._of = dict(known)
        self._calls = [c for c in step.calls if c.op.phase in ("backward", "optimizer") and c.row not in excluded]
        size = -1
        while size != len(self._of):  # a state may be read before the first call that also takes its weight
            size = len(self._of)
            for call in self._calls:
                self._propagate(call)
        self.of_row = self._rows()
        """The owner of each row that has one."""

    def _propagate(self, call: SlotCall) -> None:
        if (lists := foreach_lists(call)) is not None:
            for values, owner in zip(zip(*lists), self.of_elements(call)):
                self._assign(slots_in(list(values)), owner)
        else:
            slots = [*call.reads, *call.made]
            self._assign(slots, self._owner(slots))

    def _assign(self, slots: Iterable[int], owner: int | None) -> None:
        if owner is not None:
            for slot in slots:
                self._of.setdefault(slot, owner)

    def _owner(self, slots: Iterable[int]) -> int | None:
        """The single owner of some slots; None if they have none or several."""
        owners = {self._of[slot] for slot in slots if slot in self._of}
        return owners.pop() if len(owners) == 1 else None

    def _rows(self) -> dict[int, int]:
        found: dict[int, int] = {}
        pending: list[int] = []
        for call in self._calls:
            if foreach_lists(call) is not None:
                pending = []
                continue
            slots = (*call.reads, *call.made)
            owner = self._owner(slots)
            if call.op.phase == "optimizer" and self._of.keys().isdisjoint(slots):
                pending.append(call.row)
            elif owner is None:
                pending = []
            else:
                found.update(dict.fromkeys([*pending, call.row], owner))
                pending = []
        return found

    def slots(self, owner: int) -> set[int]:
        """All slots of an owner."""
        return {slot for slot, of in self._of.items() if of == owner}

    def of_elements(self, call: SlotCall) -> list[int | None]:
        """The owner of each list element of a foreach call; step counters are listed in the order of the weights."""
        owners = self._by_element(call)
        if any(owner is not None for owner in owners):
            return owners
        others = (self._by_element(other) for other in self._calls if foreach_lists(other))
        known = (found for found in others if len(found) == len(owners) and any(owner is not None for owner in found))
        return next(known, owners)

    def _by_element(self, call: SlotCall) -> list[int | None]:
        return [self._owner(slots_in(list(slots))) for slots in zip(*foreach_lists(call) or [])]


def foreach_lists(call: SlotCall) -> list[list[Any]] | None:
    """The tensor lists of a foreach or fused optimizer call; None for other calls."""
    if not call.op.name.startswith(("aten::_foreach_", "aten::_fused_")):
        return None
    values: list[Any] = [*call.args, *call.kwargs.values(), *call.results]
    return [value for value in values if is_sequence(value) and any(isinstance(v, Slot) for v in value)]
