"""The dispatcher calls of a graph: in order, none inside another, as a recording of the same step has them.

Arguments that a profiler leaves out are deduced from the rest of its trace. PyTorch's writes the shapes of the tensors
in a list, as `torch.cat` has them, but not their dtypes; and of no tensor where it lies; and not whether GEMMs of
float32 may use TF32. The first follows from calls nearby that have tensors of these shapes, the others from the kernels
that ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from foretrace.graph import PHASES, Collective, Constant, ForetraceError, Graph, Op, OpTable, Tensor, Value
from foretrace.graph.calls import autograd_nodes, dispatched, enclosing_calls, host_collective_calls, with_scalars
from foretrace.graph.operators import GEMMS
from foretrace.graph.tables import CALL, NODE, Ints, KernelTable, Longs, StorageTable, distinct

PRECISION = "matmul_precision"
OLD_GRADIENTS = ("aten::cudnn_convolution_backward", "aten::miopen_convolution_backward")
"""What autograd called for a convolution before PyTorch 1.11."""
TO_DEVICE, TO_HOST = "Memcpy HtoD", "Memcpy DtoH"
COPY, CONVERSION = "aten::copy_", "aten::_to_copy"
HOST, DEVICE = "cpu", "cuda:0"
TF32_KERNELS = ("tf32", "s1688", "s16816")
"""Pieces of the names of kernels that multiply float32 on Tensor Cores."""


class DispatchedCalls(NamedTuple):
    """A step's dispatcher calls, and where they came from."""

    calls: Graph
    """Without storages: these live by the rows of the graph that the calls came from."""
    rows: Ints
    """For each call, its row in that graph; for a launch outside of any call, the row before it."""
    stream: Ints
    """For each call, the stream that was current."""


def dispatched_calls(graph: Graph) -> DispatchedCalls:
    """The graph's dispatcher calls alone, with the kernels, runtime calls and statistics that belong to them.

    >>> from foretrace.graph import Op
    >>> trace = Graph(OpTable.of([Op("aten::linear"), Op("aten::t", parent=0), Op("aten::addmm", parent=0)]))
    >>> [op.name for op in dispatched_calls(trace).calls.ops]
    ['aten::t', 'aten::addmm']
    """
    check_order(graph)
    called = rows = dispatched(graph)
    place = enclosing_calls(graph, rows)
    picked = list(graph.ops.rows(rows))
    nested = bool((graph.ops.parent[rows] >= 0).any())
    for op, node in zip(picked, autograd_nodes(graph.ops, rows)):
        op.parent, op.node = -1, op.node or node
        if nested:
            op.args = with_scalars(op.args)
    calls, kernels = replace(graph.calls), replace(graph.kernels)
    calls.op, kernels.op = place[calls.op], place[kernels.op]
    kinds = graph.ops.kind[rows]
    communicate = np.array(sorted({c.kernel for c in graph.collectives if c.kernel >= 0}), np.int64)
    lost = communicate[(kernels.op[communicate] < 0) & (kernels.call[communicate] < 0)]
    loose = distinct(kernels.call[(kernels.op < 0) & (kernels.call >= 0)])
    if len(loose) or len(lost):
        launching, first = np.unique(graph.kernels.call, return_index=True)
        kernel = first[np.searchsorted(launching, loose)].tolist()
        launches = [_launch(graph, call, row) for call, row in zip(loose.tolist(), kernel)]
        both = [*picked, *launches, *_unrecorded_launches(graph, lost)]
        # Calls are in the order in which they started.
        starts = np.array([op.start_us for op in both])
        order = np.argsort(starts, kind="stable")
        new = np.empty(len(order) + 1, np.int32)
        new[order], new[-1] = np.arange(len(order)), -1
        calls.op, kernels.op, place = new[calls.op], new[kernels.op], new[place]
        calls.op[loose] = new[len(picked) : len(picked) + len(loose)]
        kernels.op = np.where((kernels.op < 0) & (kernels.call >= 0), calls.op[kernels.call], kernels.op)
        kernels.op[lost] = new[len(picked) + len(loose) : -1]
        before = np.searchsorted(graph.ops.start, starts[len(picked) :], "right") - 1
        rows = np.concatenate([rows, np.maximum(before, 0)])[order].astype(np.int32)
        kinds = np.concatenate([kinds, np.full(len(before), CALL, np.int8)])[order]
        picked = [both[at] for at in order.tolist()]
    rename_old_gradients(picked)
    deduce_list_dtypes(picked)
    deduce_copied_memory(picked, kernels)
    ops = OpTable.of(picked)
    ops.kind = kinds
    ops.detail = picked.__getitem__  # no copies: nothing else holds them
    settings = graph.settings
    if PRECISION not in settings and uses_tf32(picked, kernels):
        settings = {**settings, PRECISION: "high"}
    alone = replace(
        graph,
        settings=settings,
        ops=ops,
        calls=calls,
        kernels=kernels,
        collectives=_issued(graph, place, called, kernels.op),
        indices=[replace(i, op=int(place[i.op])) for i in graph.indices],
        storages=_pinned(graph),
    )
    return DispatchedCalls(alone, rows, np.array([op.stream for op in picked], np.int32))


