"""The small training steps that a host is measured by, those over tables and images among them.

None is a model that people train; all make the calls that such models make.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from foretrace.calibration.host import transformers
from foretrace.calibration.host.training import OPTIMIZERS, Training, trained

WIDTH, ROWS = 64, 32


def classifier(device: Any, optimizer: str, layers: int = 10, activation: Any = nn.ReLU) -> Training:
    """An MLP of modules."""
    hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), activation(), nn.Dropout(0.1)) for _ in range(layers)]
    model = nn.Sequential(*hidden, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)).to(device)
    inputs, labels = torch.randn(ROWS, WIDTH, device=device), torch.randint(10, (ROWS,), device=device)
    loss = nn.CrossEntropyLoss()
    return trained(model, lambda: loss(model(inputs), labels), optimizer)


def bare_classifier(device: Any, optimizer: str) -> Training:
    """An MLP of functions: no module is ever entered."""
    weights = [torch.randn(WIDTH, WIDTH, device=device, requires_grad=True) for _ in range(12)]
    biases = [torch.zeros(WIDTH, device=device, requires_grad=True) for _ in range(12)]
    inputs, targets = (torch.randn(ROWS, WIDTH, device=device) for _ in range(2))

    def loss() -> torch.Tensor:
        x = inputs
        for weight, bias in zip(weights, biases):
            x = torch.tanh(x @ weight + bias) * 0.5 + x
        return F.mse_loss(x, targets)

    return Training(loss, OPTIMIZERS[optimizer]([*weights, *biases]))


class _TwoTowers(nn.Module):
    """Two-tower recommendation: users and items, each a few embedding bags and a linear layer."""

    def __init__(self, bags: int, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(1000, WIDTH, mode="sum", sparse=sparse) for _ in range(2 * bags))
        self.user, self.item = (nn.Sequential(nn.Linear(bags * WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, ids: list[torch.Tensor], offsets: torch.Tensor) -> torch.Tensor:
        looked_up = [bag(i, offsets) for bag, i in zip(self.bags, ids)]
        half = len(looked_up) // 2
        user, item = self.user(torch.cat(looked_up[:half], 1)), self.item(torch.cat(looked_up[half:], 1))
        logits: torch.Tensor = self.score(user * item)
        return logits


def two_towers(device: Any, bags: int, sparse: bool) -> Training:
    """A two-tower model, with sparse or dense gradients of its embedding bags."""
    model = _TwoTowers(bags, sparse).to(device)
    ids = [torch.randint(1000, (4 * ROWS,), device=device) for _ in range(2 * bags)]
    offsets = torch.arange(0, 4 * ROWS, 4, device=device)
    liked = torch.rand(ROWS, 1, device=device)
    loss = nn.BCEWithLogitsLoss()
    return trained(model, lambda: loss(model(ids, offsets), liked), "sgd")


def crossed_features(device: Any) -> Training:
    """A factorization machine: embeddings of several columns, and all pairwise dot products, by index."""
    columns, dim = 6, 16
    tables = nn.ModuleList(nn.Embedding(500, dim) for _ in range(columns)).to(device)
    head = nn.Sequential(nn.Linear(columns * (columns - 1) // 2 + dim, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).to(
        device
    )
    ids = torch.randint(500, (ROWS, columns), device=device)
    first, second = torch.triu_indices(columns, columns, 1, device=device)
    target = torch.rand(ROWS, 1, device=device)

    def loss() -> torch.Tensor:
        rows = torch.stack([table(ids[:, n]) for n, table in enumerate(tables)], dim=1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, first, second]
        guess = torch.sigmoid(head(torch.cat([rows.mean(dim=1), pairs], dim=1)))
        return F.binary_cross_entropy(guess, target)

    return trained(nn.ModuleList([tables, head]), loss, "adam")


def messages(device: Any) -> Training:
    """A graph neural network: nodes that sum up messages of their neighbours."""
    nodes, links = 64, 256
    model = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6)).to(device)
    features = torch.randn(nodes, WIDTH, device=device)
    source, target = (torch.randint(nodes, (links,), device=device) for _ in range(2))
    degree = torch.ones(nodes, 1, device=device).index_add_(0, target, torch.ones(links, 1, device=device))

    def loss() -> torch.Tensor:
        x = features
        for n, layer in enumerate(model):
            sent = F.leaky_relu(layer(x.index_select(0, source)))
            if n % 2:
                received = torch.zeros_like(x).index_add(0, target, sent)
            else:
                received = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(sent), sent)
            x = F.normalize(x + received / degree, dim=-1)
        return x.gather(1, source[:nodes, None] % WIDTH).abs().mean()

    return trained(model, loss, "rmsprop")


def contrast(device: Any, autocast: bool) -> Training:
    """Contrastive learning: two encoders, whose outputs are compared with all others of the batch."""
    model = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softplus(), nn.Linear(WIDTH, 32)) for _ in range(2))
    model.to(device)
    left, right = (torch.randn(ROWS, WIDTH, device=device) for _ in range(2))
    labels = torch.arange(ROWS, device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            a, b = (F.normalize(encode(x), dim=-1) for encode, x in zip(model, (left, right)))
            alike = torch.einsum("id,jd->ij", a, b).clamp(-1, 1) / 0.1
        spread = torch.logsumexp(alike, dim=1).mean() + alike.exp().sum(0).log().mean()
        hardest = alike.float().topk(4, dim=1).values.masked_fill(labels[:, None] < 2, 0.0)
        return F.cross_entropy(alike, labels) + spread + hardest.square().mean() + alike.std().sqrt()

    trained_one = trained(model, loss, "adamw")
    trained_one.before_update = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return trained_one


CHANNELS, SIDE, IMAGES = 16, 16, 2


class _Residual(nn.Module):
    """A residual block of two convolutions with batch norm."""

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
    """An inverted residual block with a depthwise convolution and squeeze-and-excitation, as in MobileNet."""

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
    """A ConvNeXt block: a wide depthwise convolution, then two linear layers over the channels."""

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
    """A U-net with group norm, skip connections and a time embedding."""

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
        skips = []
        for block in self.down:
            x = block(x) + when
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips.pop()], dim=1))
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
    """A ResNet."""
    stem = [nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    blocks = [_Residual(CHANNELS) for _ in range(6)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10)]
    return _labelled(nn.Sequential(*stem, *blocks, *head), device, autocast, optimizer, layout)


def gated(device: Any, autocast: bool = False) -> Training:
    """A MobileNet."""
    blocks = [_Gated(CHANNELS) for _ in range(4)]
    head = [nn.Flatten(), nn.Linear(CHANNELS * SIDE**2, 32), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(32, 10)]
    return _labelled(nn.Sequential(_normed(3, CHANNELS, 3), *blocks, *head), device, autocast, "rmsprop")


def mixer(device: Any, autocast: bool = False, optimizer: str = "adamw") -> Training:
    """A ConvNeXt."""
    blocks = [_Mixer(CHANNELS) for _ in range(6)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 10)]
    return _labelled(nn.Sequential(nn.Conv2d(3, CHANNELS, 4, 2, 1), *blocks, *head), device, autocast, optimizer)


def u_net(device: Any, autocast: bool = False) -> Training:
    """A diffusion model: a U-net that predicts noise."""
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
    """A convolutional autoencoder: strided convolutions down, transposed ones up."""
    down = [nn.Conv2d(3, 8, 4, 2, 1), nn.ELU(), nn.Conv2d(8, CHANNELS, 4, 2, 1), nn.BatchNorm2d(CHANNELS), nn.ELU()]
    up = [nn.ConvTranspose2d(CHANNELS, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Sigmoid()]
    model = nn.Sequential(*down, *up).to(device)
    images = torch.rand(IMAGES, 3, SIDE, SIDE, device=device)
    return trained(model, lambda: F.smooth_l1_loss(model(images), images) + F.l1_loss(model(images), images), "adam")


STEPS: dict[str, Callable[[Any], Training]] = {
    "classifier sgd": partial(classifier, optimizer="sgd"),
    "classifier momentum": partial(classifier, optimizer="momentum", layers=24),
    "classifier adam": partial(classifier, optimizer="adam", activation=nn.GELU),
    "classifier adamw": partial(classifier, optimizer="adamw", layers=24),
    "classifier one by one": partial(classifier, optimizer="adamw one by one", layers=4),
    "classifier fused adamw": partial(classifier, optimizer="fused adamw", layers=24, activation=nn.SiLU),
    "classifier fused sgd": partial(classifier, optimizer="fused sgd"),
    "bare classifier": partial(bare_classifier, optimizer="adam"),
    "bare classifier sgd": partial(bare_classifier, optimizer="sgd"),
    "two towers": partial(two_towers, bags=3, sparse=True),
    "tall towers": partial(two_towers, bags=10, sparse=True),
    "dense towers": partial(two_towers, bags=4, sparse=False),
    "crossed features": crossed_features,
    "messages": messages,
    "contrast": partial(contrast, autocast=False),
    "contrast autocast": partial(contrast, autocast=True),
    "residual": residual,
    "residual autocast": partial(residual, autocast=True, optimizer="adamw"),
    "residual channels last": partial(residual, layout=torch.channels_last),
    "gated": gated,
    "gated autocast": partial(gated, autocast=True),
    "mixer": mixer,
    "mixer autocast": partial(mixer, autocast=True, optimizer="momentum"),
    "u-net": u_net,
    "u-net autocast": partial(u_net, autocast=True),
    "autoencoder": autoencoder,
    "turning": partial(transformers.attention, kind="turning", autocast=False),
    "turning recomputed": partial(transformers.attention, kind="turning", autocast=False, recompute=True, layers=2),
    "turning autocast": partial(transformers.attention, kind="turning", autocast=True),
    "joined": partial(transformers.attention, kind="joined", autocast=False, optimizer="fused adamw"),
    "joined autocast": partial(transformers.attention, kind="joined", autocast=True),
    "joined recomputed": partial(transformers.attention, kind="joined", autocast=True, recompute=True),
    "spelled out": partial(transformers.attention, kind="spelled out", autocast=False),
    "spelled out autocast": partial(transformers.attention, kind="spelled out", autocast=True, optimizer="momentum"),
    "verbose": partial(transformers.verbose, autocast=False),
    "verbose autocast": partial(transformers.verbose, autocast=True),
    "verbose sgd": partial(transformers.verbose, autocast=True, optimizer="sgd"),
    "library": partial(transformers.library, autocast=False, decoder=False),
    "library autocast": partial(transformers.library, autocast=True, decoder=False),
    "library decoder": partial(transformers.library, autocast=False, decoder=True),
}
"""By name: how each is built on a device."""
