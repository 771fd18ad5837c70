"""Widths: the outputs of a linear layer, the hidden width of a model, its attention heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, Tensor
from foretrace.graph.operators import LINEAR
from foretrace.transforms.blocks import block_index, is_named, repeated_blocks
from foretrace.transforms.dataflow import Dataflow
from foretrace.transforms.fusion.ddp_buckets import without_gradient_sharing
from foretrace.transforms.inputs import StepInputs, tied_inputs
from foretrace.transforms.resize.arguments import VIEWS, SizeChange
from foretrace.transforms.resize.propagation import InputChoice
from foretrace.transforms.resize.resizable import Resizable, check_size
from foretrace.transforms.resize.shapes import Dims
from foretrace.transforms.step import editable_step, flatten

ADDS = ("aten::add", "aten::add_")
EMBEDDING = "aten::embedding"


def width(graph: Graph, outputs: int, layer: str) -> Graph:
    """The step with another number of outputs of a linear layer, named by its module or the end of that name.

    The layers that read them follow.
    """
    check_size("width", outputs)
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    weights = StepInputs(step).weights
    layers = _linear_layers(step, weights)
    matching = [name for name in layers if is_named(name, layer)]
    if not matching:
        raise unknown_name("linear layer", layer, layers)
    if len(matching) > 1:
        raise ForetraceError(f"{layer!r} names {len(matching)} layers", f"Choose one of {', '.join(matching[:8])}.")
    chosen = layers[matching[0]]
    change = SizeChange(max(step.inputs[slot].shape[0] for slot in chosen), outputs, last=True)
    if change.old == outputs:
        return graph
    return Resizable(graph, step, "width", change, dependent_weights(step, chosen, 0, weights)).to(outputs)


def dependent_weights(step: Dataflow, chosen: Collection[int], dim: int, weights: Collection[int]) -> list[InputChoice]:
    """Choices for weights of which a dimension changes, and for all others, of which one may have to follow."""
    choices = []
    for group in tied_inputs(step):
        if not set(chosen).isdisjoint(group):
            choices.append(InputChoice(group, [frozenset([dim])]))
        elif group[0] in weights:
            sizes = range(len(step.inputs[group[0]].shape))
            choices.append(InputChoice(group, [frozenset(), *(frozenset([size]) for size in sizes)]))
    return choices


def _linear_layers(step: Dataflow, weights: Collection[int]) -> dict[str, set[int]]:
    """The weight and bias of each linear layer, by its module."""
    transposed = {slot: call.reads[0] for call in step.calls if call.op.name == "aten::t" for slot in call.made}
    found: dict[str, set[int]] = {}
    for call in step.calls:
        if call.op.name in LINEAR and call.op.phase == "forward" and call.op.module:
            slots = {transposed.get(slot, slot) for slot in call.reads}
            found.setdefault(call.op.module, set()).update(slot for slot in slots if slot in weights)
    return {name: slots for name, slots in found.items() if slots}


def hidden(graph: Graph, new: int, old: int | None = None) -> Graph:
    """The step with another hidden width; the recorded one is found by residual additions where it is left out.

    In a model with repeated blocks this is the width of the residual stream between them. Embeddings, norms,
    projections and optimizer state follow, and the layers inside the blocks keep their ratio to it. The number of heads
    stays; their size changes. In a model without such blocks it is the number of outputs of every linear layer that
    another one reads. Gradients that DDP reduces are put into its buckets anew.
    """
    return ResizableHidden(graph, old).to(new)


class ResizableHidden:
    """The step with any hidden width: ``ResizableHidden(graph).to(1024)``; the propagation is found once."""

    def __init__(self, graph: Graph, old: int | None = None) -> None:
        self._original, _ = editable_step(graph)
        self._graph, self._share_again = without_gradient_sharing(self._original, "hidden")
        ops = list(self._graph.ops)
        self._stream = ResidualStream.of(ops, check_size("hidden", old) if old is not None else None)
        self._resizable = self._stream.resizable(self._graph, keep="heads") if self._stream else None

    def to(self, new: int) -> Graph:
        """The step with that width."""
        check_size("hidden", new)
        if self._stream is None or self._resizable is None:
            return self._share_again(_with_hidden_layers(self._graph, new))
        if new == self._stream.width:
            return self._original
        _check_heads(new, self._stream)
        return self._share_again(self._resizable.to(new))


def _check_heads(size: int, stream: ResidualStream) -> None:
    """Raise for a width that is no multiple of the number of heads."""
    heads = stream.heads
    if size % heads:
        near = [str(each) for each in (size // heads * heads, (size // heads + 1) * heads) if each]
        divisors = [n for n in range(2, stream.width + 1) if size % n == stream.width % n == 0]
        other = min(divisors, key=lambda n: (abs(n - heads), -n), default=1)
        raise ForetraceError(
            f"a hidden width of {size} is not divisible by {heads} heads",
            f"The nearest widths are {' and '.join(near)}; or set other heads before it: heads={other}.",
        )


def _with_hidden_layers(graph: Graph, size: int) -> Graph:
    """The step of a model without blocks, with another width of all its hidden layers."""
    layers = _hidden_layers(graph)
    if not layers:
        has_modules = any(op.module for op in graph.ops)
        raise ForetraceError(
            f"{graph.title} has neither repeated blocks nor consecutive linear layers",
            "It has no hidden width." if has_modules else "Record it, or sketch it: traces lack modules.",
        )
    for layer in layers:
        graph = width(graph, size, layer)
    return graph


def _hidden_layers(graph: Graph) -> list[str]:
    """The modules of linear layers whose outputs another one reads, with only activations between them."""
    step = Dataflow(list(flatten(graph).ops))
    layers = _linear_layers(step, StepInputs(step).weights)
    of_output: dict[int, str] = {}
    found: dict[str, None] = {}
    for call in step.calls:
        if call.op.phase != "forward":
            continue
        source = next((of_output[slot] for slot in call.reads if slot in of_output), None)
        is_gemm = call.op.name in LINEAR
        if is_gemm:
            if source is not None:
                found[source] = None
            source = call.op.module if call.op.module in layers else None
        if source is not None:
            read = {tensor.shape for tensor in call.op.tensors}
            of_output.update({slot: source for slot, made in call.made.items() if is_gemm or made.shape in read})
    return list(found)


def heads(graph: Graph, count: int) -> Graph:
    """The step with its hidden width split into another number of attention heads, of another size."""
    check_size("heads", count)
    original, _ = editable_step(graph)
    graph, share_again = without_gradient_sharing(original, "heads")
    stream = ResidualStream.of(list(graph.ops))
    if stream is None or stream.heads == 1:
        raise ForetraceError(
            f"{graph.title} has no blocks with attention heads",
            "If it should have, record it, or sketch it: traces lack modules.",
        )
    if stream.width % count:
        near = sorted((n for n in range(1, stream.width + 1) if stream.width % n == 0), key=lambda n: abs(n - count))
        raise ForetraceError(
            f"a hidden width of {stream.width} is not divisible by {count} heads",
            f"The nearest counts are {near[0]} and {near[1]}; or set another width before it.",
        )
    if count == stream.heads:
        return original
    # First as wide as that many heads of the same size, then as wide as before.
    intermediate = stream.width // stream.heads * count
    wider = stream.resizable(graph, keep="size").to(intermediate)
    made = hidden(wider, stream.width, intermediate)
    made.notes[-2:] = [f"{count} heads instead of {stream.heads}"]
    return share_again(made)


@dataclass(frozen=True)
class ResidualStream:
    """The residual stream between a model's blocks: its width, and the number of heads; 1 if there is no attention."""

    blocks: tuple[str, ...]
    width: int
    heads: int

    @classmethod
    def of(cls, ops: Sequence[Op], width: int | None = None) -> ResidualStream | None:
        """That of a step; None if it repeats no blocks, or they have no residual additions."""
        blocks = tuple(repeated_blocks(ops))
        inside = [op for op in ops if op.phase == "forward" and block_index(op.module, blocks) >= 0]
        width = width or _residual_width(inside)
        return cls(blocks, width, _head_count(inside, width)) if blocks and width else None

    def resizable(self, graph: Graph, keep: str) -> Resizable:
        """The flat step with any width; ``keep`` is what stays: the number of ``"heads"``, or their ``"size"``."""
        step = Dataflow(list(graph.ops))
        # Where a width is split into heads and head size, the last number is the head size.
        change = SizeChange(self.width, self.width, last=keep == "heads", parts=True)
        return Resizable(graph, step, "hidden", change, list(self._choices(step, keep)))

    def _choices(self, step: Dataflow, keep: str) -> Iterator[InputChoice]:
        """Which dimensions of each weight change; and of other inputs, in case they have to."""
        inputs, inside = StepInputs(step), self._read_inside(step)
        tables = {call.reads[0] for call in step.calls if call.op.name == EMBEDDING}
        for group in tied_inputs(step):
            first, tensor = group[0], step.inputs[group[0]]
            if first in inputs.weights:
                wide = frozenset(dim for dim, size in enumerate(tensor.shape) if size == self.width)
                wide = self._wide_dims(tensor, keep) if inside.intersection(group) else wide
                wide = frozenset([max(wide)]) if wide and first in tables else wide
                yield InputChoice(group, [wide, *(dims for dims in _dim_options(tensor) if dims != wide)])
            elif first in inputs.data:
                yield InputChoice(group, list(_dim_options(tensor)))

    def _wide_dims(self, tensor: Tensor, keep: str) -> Dims:
        """Dimensions of a weight inside a block that hold whole heads, or are wider than the stream."""
        head_size = self.width // self.heads
        kept = head_size if keep == "size" else 0
        wide = (dim for dim, size in enumerate(tensor.shape) if size % head_size == 0 or size > self.width)
        return frozenset(dim for dim in wide if tensor.shape[dim] != kept)

    def _read_inside(self, step: Dataflow) -> set[int]:
        """Inputs that calls inside blocks read, directly or through a view."""
        viewed = {slot: call.reads[0] for call in step.calls if len(call.reads) == 1 for slot in call.made}
        found: set[int] = set()
        for call in step.calls:
            if call.op.phase == "forward" and block_index(call.op.module, self.blocks) >= 0:
                found.update(call.reads)
                found.update(viewed[slot] for slot in call.reads if slot in viewed)
        return found & step.inputs.keys()


