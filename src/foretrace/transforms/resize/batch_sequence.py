"""Batch size and sequence length."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, Tensor
from foretrace.transforms.blocks import repeated_blocks
from foretrace.transforms.dataflow import Dataflow
from foretrace.transforms.inputs import StepInputs, is_per_channel, tied_inputs
from foretrace.transforms.parallel.schedules import accumulation_rounds, is_inside
from foretrace.transforms.resize.arguments import SLICE, SizeChange
from foretrace.transforms.resize.propagation import InputChoice
from foretrace.transforms.resize.resizable import Resizable, check_size
from foretrace.transforms.resize.shapes import Dims
from foretrace.transforms.step import editable_step, flatten

NO_DIMS: Dims = frozenset()
OTHER_BATCH = "the inputs of the step look like a batch of "
"""Where a user states another recorded batch size than the step shows."""


def batch(graph: Graph, new: int, old: int | None = None) -> Graph:
    """The step with another batch size; the recorded one is found by the sizes of the data where it is left out.

    >>> from foretrace.graph import Op, OpTable
    >>> x, y = (Tensor((8, 4), "float32", "cpu", (4, 1), id=number, storage=number) for number in (0, 1))
    >>> step = Graph(OpTable.of([Op("aten::relu", (x,), outputs=(y,), overload="default", phase="forward")]))
    >>> batch(step, 32).ops[0].outputs[0].shape
    (32, 4)
    """
    return resizable_batch(graph, old).to(check_size("batch", new))


def resizable_batch(graph: Graph, old: int | None = None) -> Resizable:
    """The step with any batch size: ``resizable_batch(graph).to(64)``.

    Where a step adds up gradients it is that of a micro-batch, or that of all of them where the stated one is.
    """
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    inputs = StepInputs(step, _held(graph))
    data, seen, parts = inputs.data, inputs.batch, 1
    if old and seen and old != seen and old == seen * micro_batches(graph, seen):
        parts, old = old // seen, seen
    if old is not None:
        _check_recorded_batch(graph, data, check_size("batch", old))
    found = old or seen
    if found is None and not _first_sizes(data):
        raise _no_data(graph)
    if found is None:
        sizes = _listed(inputs.first_sizes or _first_sizes(data))
        raise ForetraceError(
            f"the batch size of {graph.title} is not clear: the first dimensions of its inputs are {sizes}",
            "State it: --batch-was OLD, or batch=NEW/OLD.",
        )
    change = SizeChange(found, found)
    choices = [InputChoice((slot,), _batch_options(tensor, change)) for slot, tensor in data.items()]
    return Resizable(graph, step, "batch", change, choices, parts=parts)


def batch_size(graph: Graph) -> int | None:
    """The batch size of a step, by the sizes of its data; None if it can't be found."""
    return StepInputs(Dataflow(list(flatten(graph).ops)), _held(graph)).batch


