"""Layers, losses and updates drawn at random, as models have them, for the kernels that TorchInductor makes of them.

One layer and its backward have the kernels of a whole model of such layers, and are compiled in seconds. Sizes,
dtypes, layouts and what surrounds a layer are drawn; none is a step that forecasts are scored on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Parameters = list[torch.Tensor]
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "tanh gelu": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "hardswish": F.hardswish, "leaky": F.leaky_relu, "tanh": torch.tanh, "elu": F.elu, "mish": F.mish,
    "squared relu": lambda x: F.relu(x).square(), "sigmoid": torch.sigmoid, "softplus": F.softplus,
}  # fmt: skip


@dataclass
class Drawn:
    """What is compiled: a function of tensors, with those that get gradients."""

    name: str
    function: Callable[[], Any]
    parameters: Parameters
    """Empty where nothing has gradients: the function is then called under ``no_grad``."""
    device: str
    autocast: torch.dtype | None = None

    def step(self) -> None:
        """Forward and backward."""
        mixed = self.autocast is not None
        with torch.set_grad_enabled(bool(self.parameters)), torch.autocast(self.device, self.autocast, mixed):
            result = self.function()
        if self.parameters:
            results = [r for r in (result if isinstance(result, (tuple, list)) else [result]) if r.requires_grad]
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
            for parameter in self.parameters:
                parameter.grad = None


class Dice:
    """Draws sizes and tensors on a device, and collects what gets gradients."""

    def __init__(self, number: int, device: str, most: int) -> None:
        self.random, self.device, self.most = random.Random(f"layer {number}"), device, most
        self.parameters: Parameters = []
        self.dtype = self.choice(torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)
        """Of inputs and weights."""

    def choice(self, *values: Any) -> Any:
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def width(self, *widths: int) -> int:
        """A width as models have them, seldom an odd one."""
        if self.chance(0.12):
            return self.random.randint(16, 1500)
        return int(self.choice(*(widths or (64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 2048, 4096))))

    def log_uniform(self, low: float, high: float) -> int:
        return round(math.exp(self.random.uniform(math.log(low), math.log(high))))

    def rows(self, width: int, *lengths: int) -> tuple[int, int]:
        """Batch and length, so that a tensor of this width is not too large."""
        length = min(self.choice(*(lengths or (1, 20, 49, 64, 128, 196, 197, 256, 512, 577, 1024, 2048))), self.most)
        numel = self.log_uniform(2**13, self.most * 2**10)
        batch = max(1, numel // (width * length))
        return (1 << batch.bit_length() - 1 if self.chance(0.7) else batch), int(length)

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, grad: bool = True) -> torch.Tensor:
        """Random numbers, with a gradient if they are floats."""
        made = torch.randn(shape, device=self.device).to(dtype or self.dtype)
        if grad:
            self.parameters.append(made.requires_grad_())
        return made

    def ids(self, most: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, most, shape, device=self.device)

    def model(self, model: nn.Module) -> nn.Module:
        made = model.to(self.device, self.dtype)
        self.parameters += list(made.parameters())
        return made

    def act(self) -> Callable[[torch.Tensor], torch.Tensor]:
        return ACTIVATIONS[self.random.choice(list(ACTIVATIONS))]

    def images(self, channels: int, last: bool, *sides: int) -> torch.Tensor:
        """A batch of images, with the channels last or not."""
        side = self.choice(*(sides or (7, 8, 14, 16, 24, 28, 32, 48, 56, 64, 96, 112, 128)))
        numel = self.log_uniform(2**14, self.most * 2**10)
        batch = max(1, numel // (channels * side * side))
        batch = 1 << batch.bit_length() - 1 if self.chance(0.7) else batch
        made = torch.randn(min(batch, 512), channels, side, side, device=self.device).to(self.dtype)
        made = made.contiguous(memory_format=torch.channels_last) if last else made
        self.parameters.append(made.requires_grad_())
        return made


def layer(number: int, device: str = "cuda", most: int = 2**15) -> Drawn:
    """The layer of this number; ``most`` times 1,024 elements have its largest activations, about."""
    dice = Dice(number, device, most)
    kind = dice.random.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    torch.manual_seed(number)
    function = KINDS[kind][1](dice)
    mixed = dice.dtype == torch.float32 and kind not in ("update", "reduction") and dice.chance(0.6)
    parameters = [] if kind == "update" or dice.chance(0.08) else dice.parameters
    autocast = dice.choice(torch.bfloat16, torch.bfloat16, torch.float16) if mixed else None
    return Drawn(f"{number} {kind}", function, parameters, device, autocast)


def _norm(dice: Dice, width: int) -> nn.Module:
    kind = dice.choice(nn.LayerNorm, nn.LayerNorm, nn.RMSNorm)
    return dice.model(kind(width, eps=1e-6))


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, interleaved: bool) -> torch.Tensor:
    if interleaved:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def _attention(dice: Dice) -> Callable[[], Any]:
    """Self-attention with its norm, projections and residual: by hand or fused, rotary or not, heads in groups."""
    size = dice.choice(32, 64, 64, 80, 96, 128)
    heads = dice.choice(4, 6, 8, 12, 16)
    width, groups = size * heads, dice.choice(1, 1, 2)
    batch, length = dice.rows(width, 49, 64, 128, 196, 197, 256, 400, 512, 1024)
    batch = max(1, min(batch, 2**28 // (heads * length * length)))
    x, norm, packed = dice.tensor(batch, length, width), _norm(dice, width), dice.chance(0.5)
    inner = heads // groups * size
    qkv = dice.model(nn.Linear(width, width + 2 * inner, bias=dice.chance(0.6)))
    out = dice.model(nn.Linear(width, width, bias=dice.chance(0.6)))
    each = [dice.model(nn.Linear(width, n)) for n in ([] if packed else [width, inner, inner])]
    drop, rotary, by_hand, masked = dice.choice(0.0, 0.1), dice.chance(0.4), dice.chance(0.35), dice.chance(0.3)
    interleaved, normed, after = dice.chance(0.4), dice.chance(0.2), dice.chance(0.3)
    angles = torch.rand(length, size // 2, device=dice.device)
    cosine, sine = angles.cos(), angles.sin()
    mask = torch.ones(length, length, device=dice.device, dtype=torch.bool).tril()
    bias = dice.tensor(heads, length, length) if by_hand and dice.chance(0.3) else None
    scale = dice.tensor(width) if dice.chance(0.25) else None

    def split(y: torch.Tensor) -> list[torch.Tensor]:
        parts = qkv(y).split([width, inner, inner], -1) if packed else [project(y) for project in each]
        return [part.view(batch, length, -1, size).transpose(1, 2) for part in parts]

    def run() -> torch.Tensor:
        q, k, v = split(x if after else norm(x))
        if normed:
            q, k = F.normalize(q, dim=-1), F.rms_norm(k, (size,))
        if rotary:
            q, k = (_rotated(part, cosine, sine, interleaved).to(v.dtype) for part in (q, k))
        if groups > 1:
            k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
        if by_hand:
            scores = q @ k.transpose(-2, -1) / size**0.5
            scores = scores + bias if bias is not None else scores
            scores = scores.masked_fill(~mask, -1e4) if masked else scores
            mixed = F.dropout(scores.softmax(-1), drop) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=masked)
        made = F.dropout(out(mixed.transpose(1, 2).reshape(batch, length, width)), drop)
        made = x + (made * scale if scale is not None else made)
        return norm(made) if after else made  # type: ignore[no-any-return]

    return run


def _perceptron(dice: Dice) -> Callable[[], Any]:
    """A transformer's second half: norm, wide layer, activation or gate, narrow layer, dropout, residual."""
    width = dice.width(128, 256, 384, 512, 768, 1024, 1280, 2048)
    batch, length = dice.rows(4 * width)
    x, norm, act, wide = dice.tensor(batch, length, width), _norm(dice, width), dice.act(), width * dice.choice(2, 3, 4)
    gated, joined, bias = dice.chance(0.45), dice.chance(0.5), dice.chance(0.6)
    up = dice.model(nn.Linear(width, wide * (1 + (gated and joined)), bias=bias))
    gate = dice.model(nn.Linear(width, wide, bias=bias)) if gated and not joined else None
    down, drop, tokens = (
        dice.model(nn.Linear(wide, width, bias=bias)),
        dice.choice(0.0, 0.0, 0.1, 0.2),
        dice.chance(0.2),
    )
    mixing = dice.model(nn.Linear(length, length)) if tokens and length > 1 else None
    scale, path = dice.tensor(width) if dice.chance(0.25) else None, dice.chance(0.2)

    def run() -> torch.Tensor:
        y = norm(x)
        if mixing is not None:
            y = act(mixing(y.transpose(1, 2))).transpose(1, 2)
        if gate is not None:
            y = act(gate(y)) * up(y)
        elif gated:
            a, b = up(y).chunk(2, -1)
            y = act(a) * b
        else:
            y = act(up(y))
        y = F.dropout(down(F.dropout(y, drop)), drop)
        y = y * scale if scale is not None else y
        if path:
            y = y * (torch.rand(batch, 1, 1, device=y.device) < 0.9) / 0.9
        return x + y  # type: ignore[no-any-return]

    return run


