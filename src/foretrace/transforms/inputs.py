"""What is there before a step: its data, its weights, and the state of its optimizer."""

from __future__ import annotations

from collections import Counter
from math import log2

from foretrace.graph.tensor import Tensor
from foretrace.transforms.linked import Linked

BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
BEFORE = ("forward", "other")
"""Phases in which data and weights are read first."""


class Given:
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

    def __init__(self, step: Linked) -> None:
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
        self._ids = {call.reads[1] for call in step.calls if call.op.name in BAGS and len(call.reads) > 1}

    @property
    def batch(self) -> int | None:
        """Samples in a batch, by the sizes of the data; ids of bags do not count, since a sample has many of them."""
        return common_size([tensor for slot, tensor in self.data.items() if slot not in self._ids])


def is_statistic(tensor: Tensor) -> bool:
    """Whether a tensor is like those that norms keep: a number for each channel."""
    return len(tensor.shape) == 1 and not tensor.dtype.startswith("int")


def common_size(tensors: list[Tensor]) -> int | None:
    """The size that most tensors begin with a multiple of: the batch of a step's data. None where none shows.

    >>> common_size([Tensor((64, 13), "float32"), Tensor((6400,), "int64"), Tensor((64,), "int64")])
    64
    """
    sizes = [tensor.shape[0] for tensor in tensors if tensor.shape and not is_statistic(tensor)]
    counts = Counter(size for size in sizes if size > 1)
    if not counts:
        return None
    return max(counts, key=lambda size: log2(size) * sum(n for other, n in counts.items() if other % size == 0))
