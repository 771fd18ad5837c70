"""Models of rays, physics, play and densities, quantization, and optimizers written out."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.model_kinds.parts import Options, ids, noise, perceptron, ran, size, squares
from benchmarks.lib.workloads import Step
from benchmarks.lib.zoo import CUDA, trained


def rays(dice: random.Random, options: Options) -> Step:
    """Colours along rays: places encoded by waves or by tables, transparency multiplied up."""
    count, steps, wide = (
        size(dice, 256, 8192),
        dice.choice([16, 32, 48, 64, 96, 128, 192]),
        dice.choice([32, 64, 128, 256]),
    )
    count = max(64, min(count, 2**25 // (steps * wide)))
    waves, hashed = dice.choice([4, 6, 10]), dice.random() < 0.4
    levels, deep, rows = dice.choice([4, 8, 16]), 2, dice.choice([2**14, 2**16, 2**19])
    inner = levels * deep if hashed else 3 + 6 * waves
    model = nn.ModuleList([perceptron(dice, inner, wide, wide, 4), nn.Embedding(rows * levels, deep)])
    start, way, depth = noise(count, 3), noise(count, 3), torch.rand(count, steps, device=CUDA)

    def loss_of(model: Any) -> torch.Tensor:
        at = depth.sort(-1).values
        places = start[:, None] + way[:, None] * at[..., None]
        if hashed:
            scale = 2.0 ** torch.arange(levels, device=CUDA)
            cells_ = (places[..., None, :] * scale[:, None]).long()
            key = (cells_[..., 0] ^ cells_[..., 1] * 2654435761 ^ cells_[..., 2] * 805459861) % rows
            x = model[1](key + rows * torch.arange(levels, device=CUDA)).flatten(-2)
        else:
            turned = places[..., None] * (2.0 ** torch.arange(waves, device=CUDA))
            x = torch.cat([places, turned.sin().flatten(-2), turned.cos().flatten(-2)], -1)
        found = model[0](x).float()
        alpha = 1 - torch.exp(-F.relu(found[..., 3]) * (at[:, 1:] - at[:, :-1]).mean())
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10], 1), 1)
        weight = alpha * through
        return squares((weight[..., None] * found[..., :3].sigmoid()).sum(1)) + weight.cumsum(-1).mean()

    return ran(dice, model, loss_of, options)


def physics(dice: random.Random, options: Options) -> Step:
    """Derivatives of derivatives, and equations solved step by step."""
    batch, wide, inputs = size(dice, 128, 65536), dice.choice([20, 32, 50, 64, 128, 256]), dice.choice([1, 2, 3])
    batch = min(batch, 2**23 // wide)
    model, kind = perceptron(dice, inputs, wide, wide, inputs), dice.choice(["second", "second", "solved"])
    x = noise(batch, inputs)

    def loss_of(model: nn.Module) -> torch.Tensor:
        if kind == "solved":
            y = x
            for _ in range(4):
                a = model(y)
                b = model(y + 0.05 * a)
                y = y + 0.1 * (a + b) / 2
            return squares(y)
        at = x.detach().requires_grad_()
        found = model(at)[:, 0].sum()
        first = torch.autograd.grad(found, at, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), at, create_graph=True)[0]
        return squares(second[:, 0] + first[:, -1])

    return trained(model.to(CUDA).train(), loss_of, **{**options, "dtype": None, "clip": None})


def played(dice: random.Random, options: Options) -> Step:
    """Policies and values: small nets, distributions, clipped ratios."""
    batch, seen, acts, wide = (
        size(dice, 32, 16384),
        size(dice, 4, 256),
        size(dice, 2, 32),
        dice.choice([32, 64, 128, 256, 512]),
    )
    model = nn.ModuleList([perceptron(dice, seen, wide, wide, acts), perceptron(dice, seen, wide, wide, 1)])
    model.register_parameter("spread", nn.Parameter(torch.zeros(acts)))
    x, done, reward, before = noise(batch, seen), ids(acts, batch), noise(batch), noise(batch)
    taken, kind = noise(batch, acts), dice.choice(["discrete", "continuous", "values", "soft"])

    def loss_of(model: Any) -> torch.Tensor:
        out, value = model[0](x).float(), model[1](x).float().squeeze(-1)
        if kind == "values":
            return F.smooth_l1_loss(out.gather(1, done[:, None])[:, 0], reward + 0.99 * out.detach().max(1).values)
        if kind == "discrete":
            told = torch.distributions.Categorical(logits=out, validate_args=False)
            chance, spread = told.log_prob(done), told.entropy().mean()
        else:
            told_ = torch.distributions.Normal(
                out.tanh() if kind == "soft" else out, model.spread.exp(), validate_args=False
            )
            drawn = told_.rsample() if kind == "soft" else taken
            chance, spread = told_.log_prob(drawn).sum(-1), told_.entropy().sum(-1).mean()
        ratio = (chance - before).exp()
        gain = (reward - reward.mean()) / (reward.std() + 1e-8)
        return (
            -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            + 0.5 * (value - reward).square().mean()
            - 0.01 * spread
        )

    return ran(dice, model, loss_of, options)


def densities(dice: random.Random, options: Options) -> Step:
    """Flows and mixtures: coupled halves, splines, components."""
    batch, deep, wide, parts = (
        size(dice, 64, 16384),
        dice.choice([2, 4, 8, 16, 32, 64]),
        dice.choice([32, 64, 128, 256]),
        dice.choice([4, 5, 8, 16]),
    )
    half, kind = max(1, deep // 2), dice.choice(["coupled", "splines", "mixtures"])
    out = {"coupled": 2 * (deep - half), "splines": (deep - half) * parts, "mixtures": 3 * parts}[kind]
    model, x = nn.ModuleList([perceptron(dice, half, wide, wide, out) for _ in range(3)]), noise(batch, deep)

    def loss_of(model: Any) -> torch.Tensor:
        y, total = x, torch.zeros(batch, device=CUDA)
        for net in model:
            a, b = y[:, :half], y[:, half:]
            found = net(a).float()
            if kind == "coupled":
                scale, shift = found.chunk(2, -1)
                b, total = b * scale.tanh().exp() + shift, total + scale.tanh().sum(-1)
            elif kind == "splines":
                widths = found.unflatten(-1, (deep - half, parts)).softmax(-1)
                ends = widths.cumsum(-1)
                at = torch.searchsorted(ends.detach().contiguous(), b.sigmoid()[..., None].contiguous()).clamp(
                    max=parts - 1
                )
                b, total = b + ends.gather(-1, at)[..., 0], total + widths.gather(-1, at)[..., 0].log().sum(-1)
            else:
                weight, mean, spread = found.chunk(3, -1)
                apart = (b[:, :1] - mean) * (-spread).exp()
                total = total + torch.logsumexp(weight.log_softmax(-1) - spread - 0.5 * apart.square(), -1)
            y = torch.cat([b, a], 1)[:, torch.arange(deep - 1, -1, -1, device=CUDA)]
        return (0.5 * y.square().sum(-1) - total).mean()

    return ran(dice, model, loss_of, options)


def quantized(dice: random.Random, options: Options) -> Step:
    """Weights that are rounded, masked, averaged, of low rank."""
    wide, deep, batch, rank = (
        size(dice, 64, 2048),
        size(dice, 64, 2048),
        size(dice, 16, 4096),
        dice.choice([4, 8, 16, 64]),
    )
    batch = min(batch, 2**24 // max(wide, deep))
    model = nn.ModuleList([nn.Linear(wide, deep), nn.Linear(wide, rank, bias=False), nn.Linear(rank, deep, bias=False)])
    x, mask = noise(batch, wide), (torch.rand(deep, wide, device=CUDA) > 0.5)
    kind = dice.choice(["rounds", "masks", "ranks", "fakes", "signs"])

    def loss_of(model: Any) -> torch.Tensor:
        weight = model[0].weight
        if kind == "rounds":
            scale = weight.abs().amax(1, keepdim=True) / 127
            weight = weight + ((weight / scale).round().clamp(-128, 127) * scale - weight).detach()
        elif kind == "masks":
            weight = weight * mask
        elif kind == "fakes":
            weight = torch.fake_quantize_per_tensor_affine(weight, 0.1, 0, -128, 127)
        elif kind == "signs":
            weight = weight + (torch.sign(weight) * weight.abs().mean() - weight).detach()
        y = F.linear(x, weight, model[0].bias)
        return squares(y + 0.5 * model[2](model[1](F.dropout(x, 0.05))) if kind == "ranks" else y)

    return ran(dice, model, loss_of, options)


def looped(dice: random.Random, options: Options) -> Step:
    """Optimizers and updates written out: norms, averages, one tensor after the other."""
    wide, depth, batch = size(dice, 16, 2048), dice.choice([2, 4, 8]), size(dice, 8, 1024)
    model = perceptron(dice, wide, *[size(dice, 16, 2048) for _ in range(depth)], 10).to(CUDA)
    kinds = [torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam,
             torch.optim.Rprop, torch.optim.ASGD, torch.optim.Adafactor, partial(torch.optim.AdamW, amsgrad=True),
             partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=1e-4),
             partial(torch.optim.Adam, foreach=False), partial(torch.optim.SGD, foreach=False),
             partial(torch.optim.RMSprop, momentum=0.9, centered=True)]  # fmt: skip
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    x, averaged, listed = noise(batch, wide), dice.random() < 0.4, dice.random() < 0.5
    inner = trained(model.train(), lambda model: squares(model(x)), **{**options, "optimizer": dice.choice(kinds)})

    def step() -> None:
        inner()
        if averaged and listed:
            torch._foreach_lerp_(averages, list(model.parameters()), 0.001)
        elif averaged:
            with torch.no_grad():
                for average, parameter in zip(averages, model.parameters()):
                    average.mul_(0.999).add_(parameter, alpha=0.001)

    return step
