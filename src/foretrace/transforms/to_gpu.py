"""A step that was recorded or sketched on a CPU, with its tensors put on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foretrace.graph import Constant, Graph, Op, OpTable, Tensor
from foretrace.graph.op import with_tensors
from foretrace.transforms.step import flatten

GPU = "cuda:0"
NOTE = (
    "recorded on a CPU: the same calls are predicted on a GPU, where PyTorch would fuse some and choose other kernels; "
    "to predict those, sketch the script: foretrace predict -- python train.py"
)
NOTHING_THERE = "the step puts nothing on the GPU: "
SKETCHED = (
    f"{NOTHING_THERE}it is predicted as if all its tensors were there. Build the model and its inputs on cuda, "
    "which needs no GPU in a sketch: then the calls and copies are those of a GPU"
)


def on_gpu(graph: Graph, sketched: bool = False) -> Graph:
    """The step with its tensors on a GPU, without the times of the CPU; a note says so, and what to do.

    Numbers that are not computed from a tensor with dimensions, as an optimizer's count of steps, stay on the host.

    >>> x, count = Tensor((4, 4), "float32", "cpu", storage=0), Tensor((), "float32", "cpu", storage=1)
    >>> ops = [Op("aten::relu", (x,), outputs=(x,)), Op("aten::add_", (count, 1), outputs=(count,))]
    >>> [op.args[0].device for op in on_gpu(Graph(OpTable.of(ops))).ops]
    ['cuda:0', 'cpu']
    """
    flat = flatten(graph)
    moved: set[int] = set()

    def place(tensor: Tensor) -> Tensor:
        if tensor.shape or tensor.storage in moved:
            moved.add(tensor.storage)
            return replace(tensor, device=GPU)
        return tensor

    ops = [_moved(op, place, moved) for op in flat.ops]
    moved.discard(-1)
    notes = [note for note in flat.notes if not note.startswith(NOTHING_THERE)]
    storages = {
        number: replace(held, device=GPU) if number in moved else held for number, held in flat.storages.items()
    }
    return replace(flat, ops=OpTable.of(ops), storages=storages, notes=[*notes, SKETCHED if sketched else NOTE])


def _moved(op: Op, place: Callable[[Tensor], Tensor], moved: set[int]) -> Op:
    if any(tensor.shape or tensor.storage in moved for tensor in op.tensors):
        moved.update(tensor.storage for tensor in op.produced)
    made = with_tensors(op, place)
    asked = made.kwargs.get("device")
    if isinstance(asked, Constant) and made.produced and made.produced[0].device == GPU:
        made = replace(made, kwargs={**made.kwargs, "device": Constant("device", GPU)})
    return made
