"""Models of sequences and sound: convolutions along time, recurrent cells, scans, spectra."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.model_kinds.parts import Options, Plus, activation, ids, noise, ran, size, squares
from benchmarks.lib.workloads import Step
from benchmarks.lib.zoo import CUDA


def dilated(dice: random.Random, options: Options) -> Step:
    """A temporal convolutional network, or a WaveNet."""
    channels, kernel, length = size(dice, 16, 512), dice.choice([2, 3, 3, 5, 7]), size(dice, 64, 16384)
    batch = max(1, min(size(dice, 1, 64), 2**25 // (channels * length)))
    levels, inner, gated = dice.randint(3, 7), dice.choice([1, 4, 12, 32, 80]), dice.random() < 0.4
    norm = dice.choice([None, nn.BatchNorm1d, partial(nn.GroupNorm, 1), nn.utils.parametrizations.weight_norm])
    parts: list[nn.Module] = [nn.Conv1d(inner, channels, 1)]
    for level in range(levels):
        step = 2**level
        conv = nn.Conv1d(channels, (1 + gated) * channels, kernel, padding=(kernel - 1) * step, dilation=step)
        block: list[nn.Module] = [norm(conv) if norm is nn.utils.parametrizations.weight_norm else conv]
        block += [nn.GLU(1)] if gated else [norm(channels)] if norm in (nn.BatchNorm1d,) else []
        block += [activation(dice), nn.Dropout(0.1), nn.Conv1d(channels, channels, 1)]
        parts.append(Plus(*block))
    parts.append(nn.Conv1d(channels, dice.choice([1, 10, 256]), 1))
    x = noise(batch, inner, length)
    return ran(dice, nn.Sequential(*parts), lambda model: squares(model(x)), options)


def separated(dice: random.Random, options: Options) -> Step:
    """Depthwise sequences, as of a Conv-TasNet, a Conformer or a QuartzNet."""
    channels, kernel, length = size(dice, 64, 1024), dice.choice([3, 5, 9, 15, 31, 33, 63]), size(dice, 50, 8000)
    batch = max(1, min(size(dice, 1, 64), 2**24 // (channels * length)))
    parts: list[nn.Module] = [nn.Conv1d(80, channels, 3, dice.choice([1, 2]), 1)]
    for level in range(3):
        step = dice.choice([1, 1, 2**level])
        depth = nn.Conv1d(channels, channels, kernel, padding=kernel // 2 * step, dilation=step, groups=channels)
        norm = dice.choice([nn.BatchNorm1d(channels), nn.GroupNorm(1, channels), nn.InstanceNorm1d(channels)])
        parts.append(
            Plus(
                nn.Conv1d(channels, 2 * channels, 1),
                nn.GLU(1),
                depth,
                norm,
                nn.SiLU(),
                nn.Conv1d(channels, channels, 1),
            )
        )
    x = noise(batch, 80, length)
    return ran(dice, nn.Sequential(*parts), lambda model: squares(model(x)), options)


def vocoder(dice: random.Random, options: Options) -> Step:
    """Sound of spectra: transposed and dilated sequences."""
    channels, batch, frames = dice.choice([64, 128, 256, 512]), size(dice, 1, 32), size(dice, 16, 128)
    parts: list[nn.Module] = [nn.Conv1d(80, channels, 7, padding=3)]
    for stride in dice.choice([(8, 8, 2, 2), (8, 8, 4), (5, 4, 4, 2), (4, 4, 4)]):
        more = dice.choice([0, 0, stride % 2])
        pad = stride // 2 + stride % 2
        parts += [nn.LeakyReLU(0.1), nn.ConvTranspose1d(channels, channels // 2, 2 * stride, stride, pad, more)]
        channels //= 2
        for step in (1, 3, 5):
            kernel = dice.choice([3, 7, 11])
            parts.append(Plus(nn.LeakyReLU(0.1), nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2 * step,
                                                           dilation=step)))  # fmt: skip
    parts += [nn.Conv1d(channels, 1, 7, padding=3), nn.Tanh()]
    x = noise(batch, 80, frames)
    return ran(dice, nn.Sequential(*parts), lambda model: model(x).abs().mean(), options)


def spectra(dice: random.Random, options: Options) -> Step:
    """Losses on spectra of sound, by short-time transforms."""
    batch, samples, window = size(dice, 1, 32), size(dice, 8000, 65536), dice.choice([256, 400, 512, 1024, 1200, 2048])
    model = nn.Sequential(nn.Conv1d(1, 16, 9, padding=4), nn.ReLU(), nn.Conv1d(16, 1, 9, padding=4)).to(CUDA)
    x, shape = noise(batch, 1, samples), torch.hann_window(window, device=CUDA)

    def loss_of(model: nn.Module) -> torch.Tensor:
        found = model(x).float().squeeze(1)
        parts = [torch.stft(y, window, window // 4, window=shape, return_complex=True).abs() for y in (found, x[:, 0])]
        return (parts[0] - parts[1]).abs().mean() + (parts[0] + 1e-5).log().square().mean()

    return ran(dice, model, loss_of, options)


def transformed(dice: random.Random, options: Options) -> Step:
    """Layers that mix by Fourier transforms: FNet, neural operators, long convolutions."""
    kind = dice.choice(["mixes", "mixes", "operator", "operator", "volumes", "long", "phases"])
    batch, channels = size(dice, 1, 64), size(dice, 8, 512)
    length = dice.choice([size(dice, 16, 4096), dice.choice([100, 360, 500, 720, 1000, 1021, 1536, 3000])])
    side = dice.choice([size(dice, 16, 256), dice.choice([48, 60, 85, 100, 120, 180])])
    weights = nn.Parameter(noise(channels, 12, 12, dtype=torch.complex64) / channels)
    mix = nn.Linear(channels, channels)
    model = nn.ModuleList([mix, nn.Linear(channels, channels)]).to(CUDA)
    model.register_parameter("weights", weights)
    if kind in ("mixes", "long", "phases"):
        batch = max(1, min(batch, 2**25 // (length * channels)))
        x = noise(batch, length, channels)
    elif kind == "operator":
        batch = max(1, min(batch, 2**24 // (side * side * channels)))
        x = noise(batch, channels, side, side)
    else:
        side, channels = min(side, 64), min(channels, 32)
        x = noise(max(1, min(batch, 4)), channels, side, side, side)

    def loss_of(model: Any) -> torch.Tensor:
        if kind == "mixes":
            mixed = torch.fft.fft2(model[0](x).float()).real
        elif kind == "phases":
            found = torch.fft.fft(model[0](x).float(), dim=1)
            mixed = torch.fft.ifft(found * torch.exp(1j * found.angle()) + found.conj(), dim=1).real
        elif kind == "long":
            y = model[0](x).float().transpose(1, 2)
            filters = torch.fft.rfft(y.mean(0), n=2 * length)
            mixed = torch.fft.irfft(torch.fft.rfft(y, n=2 * length) * filters, n=2 * length)[..., :length]
        elif kind == "operator":
            found = torch.fft.rfft2(x)
            out = torch.zeros_like(found)
            part = found[:, :, :12, : min(12, found.shape[-1])]
            out[:, :, :12, : min(12, found.shape[-1])] = part * model.weights[:, : part.shape[2], : part.shape[3]]
            mixed = torch.fft.irfft2(out, s=x.shape[-2:])
        else:
            mixed = torch.fft.irfftn(torch.fft.rfftn(x, dim=(2, 3, 4)) * model.weights[: x.shape[1], :1, :1, None],
                                     s=x.shape[2:], dim=(2, 3, 4))  # fmt: skip
        return squares(mixed)

    return ran(dice, model, loss_of, {**options, "optimizer": torch.optim.Adam, "clip": None})


def heard(dice: random.Random, options: Options) -> Step:
    """Speech to letters, with a loss over all alignments."""
    batch, frames, letters, wide = (
        size(dice, 2, 64),
        size(dice, 50, 600),
        dice.choice([29, 64, 500]),
        size(dice, 64, 512),
    )
    model = nn.ModuleList([nn.GRU(80, wide, 1, batch_first=True, bidirectional=True), nn.Linear(2 * wide, letters)])
    x, words = noise(batch, frames, 80), ids(letters - 1, batch, 20) + 1
    lengths, counts = torch.full((batch,), frames), torch.full((batch,), 20)

    def loss_of(model: Any) -> torch.Tensor:
        found = model[1](model[0](x)[0]).float().log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(found, words, lengths, counts)

    return ran(dice, model, loss_of, options)


def cells(dice: random.Random, options: Options) -> Step:
    """Recurrent networks, whole or cell by cell."""
    wide, batch, length = size(dice, 32, 1024), size(dice, 1, 256), size(dice, 8, 200)
    kind = dice.choice([nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell])
    x = noise(batch, length, wide)
    if kind in (nn.LSTMCell, nn.GRUCell):
        model: nn.Module = kind(wide, wide)

        def loss_of(model: nn.Module) -> torch.Tensor:
            state: Any = None
            for at in range(8):
                state = model(x[:, at % length], state)
            return squares(state[0] if isinstance(state, tuple) else state)

        return ran(dice, model, loss_of, options)
    model = kind(wide, wide, dice.choice([1, 1, 2, 3, 4]), batch_first=dice.random() < 0.5,
                 bidirectional=dice.random() < 0.4, dropout=dice.choice([0, 0, 0.2]))  # fmt: skip
    return ran(dice, model, lambda model: squares(model(x)[0]), options)


def scanned(dice: random.Random, options: Options) -> Step:
    """State space models and linear attention, by running sums."""
    batch, length, channels, states = (
        size(dice, 1, 32),
        size(dice, 64, 4096),
        size(dice, 32, 512),
        dice.choice([4, 8, 16]),
    )
    batch = max(1, min(batch, 2**25 // (length * channels * states)))
    model, x = nn.Linear(channels, 2 * channels + 2 * states), noise(batch, length, channels)
    kind = dice.choice(["sums", "products", "logs", "largest"])

    def loss_of(model: nn.Module) -> torch.Tensor:
        step, gate, b, c = model(x).float().split([channels, channels, states, states], -1)
        if kind == "products":
            return squares(torch.cumprod(1 - torch.sigmoid(step) * 0.1, 1) * gate)
        if kind == "logs":
            return squares(torch.logcumsumexp(step, 1) * gate)
        if kind == "largest":
            return squares(torch.cummax(step, 1).values * gate)
        decay = torch.cumsum(-F.softplus(step), 1)
        inputs = (gate * decay.neg().clamp(max=20).exp())[..., None] * b[:, :, None]
        return squares((torch.cumsum(inputs, 1) * c[:, :, None]).sum(-1) * decay.exp())

    return ran(dice, model, loss_of, options)


def conformed(dice: random.Random, options: Options) -> Step:
    """A layer of attention with relative places, or in windows that are rolled."""
    heads, wide = dice.choice([2, 4, 8]), dice.choice([64, 128, 256, 512])
    batch, length, window = size(dice, 1, 32), size(dice, 32, 512), dice.choice([4, 7, 8, 16])
    parts = nn.ModuleList([nn.Linear(wide, 3 * wide), nn.Linear(wide, wide), nn.LayerNorm(wide)])
    parts.register_parameter("places", nn.Parameter(torch.zeros(heads, 2 * length - 1)))
    x, rolled = noise(batch, length, wide), dice.random() < 0.4
    offsets = (torch.arange(length)[:, None] - torch.arange(length) + length - 1).to(CUDA)

    def loss_of(model: Any) -> torch.Tensor:
        y = model[2](x)
        if rolled:
            cut = length // window * window
            y = torch.roll(y[:, :cut], -window // 2, 1).reshape(-1, window, wide)
        q, k, v = model[0](y).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores if rolled else scores + model.places[:, offsets]
        return squares(model[1]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))

    return ran(dice, parts, loss_of, options)
