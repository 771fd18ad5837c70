"""Data parallel: each rank has the whole model, and all share their gradients, as DistributedDataParallel does it.

Gradients are scaled into buckets as backward finishes them. A full bucket goes out at once, beside the backward that
goes on; when backward is done, the sums are copied back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from foretrace.graph import Graph, Op, Tensor
from foretrace.transforms.draft import Draft, ProcessGroup, call_like, draft_of
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import Gradient, reject_sparse_gradients, weights_of

MIB = 2**20
DEFAULT_BUCKET_MB = 25.0
"""Size of DDP's buckets where a script does not say."""
FIRST_BUCKET = MIB
"""Bytes after which DDP then sends the first one: early, so that the links have something to do."""


def data_parallel(graph: Graph, ways: int, bucket_mb: float = DEFAULT_BUCKET_MB) -> Graph:
    """The step of one of so many ranks that train the same model, each on its own batch.

    Parameters
    ----------
    graph
        The step of one rank.
    ways
        How many ranks.
    bucket_mb
        Size of DDP's buckets; infinity for one all_reduce of everything, after backward.

    >>> from foretrace.graph import OpTable
    >>> given, weight, made, grad = (Tensor((4, 4), "float32", id=number, storage=number) for number in range(4))
    >>> forward = Op("aten::mm", (given, weight), outputs=(made,), phase="forward")
    >>> backward = Op("aten::mm", (given, made), outputs=(grad,), phase="backward")
    >>> update = Op("aten::add_", (weight, grad), {"alpha": -0.1}, (weight,), phase="optimizer")
    >>> rank = data_parallel(Graph(OpTable.of([forward, backward, update])), 8)
    >>> [(one.kind, one.nbytes, len(one.ranks)) for one in rank.collectives]
    [('all_reduce', 64, 8)]
    """
    draft = draft_of(graph, "data parallel")
    reject_sparse_gradients(draft.ops, graph.source)
    group = ProcessGroup("data", tuple(range(ways)))
    note = f"data parallel over {ways} ranks, in buckets of {bucket_mb:g} MB, was not in the step that was given"
    return draft.graph_of(share_gradients(draft, draft.calls, group, bucket_mb), 0, ways, note)


def gradient_buckets(gradients: Sequence[Gradient], bucket_mb: float) -> list[list[Gradient]]:
    """Gradients by bucket, in the order in which they become ready; a bucket is closed when it is full.

    >>> one = [Gradient(Tensor((2**18,), "float32"), row, "") for row in range(4)]
    >>> [len(bucket) for bucket in gradient_buckets(one, 25.0)], [len(bucket) for bucket in gradient_buckets(one, float("inf"))]
    ([1, 3], [4])
    """
    limits = [FIRST_BUCKET, DEFAULT_BUCKET_MB * MIB] if bucket_mb == DEFAULT_BUCKET_MB else [bucket_mb * MIB]
    buckets: list[list[Gradient]] = []
    by_dtype: dict[str, list[Gradient]] = {}
    sent: dict[str, int] = {}
    for gradient in gradients:
        dtype = gradient.tensor.dtype
        filling = by_dtype.setdefault(dtype, [])
        filling.append(gradient)
        limit = limits[min(sent.get(dtype, 0), len(limits) - 1)]
        if sum(g.tensor.nbytes for g in filling) >= limit:
            buckets.append(by_dtype.pop(dtype))
            sent[dtype] = sent.get(dtype, 0) + 1
    buckets += by_dtype.values()
    return sorted(buckets, key=lambda bucket: max(g.ready for g in bucket))


def share_gradients(
    draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup, bucket_mb: float, alone: Collection[int] = ()
) -> list[EditedCall]:
    """The calls of a step with what it takes to share its gradients in a group.

    Parameters
    ----------
    draft, calls
        The step.
    group
        Who shares them.
    bucket_mb
        Size of a bucket.
    alone
        Storages of gradients that are this rank's own.
    """
    ops = [call.op for call in calls]
    gradients = [g for g in weights_of(ops, draft.graph.source).gradients if g.tensor.storage not in alone]
    behind: dict[int, list[EditedCall]] = {}
    back: list[EditedCall] = []
    last = max(row for row, op in enumerate(ops) if op.phase == "backward")
    for bucket in gradient_buckets(gradients, bucket_mb):
        first = bucket[0].tensor
        room = draft.tensor((sum(g.tensor.numel for g in bucket),), first.dtype, first.device)
        offset = 0
        parts = []
        for gradient in bucket:
            part = draft.view(room, gradient.tensor.shape, offset)
            offset += gradient.tensor.numel
            parts.append(part)
            like = accumulating(ops[gradient.ready])
            scale = call_like("aten::mul", (gradient.tensor, 1 / group.size), (part,), like, out=part)
            scale.overload = "out"
            behind.setdefault(gradient.ready, []).append(EditedCall(scale))
        full = max(g.ready for g in bucket)
        behind[full].append(draft.collective("all_reduce", group, room, room, accumulating(ops[full])))
        back += _copied_back(draft, room, parts, bucket, ops[last])
    behind.setdefault(last, []).extend(back)
    return [call for row, kept in enumerate(calls) for call in (kept, *behind.get(row, ()))]


def _copied_back(
    draft: Draft, room: Tensor, parts: Sequence[Tensor], bucket: Sequence[Gradient], like: Op
) -> list[EditedCall]:
    where = call_like("", (), (), like)
    where.module = where.node = ""
    looks, copies = [], []
    for part, gradient in zip(parts, bucket):
        seen = draft.view(room, part.shape, part.offset)
        strides = list(seen.stride or ())
        looks.append(
            EditedCall(call_like("aten::as_strided", (room, list(part.shape), strides, part.offset), (seen,), where))
        )
        copies.append(EditedCall(call_like("aten::copy_", (gradient.tensor, seen), (gradient.tensor,), where)))
    return looks + copies


def accumulating(op: Op) -> Op:
    """Where autograd's hooks are called: when a gradient is the weight's own."""
    where = call_like("", (), (), op)
    where.module, where.node = "", "torch::autograd::AccumulateGrad"
    return where
