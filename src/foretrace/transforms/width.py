"""A layer with another number of outputs; the layers that read them follow."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.transforms.carry import Choice
from foretrace.transforms.companions import companions
from foretrace.transforms.inputs import Given
from foretrace.transforms.linked import Linked
from foretrace.transforms.names import unknown
from foretrace.transforms.resize import Resizable, checked_size
from foretrace.transforms.scale import Scale
from foretrace.transforms.step import flattened, opened

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
    checked_size("width", outputs)
    graph, ops = opened(graph)
    step = Linked(ops)
    weights = Given(step).weights
    layers = _layers(step, weights)
    meant = [name for name in layers if fnmatchcase(name, layer) or name.endswith(f".{layer}")]
    if not meant:
        raise unknown("linear layer", layer, layers)
    if len(meant) > 1:
        raise ForetraceError(f"{layer!r} names {len(meant)} layers", f"Choose one of {', '.join(meant[:8])}.")
    chosen = layers[meant[0]]
    scale = Scale(max(step.inputs[slot].shape[0] for slot in chosen), outputs, last=True)
    if scale.old == outputs:
        return graph
    return Resizable(graph, step, "width", scale, following(step, chosen, 0, weights)).to(outputs)


def following(step: Linked, chosen: Collection[int], dim: int, weights: Collection[int]) -> list[Choice]:
    """Weights of which a dimension changes, and all others, of which one may have to follow."""
    choices = []
    for group in companions(step):
        if not set(chosen).isdisjoint(group):
            choices.append(Choice(group, [frozenset([dim])]))
        elif group[0] in weights:
            sizes = range(len(step.inputs[group[0]].shape))
            choices.append(Choice(group, [frozenset(), *(frozenset([size]) for size in sizes)]))
    return choices


def hidden_layers(graph: Graph) -> list[str]:
    """The modules of linear layers whose outputs another one reads, with nothing but activations between them."""
    step = Linked(list(flattened(graph).ops))
    layers = _layers(step, Given(step).weights)
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


def _layers(step: Linked, weights: Collection[int]) -> dict[str, set[int]]:
    """The weight and the bias of each linear layer, by its module."""
    turned = {slot: call.reads[0] for call in step.calls if call.op.name == "aten::t" for slot in call.made}
    found: dict[str, set[int]] = {}
    for call in step.calls:
        if call.op.name in PRODUCTS and call.op.phase == "forward" and call.op.module:
            slots = {turned.get(slot, slot) for slot in call.reads}
            found.setdefault(call.op.module, set()).update(slot for slot in slots if slot in weights)
    return {name: slots for name, slots in found.items() if slots}
