"""Models of tables, points and graphs: lookups, scatters, sparse products, routing."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.model_kinds.parts import Options, ids, noise, perceptron, ran, size, squares
from benchmarks.lib.workloads import Step
from benchmarks.lib.zoo import CUDA, trained


def tabular(dice: random.Random, options: Options) -> Step:
    """Recommenders and factorization machines: tables of ids with dense gradients."""
    fields, deep, batch = (
        dice.choice([2, 4, 8, 13, 16, 20, 32, 39, 48, 64]),
        dice.choice([4, 8, 10, 16, 32, 64, 128]),
        size(dice, 128, 32768),
    )
    rows, one, sparse = size(dice, 50, 500_000), dice.random() < 0.35, dice.random() < 0.15
    batch = max(64, min(batch, 2**25 // (fields * deep)))
    tables = [
        nn.Embedding(rows if one else size(dice, 10, rows), deep, sparse=sparse) for _ in range(1 if one else fields)
    ]
    cross = nn.ModuleList([nn.Linear(fields * deep, fields * deep) for _ in range(2)])
    model = nn.ModuleList(
        [nn.ModuleList(tables), cross, perceptron(dice, fields * deep, size(dice, 32, 1024), size(dice, 16, 512), 1)]
    )
    x, clicked = (
        [ids(table.num_embeddings, batch, *([fields] if one else [])) for table in tables],
        torch.rand(batch, device=CUDA).round(),
    )
    kind = dice.choice(["deep", "factors", "crosses", "pairs"])

    def loss_of(model: Any) -> torch.Tensor:
        found = [table(each) for table, each in zip(model[0], x)]
        y = found[0] if one else torch.stack(found, 1)
        flat = y.flatten(1)
        out = model[2](flat).squeeze(1)
        if kind == "factors":
            out = out + 0.5 * (y.sum(1).square() - y.square().sum(1)).sum(1)
        elif kind == "crosses":
            deeper = flat
            for layer in model[1]:
                deeper = flat * layer(deeper) + deeper
            out = out + deeper.sum(1)
        elif kind == "pairs":
            pairs = y @ y.transpose(1, 2)
            rows_, columns = torch.tril_indices(fields, fields, -1, device=y.device)
            out = out + pairs[:, rows_, columns].sum(1)
        return F.binary_cross_entropy_with_logits(out.float(), clicked)

    plain = {**options, "optimizer": partial(torch.optim.SGD), "clip": None} if sparse else options
    return ran(dice, model, loss_of, plain)


def history(dice: random.Random, options: Options) -> Step:
    """What users did, in order: items, positions, negatives that are drawn."""
    items, deep, batch, length = (
        size(dice, 1000, 500_000),
        dice.choice([16, 32, 50, 64, 128, 256]),
        size(dice, 16, 1024),
        size(dice, 10, 200),
    )
    batch = max(1, min(batch, 2**24 // (length * deep)))
    table, layer = nn.Embedding(items, deep, padding_idx=0), nn.Linear(deep, deep)
    seen, drawn = ids(items, batch, length), ids(items, batch, length)
    kind = dice.choice(["pairs", "sampled", "all", "weights"])
    all_of, labels = size(dice, 100, 20000), ids(100, batch)

    def loss_of(model: Any) -> torch.Tensor:
        found = model[1](model[0](seen)).tanh()
        if kind == "pairs":
            good, bad = (found * model[0](seen)).sum(-1), (found * model[0](drawn)).sum(-1)
            return -F.logsigmoid(good - bad).mean()
        if kind == "sampled":
            return F.cross_entropy(torch.einsum("bld,bnd->bln", found, model[0](drawn[:, :50])).flatten(0, 1).float(),
                                   torch.zeros(batch * length, dtype=torch.long, device=CUDA))  # fmt: skip
        if kind == "all":
            return F.cross_entropy((found[:, -1] @ model[0].weight[:all_of].t()).float(), labels)
        scores = (found @ found[:, -1:].transpose(1, 2)).masked_fill((seen == 0)[..., None], -1e9).softmax(1)
        return squares((scores * found).sum(1))

    return ran(dice, nn.ModuleList([table, layer]), loss_of, options)


def points(dice: random.Random, options: Options) -> Step:
    """Clouds of points: pointwise sequences, neighbours, pooling over points."""
    batch, count, near = size(dice, 1, 64), size(dice, 128, 8192), dice.choice([8, 16, 20, 32])
    batch = max(1, min(batch, 2**22 // count))
    widths = [dice.choice([3, 6]), *(size(dice, 32, 1024) for _ in range(3))]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Conv1d(a, b, 1, bias=dice.random() < 0.5), nn.BatchNorm1d(b), nn.ReLU()]
    model, x = nn.Sequential(*layers), noise(batch, widths[0], count)
    kind = dice.choice(["pools", "pools", "neighbours", "chamfer"]) if batch * count**2 < 2**27 else "pools"

    def loss_of(model: nn.Module) -> torch.Tensor:
        if kind == "neighbours":
            places = x.transpose(1, 2)
            nearest = torch.cdist(places, places).topk(near, largest=False).indices
            y = model(x).transpose(1, 2)
            around = torch.gather(
                y[:, :, None].expand(-1, -1, near, -1), 1, nearest[..., None].expand(-1, -1, -1, y.shape[-1])
            )
            return squares((around - y[:, :, None]).max(2).values)
        if kind == "chamfer":
            found = model(x)[:, :3].transpose(1, 2)
            apart = torch.cdist(found.float(), x[:, :3].transpose(1, 2))
            return apart.min(1).values.mean() + apart.min(2).values.mean()
        return squares(model(x).max(2).values)

    return ran(dice, model, loss_of, options)


def meshed(dice: random.Random, options: Options) -> Step:
    """Graphs: messages along edges, summed, averaged, weighted or by a sparse product."""
    nodes, degree, deep = (
        size(dice, 500, 200_000),
        dice.choice([2, 4, 8, 16, 32]),
        dice.choice([8, 16, 32, 64, 128, 256]),
    )
    edges = min(nodes * degree, 2**25 // deep)
    source, target, x = ids(nodes, edges), ids(nodes, edges), noise(nodes, deep)
    heads = dice.choice([1, 2, 4, 8])
    model = nn.ModuleList([nn.Linear(deep, deep), nn.Linear(2 * deep, deep), nn.Linear(deep, heads)])
    kind = dice.choice(["adds", "scatters", "weighs", "largest", "sparse", "indexes"])
    every = (
        torch.sparse_coo_tensor(torch.stack([target, source]), torch.ones(edges, device=CUDA), (nodes, nodes))
        if kind == "sparse"
        else None
    )

    def loss_of(model: Any) -> torch.Tensor:
        y = model[0](x)
        zero = torch.zeros(nodes, deep, device=y.device, dtype=y.dtype)
        if every is not None:
            return squares(torch.sparse.mm(every, y.float()))
        sent = y[source] if kind == "indexes" else y.index_select(0, source)
        if kind == "weighs":
            scores = F.leaky_relu(model[2](sent) + model[2](y)[target], 0.2).exp().float()
            whole = torch.zeros(nodes, heads, device=y.device).index_add_(0, target, scores)
            sent = sent * (scores / (whole[target] + 1e-9)).mean(1, keepdim=True).to(sent.dtype)
        if kind == "largest":
            found = zero.scatter_reduce(0, target[:, None].expand(-1, deep), sent, "amax")
        elif kind == "scatters":
            found = zero.scatter_add(0, target[:, None].expand(-1, deep), sent)
        elif kind == "indexes":
            found = zero.index_put((target,), sent, accumulate=True)
        else:
            found = zero.index_add(0, target, sent)
        return squares(model[1](torch.cat([y, found], 1)))

    return ran(dice, model, loss_of, {**options, "dtype": None} if kind == "sparse" else options)


def molecules(dice: random.Random, options: Options) -> Step:
    """Atoms and the distances between them; forces by a second derivative."""
    atoms, edges, deep, basis = (
        size(dice, 200, 8000),
        size(dice, 2000, 100_000),
        dice.choice([32, 64, 128]),
        dice.choice([16, 32, 50]),
    )
    places, kinds, a, b = noise(atoms, 3), ids(20, atoms), ids(atoms, edges), ids(atoms, edges)
    model = nn.ModuleList(
        [nn.Embedding(100, deep), perceptron(dice, basis, deep, deep), perceptron(dice, deep, deep, 1)]
    )
    centres, forces = torch.linspace(0, 5, basis, device=CUDA), dice.random() < 0.5

    def loss_of(model: Any) -> torch.Tensor:
        at = places.detach().requires_grad_(forces)
        apart = (at[a] - at[b]).norm(dim=1)
        filters = model[1](torch.exp(-10 * (apart[:, None] - centres).square()))
        x = model[0](kinds)
        x = x + torch.zeros_like(x).index_add(0, b, x[a] * filters.to(x.dtype))
        energy = model[2](x).float().sum()
        if not forces:
            return energy.square()
        return torch.autograd.grad(energy, at, create_graph=True)[0].square().mean() + energy.square()

    return trained(model.to(CUDA).train(), loss_of, **{**options, "dtype": None})


def routed(dice: random.Random, options: Options) -> Step:
    """Tokens sent to experts: top-k, one-hot, sorted, put back."""
    tokens, wide, experts, chosen = (
        size(dice, 256, 16384),
        dice.choice([64, 128, 256, 512, 1024]),
        dice.choice([4, 8, 16, 32, 64]),
        dice.choice([1, 2, 4]),
    )
    model = nn.ModuleList([nn.Linear(wide, experts), *(perceptron(dice, wide, 2 * wide, wide) for _ in range(2))])
    x, kind, room = noise(tokens, wide), dice.choice(["sorts", "masks", "slots"]), max(1, tokens * chosen // experts)

    def loss_of(model: Any) -> torch.Tensor:
        scores = model[0](x).float().softmax(-1)
        weight, expert = scores.topk(chosen, -1)
        balance = F.one_hot(expert, experts).float().mean((0, 1)) @ scores.mean(0)
        if kind == "sorts":
            order = expert.flatten().argsort()
            sent = x[order // chosen]
            back = torch.zeros_like(x).index_add(
                0, order // chosen, (model[1](sent) * weight.flatten()[order, None]).to(x.dtype)
            )
        elif kind == "slots":
            place = F.one_hot(expert[:, 0], experts).cumsum(0)
            held = (
                torch.zeros(experts, tokens, device=x.device).scatter(0, expert[:, :1].t(), 1.0)
                if experts * tokens < 2**24
                else scores.t()
            )
            sent = (held[:, :room] @ x[:room]).float() + place.float().mean()
            back = model[1](sent).float().sum() + x * 0
        else:
            back = sum((model[1 + at % 2](x) * (weight * (expert == at)).sum(-1, keepdim=True) for at in range(2)), x)
        return squares(back) + balance

    return ran(dice, model, loss_of, options)
