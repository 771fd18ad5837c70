"""Autocast's rules for CUDA are those of PyTorch's own code, asked through fake CUDA tensors without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from foretrace.graph import Op
from tests.record.sketch.fake_cuda import called_by_torch, called_in_a_sketch

pytestmark = pytest.mark.skipif(bool(torch.version.cuda), reason="a build with CUDA casts itself")

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "linear": lambda x, ids: F.linear(x, x, x.sum(0)),
    "einsum": lambda x, ids: torch.einsum("ab,cb->ac", x, x),
    "matmul": lambda x, ids: x @ x,
    "softmax": lambda x, ids: x.softmax(-1),
    "softmax in a dtype": lambda x, ids: torch.softmax(x, -1, dtype=torch.float32),
    "cumsum": lambda x, ids: x.cumsum(0),
    "sum": lambda x, ids: x.sum(),
    "norm": lambda x, ids: x.norm(),
    "vector norm": lambda x, ids: torch.linalg.vector_norm(x),
    "layer norm": lambda x, ids: F.layer_norm(x, (8,)),
    "group norm": lambda x, ids: F.group_norm(x, 2),
    "exp and pow": lambda x, ids: x.exp() + x.pow(2),
    "gelu": lambda x, ids: F.gelu(x),
    "mse": lambda x, ids: F.mse_loss(x, x),
    "smooth l1": lambda x, ids: F.smooth_l1_loss(x, x),
    "logits": lambda x, ids: F.binary_cross_entropy_with_logits(x, x),
    "cross entropy": lambda x, ids: F.cross_entropy(x, ids),
    "smoothed labels": lambda x, ids: F.cross_entropy(x, ids, label_smoothing=0.1),
    "smoothed labels, summed": lambda x, ids: F.cross_entropy(x, ids, label_smoothing=0.1, reduction="sum"),
    "smoothed labels, each": lambda x, ids: F.cross_entropy(x, ids, label_smoothing=0.1, reduction="none"),
    "weighted classes": lambda x, ids: F.cross_entropy(x, ids, x.float().sum(0), label_smoothing=0.1),
    "probabilities": lambda x, ids: F.cross_entropy(x, x),
    "smoothed probabilities": lambda x, ids: F.cross_entropy(x, x, x.sum(0), reduction="none", label_smoothing=0.1),
    "kl": lambda x, ids: F.kl_div(x, x, reduction="batchmean", log_target=True),
    "huber": lambda x, ids: (F.huber_loss(x, x), F.l1_loss(x, x), F.poisson_nll_loss(x, x)),
    "margins": lambda x, ids: (F.margin_ranking_loss(x, x, x), F.multi_margin_loss(x, ids), F.soft_margin_loss(x, x)),
    "labels": lambda x, ids: (F.multilabel_margin_loss(x, x.long()), F.multilabel_soft_margin_loss(x, x)),
    "embeddings": lambda x, ids: (F.cosine_embedding_loss(x, x, ids), F.hinge_embedding_loss(x, x)),
    "triplets": lambda x, ids: (
        F.triplet_margin_loss(x, x, x, swap=True),
        F.triplet_margin_with_distance_loss(x, x, x),
    ),
    "log softmax": lambda x, ids: (F.log_softmax(x, -1), x.log_softmax(-1, torch.float32), F.softmin(x, -1)),
    "squares": lambda x, ids: (x.square(), x**2, 2**x),
    "distances": lambda x, ids: (F.pairwise_distance(x, x), F.pdist(x), torch.dist(x, x)),
    "cdist": lambda x, ids: torch.cdist(x, x),
    "prelu": lambda x, ids: F.prelu(x, x.sum(0)),
    "addcmul": lambda x, ids: torch.addcmul(x, x, x.float()),
    "dropout": lambda x, ids: F.dropout(x, 0.1),
    "conv": lambda x, ids: F.conv1d(x.unsqueeze(0), x.unsqueeze(2)),
}


def dtypes(ops: Iterable[Op]) -> list[tuple[str, list[str]]]:
    return [(op.name, [t.dtype for t in op.produced]) for op in ops]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_cast_as_pytorch_does_on_cuda(name: str, dtype: torch.dtype) -> None:
    def step(device: str) -> None:
        given = torch.empty(8, 8, device=device, dtype=dtype)
        ids = torch.empty(8, device=device, dtype=torch.int64)
        with torch.autocast("cuda", torch.float16 if dtype == torch.float16 else torch.bfloat16):
            CALLS[name](given, ids)

    assert dtypes(called_in_a_sketch(step)) == dtypes(called_by_torch(step))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation_runs_in_float32_as_recordings_on_a_gpu_show(mode: str) -> None:
    def step(device: str) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            F.interpolate(torch.empty(1, 2, 8, 8, device=device, dtype=torch.bfloat16), scale_factor=2, mode=mode)

    casts = [("aten::_to_copy", ["float32"]), (f"aten::upsample_{mode}2d", ["float32"])]
    assert dtypes(called_in_a_sketch(step))[1:] == casts
