"""Models of images and volumes: grouped and transposed convolutions, pyramids, resampling."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.model_kinds.parts import Options, Plus, activation, ids, noise, ran, size, squares
from benchmarks.lib.workloads import Step
from benchmarks.lib.zoo import CUDA


def grouped(dice: random.Random, options: Options) -> Step:
    """Bottlenecks of groups, as of RegNets and ResNeXts, in any layout."""
    width = dice.choice([8, 16, 24, 24, 32, 40, 48, 56, 64, 80, 112, 120, 168])
    stages = sorted(
        max(1, round(dice.choice([48, 64, 96, 128, 192, 256, 320, 432, 720, 1008]) / width)) for _ in range(3)
    )
    batch, side, last = size(dice, 4, 128), dice.choice([28, 32, 40, 48, 56, 64]), dice.random() < 0.4
    batch = max(1, min(batch, 2**25 // (stages[0] * width * side * side)))
    parts: list[nn.Module] = [nn.Conv2d(3, stages[0] * width, 3, padding=1, bias=False)]
    for a, b in pairwise([stages[0], *stages]):
        wide = b * width
        parts += [nn.Conv2d(a * width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
                  nn.Conv2d(wide, wide, dice.choice([3, 3, 3, 5]), 2, 1, groups=b, bias=False), nn.BatchNorm2d(wide),
                  nn.ReLU(inplace=True), Plus(nn.Conv2d(wide, wide, 3, 1, 1, groups=b, bias=False))]  # fmt: skip
    model, x = nn.Sequential(*parts).to(CUDA), noise(batch, 3, side, side)
    if last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return ran(dice, model, lambda model: squares(model(x)), options)


def pyramid(dice: random.Random, options: Options) -> Step:
    """Heads with holes in their windows, and what is resized to one size: segmentation, crowds, depth."""
    inner, outer, batch, side = (
        size(dice, 64, 1024),
        size(dice, 32, 256),
        size(dice, 1, 16),
        dice.choice([24, 28, 32, 48, 60, 64]),
    )
    rates, last = dice.choice([(6, 12, 18), (12, 24, 36), (2, 4, 8), (2, 3, 5)]), dice.random() < 0.4
    branches = nn.ModuleList([nn.Conv2d(inner, outer, 3, padding=rate, dilation=rate, bias=False) for rate in rates])
    branches.append(nn.Conv2d(outer * len(rates), dice.choice([1, 2, 19, 21, 150]), 1))
    x, model = noise(batch, inner, side, side), branches.to(CUDA)
    if last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    mode = dice.choice(["bilinear", "bilinear", "bicubic", "nearest"])
    corners = {} if mode == "nearest" else {"align_corners": dice.random() < 0.5}
    labels = ids(1, batch, 4 * side, 4 * side)

    def loss_of(model: Any) -> torch.Tensor:
        found = model[-1](torch.cat([F.relu(branch(x)) for branch in model[:-1]], 1))
        return F.cross_entropy(F.interpolate(found, scale_factor=4.0, mode=mode, **corners).float(), labels)

    return ran(dice, branches, loss_of, options)


def adversarial(dice: random.Random, options: Options) -> Step:
    """A generator of transposed convolutions, and what tells its images."""
    wide, batch, depth, latent = (
        dice.choice([32, 48, 64, 96, 128]),
        size(dice, 4, 256),
        dice.choice([2, 3, 4]),
        dice.choice([64, 100, 128]),
    )
    kernel, padding = dice.choice([(4, 1), (4, 1), (2, 0), (3, 1), (5, 2)])
    more = {} if kernel % 2 == 0 else {"output_padding": 1}
    channels = [wide << (depth - level) for level in range(depth + 1)]
    made: list[nn.Module] = [nn.ConvTranspose2d(latent, channels[0], 4, 1, 0, bias=False), nn.BatchNorm2d(channels[0])]
    for a, b in pairwise(channels):
        made += [nn.ReLU(True), nn.ConvTranspose2d(a, b, kernel, 2, padding, bias=False, **more), nn.BatchNorm2d(b)]
    made += [nn.ReLU(True), nn.ConvTranspose2d(channels[-1], 3, kernel, 2, padding, **more), nn.Tanh()]
    told: list[nn.Module] = []
    for a, b in pairwise([3, *reversed(channels)]):
        told += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    told += [nn.Conv2d(channels[0], 1, 1)]
    pair, seed = nn.ModuleList([nn.Sequential(*made), nn.Sequential(*told)]), noise(batch, latent, 1, 1)

    def loss_of(model: Any) -> torch.Tensor:
        found = model[1](model[0](seed)).float()
        return F.binary_cross_entropy_with_logits(found, torch.ones_like(found))

    return ran(dice, pair, loss_of, options)


def encoded(dice: random.Random, options: Options) -> Step:
    """Autoencoders of images, with codes that are drawn or looked up."""
    wide, batch, side = size(dice, 16, 256), size(dice, 2, 128), dice.choice([28, 32, 64, 96, 128])
    batch = max(1, min(batch, 2**25 // (wide * side * side)))
    codes, deep = dice.choice([128, 512, 1024]), dice.choice([16, 32, 64])
    model = nn.ModuleList([
        nn.Sequential(nn.Conv2d(3, wide, 4, 2, 1), nn.ReLU(), nn.Conv2d(wide, wide, 4, 2, 1), nn.ReLU(),
                      nn.Conv2d(wide, deep, 1)),
        nn.Sequential(nn.Conv2d(deep, wide, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(wide, wide, 4, 2, 1),
                      nn.ReLU(), nn.ConvTranspose2d(wide, 3, 4, 2, 1)), nn.Embedding(codes, deep),
    ])  # fmt: skip
    x, looked_up = noise(batch, 3, side, side), dice.random() < 0.6

    def loss_of(model: Any) -> torch.Tensor:
        found = model[0](x)
        if looked_up:
            flat = found.permute(0, 2, 3, 1).reshape(-1, deep).float()
            table = model[2].weight
            apart = flat.square().sum(1, keepdim=True) - 2 * flat @ table.t() + table.square().sum(1)
            nearest = model[2](apart.argmin(1)).view(found.shape[0], *found.shape[2:], deep).permute(0, 3, 1, 2)
            code = found + (nearest - found).detach()
            beside = F.mse_loss(nearest, found.detach()) + 0.25 * F.mse_loss(found, nearest.detach())
        else:
            code, beside = found + torch.randn_like(found) * (0.5 * found).exp(), found.square().mean()
        return F.mse_loss(model[1](code), x) + beside

    return ran(dice, model, loss_of, options)


def resized(dice: random.Random, options: Options) -> Step:
    """Larger images of smaller ones: shuffled pixels, resampling in any mode."""
    wide, batch, side, scale = size(dice, 16, 128), size(dice, 1, 32), size(dice, 24, 128), dice.choice([2, 3, 4])
    mode = dice.choice(["shuffle", "bilinear", "bicubic", "nearest", "area"])
    layers = nn.ModuleList([
        nn.Conv2d(3, wide, 3, padding=1), Plus(nn.Conv2d(wide, wide, 3, padding=1), activation(dice)),
        nn.Conv2d(wide, 3 * scale**2 if mode == "shuffle" else 3, 3, padding=1, padding_mode=dice.choice(
            ["zeros", "reflect", "replicate", "circular"])),
    ])  # fmt: skip
    x, corners = noise(batch, 3, side, side), {"align_corners": False} if mode in ("bilinear", "bicubic") else {}

    def loss_of(model: Any) -> torch.Tensor:
        y = model[1](model[0](x))
        if mode == "shuffle":
            return F.pixel_shuffle(model[2](y), scale).abs().mean()
        return model[2](F.interpolate(y, size=(scale * side,) * 2, mode=mode, **corners)).abs().mean()

    return ran(dice, layers, loss_of, options)


def warped(dice: random.Random, options: Options) -> Step:
    """Images sampled at places that are learned: flow, spatial transformers, deformation."""
    channels, batch, side = size(dice, 2, 128), size(dice, 1, 64), size(dice, 16, 256)
    batch = max(1, min(batch, 2**25 // (channels * side * side)))
    model = nn.Sequential(
        nn.Conv2d(channels, 16, 7, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 6)
    )
    x, mode, pad = (
        noise(batch, channels, side, side),
        dice.choice(["bilinear", "bilinear", "nearest", "bicubic"]),
        dice.choice(["zeros", "border", "reflection"]),
    )

    def loss_of(model: nn.Module) -> torch.Tensor:
        places = F.affine_grid(model(x).float().view(-1, 2, 3), list(x.shape), align_corners=False)
        return squares(F.grid_sample(x, places, mode=mode, padding_mode=pad, align_corners=False))

    return ran(dice, model, loss_of, options)


def solid(dice: random.Random, options: Options) -> Step:
    """Volumes: medicine, video, voxels."""
    wide, batch, side = (
        dice.choice([8, 12, 16, 24, 32, 48, 64]),
        size(dice, 1, 8),
        dice.choice([16, 24, 32, 48, 64, 96]),
    )
    batch = max(1, min(batch, 2**25 // (wide * side**3)))
    norm = dice.choice([nn.BatchNorm3d, nn.InstanceNorm3d, partial(nn.GroupNorm, 4)])
    pool = dice.choice([nn.MaxPool3d(2), nn.AvgPool3d(2), nn.Conv3d(wide, wide, 2, 2)])
    up = dice.choice(
        [
            nn.Upsample(scale_factor=2, mode="trilinear"),
            nn.Upsample(scale_factor=2),
            nn.ConvTranspose3d(2 * wide, 2 * wide, 2, 2),
        ]
    )
    inner, window = dice.choice([1, 1, 3, 4]), dice.choice([(3, 3, 3), (3, 3, 3), (1, 3, 3), (3, 1, 1), (5, 5, 5)])
    pad = tuple(each // 2 for each in window)
    parts = [nn.Conv3d(inner, wide, window, padding=pad), norm(wide), activation(dice), pool,
             nn.Conv3d(wide, 2 * wide, window, padding=pad), norm(2 * wide), activation(dice), up,
             nn.Conv3d(2 * wide, dice.choice([1, 2, 4]), 1)]  # fmt: skip
    x = noise(batch, inner, side, side, side)
    return ran(dice, nn.Sequential(*parts), lambda model: squares(model(x)), options)


def folded(dice: random.Random, options: Options) -> Step:
    """Patches cut out and put together, pooling of all kinds."""
    channels, batch, side = size(dice, 8, 128), size(dice, 1, 64), dice.choice([28, 32, 56, 64, 112])
    batch = max(1, min(batch, 2**23 // (channels * side * side)))
    window, kind = dice.choice([2, 3, 4, 7]), dice.choice(["folds", "pools", "adapts", "picks"])
    model, x = nn.Conv2d(3, channels, 3, padding=1), noise(batch, 3, side, side)
    fixed = dice.choice([1, 2, 3, 6, 7])

    def loss_of(model: nn.Module) -> torch.Tensor:
        y = model(x)
        if kind == "folds":
            return squares(F.fold(F.unfold(y, window, stride=window), y.shape[2:], window, stride=window))
        if kind == "pools":
            return squares(F.avg_pool2d(y, window, 2, window // 2) + F.max_pool2d(y, window, 2, window // 2))
        if kind == "adapts":
            return squares(F.adaptive_avg_pool2d(y, fixed)) + squares(F.adaptive_max_pool2d(y, fixed))
        return squares(F.max_unpool2d(*F.max_pool2d(y, 2, return_indices=True), 2)) + squares(F.lp_pool2d(y, 2, window))

    return ran(dice, model, loss_of, options)
