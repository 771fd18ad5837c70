"""Losses over large vocabularies, rankings, small batched products, decompositions."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.model_kinds.parts import Options, ids, noise, perceptron, ran, size, squares
from benchmarks.lib.workloads import Step
from benchmarks.lib.zoo import CUDA


def vocabulary(dice: random.Random, options: Options) -> Step:
    """Losses over many classes: smoothed, weighted, ignored, cut into chunks, distilled."""
    classes, wide, tokens = size(dice, 1000, 260_000), dice.choice([64, 128, 256, 512, 768]), size(dice, 64, 8192)
    tokens = max(16, min(tokens, 2**28 // classes))
    model, x, labels = nn.Linear(wide, classes, bias=dice.random() < 0.3), noise(tokens, wide), ids(classes, tokens)
    kind = dice.choice(["plain", "smooth", "smooth", "ignored", "chunks", "distilled", "focal", "capped", "sums"])
    other = noise(tokens, classes) if kind == "distilled" else x

    def loss_of(model: nn.Module) -> torch.Tensor:
        if kind == "chunks":
            return torch.stack(
                [F.cross_entropy(model(part).float(), of) for part, of in zip(x.chunk(4), labels.chunk(4))]
            ).mean()
        found = model(x)
        if kind == "distilled":
            return F.kl_div((found / 2).float().log_softmax(-1), (other / 2).float().softmax(-1), reduction="batchmean")
        if kind == "focal":
            each = F.cross_entropy(found.float(), labels, reduction="none")
            return ((1 - (-each).exp()) ** 2 * each).mean()
        if kind == "capped":
            found = torch.tanh(found / 30) * 30
        if kind == "sums":
            found = found.float()
            return (found.logsumexp(-1) - found.gather(1, labels[:, None])[:, 0]).mean()
        smooth = 0.1 if kind == "smooth" else 0.0
        return F.cross_entropy(found if as_it_is else found.float(), labels, label_smoothing=smooth,
                               ignore_index=0 if kind == "ignored" else -100)  # fmt: skip

    as_it_is = dice.random() < 0.3
    return ran(dice, model, loss_of, options)


def ranked(dice: random.Random, options: Options) -> Step:
    """Sorted scores, running sums, quantiles, distances: rankings, triplets, contrast."""
    batch, length, wide = size(dice, 8, 2048), size(dice, 16, 4096), size(dice, 16, 256)
    batch = max(1, min(batch, 2**22 // length))
    model, x, many = nn.Linear(wide, wide), noise(batch, wide), noise(batch, length)
    line = nn.Parameter(torch.ones(length, device=CUDA))
    model.register_parameter("line", line)
    kind = dice.choice(["lists", "quantiles", "contrast", "triplets", "matches", "uniques", "soft"])
    temperature, keys = dice.choice([0.07, 0.1, 0.5]), ids(max(2, batch // 4), batch)

    def loss_of(model: Any) -> torch.Tensor:
        y = F.normalize(model(x).float(), dim=-1)
        scores = many * model.line
        if kind == "lists":
            ordered = scores.sort(-1, descending=True).values
            return (ordered.flip(-1).logcumsumexp(-1).flip(-1) - ordered).mean() + scores.cumsum(-1).mean()
        if kind == "quantiles":
            return (
                scores.kthvalue(max(1, length // 2), -1).values + scores.topk(min(length, 10)).values.sum(-1)
            ).mean()
        if kind == "contrast":
            return F.cross_entropy(y @ y.t() / temperature, torch.arange(batch, device=CUDA))
        if kind == "triplets":
            apart = torch.cdist(y, y)
            alike = keys[:, None] == keys
            far, close = (apart * alike).max(1).values, apart.masked_fill(alike, 1e9).min(1).values
            return F.relu(far - close + 0.2).mean()
        if kind == "matches":
            return F.cosine_similarity(y[:, None], y[None, :64], dim=-1).abs().mean()
        if kind == "uniques":
            inverse = torch.unique(keys, return_inverse=True)[1]
            return squares(y.new_zeros(batch, wide).index_add(0, inverse, y))
        return squares(
            F.softmax(-(scores[:, :64, None] - scores[:, None, :64]).abs() / temperature, -1) @ scores[:, :64, None]
        )

    return ran(dice, model, loss_of, options)


def products(dice: random.Random, options: Options) -> Step:
    """Many small products: capsules, mixtures, per-sample weights, triangles."""
    kind = dice.choice(["capsules", "samples", "triangles", "outer", "tensors", "rotations"])
    batch, n, a, b = size(dice, 8, 4096), size(dice, 2, 64), size(dice, 2, 64), size(dice, 2, 64)
    batch = max(1, min(batch, 2**24 // (n * max(a * b, a + b))))
    weights = nn.Parameter(noise(n, a, b) / a**0.5)
    model = nn.Linear(a, a).to(CUDA)
    model.register_parameter("weights", weights)
    x, side = noise(batch, n, a), min(batch, size(dice, 16, 256))
    pairs, least = noise(side, side, a), min(a, b, 8)

    def loss_of(model: Any) -> torch.Tensor:
        if kind == "capsules":
            return squares(torch.einsum("bna,nac->bnc", x, model.weights))
        if kind == "samples":
            each = model.weights[:1] * x.mean(-1)[:, :1, None]
            return squares(torch.bmm(model(x), each.expand(batch, a, b).contiguous()))
        if kind == "triangles":
            y = model(pairs)
            return squares(torch.einsum("ikc,jkc->ijc", y, pairs)) + squares(torch.einsum("kic,kjc->ijc", y, pairs))
        if kind == "outer":
            y = model(x)
            return squares(torch.einsum("bni,bnj->bij", y, y) / n)
        if kind == "tensors":
            return squares(torch.baddbmm(x.mean(1)[:, :, None].expand(-1, -1, a), x.transpose(1, 2), model(x)))
        turn = 0.1 * (model.weights[:, :least, :least] - model.weights[:, :least, :least].mT)
        return squares(torch.linalg.matrix_exp(turn))

    return ran(dice, model, loss_of, options)


def samples(dice: random.Random, options: Options) -> Step:
    """Gradients of each sample, by `torch.func`."""
    wide, hidden, batch = size(dice, 8, 784), size(dice, 16, 512), size(dice, 8, 1024)
    model = perceptron(dice, wide, hidden, 10).to(CUDA)
    images = dice.random() < 0.4
    if images:
        model = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 13 * 13, 10)).to(CUDA)
    x, labels = noise(batch, 1, 28, 28) if images else noise(batch, wide), ids(10, batch)
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights: Any, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), label[None])

    def step() -> None:
        found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, labels)
        size_of = torch.stack([each.flatten(1).norm(dim=1) for each in found.values()]).norm(dim=0)
        scale = (1.0 / (size_of + 1e-6)).clamp(max=1.0)
        for name, each in found.items():
            weights[name].sub_(1e-3 * torch.einsum("b,b...->...", scale, each))

    return step


def decomposed(dice: random.Random, options: Options) -> Step:
    """Gaussian processes, whitening, orthogonal weights, batches of small systems."""
    kind = dice.choice(["process", "white", "solves", "orthogonal", "spectra", "normal", "newton"])
    many = dice.random() < 0.5
    side, batch = (size(dice, 2, 64), size(dice, 4, 2048)) if many else (size(dice, 64, 1024), size(dice, 1, 4))
    model, x = nn.Linear(side, side, bias=False), noise(batch, side, side)
    eye = torch.eye(side, device=CUDA)

    def loss_of(model: nn.Module) -> torch.Tensor:
        y = model(x).float()
        positive = y @ y.mT / side + eye
        if kind == "process":
            root = torch.linalg.cholesky(positive)
            return torch.cholesky_solve(y[..., :1], root).mean() + root.diagonal(dim1=-2, dim2=-1).log().sum(-1).mean()
        if kind == "white":
            values, vectors = torch.linalg.eigh(positive)
            return squares(vectors * values.rsqrt()[..., None, :])
        if kind == "solves":
            return squares(torch.linalg.solve(positive, y[..., :2])) + squares(torch.linalg.inv(positive))
        if kind == "orthogonal":
            return squares(torch.linalg.qr(y)[0])
        if kind == "spectra":
            return torch.linalg.svdvals(y).sum(-1).mean()
        if kind == "normal":
            return torch.linalg.slogdet(positive)[1].mean() + squares(
                torch.linalg.solve_triangular(positive.tril(), y, upper=False)
            )
        found = positive / positive.norm(dim=(-2, -1), keepdim=True)
        for _ in range(5):
            found = 1.5 * found - 0.5 * found @ found @ found
        return squares(found)

    return ran(dice, model, loss_of, {**options, "dtype": None})
