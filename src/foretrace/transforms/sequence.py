"""Another sequence length."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.carry import Choice
from foretrace.transforms.companions import companions
from foretrace.transforms.inputs import Given
from foretrace.transforms.linked import Linked
from foretrace.transforms.resize import Resizable, checked_size
from foretrace.transforms.scale import Scale
from foretrace.transforms.shapes import Dims
from foretrace.transforms.step import opened

NOTHING: Dims = frozenset()
CUT = "aten::slice"


def sequence(graph: Graph, new: int, old: int | None = None) -> Graph:
    """The step with samples of another length.

    A table of positions grows where it is too small for them, as the model itself would have to.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    new
        Tokens in a sample.
    old
        Tokens in a recorded one; found by its attention, or by the sizes of its data, where it is left out.
    """
    return sequences(graph, checked_size("seq", new), old).to(new)


def sequences(graph: Graph, longest: int, old: int | None = None) -> Resizable:
    """The step with samples of any length up to the longest one."""
    graph, ops = opened(graph)
    step = Linked(ops)
    given = Given(step)
    found = checked_size("seq", old) if old is not None else _length(ops, given)
    if found is None:
        raise ForetraceError(f"{graph.title} does not show its sequence length", "Say what it was: seq=NEW/OLD.")
    scale = Scale(found, longest, last=True)
    choices = [Choice((slot,), _ways(tensor, scale)) for slot, tensor in given.data.items()]
    for group in companions(step):
        first = step.inputs[group[0]]
        if group[0] in given.weights and first.shape and first.shape[0] == found < longest and len(first.shape) == 2:
            choices.append(Choice(group, [frozenset([0]), NOTHING]))
    return Resizable(graph, step, "seq", scale, choices, _buffers(given, step, longest))


def _buffers(given: Given, step: Linked, longest: int) -> set[int]:
    """Inputs from which the positions of all samples are cut, and that hold enough of them for the longest one."""
    cut = {call.reads[0] for call in step.calls if call.op.name == CUT}
    one = {slot for slot, tensor in given.data.items() if tensor.shape[:1] == (1,) and given.batch not in (None, 1)}
    return {slot for slot in cut & one if max(given.data[slot].shape) >= longest}


def _ways(tensor: Tensor, scale: Scale) -> list[Dims]:
    """The dimensions of an input that may hold the length: all that are just that long, each of them, none."""
    exact = [dim for dim, size in enumerate(tensor.shape) if size in (scale.old, scale.old + 1)]
    exact = exact if tensor.dtype.startswith(("int", "bool")) or len(tensor.shape) > 2 else []
    ways = [frozenset(dims) for count in range(len(exact), 0, -1) for dims in combinations(exact, count)]
    others = [dim for dim, size in enumerate(tensor.shape) if scale.holds(size) and dim not in exact]
    return [*ways, NOTHING, *(frozenset([dim]) for dim in others)]


def _length(ops: list[Op], given: Given) -> int | None:
    """Tokens in a sample: what attention sees at once; else the size after the batch of integer data."""
    seen = [op.tensors[0].shape[-2] for op in ops if "scaled_dot_product" in op.name and op.phase == "forward"]
    if not seen:
        data = given.data.values()
        ids = [tensor.shape for tensor in data if len(tensor.shape) == 2 and tensor.dtype.startswith("int")]
        seen = [length for samples, length in ids if samples == given.batch and length > 1]
    return Counter(seen).most_common(1)[0][0] if seen else None