def _pinned(graph: Graph) -> StorageTable:
    """The storages in page-locked memory, whose copies are fast; without lifetimes, as rows of ops have changed."""
    table = StorageTable.of(graph.storages)
    pinned = table.rows(table.pinned)
    unknown = np.full(len(pinned), -1)
    return replace(pinned, birth=unknown, death=unknown)


def _launch(graph: Graph, call: int, kernel: int) -> Op:
    """A launch outside of any dispatcher call, as one.

    It has the name of the runtime call for a CUDA or HIP graph, of the autograd node that launches it, else of its
    kernel.
    """
    calls, ops, kernels = graph.calls, graph.ops, graph.kernels
    name, around = calls.names[calls.name[call]], int(calls.op[call])
    if "GraphLaunch" not in name and around >= 0 and ops.kind[around] == NODE:
        name = ops.names[ops.name[around]]
    elif "GraphLaunch" not in name:
        name = kernels.names[kernels.name[kernel]]
    return Op(
        name,
        start_us=float(calls.start[call]),
        end_us=float(calls.end[call]),
        thread=int(calls.thread[call]),
        phase=PHASES[ops.phase[around]] if around >= 0 else "other",
        module=ops.modules[ops.module[around]] if around >= 0 else "",
    )


def _unrecorded_launches(graph: Graph, lost: Ints | Longs) -> list[Op]:
    """Calls for communication kernels whose launch the trace does not hold, each after that of the kernel before it.

    Work of any other kind may be an earlier step's; communication is what the step's other ranks wait for.
    """
    calls, kernels = graph.calls, graph.kernels
    known = np.flatnonzero(kernels.call >= 0)
    known = known[np.argsort(kernels.start[known], kind="stable")]
    ops = []
    for row in lost.tolist():
        at = int(np.searchsorted(kernels.start[known], kernels.start[row], "right")) - 1
        call = int(kernels.call[known[max(at, 0)]]) if len(known) else -1
        around = int(calls.op[call]) if call >= 0 else -1
        when = max(float(calls.end[call]), float(graph.ops.end[around]) if around >= 0 else 0.0) if call >= 0 else 0.0
        thread = int(calls.thread[call]) if call >= 0 else 0
        ops.append(Op(kernels.names[kernels.name[row]], start_us=when, end_us=when, thread=thread))
    return ops


def _issued(graph: Graph, place: Ints, rows: Ints, launching: Ints) -> list[Collective]:
    """The collectives with the calls that issue them: those around them, or that launch their kernels."""
    asked = host_collective_calls(graph, rows) if (place[[c.op for c in graph.collectives]] < 0).any() else {}
    found = []
    for number, c in enumerate(graph.collectives):
        issued = int(place[c.op] if place[c.op] >= 0 else place[asked.get(number, -1)])
        found.append(replace(c, op=int(launching[c.kernel]) if issued < 0 <= c.kernel else issued))
    return found


def check_order(graph: Graph) -> None:
    """Refuse a graph in which an op is inside one that comes after it: no step runs so."""
    parents = graph.ops.parent
    wrong = np.flatnonzero(parents >= np.arange(len(parents)))
    if not len(wrong):
        return
    inner, outer = int(wrong[0]), int(parents[wrong[0]])
    names = graph.ops.names
    raise ForetraceError(
        f"op {inner} ({names[graph.ops.name[inner]]}) is inside op {outer} "
        f"({names[graph.ops.name[outer]] if outer < len(parents) else 'unknown'}), which does not come before it",
        f"{graph.source or 'The graph'} is damaged: record or export it again.",
    )


def deduce_list_dtypes(ops: Sequence[Op]) -> None:
    """Give a dtype to the tensors in lists that have none, in place.

    It is that of the last tensor of the same shape in an earlier call, or else of the last floating-point one.

    >>> half, rotated = Tensor((2, 8), "bfloat16"), [Tensor((2, 8), ""), Tensor((2, 4), "")]
    >>> calls = [Op("aten::neg", (half,)), Op("aten::cat", (rotated, -1))]
    >>> deduce_list_dtypes(calls)
    >>> [each.dtype for each in calls[1].tensors]
    ['bfloat16', 'bfloat16']
    """
    if not any(_lacks_dtypes(value) for op in ops for value in op.args):
        return
    seen: dict[tuple[int, ...], Tensor] = {}
    recent = ""
    for op in ops:
        op.args = tuple(_completed(value, seen, recent) for value in op.args)
        for tensor in op.tensors:
            if tensor.dtype and tensor.shape:
                seen[tensor.shape] = tensor
                recent = tensor.dtype if "float" in tensor.dtype else recent


def _lacks_dtypes(value: Value) -> bool:
    """Whether an argument is a list of tensors that have shapes and no dtypes."""
    return isinstance(value, list) and any(isinstance(each, Tensor) and each.shape and not each.dtype for each in value)


