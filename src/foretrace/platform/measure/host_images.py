"""Small steps over images: a residual net, a thin one with gates, a U-net, an autoencoder, a mixer of channels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from foretrace.platform.measure.host_training import Training, trained

CHANNELS, SIDE, IMAGES = 16, 16, 2


class _Residual(nn.Module):
    """Two convolutions with batch norm, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norms[0](self.first(x)))
        out = self.norms[1](self.second(out))
        out += x
        return torch.as_tensor(self.relu(out))


class _Gated(nn.Module):
    """A thin block: widen, convolve each channel alone, gate by what all of them say, narrow again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.widen = _normed(channels, wide, 1, nn.Hardswish(inplace=True))
        self.alone = _normed(wide, wide, 3, nn.Hardswish(inplace=True), groups=wide)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze, self.excite = nn.Conv2d(wide, channels, 1), nn.Conv2d(channels, wide, 1)
        self.narrow = _normed(wide, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.alone(self.widen(x))
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(self.pool(out)))))
        narrow: torch.Tensor = self.narrow(out * gate)
        return x + narrow


def _normed(given: int, made: int, side: int, *after: nn.Module, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(given, made, side, padding=side // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(made), *after)


class _Mixer(nn.Module):
    """Channels last: a wide convolution of each channel, then two linear layers over the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 1e-2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.wide(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2) * self.scale
        if self.training:
            y = y * torch.empty(x.shape[0], 1, 1, 1, device=x.device).bernoulli_(0.9).div_(0.9)
        return x + y


class _UNet(nn.Module):
    """Down and up again, with group norm, and what came down joined to what goes up."""

    def __init__(self, channels: int, levels: int = 3) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 1)
        self.down = nn.ModuleList(self._block(channels, channels) for _ in range(levels))
        self.up = nn.ModuleList(self._block(2 * channels, channels) for _ in range(levels))
        self.time = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, channels))

    @staticmethod
    def _block(given: int, made: int) -> nn.Sequential:
        return nn.Sequential(nn.GroupNorm(4, given), nn.SiLU(), nn.Conv2d(given, made, 3, padding=1))

    def forward(self, x: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        angles = moment[:, None] * torch.arange(CHANNELS // 2, device=x.device)
        when = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))[:, :, None, None]
        x = self.enter(x)
        kept = []
        for block in self.down:
            x = block(x) + when
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], dim=1))
        made: torch.Tensor = self.leave(x)
        return made


def _labelled(model: nn.Module, device: Any, autocast: bool, optimizer: str, layout: Any = None) -> Training:
    model = model.to(device, memory_format=layout) if layout is not None else model.to(device)
    images = torch.randn(IMAGES, 3, SIDE, SIDE, device=device)
    if layout is not None:
        images = images.contiguous(memory_format=layout)
    labels = torch.randint(10, (IMAGES,), device=device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            return torch.as_tensor(criterion(model(images), labels))

    return trained(model, loss, optimizer)


def residual(device: Any, autocast: bool = False, optimizer: str = "momentum", layout: Any = None) -> Training:
    """Convolutions with batch norm."""
    stem = [nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    blocks = [_Residual(CHANNELS) for _ in range(6)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)]
    return _labelled(nn.Sequential(*stem, *blocks, *head), device, autocast, optimizer, layout)


def gated(device: Any, autocast: bool = False) -> Training:
    """Thin blocks with gates."""
    blocks = [_Gated(CHANNELS) for _ in range(4)]
    head = [nn.Flatten(), nn.Linear(CHANNELS * SIDE**2, 32), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(32, 10)]
    return _labelled(nn.Sequential(_normed(3, CHANNELS, 3), *blocks, *head), device, autocast, "rmsprop")


def mixer(device: Any, autocast: bool = False, optimizer: str = "adamw") -> Training:
    """Channels mixed by linear layers, places by wide convolutions."""
    blocks = [_Mixer(CHANNELS) for _ in range(6)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 10)]
    return _labelled(nn.Sequential(nn.Conv2d(3, CHANNELS, 4, 2, 1), *blocks, *head), device, autocast, optimizer)


def u_net(device: Any, autocast: bool = False) -> Training:
    """Noise guessed at a moment."""
    model = _UNet(CHANNELS).to(device)
    clean, noise = (torch.randn(IMAGES, 3, SIDE, SIDE, device=device) for _ in range(2))
    moment = torch.rand(IMAGES, device=device)

    def loss() -> torch.Tensor:
        blend = moment[:, None, None, None]
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            guess = model(clean * (1 - blend) + noise * blend, moment)
            return F.mse_loss(guess, noise)

    return trained(model, loss, "adamw")


def autoencoder(device: Any) -> Training:
    """Strided convolutions down, transposed ones up."""
    down = [nn.Conv2d(3, 8, 4, 2, 1), nn.ELU(), nn.Conv2d(8, CHANNELS, 4, 2, 1), nn.BatchNorm2d(CHANNELS), nn.ELU()]
    up = [nn.ConvTranspose2d(CHANNELS, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Sigmoid()]
    model = nn.Sequential(*down, *up).to(device)
    images = torch.rand(IMAGES, 3, SIDE, SIDE, device=device)
    return trained(model, lambda: F.smooth_l1_loss(model(images), images) + F.l1_loss(model(images), images), "adam")
