"""What a model's blocks add to and pass on to each other: how wide it is, and all that is as wide as it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.carry import Choice
from foretrace.transforms.companions import companions
from foretrace.transforms.inputs import Given
from foretrace.transforms.linked import Linked
from foretrace.transforms.parallel.blocks import block_of, blocks_of
from foretrace.transforms.readings import VIEWS
from foretrace.transforms.resize import Resizable
from foretrace.transforms.scale import Scale
from foretrace.transforms.shapes import Dims
from foretrace.transforms.width import PRODUCTS

ADDS = ("aten::add", "aten::add_")
LOOKUP = "aten::embedding"


@dataclass(frozen=True)
class Stream:
    """The stream between a model's blocks, and into how many heads their attention cuts it; 1 where there is none."""

    blocks: tuple[str, ...]
    width: int
    heads: int

    @classmethod
    def of(cls, ops: Sequence[Op], width: int | None = None) -> Stream | None:
        """That of a step; None where it repeats no blocks, or they add nothing to what they were given."""
        blocks = tuple(blocks_of(ops))
        inside = [op for op in ops if op.phase == "forward" and block_of(op.module, blocks) >= 0]
        width = width or _added(inside)
        return cls(blocks, width, _heads(inside, width)) if blocks and width else None

    def resizable(self, graph: Graph, keep: str) -> Resizable:
        """The flat step with any width, which keeps the number of ``"heads"``, or their ``"size"``."""
        step = Linked(list(graph.ops))
        # A width is cut into heads and what each holds: the last number is the size of a head.
        scale = Scale(self.width, self.width, last=keep == "heads", parts=True)
        return Resizable(graph, step, "hidden", scale, list(self._choices(step, keep)))

    def _choices(self, step: Linked, keep: str) -> Iterator[Choice]:
        """What of each weight changes; and of other inputs, should they have to."""
        given, inside = Given(step), self._read_inside(step)
        tables = {call.reads[0] for call in step.calls if call.op.name == LOOKUP}
        for group in companions(step):
            first, tensor = group[0], step.inputs[group[0]]
            if first in given.weights:
                wide = self._wide(tensor, keep) if inside.intersection(group) else self._as_wide(tensor)
                wide = frozenset([max(wide)]) if wide and first in tables else wide
                yield Choice(group, [wide, *(way for way in _ways(tensor) if way != wide)])
            elif first in given.data:
                yield Choice(group, list(_ways(tensor)))

    def _as_wide(self, tensor: Tensor) -> Dims:
        return frozenset(dim for dim, size in enumerate(tensor.shape) if size == self.width)

    def _wide(self, tensor: Tensor, keep: str) -> Dims:
        """The dimensions of a weight within a block that hold some heads, or are those of a wider layer."""
        head = self.width // self.heads
        kept = head if keep == "size" else 0
        wide = (dim for dim, size in enumerate(tensor.shape) if size % head == 0 or size > self.width)
        return frozenset(dim for dim in wide if tensor.shape[dim] != kept)

    def _read_inside(self, step: Linked) -> set[int]:
        """Inputs that the calls of blocks read, also by a look at them."""
        looked = {slot: call.reads[0] for call in step.calls if len(call.reads) == 1 for slot in call.made}
        found: set[int] = set()
        for call in step.calls:
            if call.op.phase == "forward" and block_of(call.op.module, self.blocks) >= 0:
                found.update(call.reads)
                found.update(looked[slot] for slot in call.reads if slot in looked)
        return found & step.inputs.keys()


def _added(inside: Sequence[Op]) -> int | None:
    """The width of what blocks add to what goes around them, where their linear layers read something as wide."""
    sums = Counter(op.produced[0].shape[-1] for op in inside if _adds(op))
    read = {op.tensors[-2].shape[-1] for op in inside if op.name in PRODUCTS}
    return next((size for size, _ in sums.most_common() if size in read), None)


def _adds(op: Op) -> bool:
    shapes = {tensor.shape for tensor in op.tensors}
    return op.name in ADDS and len(op.tensors) == 2 and len(shapes) == 1 and any(shapes)


def _heads(inside: Sequence[Op], width: int | None) -> int:
    found = Counter(op.tensors[0].shape[-3] for op in inside if "scaled_dot_product" in op.name)
    if not found:
        cut = [op.produced[0].shape for op in inside if op.name in VIEWS and op.tensors[0].shape[-1] == width]
        found = Counter(shape[-2] for shape in cut if len(shape) > 3 and shape[-2] * shape[-1] == width)
    return found.most_common(1)[0][0] if found else 1


def _ways(tensor: Tensor) -> Iterator[Dims]:
    """None, each dimension from the last on, two of them."""
    dims = range(len(tensor.shape) - 1, -1, -1)
    for count in range(min(len(tensor.shape), 2) + 1):
        yield from map(frozenset, combinations(dims, count))
