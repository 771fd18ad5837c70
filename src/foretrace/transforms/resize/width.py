"""A layer with another number of outputs; the layers that read them follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.dataflow import Dataflow
from foretrace.transforms.fusion.ddp_buckets import without_gradient_sharing
from foretrace.transforms.inputs import StepInputs, tied_inputs
from foretrace.transforms.resize.arguments import VIEWS, SizeChange
from foretrace.transforms.resize.propagation import InputChoice
from foretrace.transforms.resize.resizable import Resizable, check_size
from foretrace.transforms.resize.shapes import Dims
from foretrace.transforms.step import editable_step, flatten

PRODUCTS = ("aten::addmm", "aten::mm")


def width(graph: Graph, outputs: int, layer: str) -> Graph:
    """The step with another width of a linear layer.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    outputs
        What the layer gives for each sample.
    layer
        Its module, or how that ends: ``"top.0"``.
    """
    check_size("width", outputs)
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    weights = StepInputs(step).weights
    layers = _layers(step, weights)
    meant = [name for name in layers if fnmatchcase(name, layer) or name.endswith(f".{layer}")]
    if not meant:
        raise unknown_name("linear layer", layer, layers)
    if len(meant) > 1:
        raise ForetraceError(f"{layer!r} names {len(meant)} layers", f"Choose one of {', '.join(meant[:8])}.")
    chosen = layers[meant[0]]
    scale = SizeChange(max(step.inputs[slot].shape[0] for slot in chosen), outputs, last=True)
    if scale.old == outputs:
        return graph
    return Resizable(graph, step, "width", scale, dependent_weights(step, chosen, 0, weights)).to(outputs)


def dependent_weights(step: Dataflow, chosen: Collection[int], dim: int, weights: Collection[int]) -> list[InputChoice]:
    """Weights of which a dimension changes, and all others, of which one may have to follow."""
    choices = []
    for group in tied_inputs(step):
        if not set(chosen).isdisjoint(group):
            choices.append(InputChoice(group, [frozenset([dim])]))
        elif group[0] in weights:
            sizes = range(len(step.inputs[group[0]].shape))
            choices.append(InputChoice(group, [frozenset(), *(frozenset([size]) for size in sizes)]))
    return choices


def hidden_layers(graph: Graph) -> list[str]:
    """The modules of linear layers whose outputs another one reads, with nothing but activations between them."""
    step = Dataflow(list(flatten(graph).ops))
    layers = _layers(step, StepInputs(step).weights)
    of_output: dict[int, str] = {}
    found: dict[str, None] = {}
    for call in step.calls:
        if call.op.phase != "forward":
            continue
        behind = next((of_output[slot] for slot in call.reads if slot in of_output), None)
        multiplies = call.op.name in PRODUCTS
        if multiplies:
            if behind is not None:
                found[behind] = None
            behind = call.op.module if call.op.module in layers else None
        if behind is not None:
            given = {tensor.shape for tensor in call.op.tensors}
            of_output.update({slot: behind for slot, made in call.made.items() if multiplies or made.shape in given})
    return list(found)


def _layers(step: Dataflow, weights: Collection[int]) -> dict[str, set[int]]:
    """The weight and the bias of each linear layer, by its module."""
    turned = {slot: call.reads[0] for call in step.calls if call.op.name == "aten::t" for slot in call.made}
    found: dict[str, set[int]] = {}
    for call in step.calls:
        if call.op.name in PRODUCTS and call.op.phase == "forward" and call.op.module:
            slots = {turned.get(slot, slot) for slot in call.reads}
            found.setdefault(call.op.module, set()).update(slot for slot in slots if slot in weights)
    return {name: slots for name, slots in found.items() if slots}


# --- was transforms.hidden: Another hidden width: everything that is as wide as what a model's blocks pass on to each other follows.


def hidden(graph: Graph, new: int, old: int | None = None) -> Graph:
    """The step with another hidden width.

    In a model that repeats blocks, it is the width of what they add to and pass on. Embeddings, norms, projections and
    the state of the optimizer follow, and the layers between them keep their ratio to it. The number of heads stays;
    their size changes.

    In a model without such blocks, it is the number of outputs of every linear layer that another one reads.

    Gradients that DDP shares are put into its buckets anew.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    new
        The width.
    old
        The recorded one; found by what the blocks add where it is left out.
    """
    return ResizableHidden(graph, old).to(new)


class ResizableHidden:
    """The step with any hidden width: ``Widths(graph).to(1024)``; how it goes through the calls is found once."""

    def __init__(self, graph: Graph, old: int | None = None) -> None:
        self._as_it_was, _ = editable_step(graph)
        self._graph, self._shared = without_gradient_sharing(self._as_it_was, "hidden")
        ops = list(self._graph.ops)
        self._stream = ResidualStream.of(ops, check_size("hidden", old) if old is not None else None)
        self._resizable = self._stream.resizable(self._graph, keep="heads") if self._stream else None

    def to(self, new: int) -> Graph:
        """The step with that width."""
        check_size("hidden", new)
        if self._stream is None or self._resizable is None:
            return self._shared(_widened_layers(self._graph, new))
        if new == self._stream.width:
            return self._as_it_was
        check_heads(new, self._stream)
        return self._shared(self._resizable.to(new))


def check_heads(size: int, stream: ResidualStream) -> None:
    """Refuse a width that the heads of a stream can't share."""
    heads = stream.heads
    if size % heads:
        near = [str(each) for each in (size // heads * heads, (size // heads + 1) * heads) if each]
        shared = [n for n in range(2, stream.width + 1) if size % n == stream.width % n == 0]
        other = min(shared, key=lambda n: (abs(n - heads), -n), default=1)
        raise ForetraceError(
            f"a hidden width of {size} can't be cut into {heads} heads",
            f"The nearest that can are {' and '.join(near)}; or set other heads before it: heads={other}.",
        )


def _widened_layers(graph: Graph, size: int) -> Graph:
    layers = hidden_layers(graph)
    if not layers:
        has_modules = any(op.module for op in graph.ops)
        raise ForetraceError(
            f"{graph.title} shows neither repeated blocks nor linear layers behind each other",
            "It has no hidden width." if has_modules else "Record it, or sketch it: traces lack modules.",
        )
    for layer in layers:
        graph = width(graph, size, layer)
    return graph


# --- was transforms.heads: Another number of heads, of which each is so much smaller or larger.


def heads(graph: Graph, count: int) -> Graph:
    """The step with its hidden width cut into another number of heads.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    count
        How many.
    """
    check_size("heads", count)
    as_it_was, _ = editable_step(graph)
    graph, shared = without_gradient_sharing(as_it_was, "heads")
    stream = ResidualStream.of(list(graph.ops))
    if stream is None or stream.heads == 1:
        raise ForetraceError(
            f"{graph.title} shows no blocks with heads of attention",
            "If it has some, record it, or sketch it: traces lack modules.",
        )
    if stream.width % count:
        near = sorted((n for n in range(1, stream.width + 1) if stream.width % n == 0), key=lambda n: abs(n - count))
        raise ForetraceError(
            f"{count} heads can't share a hidden width of {stream.width}",
            f"The nearest that can are {near[0]} and {near[1]}; or set another width before it.",
        )
    if count == stream.heads:
        return as_it_was
    # First as wide as so many heads of the same size are, then as wide as before.
    wider = stream.resizable(graph, keep="size").to(stream.width // stream.heads * count)
    made = hidden(wider, stream.width, stream.width // stream.heads * count)
    made.notes[-2:] = [f"{count} heads instead of {stream.heads}"]
    return shared(made)


# --- was transforms.stream: What a model's blocks add to and pass on to each other: how wide it is, and all that is as wide as it.

ADDS = ("aten::add", "aten::add_")
LOOKUP = "aten::embedding"


@dataclass(frozen=True)
class ResidualStream:
    """The stream between a model's blocks, and into how many heads their attention cuts it; 1 where there is none."""

    blocks: tuple[str, ...]
    width: int
    heads: int

    @classmethod
    def of(cls, ops: Sequence[Op], width: int | None = None) -> ResidualStream | None:
        """That of a step; None where it repeats no blocks, or they add nothing to what they were given."""
        blocks = tuple(repeated_blocks(ops))
        inside = [op for op in ops if op.phase == "forward" and block_index(op.module, blocks) >= 0]
        width = width or _added(inside)
        return cls(blocks, width, _heads(inside, width)) if blocks and width else None

    def resizable(self, graph: Graph, keep: str) -> Resizable:
        """The flat step with any width, which keeps the number of ``"heads"``, or their ``"size"``."""
        step = Dataflow(list(graph.ops))
        # A width is cut into heads and what each holds: the last number is the size of a head.
        scale = SizeChange(self.width, self.width, last=keep == "heads", parts=True)
        return Resizable(graph, step, "hidden", scale, list(self._choices(step, keep)))

    def _choices(self, step: Dataflow, keep: str) -> Iterator[InputChoice]:
        """What of each weight changes; and of other inputs, should they have to."""
        given, inside = StepInputs(step), self._read_inside(step)
        tables = {call.reads[0] for call in step.calls if call.op.name == LOOKUP}
        for group in tied_inputs(step):
            first, tensor = group[0], step.inputs[group[0]]
            if first in given.weights:
                wide = self._wide(tensor, keep) if inside.intersection(group) else self._as_wide(tensor)
                wide = frozenset([max(wide)]) if wide and first in tables else wide
                yield InputChoice(group, [wide, *(way for way in _ways(tensor) if way != wide)])
            elif first in given.data:
                yield InputChoice(group, list(_ways(tensor)))

    def _as_wide(self, tensor: Tensor) -> Dims:
        return frozenset(dim for dim, size in enumerate(tensor.shape) if size == self.width)

    def _wide(self, tensor: Tensor, keep: str) -> Dims:
        """The dimensions of a weight within a block that hold some heads, or are those of a wider layer."""
        head = self.width // self.heads
        kept = head if keep == "size" else 0
        wide = (dim for dim, size in enumerate(tensor.shape) if size % head == 0 or size > self.width)
        return frozenset(dim for dim in wide if tensor.shape[dim] != kept)

    def _read_inside(self, step: Dataflow) -> set[int]:
        """Inputs that the calls of blocks read, also by a look at them."""
        looked = {slot: call.reads[0] for call in step.calls if len(call.reads) == 1 for slot in call.made}
        found: set[int] = set()
        for call in step.calls:
            if call.op.phase == "forward" and block_index(call.op.module, self.blocks) >= 0:
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
