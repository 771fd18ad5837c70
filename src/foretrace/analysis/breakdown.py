"""Device and host time by op, kernel family, phase and module; device time that is active, idle or communication."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.collectives import CollectiveTimes, waiting
from foretrace.analysis.host_time import Segments
from foretrace.analysis.report import Communication, QueueDepth, TimeRow
from foretrace.graph import PHASES, Graph, OpTable
from foretrace.graph.operators import C10D_CALLS, LAUNCH_FREE_OPS, communicates
from foretrace.graph.tables import CALL, COLLECTIVE, Floats, Ints, KernelTable, Names, launched_before
from foretrace.simulation.task_graph import SYNC, T4, shared, total

STEP_MARK = "ProfilerStep#"
NO_OP, EARLIER = "(no op)", "(launched before)"
"""Owners of kernels that were launched outside any op, and before the step or the trace began."""


@dataclass(eq=False)
class _Contribution:
    """A rank's events by name: a code for each event, the names of the codes, and the time that each event adds."""

    code: NDArray[Any]
    names: list[str]
    device_us: Floats | float = 0.0
    host_us: Floats | float = 0.0
    count: NDArray[Any] | int = 0


def by_op(graphs: list[Graph], segments: list[Segments]) -> list[TimeRow]:
    """Time of each op without the ops inside it; device time goes to the innermost op that launched it."""
    return _rows(graphs, segments, _op_contributions)


def by_family(graphs: list[Graph], segments: list[Segments]) -> list[TimeRow]:
    """Time of each kernel family; host time is that of the launches. Where no rank has kernels, ops stand for them."""
    have = [pair for pair in zip(graphs, segments) if len(pair[0].kernels)] or list(zip(graphs, segments))
    return _rows([graph for graph, _ in have], [cut for _, cut in have], _family_contributions)


def by_phase(graphs: list[Graph], segments: list[Segments]) -> list[TimeRow]:
    """Time of forward, backward, optimizer and the rest; the host's T1 belongs to the op that follows."""
    return _rows(
        graphs, segments, lambda graph, cut: _column_contributions(graph, cut, graph.ops.phase, list(PHASES), "other")
    )


def by_module(graphs: list[Graph], segments: list[Segments]) -> list[TimeRow]:
    """Time of each module, the modules inside it not counted."""
    return _rows(
        graphs,
        segments,
        lambda graph, cut: _column_contributions(graph, cut, graph.ops.module, graph.ops.modules.items, ""),
    )


def _rows(
    graphs: list[Graph], segments: list[Segments], parts: Callable[[Graph, Segments], Iterator[_Contribution]]
) -> list[TimeRow]:
    sums: dict[str, Floats] = defaultdict(lambda: np.zeros(3))
    for graph, cut in zip(graphs, segments):
        for part in parts(graph, cut):
            added = _added(part)
            for code in np.flatnonzero(added.any(axis=1)).tolist():
                sums[part.names[code]] += added[code]
    ranks = max(len(graphs), 1)
    devices = sum(len(graph.kernels) > 0 for graph in graphs) or 1
    device, host = (sum(float(s[i]) for s in sums.values()) for i in (0, 1))
    rows = [
        TimeRow(
            name=name,
            device_ms=float(s[0]) / devices / 1e3,
            host_ms=float(s[1]) / ranks / 1e3,
            count=round(float(s[2]) / ranks),
            share=float(s[0]) / device if device else float(s[1]) / host if host else 0.0,
        )
        for name, s in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.device_ms, -row.host_ms, row.name))


def _added(part: _Contribution) -> Floats:
    each = (part.device_us, part.host_us, part.count)
    columns = (np.broadcast_to(np.asarray(column, np.float64), part.code.shape) for column in each)
    return np.stack([np.bincount(part.code, column, len(part.names)) for column in columns], axis=1)


