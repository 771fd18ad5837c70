"""Data parallel: every rank has the whole model, and all reduce their gradients, as DistributedDataParallel does.

Gradients are scaled into buckets as backward completes them. A full bucket is reduced at once, overlapping with the
rest of backward; after backward the reduced gradients are copied back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from foretrace.graph import Op, Tensor
from foretrace.transforms.draft import Draft, ProcessGroup, call_like
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import Gradient, weights_of

MIB = 2**20
DEFAULT_BUCKET_MB = 25.0
"""DDP's default ``bucket_cap_mb``."""
FIRST_BUCKET_BYTES = MIB
"""Size of DDP's first bucket by default: small, so that communication starts early."""


def gradient_buckets(gradients: Sequence[Gradient], bucket_mb: float) -> list[list[Gradient]]:
    """Gradients by bucket, in the order in which they are ready; a bucket is closed when it is full."""
    is_default = bucket_mb == DEFAULT_BUCKET_MB
    limits = [FIRST_BUCKET_BYTES, DEFAULT_BUCKET_MB * MIB] if is_default else [bucket_mb * MIB]
    buckets: list[list[Gradient]] = []
    by_dtype: dict[str, list[Gradient]] = {}
    closed: dict[str, int] = {}
    for gradient in gradients:
        dtype = gradient.tensor.dtype
        bucket = by_dtype.setdefault(dtype, [])
        bucket.append(gradient)
        limit = limits[min(closed.get(dtype, 0), len(limits) - 1)]
        if sum(g.tensor.nbytes for g in bucket) >= limit:
            buckets.append(by_dtype.pop(dtype))
            closed[dtype] = closed.get(dtype, 0) + 1
    buckets += by_dtype.values()
    return sorted(buckets, key=lambda bucket: max(g.ready for g in bucket))


def share_gradients(
    draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup, bucket_mb: float, local: Collection[int] = ()
) -> list[EditedCall]:
    """The calls of a step with its gradients reduced over a group, in buckets; not those in ``local`` storages."""
    ops = [call.op for call in calls]
    gradients = [g for g in weights_of(ops, draft.graph.source).gradients if g.tensor.storage not in local]
    after: dict[int, list[EditedCall]] = {}
    copies: list[EditedCall] = []
    last = max(row for row, op in enumerate(ops) if op.phase == "backward")
    for bucket in gradient_buckets(gradients, bucket_mb):
        first = bucket[0].tensor
        buffer = draft.tensor((sum(g.tensor.numel for g in bucket),), first.dtype, first.device)
        offset = 0
        parts = []
        for gradient in bucket:
            part = draft.view(buffer, gradient.tensor.shape, offset)
            offset += gradient.tensor.numel
            parts.append(part)
            like = _in_grad_hook(ops[gradient.ready])
            scale = call_like("aten::mul", (gradient.tensor, 1 / group.size), (part,), like, out=part)
            scale.overload = "out"
            after.setdefault(gradient.ready, []).append(EditedCall(scale))
        full = max(g.ready for g in bucket)
        after[full].append(draft.collective("all_reduce", group, buffer, buffer, _in_grad_hook(ops[full])))
        copies += _copied_back(draft, buffer, parts, bucket, ops[last])
    after.setdefault(last, []).extend(copies)
    return [one for row, call in enumerate(calls) for one in (call, *after.get(row, ()))]


def _copied_back(
    draft: Draft, buffer: Tensor, parts: Sequence[Tensor], bucket: Sequence[Gradient], like: Op
) -> list[EditedCall]:
    like = call_like("", (), (), like)
    like.module = like.node = ""
    views, copies = [], []
    for part, gradient in zip(parts, bucket):
        view = draft.view(buffer, part.shape, part.offset)
        args = (buffer, list(part.shape), list(view.stride or ()), part.offset)
        views.append(EditedCall(call_like("aten::as_strided", args, (view,), like)))
        copies.append(EditedCall(call_like("aten::copy_", (gradient.tensor, view), (gradient.tensor,), like)))
    return views + copies


def _in_grad_hook(op: Op) -> Op:
    """A call as DDP's gradient hooks make it: inside AccumulateGrad, in no module."""
    like = call_like("", (), (), op)
    like.module, like.node = "", "torch::autograd::AccumulateGrad"
    return like
