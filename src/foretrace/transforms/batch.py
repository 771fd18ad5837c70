"""Another batch."""

from __future__ import annotations

from collections import Counter

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.tensor import Tensor
from foretrace.transforms.carry import Choice
from foretrace.transforms.inputs import Given, is_statistic
from foretrace.transforms.linked import Linked
from foretrace.transforms.resize import Resizable, checked_size
from foretrace.transforms.scale import Scale
from foretrace.transforms.shapes import Dims
from foretrace.transforms.step import flattened, opened

NOTHING: Dims = frozenset()


def batch(graph: Graph, new: int, old: int | None = None) -> Graph:
    """The step with another batch.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    new
        Samples in the new batch.
    old
        Samples in the recorded one; found by the sizes of the data where it is left out.

    >>> from foretrace.graph import Op, OpTable
    >>> x, y = (Tensor((8, 4), "float32", "cpu", (4, 1), id=number, storage=number) for number in (0, 1))
    >>> step = Graph(OpTable.of([Op("aten::relu", (x,), outputs=(y,), overload="default", phase="forward")]))
    >>> batch(step, 32).ops[0].outputs[0].shape
    (32, 4)
    """
    return batches(graph, old).to(checked_size("batch", new))


def batches(graph: Graph, old: int | None = None) -> Resizable:
    """The step with any batch: ``batches(graph).to(64)``; how it goes through the calls is found once."""
    graph, ops = opened(graph)
    step = Linked(ops)
    given = Given(step)
    data = given.data
    if old is not None:
        _check(graph, data, checked_size("batch", old))
    found = old or given.batch
    if found is None and not _firsts(data):
        raise _without_data(graph)
    if found is None:
        raise ForetraceError(f"{graph.title} does not show its batch", "Say what it was: batch=NEW/OLD.")
    scale = Scale(found, found)
    choices = [Choice((slot,), _ways(tensor, scale)) for slot, tensor in data.items()]
    return Resizable(graph, step, "batch", scale, choices)


def batch_of(graph: Graph) -> int | None:
    """Samples in a step's batch, by the sizes of its data; None where they do not show."""
    return Given(Linked(list(flattened(graph).ops))).batch


def _ways(tensor: Tensor, scale: Scale) -> list[Dims]:
    """The dimensions of an input that may hold the batch, likely ones first."""
    ways: list[Dims] = []
    if tensor.shape and _leads(tensor, scale):
        ways.append(frozenset([0]))
    ways.insert(0 if is_statistic(tensor) else len(ways), NOTHING)
    return ways + [frozenset([dim]) for dim, n in enumerate(tensor.shape) if dim and n % scale.old == 0 and n]


def _leads(tensor: Tensor, scale: Scale) -> bool:
    """Whether a tensor begins with the batch; offsets have one more, the end of the last bag."""
    first = tensor.shape[0]
    ends = len(tensor.shape) == 1 and tensor.dtype.startswith("int") and first == scale.old + 1
    return first > 0 and (first % scale.old == 0 or ends)


def _check(graph: Graph, data: dict[int, Tensor], old: int) -> None:
    """Refuse a recorded batch that no input has as a size, or begins with a multiple of."""
    firsts = _firsts(data)
    if any(old in tensor.shape for tensor in data.values()) or (old > 1 and any(n and n % old == 0 for n in firsts)):
        return
    if not firsts:
        raise _without_data(graph)
    sizes = ", ".join(str(size) for size, _ in Counter(firsts).most_common(5))
    raise ForetraceError(
        f"{graph.title} was not recorded with a batch of {old}: its inputs begin with {sizes}",
        "Leave out what was recorded, and it is found: batch=NEW.",
    )


def _firsts(data: dict[int, Tensor]) -> list[int]:
    """What the inputs that may hold a batch begin with."""
    return [tensor.shape[0] for tensor in data.values() if tensor.shape and not is_statistic(tensor)]


def _without_data(graph: Graph) -> ForetraceError:
    return ForetraceError(
        f"{graph.title} makes its data itself: no input holds a batch",
        "Record it with data that is there before the step begins.",
    )