def _op_contributions(graph: Graph, cut: Segments) -> Iterator[_Contribution]:
    shown, known = labels_of(graph)
    names = [*known, NO_OP, EARLIER]
    owner = np.append(shown, len(names) - 2)[graph.kernels.op]
    owner[launched_before(graph.kernels, graph.kernels)] = len(names) - 1
    yield _Contribution(owner, names, device_us=graph.kernels.end - graph.kernels.start)
    counted = graph.ops.kind == CALL
    counted[graph.kernels.op[graph.kernels.op >= 0]] = True
    own = np.where(graph.ops.kind == CALL, own_time(graph) - _waiting_us(graph, cut), 0.0)
    yield _Contribution(shown[counted], names, host_us=own[counted], count=1)


def own_time(graph: Graph) -> Floats:
    """Host time of each op, that of the ops inside it taken off."""
    time = np.nan_to_num(graph.ops.end - graph.ops.start)
    inside = graph.ops.parent >= 0
    return np.asarray(np.maximum(time - np.bincount(graph.ops.parent[inside], time[inside], len(time)), 0.0))


def _waiting_us(graph: Graph, cut: Segments) -> Floats:
    """Microseconds in which each op, and none inside it, waits for the device."""
    waits = (cut.kind == SYNC) & (cut.call >= 0)
    op = graph.calls.op[cut.call[waits]]
    us = np.bincount(op[op >= 0], cut.duration[waits][op >= 0], len(graph.ops))
    return np.minimum(us, own_time(graph))