def micro_batches(graph: Graph, batch: int) -> int:
    """How many batches of so many samples a step goes through: several, where it adds their gradients up.

    Rounds that differ in their calls, or that update weights in between, are no gradient accumulation.
    """
    ops = list(flatten(graph).ops)
    blocks = repeated_blocks(ops)
    rounds = accumulation_rounds(ops, blocks)
    forward = [[op for op in ops[rows.start : rows.stop] if op.phase == "forward"] for rows in rounds]
    names = [[op.name for op in calls if is_inside(op.module, blocks)] for calls in forward]
    updates = any(op.phase == "optimizer" for op in ops[: rounds[-1].stop])
    if len(rounds) == 1 or updates or any(names[0] != others for others in names[1:]):
        return 1
    # A script may load the batch of the whole step at once, and divide it: then a round makes tensors of a part of it.
    rows = Counter(tensor.shape[0] for op in forward[0] for tensor in op.produced if tensor.shape)
    return 1 if rows[batch // len(rounds)] > rows[batch] else len(rounds)


def other_batch_notes(graph: Graph, stated: int | None) -> list[str]:
    """A note where the recorded batch size was stated, and the data of the step has another."""
    seen = batch_size(graph) if stated else None
    differs = stated and seen and stated not in (seen, seen * micro_batches(graph, seen))
    return [f"{OTHER_BATCH}{seen:,}, not of {stated:,}: leave out /{stated} to take that"] if differs else []


def _held(graph: Graph) -> set[int]:
    """Storages that modules hold."""
    return {storage.id for storage in graph.storages.values() if storage.held}


def _batch_options(tensor: Tensor, change: SizeChange) -> list[Dims]:
    """Dimensions of an input that may hold the batch, likeliest first."""
    holding = [dim for dim, size in enumerate(tensor.shape) if size and size % change.old == 0]
    if tensor.shape == (change.old + 1,) and tensor.dtype.startswith("int"):
        holding = [0]  # offsets: one more, the end of the last bag
    options: list[Dims] = [frozenset([dim]) for dim in holding]
    options.insert(1 if 0 in holding and not is_per_channel(tensor) else 0, NO_DIMS)
    return options


def _check_recorded_batch(graph: Graph, data: dict[int, Tensor], old: int) -> None:
    """Raise for a recorded batch size that is neither a size of any input nor a divisor of a first dimension."""
    firsts = _first_sizes(data)
    if any(old in tensor.shape for tensor in data.values()) or (old > 1 and any(n and n % old == 0 for n in firsts)):
        return
    if not firsts:
        raise _no_data(graph)
    raise ForetraceError(
        f"{graph.title} was not recorded with a batch of {old}: first dimensions of its inputs are {_listed(firsts)}",
        "Leave out the recorded size, and it is found: batch=NEW.",
    )


def _listed(sizes: list[int]) -> str:
    return ", ".join(str(size) for size, _ in Counter(sizes).most_common(5))


def _first_sizes(data: dict[int, Tensor]) -> list[int]:
    """First dimensions of the inputs that may hold a batch."""
    return [tensor.shape[0] for tensor in data.values() if tensor.shape and not is_per_channel(tensor)]


def _no_data(graph: Graph) -> ForetraceError:
    return ForetraceError(
        f"{graph.title} creates its data within the step: no input holds a batch",
        "Give the size by an option of the script itself, if it has one: foretrace predict -- python train.py "
        "--batch 64. Or load the data before the step begins.",
    )


def sequence(graph: Graph, new: int, old: int | None = None) -> Graph:
    """The step with another sequence length: tokens in a sample.

    The recorded length is found by attention, or by the sizes of the data, where it is left out. A table of position
    embeddings grows if it is too small, as the model itself would need.
    """
    return resizable_sequence(graph, check_size("seq", new), old).to(new)


def resizable_sequence(graph: Graph, longest: int, old: int | None = None) -> Resizable:
    """The step with any sequence length up to the longest one."""
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    inputs = StepInputs(step)
    found = check_size("seq", old) if old is not None else _sequence_length(ops, inputs)
    if found is None:
        raise ForetraceError(f"the sequence length of {graph.title} can't be found", "State it: seq=NEW/OLD.")
    change = SizeChange(found, longest, last=True)
    choices = [InputChoice((slot,), _sequence_options(tensor, change)) for slot, tensor in inputs.data.items()]
    for group in tied_inputs(step):
        first = step.inputs[group[0]]
        if group[0] in inputs.weights and first.shape and first.shape[0] == found < longest and len(first.shape) == 2:
            choices.append(InputChoice(group, [frozenset([0]), NO_DIMS]))
    return Resizable(graph, step, "seq", change, choices, _position_buffers(inputs, step, longest))


def _position_buffers(inputs: StepInputs, step: Dataflow, longest: int) -> set[int]:
    """Inputs from which positions are sliced, and that hold enough of them for the longest sequence."""
    sliced = {call.reads[0] for call in step.calls if call.op.name == SLICE}
    single = {
        slot for slot, tensor in inputs.data.items() if tensor.shape[:1] == (1,) and inputs.batch not in (None, 1)
    }
    return {slot for slot in sliced & single if max(inputs.data[slot].shape) >= longest}


def _sequence_options(tensor: Tensor, change: SizeChange) -> list[Dims]:
    """Dimensions of an input that may hold the length: all that are equal to it, some of them, none, multiples."""
    exact = [dim for dim, size in enumerate(tensor.shape) if size in (change.old, change.old + 1)]
    exact = exact if tensor.dtype.startswith(("int", "bool")) or len(tensor.shape) > 2 else []
    options = [frozenset(dims) for count in range(len(exact), 0, -1) for dims in combinations(exact, count)]
    others = [dim for dim, size in enumerate(tensor.shape) if change.holds(size) and dim not in exact]
    return [*options, NO_DIMS, *(frozenset([dim]) for dim in others)]


def _sequence_length(ops: list[Op], inputs: StepInputs) -> int | None:
    """Tokens in a sample: the query length of attention; else the second dimension of integer data."""
    lengths = [op.tensors[0].shape[-2] for op in ops if "scaled_dot_product" in op.name and op.phase == "forward"]
    if not lengths:
        data = inputs.data.values()
        ids = [tensor.shape for tensor in data if len(tensor.shape) == 2 and tensor.dtype.startswith("int")]
        lengths = [length for samples, length in ids if samples == inputs.batch and length > 1]
    return Counter(lengths).most_common(1)[0][0] if lengths else None
