"""Another batch."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.dataflow import Dataflow
from foretrace.transforms.inputs import StepInputs, is_per_channel, tied_inputs
from foretrace.transforms.resize.arguments import SizeChange
from foretrace.transforms.resize.propagation import InputChoice
from foretrace.transforms.resize.resizable import Resizable, check_size
from foretrace.transforms.resize.shapes import Dims
from foretrace.transforms.step import editable_step, flatten

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
    return resizable_batch(graph, old).to(check_size("batch", new))


def resizable_batch(graph: Graph, old: int | None = None) -> Resizable:
    """The step with any batch: ``batches(graph).to(64)``; how it goes through the calls is found once."""
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    given = StepInputs(step)
    data = given.data
    if old is not None:
        _check(graph, data, check_size("batch", old))
    found = old or given.batch
    if found is None and not _firsts(data):
        raise _without_data(graph)
    if found is None:
        raise ForetraceError(f"{graph.title} does not show its batch", "Say what it was: batch=NEW/OLD.")
    scale = SizeChange(found, found)
    choices = [InputChoice((slot,), _batch_dims(tensor, scale)) for slot, tensor in data.items()]
    return Resizable(graph, step, "batch", scale, choices)


def batch_size(graph: Graph) -> int | None:
    """Samples in a step's batch, by the sizes of its data; None where they do not show."""
    return StepInputs(Dataflow(list(flatten(graph).ops))).batch


def _batch_dims(tensor: Tensor, scale: SizeChange) -> list[Dims]:
    """The dimensions of an input that may hold the batch, likely ones first."""
    ways: list[Dims] = []
    if tensor.shape and _leads(tensor, scale):
        ways.append(frozenset([0]))
    ways.insert(0 if is_per_channel(tensor) else len(ways), NOTHING)
    return ways + [frozenset([dim]) for dim, n in enumerate(tensor.shape) if dim and n % scale.old == 0 and n]


def _leads(tensor: Tensor, scale: SizeChange) -> bool:
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
    return [tensor.shape[0] for tensor in data.values() if tensor.shape and not is_per_channel(tensor)]


def _without_data(graph: Graph) -> ForetraceError:
    return ForetraceError(
        f"{graph.title} makes its data itself: no input holds a batch",
        "Record it with data that is there before the step begins.",
    )


# --- was transforms.sequence: Another sequence length.

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
    return resizable_sequence(graph, check_size("seq", new), old).to(new)


def resizable_sequence(graph: Graph, longest: int, old: int | None = None) -> Resizable:
    """The step with samples of any length up to the longest one."""
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    given = StepInputs(step)
    found = check_size("seq", old) if old is not None else _length(ops, given)
    if found is None:
        raise ForetraceError(f"{graph.title} does not show its sequence length", "Say what it was: seq=NEW/OLD.")
    scale = SizeChange(found, longest, last=True)
    choices = [InputChoice((slot,), _sequence_dims(tensor, scale)) for slot, tensor in given.data.items()]
    for group in tied_inputs(step):
        first = step.inputs[group[0]]
        if group[0] in given.weights and first.shape and first.shape[0] == found < longest and len(first.shape) == 2:
            choices.append(InputChoice(group, [frozenset([0]), NOTHING]))
    return Resizable(graph, step, "seq", scale, choices, _buffers(given, step, longest))


def _buffers(given: StepInputs, step: Dataflow, longest: int) -> set[int]:
    """Inputs from which the positions of all samples are cut, and that hold enough of them for the longest one."""
    cut = {call.reads[0] for call in step.calls if call.op.name == CUT}
    one = {slot for slot, tensor in given.data.items() if tensor.shape[:1] == (1,) and given.batch not in (None, 1)}
    return {slot for slot in cut & one if max(given.data[slot].shape) >= longest}


def _sequence_dims(tensor: Tensor, scale: SizeChange) -> list[Dims]:
    """The dimensions of an input that may hold the length: all that are just that long, each of them, none."""
    exact = [dim for dim, size in enumerate(tensor.shape) if size in (scale.old, scale.old + 1)]
    exact = exact if tensor.dtype.startswith(("int", "bool")) or len(tensor.shape) > 2 else []
    ways = [frozenset(dims) for count in range(len(exact), 0, -1) for dims in combinations(exact, count)]
    others = [dim for dim, size in enumerate(tensor.shape) if scale.holds(size) and dim not in exact]
    return [*ways, NOTHING, *(frozenset([dim]) for dim in others)]


def _length(ops: list[Op], given: StepInputs) -> int | None:
    """Tokens in a sample: what attention sees at once; else the size after the batch of integer data."""
    seen = [op.tensors[0].shape[-2] for op in ops if "scaled_dot_product" in op.name and op.phase == "forward"]
    if not seen:
        data = given.data.values()
        ids = [tensor.shape for tensor in data if len(tensor.shape) == 2 and tensor.dtype.startswith("int")]
        seen = [length for samples, length in ids if samples == given.batch and length > 1]
    return Counter(seen).most_common(1)[0][0] if seen else None