def _residual_width(inside: Sequence[Op]) -> int | None:
    """The most frequent width of residual additions that is also an input width of linear layers."""
    sums = Counter(op.produced[0].shape[-1] for op in inside if _is_residual(op))
    read = {op.tensors[-2].shape[-1] for op in inside if op.name in LINEAR}
    return next((size for size, _ in sums.most_common() if size in read), None)


def _is_residual(op: Op) -> bool:
    shapes = {tensor.shape for tensor in op.tensors}
    return op.name in ADDS and len(op.tensors) == 2 and len(shapes) == 1 and any(shapes)


def _head_count(inside: Sequence[Op], width: int | None) -> int:
    found = Counter(op.tensors[0].shape[-3] for op in inside if "scaled_dot_product" in op.name)
    if not found:
        split = [op.produced[0].shape for op in inside if op.name in VIEWS and op.tensors[0].shape[-1] == width]
        found = Counter(shape[-2] for shape in split if len(shape) > 3 and shape[-2] * shape[-1] == width)
    return found.most_common(1)[0][0] if found else 1


def _dim_options(tensor: Tensor) -> Iterator[Dims]:
    """No dimension, each one from the last on, pairs of them."""
    dims = range(len(tensor.shape) - 1, -1, -1)
    for count in range(min(len(tensor.shape), 2) + 1):
        yield from map(frozenset, combinations(dims, count))