def _completed(value: Value, seen: Mapping[tuple[int, ...], Tensor], recent: str) -> Value:
    """An argument whose tensors, if it is a list of them, have the dtypes and layouts of those like them."""
    if not isinstance(value, list) or not _lacks_dtypes(value):
        return value
    found: list[Value] = []
    for each in value:
        if isinstance(each, Tensor) and not each.dtype:
            alike = seen.get(each.shape, Tensor(each.shape, recent))
            each = replace(each, dtype=alike.dtype, stride=alike.stride)
        found.append(each)
    return found


def rename_old_gradients(ops: Sequence[Op]) -> None:
    """Give gradients of convolutions in traces of old versions the name and the arguments of today, in place.

    Such traces have no strides, nor whether a convolution is transposed: it is not, and the strides of it and of its
    gradient follow from the sizes of both.

    >>> x, grad, weight = (Tensor(shape, "float32") for shape in ((8, 3, 9, 9), (8, 4, 5, 5), (4, 3, 3, 3)))
    >>> unknown = [Constant("object", "GenericList")] * 3
    >>> forward = Op("aten::convolution", (x, weight, None, *unknown, False, None, 1))
    >>> backward = Op("aten::cudnn_convolution_backward", (x, grad, weight, *unknown, 1, False, False, True, None))
    >>> rename_old_gradients([forward, backward])
    >>> backward.name, backward.tensors[0].shape, backward.args[4], forward.args[3:5]
    ('aten::convolution_backward', (8, 4, 5, 5), [2, 2], ([2, 2], [1, 1]))
    """
    deduced: dict[tuple[tuple[int, ...], ...], list[Value]] = {}
    for op in ops:
        if op.name not in OLD_GRADIENTS or len(op.args) < 7:
            continue
        given, grad, weight, padding, stride, dilation, groups = op.args[:7]
        if not (isinstance(given, Tensor) and isinstance(grad, Tensor) and isinstance(weight, Tensor)):
            continue
        if not isinstance(stride, list):
            stride, padding = _strides(given.shape[2:], grad.shape[2:], weight.shape[2:])
            deduced[given.shape, weight.shape] = [stride, padding]
        mask = op.args[-1] if isinstance(op.args[-1], list) else None
        op.name = "aten::convolution_backward"
        op.args = (grad, given, weight, None, stride, padding, dilation, False, [0, 0], groups, mask)
    for op in ops if deduced else ():
        if op.name == "aten::convolution" and len(op.args) > 6 and not isinstance(op.args[3], list):
            found = deduced.get((op.tensors[0].shape, op.tensors[1].shape))
            op.args = (*op.args[:3], *found, op.args[5], False, *op.args[7:]) if found else op.args


def _strides(given: Sequence[int], made: Sequence[int], kernel: Sequence[int]) -> tuple[Value, Value]:
    """The stride of a convolution between two sizes, and its padding: as much as keeps them at a stride of one."""
    return [-(-size // max(1, less)) for size, less in zip(given, made)], [(size - 1) // 2 for size in kernel]


def deduce_copied_memory(ops: Sequence[Op], kernels: KernelTable) -> None:
    """Say which tensors of copies lie on the host, in place, by the direction in which their kernels copied."""
    for text, to_device in ((TO_DEVICE, True), (TO_HOST, False)):
        named = kernels.names.matching(partial(_begins, text))
        if not named.any():
            continue
        for row in distinct(kernels.op[named[kernels.name] & (kernels.op >= 0)]).tolist():
            _set_memory(ops[row], to_device)


def _begins(text: str, name: str) -> bool:
    return name.startswith(text)


def _set_memory(op: Op, to_device: bool) -> None:
    source, target = (HOST, DEVICE) if to_device else (DEVICE, HOST)
    places = (target, source) if op.name == COPY else (source,) if op.name == CONVERSION else ()
    tensors = op.args[: len(places)]
    unplaced = [each for each in tensors if isinstance(each, Tensor) and not each.device]
    if not places or len(unplaced) < len(places):  # without shapes, a call has no arguments
        return
    placed = [replace(each, device=place) for each, place in zip(unplaced, places)]
    op.args = (*placed, *op.args[len(places) :])
    if op.name == CONVERSION:
        op.kwargs = {"device": Constant("device", target), **op.kwargs}
        op.outputs = op.outputs or (replace(placed[0], device=target),)


def uses_tf32(ops: Sequence[Op], kernels: KernelTable) -> bool:
    """Whether the kernel of some GEMM of float32 rounds its operands to TF32."""
    named = kernels.names.matching(lambda name: any(piece in name for piece in TF32_KERNELS))
    if not named.any():
        return False
    rows = distinct(kernels.op[named[kernels.name] & (kernels.op >= 0)]).tolist()
    return any(
        ops[row].name in GEMMS and all(tensor.dtype == "float32" for tensor in ops[row].tensors if tensor.shape)
        for row in rows
    )