def _normed_images(dice: Dice, channels: int) -> nn.Module:
    groups = math.gcd(channels, dice.choice(8, 16, 32))
    kind = dice.choice("batch", "batch", "batch", "group", "instance")
    made = {"batch": nn.BatchNorm2d(channels), "group": nn.GroupNorm(groups, channels),
            "instance": nn.InstanceNorm2d(channels, affine=True)}  # fmt: skip
    return dice.model(made[kind])


def _convolution(dice: Dice) -> Callable[[], Any]:
    """Convolutions with norms and activations around them, in either layout: plain, bottleneck, inverted, gated."""
    channels, last = dice.width(16, 24, 32, 48, 64, 96, 128, 160, 256, 512), dice.chance(0.5)
    x, act = dice.images(channels, last), dice.act()
    wide = channels * dice.choice(1, 1, 2, 4)
    depthwise, squeezed, pre = dice.chance(0.3), dice.chance(0.25), dice.chance(0.25)
    side = dice.choice(1, 3, 3, 5)
    first = dice.model(nn.Conv2d(channels, wide, 1, bias=dice.chance(0.3)))
    middle = dice.model(nn.Conv2d(wide, wide, side, dice.choice(1, 1, 2), side // 2, groups=wide if depthwise else 1,
                                  bias=dice.chance(0.3)))  # fmt: skip
    norms = [_normed_images(dice, wide) for _ in range(2)]
    second = dice.model(nn.Conv2d(wide, channels, 1, bias=dice.chance(0.3)))
    final = _normed_images(dice, channels)
    squeeze = dice.model(nn.Conv2d(wide, max(4, wide // 8), 1)), dice.model(nn.Conv2d(max(4, wide // 8), wide, 1))
    if last:
        for module in (first, middle, second, *squeeze):
            module.to(memory_format=torch.channels_last)

    def run() -> torch.Tensor:
        y = act(norms[0](first(x)))
        y = act(norms[1](middle(y))) if not pre else middle(act(norms[1](y)))
        if squeezed:
            y = y * squeeze[1](F.relu(squeeze[0](y.mean((2, 3), keepdim=True)))).sigmoid()
        y = final(second(y))
        return act(y + x) if y.shape == x.shape else act(y)

    return run


def _next_block(dice: Dice) -> Callable[[], Any]:
    """A ConvNeXt's block, or a 1-D one of sequences: depthwise, norm over channels, perceptron, scale."""
    channels = dice.width(64, 96, 128, 192, 256, 384, 768)
    x, flat = dice.images(channels, dice.chance(0.5)), dice.chance(0.3)
    depth = dice.model(nn.Conv2d(channels, channels, dice.choice(3, 7), padding="same", groups=channels))
    along = dice.model(nn.Conv1d(channels, channels, 3, padding=dice.choice(1, 2, 4), dilation=dice.choice(1, 2, 4)))
    norm, act = _norm(dice, channels), dice.act()
    up, down = dice.model(nn.Linear(channels, 4 * channels)), dice.model(nn.Linear(4 * channels, channels))
    scale = dice.tensor(channels)

    def run() -> torch.Tensor:
        if flat:
            y = norm(along(x.flatten(2)).transpose(1, 2))
            return (scale * down(act(up(y)))).transpose(1, 2)  # type: ignore[no-any-return]
        y = norm(depth(x).permute(0, 2, 3, 1))
        return x + (scale * down(act(up(y)))).permute(0, 3, 1, 2)

    return run


def _unet(dice: Dice) -> Callable[[], Any]:
    """Up or down in a U-Net: resampling, what was kept on the way, group norm, a time that is added."""
    channels, last = dice.width(32, 64, 96, 128, 192, 256, 320), dice.chance(0.5)
    x, act = dice.images(channels, last, 8, 16, 32, 48, 64), dice.act()
    batch, _, side, _ = x.shape
    skip = dice.tensor(batch, channels, 2 * side, 2 * side)
    how, time = dice.choice("nearest", "bilinear", "pool", "average"), dice.tensor(batch, 2 * channels)
    norm = dice.model(nn.GroupNorm(math.gcd(2 * channels, 32), 2 * channels))
    mix, shifted = dice.model(nn.Conv2d(2 * channels, channels, 3, padding=1)), dice.chance(0.5)

    def run() -> torch.Tensor:
        if how in ("nearest", "bilinear"):
            aligned = {"align_corners": False} if how == "bilinear" else {}
            y = torch.cat([F.interpolate(x, scale_factor=2, mode=how, **aligned), skip], 1)  # type: ignore[arg-type]
        else:
            y = torch.cat([x, F.max_pool2d(skip, 2) if how == "pool" else F.avg_pool2d(skip, 2)], 1)
        y = norm(y)
        shift = time[:, :, None, None]
        return mix(act(y * (1 + shift) + shift if shifted else y + shift))  # type: ignore[no-any-return]

    return run


def _recommender(dice: Dice) -> Callable[[], Any]:
    """Interactions of a recommender: tables, crosses, factorization, pairs, attention over a history."""
    batch, width, fields = dice.log_uniform(128, 16384), dice.choice(8, 16, 32, 64, 128), dice.choice(4, 8, 13, 26, 39)
    batch = max(16, min(batch, dice.most * 2**10 // (width * fields)))
    kind = dice.choice("cross", "low rank", "factorization", "pairs", "history", "batch norm")
    rows = dice.choice(1000, 10_000, 100_000)
    table, ids = dice.model(nn.Embedding(rows, width)), dice.ids(rows, batch, fields)
    dense, flat = dice.tensor(batch, 13, grad=False), width * fields
    up = dice.model(nn.Linear(13, width))
    square = dice.model(nn.Linear(flat, flat if kind == "cross" else 64))
    back = dice.model(nn.Linear(64, flat))
    head, norm = dice.model(nn.Linear(flat, 1)), dice.model(nn.BatchNorm1d(flat))
    query, act, clicked = dice.ids(rows, batch), dice.act(), torch.rand(batch, device=dice.device)

    def run() -> torch.Tensor:
        found = table(ids)
        every = found.flatten(1)
        if kind == "cross":
            score = head(every * square(every) + every).squeeze(1)
        elif kind == "low rank":
            score = head(every * back(square(every)) + every).squeeze(1)
        elif kind == "factorization":
            score = 0.5 * (found.sum(1).square() - found.square().sum(1)).sum(1) + up(dense).sum(1)
        elif kind == "pairs":
            both = torch.cat([up(dense).unsqueeze(1), found], 1)
            score = (both @ both.transpose(1, 2)).flatten(1).sum(1)
        elif kind == "history":
            asked = table(query).unsqueeze(1)
            weight = (found * asked).sum(-1, keepdim=True).masked_fill((ids % 3 == 0).unsqueeze(-1), -1e4).softmax(1)
            score = ((weight * found).sum(1) * asked.squeeze(1)).sum(1)
        else:
            score = head(act(norm(every))).squeeze(1)
        return F.binary_cross_entropy_with_logits(score.float(), clicked)

    return run


def _loss(dice: Dice) -> Callable[[], Any]:  # noqa: C901 - a list of losses
    """A loss over logits, pixels, embeddings or regressions."""
    kind = dice.choice("words", "words", "classes", "smoothed", "ignored", "pixels", "contrastive", "distilled",
                       "focal", "dice", "huber", "cosine", "chunked")  # fmt: skip
    words = dice.choice(1000, 10_000, 30522, 32000, 50257, 50304, 65024, 128256)
    rows = max(8, min(dice.log_uniform(64, 16384), 16 * dice.most * 2**10 // words))
    classes = dice.choice(2, 10, 21, 100, 1000)
    if kind in ("words", "smoothed", "ignored", "distilled", "chunked"):
        width = dice.choice(64, 128, 256)
        x, head = dice.tensor(rows, width), dice.model(nn.Linear(width, words, bias=dice.chance(0.3)))
        wanted, teacher = dice.ids(words, rows), dice.tensor(rows, words, grad=False)
        wanted = torch.where(wanted % 4 == 0, -100, wanted) if kind == "ignored" else wanted

        def of_words() -> torch.Tensor:
            logits = head(x).float()
            if kind == "distilled":
                return F.kl_div(
                    F.log_softmax(logits / 2, -1), F.softmax(teacher.float() / 2, -1), reduction="batchmean"
                )
            if kind == "chunked":
                return (
                    F.cross_entropy(30 * torch.tanh(logits / 30), wanted) + 1e-4 * logits.logsumexp(-1).square().mean()
                )
            return F.cross_entropy(logits, wanted, label_smoothing=0.1 if kind == "smoothed" else 0.0)

        return of_words
    if kind == "pixels" or kind == "dice":
        x = dice.images(classes if classes < 200 else 21, dice.chance(0.5), 32, 64, 96, 128)
        seen = dice.ids(x.shape[1], x.shape[0], *x.shape[2:])

        def of_pixels() -> torch.Tensor:
            logits = F.interpolate(x, scale_factor=2, mode="bilinear")[..., ::2, ::2].float()
            if kind == "pixels":
                return F.cross_entropy(logits, seen)
            p, target = logits.softmax(1), F.one_hot(seen, x.shape[1]).permute(0, 3, 1, 2)
            return 1 - (2 * (p * target).sum((2, 3)) / (p + target).sum((2, 3)).clamp(min=1)).mean()

        return of_pixels
    batch, width = dice.log_uniform(64, 8192), dice.width(64, 128, 256, 512, 768)
    x, y, labels = dice.tensor(batch, width), dice.tensor(batch, width), dice.ids(width, batch)

    def of_rows() -> torch.Tensor:
        if kind == "contrastive":
            logits = F.normalize(x, dim=-1)[:2048] @ F.normalize(y, dim=-1)[:2048].T * 14.0
            target = torch.arange(len(logits), device=x.device)
            return (F.cross_entropy(logits.float(), target) + F.cross_entropy(logits.T.float(), target)) / 2
        if kind == "focal":
            p = torch.sigmoid(x.float())
            lost = F.binary_cross_entropy_with_logits(x.float(), (y > 0).float(), reduction="none")
            return (lost * (1 - p).square()).mean()
        if kind == "huber":
            return F.smooth_l1_loss(x, y) + F.mse_loss(x, y.detach()) + (x - y).abs().mean()
        if kind == "cosine":
            return (1 - F.cosine_similarity(x, y)).mean()
        return F.cross_entropy(x.float(), labels)

    return of_rows


def _reduction(dice: Dice) -> Callable[[], Any]:  # noqa: C901 - a list of reductions
    """A chain of elementwise calls on tensors of any shape, and a reduction of some dimensions."""
    numel = dice.log_uniform(2**10, dice.most * 2**11)
    shape: list[int] = []
    for _ in range(dice.choice(0, 1, 1, 2, 3)):
        shape.append(max(1, dice.log_uniform(1, max(2, min(4096, numel // math.prod(shape))))))
    shape.append(max(1, numel // math.prod(shape)))
    dice.random.shuffle(shape)
    x, other = dice.tensor(*shape), dice.tensor(*[n if dice.chance(0.5) else 1 for n in shape])
    order = dice.random.sample(range(len(shape)), len(shape))
    x = x.permute(order).contiguous().permute([order.index(n) for n in range(len(shape))]) if dice.chance(0.3) else x
    if not x.is_leaf:
        x = x.detach().requires_grad_()
    dims = sorted(dice.random.sample(range(len(shape)), dice.random.randint(1, len(shape))))
    how = dice.choice("sum", "mean", "amax", "var", "norm", "softmax", "log_softmax", "logsumexp", "argmax", "any",
                      "cumsum", "normalized", "count", "both")  # fmt: skip
    act, wide = dice.act(), dice.chance(0.5)

    def run() -> Any:
        y = act(x * other)
        y = y.float() if wide else y
        if how in ("sum", "mean", "amax", "logsumexp"):
            return getattr(torch, how)(y, dims)
        if how == "var":
            return torch.var(y, dims)
        if how == "norm":
            return torch.linalg.vector_norm(y, 2, dims)
        if how in ("softmax", "log_softmax"):
            return getattr(F, how)(y, dims[-1])
        if how == "argmax":
            return y.argmax(dims[-1]), y.sum()
        if how == "any":
            return (y > 0).any(dims[-1]), y * 2
        if how == "cumsum":
            return y.cumsum(dims[-1]) * 2
        if how == "normalized":
            return (y - y.mean(dims, keepdim=True)) * torch.rsqrt(y.var(dims, keepdim=True) + 1e-5)
        if how == "count":
            return y, (y.detach() > 0.5).sum(dims)
        return y.sum(dims), y.mean(), y.square().sum(dims[:1])

    return run


def _pointwise(dice: Dice) -> Callable[[], Any]:
    """Elementwise calls with broadcasts, transposes, slices, joins, pads, masks and random numbers between."""
    rows, columns = dice.log_uniform(16, 32768), dice.width()
    rows = max(2, min(rows, 2 * dice.most * 2**10 // columns) // 2 * 2)
    columns = max(4, columns // 4 * 4)
    x, y = dice.tensor(rows, columns), dice.tensor(rows, columns)
    row, column = dice.tensor(columns), dice.tensor(rows, 1)
    shuffled, table = torch.randperm(rows, device=dice.device), dice.tensor(512, columns)
    picked = dice.ids(512, rows)
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "add": lambda v: v + y,
        "row": lambda v: v * row + 1,
        "column": lambda v: v * column,
        "act": dice.act(),
        "transposed": lambda v: v + y.reshape(columns, rows).t(),
        "halves": lambda v: torch.cat(v.chunk(2, -1)[::-1], -1),
        "pad": lambda v: F.pad(v, (1, 0))[:, :-1],
        "roll": lambda v: v.roll(3, 0),
        "dropout": lambda v: F.dropout(v, 0.1),
        "where": lambda v: torch.where(y > 0, v, row),
        "heads": lambda v: v.view(rows, -1, 4).transpose(1, 2).reshape(rows, columns),
        "stack": lambda v: torch.stack([v, y], 1).mean(1),
        "gather": lambda v: v[shuffled],
        "embedding": lambda v: v + table[picked],
        "clamp": lambda v: v.clamp(-1, 1),
        "noise": lambda v: v + 0.1 * torch.randn_like(v),
        "exp": lambda v: (-v.abs()).exp(),
        "power": lambda v: (v.abs() + 1) ** 1.5,
        "half": lambda v: v.to(torch.bfloat16) * 2,
        "wide": lambda v: v.float() + 1,
        "mask": lambda v: v.masked_fill(picked.unsqueeze(1) < 256, 0.0),
        "sine": lambda v: torch.sin(v) * torch.cos(y),
    }
    chosen = dice.random.sample(list(calls), dice.random.randint(2, 6))
    blocked = dice.chance(0.4)

    def run() -> torch.Tensor:
        v = x
        for name in chosen:
            v = calls[name](v)
        return v.t().contiguous() if blocked else v

    return run


def _update(dice: Dice) -> Callable[[], Any]:
    """An optimizer's update of a list of weights: foreach kernels, with clipping or an average beside it."""
    width = dice.width(64, 128, 256, 512, 768, 1024)
    shapes = [dice.choice((width,), (width, width), (4 * width, width), (3 * width,), (width, 3, 3, 3), (1000, width))
              for _ in range(dice.choice(1, 2, 4, 8, 16, 30))]  # fmt: skip
    while len(shapes) > 1 and sum(map(math.prod, shapes)) > dice.most * 2**11:
        shapes.pop()
    weights, gradients, first, second, means = (
        [dice.tensor(*shape, dtype=torch.float32, grad=False) for shape in shapes] for _ in range(5)
    )
    second = [each.square() for each in second]
    kind, clipped = dice.choice("adamw", "adam", "sgd", "lion", "average", "rmsprop"), dice.chance(0.3)
    step = torch.tensor(3.0, device=dice.device)

    def run() -> None:
        given = gradients
        if clipped:
            total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in given]))
            given = torch._foreach_mul(given, (1.0 / (total + 1e-6)).clamp(max=1.0))
        if kind in ("adamw", "adam"):
            if kind == "adamw":
                torch._foreach_mul_(weights, 0.9999)
            torch._foreach_lerp_(first, given, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, given, given, 0.001)
            root = torch._foreach_sqrt(second)
            torch._foreach_div_(root, (1 - 0.999**step).sqrt())
            torch._foreach_add_(root, 1e-8)
            torch._foreach_addcdiv_(weights, first, root, -1e-3)
        elif kind == "sgd":
            torch._foreach_mul_(first, 0.9)
            torch._foreach_add_(first, given)
            torch._foreach_add_(weights, first, alpha=-0.1)
        elif kind == "lion":
            sign = torch._foreach_sign(torch._foreach_add(torch._foreach_mul(first, 0.9), given, alpha=0.1))
            torch._foreach_add_(weights, sign, alpha=-1e-4)
            torch._foreach_lerp_(first, given, 0.01)
        elif kind == "average":
            torch._foreach_lerp_(means, weights, 0.001)
        else:
            torch._foreach_mul_(second, 0.99)
            torch._foreach_addcmul_(second, given, given, 0.01)
            torch._foreach_addcdiv_(weights, given, torch._foreach_add(torch._foreach_sqrt(second), 1e-8), -1e-2)

    return run


def _words(dice: Dice) -> Callable[[], Any]:
    """The entry of a language model: words, places and kinds summed, a norm, dropout."""
    width = dice.width(128, 256, 384, 512, 768, 1024, 2048)
    batch, length = dice.rows(width, 20, 64, 128, 256, 512, 1024, 2048)
    rows = dice.choice(1000, 30522, 32000, 50257)
    words, places = dice.model(nn.Embedding(rows, width)), dice.tensor(length, width)
    ids, kinds, norm = dice.ids(rows, batch, length), dice.tensor(2, width), _norm(dice, width)
    drop, scaled, sums = dice.choice(0.0, 0.1), dice.chance(0.3), dice.chance(0.5)

    def run() -> torch.Tensor:
        x = words(ids) * (width**0.5 if scaled else 1.0)
        x = x + places + kinds[0] if sums else x
        return F.dropout(norm(x), drop)

    return run


def _sequence(dice: Dice) -> Callable[[], Any]:
    """Convolutions along time: dilated, causal, gated, with norms of channels."""
    channels = dice.width(32, 64, 128, 256, 512)
    batch, length = dice.rows(channels, 50, 100, 200, 256, 1000, 2048)
    length = max(8, length)
    x, dilation = dice.tensor(batch, channels, length), dice.choice(1, 2, 4, 8)
    along = dice.model(nn.Conv1d(channels, 2 * channels, 3, dilation=dilation))
    point, norm = dice.model(nn.Conv1d(channels, channels, 1)), dice.model(nn.BatchNorm1d(channels))
    act, gated, layered, layer_norm = dice.act(), dice.chance(0.5), dice.chance(0.5), _norm(dice, channels)

    def run() -> torch.Tensor:
        a, b = along(F.pad(x, (2 * dilation, 0))).chunk(2, 1)
        y = torch.tanh(a) * torch.sigmoid(b) if gated else act(a) + b
        y = layer_norm(y.transpose(1, 2)).transpose(1, 2) if layered else norm(y)
        return x + point(F.dropout(y, 0.1))  # type: ignore[no-any-return]

    return run


def _graph(dice: Dice) -> Callable[[], Any]:
    """Messages along the edges of a graph, gathered and added up."""
    nodes, width = dice.log_uniform(1000, 100_000), dice.choice(16, 32, 64, 128)
    edges = min(nodes * dice.choice(2, 5, 10), dice.most * 2**10 // width)
    x, source, target = dice.tensor(nodes, width), dice.ids(nodes, edges), dice.ids(nodes, edges)
    weight, act = dice.tensor(edges, 1), dice.act()
    lin, mean = dice.model(nn.Linear(width, width)), dice.chance(0.5)

    def run() -> torch.Tensor:
        sent = act(x[source] * weight)
        total = torch.zeros_like(x, dtype=sent.dtype).index_add(0, target, sent)
        if mean:
            total = total / torch.zeros(nodes, 1, device=x.device, dtype=sent.dtype).index_add(
                0, target, torch.ones_like(sent[:, :1])
            ).clamp(min=1)
        return lin(total) + x  # type: ignore[no-any-return]

    return run


KINDS: dict[str, tuple[float, Callable[[Dice], Callable[[], Any]]]] = {
    "attention": (5, _attention), "perceptron": (5, _perceptron), "convolution": (6, _convolution),
    "next block": (2, _next_block), "unet": (3, _unet), "recommender": (3, _recommender), "loss": (3, _loss),
    "reduction": (4, _reduction), "pointwise": (4, _pointwise), "update": (2, _update), "words": (1, _words),
    "sequence": (2, _sequence), "graph": (1, _graph),
}  # fmt: skip
"""How often each kind is drawn, and how."""