def _family_contributions(graph: Graph, cut: Segments) -> Iterator[_Contribution]:
    kernels, ops = graph.kernels, graph.ops
    if not len(kernels):
        calls = ops.kind == CALL
        yield _Contribution(
            ops.name[calls], [kernel_family("", op) for op in ops.names.items], host_us=own_time(graph)[calls], count=1
        )
        return
    op_names = [*ops.names.items, ""]
    op = np.append(ops.name, len(op_names) - 1)[kernels.op]
    pairs, which = np.unique(kernels.name.astype(np.int64) * len(op_names) + op, return_inverse=True)
    names = [
        kernel_family(kernels.names[pair // len(op_names)], op_names[pair % len(op_names)]) for pair in pairs.tolist()
    ]
    yield _Contribution(which, names, kernels.end - kernels.start, _launch_time(graph, cut), 1)


def _launch_time(graph: Graph, cut: Segments) -> Floats:
    """Host time inside the call that launched each kernel; the kernels of a CUDA graph share theirs."""
    launches = cut.kind == T4
    of_call = np.bincount(cut.call[launches], cut.duration[launches], len(graph.calls) + 1)
    kernels_of_call = np.bincount(graph.kernels.call + 1, minlength=len(graph.calls) + 1)
    return np.asarray(of_call[graph.kernels.call] / kernels_of_call[graph.kernels.call + 1])


def _column_contributions(
    graph: Graph, cut: Segments, column: NDArray[Any], names: list[str], nowhere: str
) -> Iterator[_Contribution]:
    """Time by a column of the op table: kernels by their op, host segments by theirs, calls counted."""
    names = [*names, nowhere]
    of_op = np.append(column, len(names) - 1).astype(np.int64)
    yield _Contribution(of_op[graph.kernels.op], names, device_us=graph.kernels.end - graph.kernels.start)
    yield _Contribution(of_op[cut.op], names, host_us=np.where(cut.kind == SYNC, 0.0, cut.duration))
    yield _Contribution(of_op[:-1][graph.ops.kind == CALL], names, count=1)


def op_labels(ops: OpTable, owner: Ints, kernels: Sequence[str]) -> tuple[Ints, list[str]]:
    """The label that each op is shown by: a code for each op, and the names of the codes.

    A kernel that an extension launches without a dispatcher call is credited to the call before it. Where that is one
    which launches nothing by itself, as ``aten::empty``, the two are shown by the kernel's name. A step mark is no op.

    Parameters
    ----------
    ops
        The ops.
    owner, kernels
        For each kernel the op that it is credited to, and its name.

    >>> from foretrace.graph import Op
    >>> ops = OpTable.of([Op("aten::empty"), Op("aten::mm"), Op("aten::empty")])
    >>> codes, names = op_labels(ops, np.array([1, 2], np.int32), ["gemm", "fused_softmax"])
    >>> [names[code] for code in codes]
    ['aten::empty', 'aten::mm', 'fused_softmax']
    """
    names, code = Names(ops.names.items), ops.name.copy()
    marks = ops.names.matching(lambda name: name.startswith(STEP_MARK))
    if marks.any():
        code[marks[ops.name]] = names.code(NO_OP)
    silent = ops.names.matching(LAUNCH_FREE_OPS.__contains__)
    credited = np.flatnonzero(owner >= 0)
    for kernel in credited[silent[ops.name[owner[credited]]]][::-1].tolist():  # the first kernel of an op names it
        code[owner[kernel]] = names.code(kernels[kernel])
    return code, names.items


def labels_of(graph: Graph) -> tuple[Ints, list[str]]:
    """The labels of a graph's ops, from its measured or predicted kernels."""
    kernels, names = graph.kernels, graph.kernels.names.items
    return op_labels(graph.ops, kernels.op, [names[code] for code in kernels.name.tolist()])


# The group that reports show a kernel in, by its name and that of its op. Some kernels say all by themselves (a copy,
# a collective). Of the others the op knows best what they are for: a layout change in a convolution is a part of it.
# Where the op says nothing, the kernel's own name does. Within each list the first rule that matches wins.

KERNEL_GROUPS = (
    "matrix product", "convolution", "attention", "lookup", "element-wise", "copy", "reduction", "norm", "softmax",
    "optimizer", "sort/index", "communication", "memset", "compiled", "other",
)  # fmt: skip
"""What `kernel_family` answers. Kernels of any trace are grouped by name; the families that cost models are fitted for
(`foretrace.cost_models.kernels.families`) are sets of ops, and finer."""

Rules = tuple[tuple[str, re.Pattern[str]], ...]


def _rules(*patterns: tuple[str, str]) -> Rules:
    return tuple((family, re.compile(pattern)) for family, pattern in patterns)


_PLAIN_KERNELS = _rules(
    ("memset", r"^Memset|fillBuffer"),
    ("copy", r"^Memcpy|copyBuffer"),
    ("compiled", r"^triton_"),
)

_OPS = _rules(
    ("communication", r"^c10d|^nccl:|^gloo:|record_param_comms|all_?reduce|all_?gather|reduce_scatter|all_?to_?all"),
    ("compiled", r"^triton_"),
    ("convolution", r"conv(?!er)"),
    ("attention", r"attention|sdpa"),
    ("element-wise", r"rotary|rope_|_rope\b"),
    ("lookup", r"embedding|[lL]ookup|fbgemm|^fb::"),
    ("optimizer", r"_foreach_|_fused_|^Optimizer\.step|multi_tensor"),
    ("softmax", r"[sS]oftmax|nll_loss|cross_entropy"),
    ("norm", r"(?i)(layer|batch|group|rms|instance)_?norm"),
    ("matrix product", r"::(_?addmm|_?addbmm|mm|bmm|baddbmm|matmul|linear|mv|addmv|dot|vdot|_scaled_mm|_grouped_mm)\b"),
    ("sort/index", r"::_?(index|gather|scatter|sort|topk|unique|cumsum|nonzero|masked_|searchsorted|tri[lu])"),
    ("copy", r"::(_?cat|copy_?|_?to_copy|clone|contiguous|stack|repeat|pad|constant_pad_nd|flip|roll)\b"),
    ("reduction", r"::(sum|mean|amax|amin|max|min|argmax|argmin|prod|var|std|norm|linalg_vector_norm)\b|_pool\d"),
    ("element-wise", r"::(add|r?sub|mul|div|pow|r?sqrt|exp|log|abs|neg|where|clamp|fill|zero|eq|ne|[lg][te])_?\b"),
    ("element-wise", r"relu|gelu|silu|tanh|sigmoid|threshold|dropout|bernoulli|normal_|uniform_|rand|addc|lerp"),
)  # fmt: skip

_KERNELS = _rules(
    ("copy", r"(?i)(reshape|concat)_and_cache|store_?kv"),
    ("element-wise", r"(?i)rotary|(?<![a-z])rope(?![a-z])"),
    ("attention", r"flash_|\bflash::|fmha|(?i:attn|attention|sdpa)|Batch(Decode|Prefill)With"),
    ("lookup", r"(?i)embedding|pooled_embs"),
    ("norm", r"(?i)(layer|batch|rms|group)_?norm|bn_[fb]w|ln_[fb]wd|GammaBeta|RowwiseMoments"),
    ("sort/index", r"(?i)moe\W.*routing|moe_(align|sort)"),
    ("softmax", r"(?i)softmax"),
    ("optimizer", r"multi_tensor_apply|FusedOptimizer"),
    ("copy", r"copy_kernel|copy_async|CatArray|transpose_kernel"),
    ("element-wise", r"elementwise_kernel|dropout|distribution_"),
    ("matrix product", r"splitK"),
    ("reduction", r"reduce_kernel"),
    ("sort/index", r"cub::|thrust::|rocprim|[iI]ndex|gather|scatter|[sS]ort"),
    ("convolution", r"fprop|dgrad|wgrad|implicit_gemm|[cC]onvol|nchwToNhwc|nhwcToNchw|winograd"),
    (
        "matrix product",
        r"(?i:(?<!fb)gemm)|gemv|cutlass|nvjet|Cijk_|cublas|(?i:matmul)|fused_moe_kernel|marlin::|^(void )?bmm_",
    ),
    ("element-wise", r"(?i)silu|swiglu|gelu|relu|act_and_mul|quantize|cast_to_|cast_and_"),
    ("copy", r"copy_tensor"),
)  # fmt: skip
_TYPES = re.compile(r"\bcutlass::\w+_t\b")
"""Number types of CUTLASS, which kernels that multiply nothing take as well."""
_IS_OP = re.compile(r"::|^(nccl|gloo):|^Optimizer\.|^record_param_comms|^triton_|^$")
"""Names of ops; those of annotations and modules say where a kernel is launched, and not what it does."""


@cache
def kernel_family(kernel: str, op: str = "") -> str:
    """The family of a kernel that an op launched; with no kernel's name, that of the op.

    >>> kernel_family("ampere_fp16_s16816gemm_fp16_128x128_tn"), kernel_family("Cijk_Ailk_Bljk_BBS_BH_MT64x32x64")
    ('matrix product', 'matrix product')
    >>> kernel_family("Memset (Device)", "aten::mm"), kernel_family("nchwToNhwcKernel", "aten::cudnn_convolution")
    ('memset', 'convolution')
    >>> kernel_family("", "aten::native_layer_norm")
    'norm'
    """
    if communicates(kernel):
        return "communication"
    if kernel and not _IS_OP.search(op):
        op = ""
    for rules, name in ((_PLAIN_KERNELS, kernel), (_OPS, op), (_KERNELS, _TYPES.sub("", kernel))):
        for family_name, pattern in rules:
            if pattern.search(name):
                return family_name
    return "other"


Intervals = tuple[Floats, Floats]
"""Starts and ends."""


def kernels_in(graph: Graph, start: float, end: float) -> KernelTable:
    """The device work of a time window, cut to it: also what another step launched."""
    kernels = graph.kernels.rows((graph.kernels.start < end) & (graph.kernels.end > start))
    return replace(kernels, start=np.maximum(kernels.start, start), end=np.minimum(kernels.end, end))


def active_and_idle(graph: Graph) -> tuple[float, float]:
    """Microseconds in which something ran, and the rest from the first kernel's start to the last one's end."""
    kernels = graph.kernels
    if not len(kernels):
        return 0.0, 0.0
    active = total(kernels.start, kernels.end)
    return active, float(kernels.end.max() - kernels.start.min()) - active


def queue_depth(graph: Graph) -> QueueDepth:
    """Kernels launched and not yet done: mean over the time from the first launch to the last end, and most at once."""
    known = graph.kernels.call >= 0
    if not known.any():
        return QueueDepth()
    done = graph.kernels.end[known]
    launched = np.minimum(graph.calls.end[graph.kernels.call[known]], graph.kernels.start[known])
    times = np.concatenate([done, launched])
    change = np.repeat([-1, 1], len(done))
    depth = np.cumsum(change[np.argsort(times, kind="stable")])
    span = times.max() - times.min()
    return QueueDepth(float((done - launched).sum() / span) if span else 0.0, int(depth.max()))


def communication(
    graph: Graph,
    position: int,
    collectives: list[CollectiveTimes],
    kernels: KernelTable | None = None,
    window: tuple[float, float] = (-np.inf, np.inf),
    knows_waits: bool = True,
) -> Communication:
    """Communication of a rank, hidden behind other work or exposed, and what of the exposed is waiting.

    Where nothing ran on a device, threads of the host communicate (gloo), and other calls hide that.

    Parameters
    ----------
    graph, position
        The rank's step, and its position in the job.
    collectives
        Those of the job.
    kernels, window
        The device work of the step's time, and that time; all of the graph's where left out.
    knows_waits
        Whether those that it communicates with have a trace.
    """
    kernels = graph.kernels if kernels is None else kernels
    on_device = len(kernels) > 0
    exchange, compute = _on_device(kernels) if on_device else _on_host(graph)
    start, end, device_waits = waiting(position, collectives)
    here = device_waits == on_device
    wait_ms = total(start[here], end[here]) / 1e3
    ours = here & (start < window[1]) & (end > window[0])
    waits = np.maximum(start[ours], window[0]), np.minimum(end[ours], window[1])
    hidden, whole = shared(exchange, compute), total(*exchange)
    return Communication(
        communication_ms=whole / 1e3,
        hidden_ms=hidden / 1e3,
        exposed_ms=(whole - hidden) / 1e3,
        exposed_wait_ms=(total(*waits) - shared(waits, compute)) / 1e3 if knows_waits else None,
        wait_ms=wait_ms if knows_waits and on_device else None,
    )


def _on_device(kernels: KernelTable) -> tuple[Intervals, Intervals]:
    """When collectives run, and when other kernels do."""
    communicates = kernels.kind == COLLECTIVE
    return (kernels.start[communicates], kernels.end[communicates]), (
        kernels.start[~communicates],
        kernels.end[~communicates],
    )


def _on_host(graph: Graph) -> tuple[Intervals, Intervals]:
    """When threads communicate, and when other calls run."""
    ops = graph.ops
    asks = ops.names.matching(lambda name: name.startswith(C10D_CALLS))
    timed = np.isfinite(ops.start) & np.isfinite(ops.end) & ~asks[ops.name]
    communicates = np.zeros(len(ops), bool)
    communicates[[collective.op for collective in graph.collectives if collective.op >= 0]] = True
    works = timed & ~communicates & (ops.kind == CALL)
    communicates &= timed
    return (ops.start[communicates], ops.end[communicates]), (ops.start[works], ops.end[works])


def device_span(graphs: list[Graph]) -> float:
    """Milliseconds from the first kernel's start to the last one's end, over all ranks."""
    busy = [graph.kernels for graph in graphs if len(graph.kernels)]
    return float(max(k.end.max() for k in busy) - min(k.start.min() for k in busy)) / 1e3 if busy else 0.0
