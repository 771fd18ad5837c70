"""A zoo of training and inference steps of many kinds, to hold sketches and forecasts against: none was fitted on.

Models come from ``torchvision``, ``timm`` and ``transformers``, or are written out here as people write them. Half of
the steps (`BLIND`) are scored without having been looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.workloads import Step, mlp
from benchmarks.lib.zoo_tasks import TASKS

CUDA = "cuda"


def trained(
    model: nn.Module,
    loss_of: Callable[[nn.Module], torch.Tensor],
    optimizer: Any = torch.optim.AdamW,
    dtype: torch.dtype | None = None,
    clip: float | None = None,
    scaler: bool = False,
) -> Step:
    """A training step: forward, backward, update; by autocast, with clipping and with a gradient scaler where given."""
    update = optimizer(model.parameters(), lr=1e-3)
    scale = torch.amp.GradScaler("cuda", enabled=scaler)

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = loss_of(model)
        scale.scale(loss).backward()
        if clip:
            scale.unscale_(update)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scale.step(update)
        scale.update()

    return step


def images(count: int, side: int = 224, channels_last: bool = False) -> torch.Tensor:
    made = torch.randn(count, 3, side, side, device=CUDA)
    return made.to(memory_format=torch.channels_last) if channels_last else made


def classified(model: nn.Module, batch: int, side: int = 224, last: bool = False, **options: Any) -> Step:
    """Image classification."""
    model = model.to(CUDA, memory_format=torch.channels_last) if last else model.to(CUDA)
    x, labels = images(batch, side, last), torch.randint(0, 1000, (batch,), device=CUDA)
    return trained(model.train(), lambda model: F.cross_entropy(logits_of(model(x)), labels), **options)


def logits_of(found: Any) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else found.logits if hasattr(found, "logits") else found[0]


def vision(name: str, batch: int, side: int = 224, last: bool = False, **options: Any) -> Step:
    import torchvision

    return classified(getattr(torchvision.models, name)(weights=None), batch, side, last, **options)


def timm_model(name: str, batch: int, side: int = 224, drop_path: float = 0.1, **options: Any) -> Step:
    import timm

    return classified(timm.create_model(name, num_classes=1000, drop_path_rate=drop_path), batch, side, **options)


def segmentation(name: str, batch: int, side: int, **options: Any) -> Step:
    import torchvision

    model = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=21)
    x, labels = images(batch, side), torch.randint(0, 21, (batch, side, side), device=CUDA)
    return trained(model.to(CUDA).train(), lambda model: F.cross_entropy(model(x)["out"], labels), **options)


def video(name: str, batch: int, **options: Any) -> Step:
    import torchvision

    model = getattr(torchvision.models.video, name)(weights=None).to(CUDA).train()
    x, labels = torch.randn(batch, 3, 16, 112, 112, device=CUDA), torch.randint(0, 400, (batch,), device=CUDA)
    return trained(model, lambda model: F.cross_entropy(model(x), labels), **options)


def language(config: str, model: str, batch: int, length: int, sizes: dict[str, Any], mask: bool = False,
             **options: Any) -> Step:  # fmt: skip
    """A language model of ``transformers``, with an attention mask of ones where asked for."""
    import transformers

    transformers.logging.set_verbosity_error()
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).to(CUDA).train()
    words = torch.randint(3, 1000, (batch, length), device=CUDA)
    given = {"attention_mask": torch.ones_like(words)} if mask else {}
    return trained(made, lambda model: model(input_ids=words, labels=words, **given).loss, **options)


LLAMA = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
         "num_attention_heads": 16, "num_key_value_heads": 4}  # fmt: skip
QWEN3 = {**LLAMA, "head_dim": 64}
MIXTRAL = {**LLAMA, "num_hidden_layers": 4, "num_local_experts": 8, "intermediate_size": 1024}
DEBERTA = {"vocab_size": 30000, "num_hidden_layers": 6, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}


def whisper(batch: int, **options: Any) -> Step:
    import transformers

    config = transformers.WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8
    )
    model = transformers.WhisperForConditionalGeneration(config).to(CUDA).train()
    sound, words = torch.randn(batch, 80, 3000, device=CUDA), torch.randint(3, 1000, (batch, 128), device=CUDA)
    return trained(model, lambda model: model(input_features=sound, labels=words).loss, **options)


def clip(batch: int, **options: Any) -> Step:
    import transformers

    model = transformers.CLIPModel(transformers.CLIPConfig()).to(CUDA).train()
    words, x = torch.randint(3, 1000, (batch, 77), device=CUDA), images(batch)
    return trained(model, lambda model: model(input_ids=words, pixel_values=x, return_loss=True).loss, **options)


def decoding(batch: int, cached: int) -> Step:
    """One new token for each sample over a cache of keys and values, without gradients."""
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, "num_hidden_layers": 16}))
    model = model.to(CUDA, torch.bfloat16).eval()
    cache = transformers.StaticCache(config=model.config, max_cache_len=cached)
    words = torch.randint(3, 1000, (batch, 1), device=CUDA)
    place = torch.tensor([cached - 1], device=CUDA)

    @torch.no_grad()
    def step() -> None:
        model(input_ids=words, past_key_values=cache, cache_position=place, use_cache=True)

    return step


def inference(name: str, batch: int) -> Step:
    import torchvision

    model = getattr(torchvision.models, name)(weights=None).to(CUDA).eval()
    x = images(batch)

    @torch.inference_mode()
    def step() -> None:
        model(x).argmax(1)

    return step


class RecurrentModel(nn.Module):
    """A language model by a recurrent network."""

    def __init__(self, kind: str, width: int, layers: int, both: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10000, width)
        self.network = getattr(nn, kind)(width, width, layers, batch_first=True, bidirectional=both)
        self.head = nn.Linear(width * (1 + both), 10000)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.network(self.embedding(words))[0])


def recurrent(kind: str, batch: int, length: int, width: int, layers: int, both: bool = False, **options: Any) -> Step:
    model = RecurrentModel(kind, width, layers, both).to(CUDA)
    words = torch.randint(0, 10000, (batch, length), device=CUDA)
    return trained(model, lambda model: F.cross_entropy(model(words).flatten(0, 1), words.flatten()), **options)


class ResidualBlock(nn.Module):
    """A diffusion U-Net's block: group norm, SiLU, convolution, twice, with the time added between."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, given), nn.GroupNorm(32, made)
        self.one, self.two = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.time = nn.Linear(512, made)
        self.short = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.one(F.silu(self.first(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.short(x) + self.two(F.silu(self.second(h)))


class UNet(nn.Module):
    """A small diffusion U-Net with attention at its lowest level."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([ResidualBlock(a, b) for a, b in zip([width, *widths], widths)])
        self.attention = nn.MultiheadAttention(4 * width, 8, batch_first=True)
        self.up = nn.ModuleList([ResidualBlock(a + b, b) for a, b in zip([*widths[::-1], 0], widths[::-1]) if a])
        self.sizes = [nn.Conv2d(b, a, 1) for a, b in zip([*widths[::-1][1:], width], widths[::-1])]
        self.fit = nn.ModuleList(self.sizes)
        self.out = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h, kept = self.stem(x), []
        for block in self.down:
            h = block(h, time)
            kept.append(h)
            h = F.avg_pool2d(h, 2)
        flat = h.flatten(2).transpose(1, 2)
        flat = flat + self.attention(flat, flat, flat, need_weights=False)[0]
        h = flat.transpose(1, 2).reshape(h.shape)
        for block, fit in zip(self.up, self.fit):
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h = fit(block(torch.cat([h, kept.pop()], 1), time))
        return self.out(h)


def diffusion(batch: int, side: int, last: bool, **options: Any) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    model = UNet().to(CUDA, memory_format=layout)
    x = torch.randn(batch, 4, side, side, device=CUDA).to(memory_format=layout)
    time, noise = torch.randn(batch, 512, device=CUDA), torch.randn_like(x)
    return trained(model, lambda model: F.mse_loss(model(x, time), noise), **options)


class GraphNetwork(nn.Module):
    """Message passing: rows gathered by edge, multiplied, and added up by node."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            messages = layer(x)[source]
            x = F.relu(torch.zeros_like(x).index_add_(0, target, messages)) + x
        return x


def graph(nodes: int, edges: int, width: int) -> Step:
    model, x = GraphNetwork(width, 3).to(CUDA), torch.randn(nodes, width, device=CUDA)
    ends = torch.randint(0, nodes, (2, edges), device=CUDA)
    return trained(model, lambda model: model(x, ends[0], ends[1]).square().mean())


class SpectralBlock(nn.Module):
    """A Fourier neural operator's layer."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width)
        self.skip = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x)
        low = spectrum[:, :, : self.modes, : self.modes]
        out = torch.zeros_like(spectrum)
        out[:, :, : self.modes, : self.modes] = torch.einsum("bixy,ioxy->boxy", low, self.weight)
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x))


def fourier(batch: int, side: int) -> Step:
    model = nn.Sequential(nn.Conv2d(3, 64, 1), *(SpectralBlock(64, 16) for _ in range(4)), nn.Conv2d(64, 1, 1)).to(CUDA)
    x = images(batch, side)
    return trained(model, lambda model: model(x).square().mean(), optimizer=torch.optim.Adam)


def gan(batch: int) -> Step:
    """DCGAN: one update of the discriminator and one of the generator."""
    up = [nn.ConvTranspose2d(128, 512, 4), nn.BatchNorm2d(512), nn.ReLU()]
    for wide in (512, 256, 128):
        up += [nn.ConvTranspose2d(wide, wide // 2, 4, 2, 1), nn.BatchNorm2d(wide // 2), nn.ReLU()]
    made = nn.Sequential(*up, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()).to(CUDA)
    down: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
    for wide in (64, 128, 256):
        down += [nn.Conv2d(wide, wide * 2, 4, 2, 1), nn.BatchNorm2d(wide * 2), nn.LeakyReLU(0.2)]
    judge = nn.Sequential(*down, nn.Conv2d(512, 1, 4)).to(CUDA)
    updates = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (judge, made)]
    real, noise = images(batch, 64), torch.randn(batch, 128, 1, 1, device=CUDA)

    def step() -> None:
        fake = made(noise)
        updates[0].zero_grad()
        (F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()).backward()
        updates[0].step()
        updates[1].zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        updates[1].step()

    return step


class CrossNetwork(nn.Module):
    """DCN-v2: embeddings, cross layers, a perceptron."""

    def __init__(self, fields: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(100_000, width) for _ in range(fields)])
        self.cross = nn.ModuleList([nn.Linear(fields * width, fields * width) for _ in range(3)])
        self.deep = nn.Sequential(nn.Linear(fields * width, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first = x = torch.cat([table(column) for table, column in zip(self.tables, ids.unbind(1))], 1)
        for layer in self.cross:
            x = first * layer(x) + x
        return self.deep(x)


def cross_network(batch: int) -> Step:
    model, ids = CrossNetwork(26, 32).to(CUDA), torch.randint(0, 100_000, (batch, 26), device=CUDA)
    labels = torch.rand(batch, 1, device=CUDA)
    return trained(model, lambda model: F.binary_cross_entropy_with_logits(model(ids), labels))


def two_towers(batch: int) -> Step:
    """Retrieval: queries against all items of the batch, normalized, with a large softmax."""
    towers = nn.ModuleList(
        [nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)) for _ in range(2)]
    ).to(CUDA)
    x, y = torch.randn(2, batch, 512, device=CUDA).unbind(0)

    def loss(model: Any) -> torch.Tensor:
        a, b = model[0](x), model[1](y)
        a, b = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)
        return F.cross_entropy(a @ b.T / 0.05, torch.arange(batch, device=CUDA))

    return trained(towers, loss)


class Encoder(nn.Module):
    """PyTorch's own transformer encoder over embedded words."""

    def __init__(self, width: int, layers: int, causal: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20000, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, norm_first=causal)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.causal = causal

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        size = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size, device=words.device) if self.causal else None
        hidden = self.encoder(self.embedding(words), mask=mask, is_causal=self.causal)
        return hidden @ self.embedding.weight.T


def encoder(batch: int, length: int, width: int, causal: bool, training: bool = True, **options: Any) -> Step:
    model = Encoder(width, 6, causal).to(CUDA).train(training)
    words = torch.randint(0, 20000, (batch, length), device=CUDA)
    if training:
        return trained(model, lambda model: F.cross_entropy(model(words).flatten(0, 1), words.flatten()), **options)

    @torch.no_grad()
    def step() -> None:
        model(words)

    return step


class Warped(nn.Module):
    """A spatial transformer: an affine map is predicted, and the image sampled through it."""

    def __init__(self) -> None:
        super().__init__()
        self.find = nn.Sequential(nn.Conv2d(3, 32, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.map = nn.Linear(512, 6)
        self.net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(self.map(self.find(x)).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.net(F.grid_sample(x, grid, align_corners=False))


def warped(batch: int) -> Step:
    model, x = Warped().to(CUDA), images(batch, 128)
    return trained(model, lambda model: model(x).square().mean())


def dilated_sequence(batch: int, length: int) -> Step:
    """WaveNet-like: dilated convolutions over a sequence."""
    layers: list[nn.Module] = [nn.Conv1d(1, 64, 1)]
    for power in range(8):
        layers += [nn.Conv1d(64, 64, 3, padding=2**power, dilation=2**power), nn.ReLU()]
    model, x = nn.Sequential(*layers, nn.Conv1d(64, 1, 1)).to(CUDA), torch.randn(batch, 1, length, device=CUDA)
    return trained(model, lambda model: (model(x) - x).square().mean())


class ByWeight(torch.optim.Optimizer):
    """An optimizer that updates one weight after the other."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.add_(self.update(weight, self.state[weight]), alpha=-group["lr"])

    def update(self, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        """What is subtracted from a weight, times the learning rate."""
        raise NotImplementedError


class Muon(ByWeight):
    """Momentum, made orthogonal by Newton-Schulz iterations."""

    def update(self, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        momentum.lerp_(weight.grad, 0.05)
        return orthogonal(momentum) if weight.dim() == 2 and min(weight.shape) > 8 else momentum


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    x = matrix.bfloat16()
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return (x.T if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)


class Shampoo(ByWeight):
    """Gradients multiplied with inverse roots of their covariances, by eigenvalues."""

    def update(self, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        grad: Any = weight.grad
        if weight.dim() != 2 or max(weight.shape) > 1100:
            return grad
        covariance = state.setdefault("left", torch.eye(weight.shape[0], device=weight.device))
        covariance.lerp_(grad @ grad.T, 0.1)
        values, vectors = torch.linalg.eigh(covariance)
        return vectors * values.clamp(min=1e-6).pow(-0.5) @ vectors.T @ grad


def perceptron(batch: int, widths: list[int], **options: Any) -> Step:
    model, x = mlp(widths, relu_at_end=False).to(CUDA), torch.randn(batch, widths[0], device=CUDA)
    return trained(model, lambda model: model(x).square().mean(), **options)


def per_sample(batch: int) -> Step:
    """Gradients of each sample by ``torch.func``."""
    model, x = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 10)).to(CUDA), torch.randn(batch, 256)
    x = x.to(CUDA)
    weights = dict(model.named_parameters())

    def loss(weights: Any, sample: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (sample[None],)).square().mean()

    def step() -> None:
        grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.sub_(grads[name].mean(0), alpha=1e-3)

    return step


def averaged(batch: int) -> Step:
    """With an exponential moving average of the weights, and learning-rate groups."""
    import torchvision

    model = torchvision.models.resnet18(weights=None).to(CUDA).train()
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    x, labels = images(batch), torch.randint(0, 1000, (batch,), device=CUDA)
    inner = trained(model, lambda model: F.cross_entropy(model(x), labels), optimizer=torch.optim.RMSprop)

    def step() -> None:
        inner()
        mean.update_parameters(model)

    return step


class Rotary(nn.Module):
    """A block written out: RMS norm, rotary positions, grouped heads, SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.rise = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.fall = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        h = self.norms[0](x)
        q = self.q(h).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(h).view(b, t, 2 * self.groups, self.size).transpose(1, 2).chunk(2, 1)
        q, k = self._turned(q, turn), self._turned(k, turn)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, t, -1))
        h = self.norms[1](x)
        return x + self.fall(F.silu(self.gate(h)) * self.rise(h))

    def _turned(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * turn.cos() + torch.cat([-b, a], -1) * turn.sin()


def rotary(batch: int, length: int, checkpointed: bool = False, **options: Any) -> Step:
    blocks = nn.ModuleList([Rotary(1024, 16, 4) for _ in range(6)]).to(CUDA)
    x = torch.randn(batch, length, 1024, device=CUDA, dtype=torch.bfloat16)
    turn = torch.outer(torch.arange(length, device=CUDA), torch.rand(64, device=CUDA)).to(torch.bfloat16)

    def loss(model: Any) -> torch.Tensor:
        h = x
        for block in model:
            if checkpointed:
                h = torch.utils.checkpoint.checkpoint(block, h, turn, use_reentrant=False)
            else:
                h = block(h, turn)
        return h.square().mean()

    return trained(blocks.to(torch.bfloat16), loss, **options)


class Eight(nn.Module):
    """Linear layers in 8-bit floats, forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(width, width) / math.sqrt(width)) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = torch.ones((), device=x.device)
        for weight in self.weights:
            a, b = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
            x = torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return x


def eight_bits(rows: int) -> Step:
    model, x = Eight(4096).to(CUDA), torch.randn(rows, 4096, device=CUDA, dtype=torch.bfloat16)

    @torch.no_grad()
    def step() -> None:
        model(x)

    return step


BF16, FP16 = {"dtype": torch.bfloat16}, {"dtype": torch.float16}
SGD = partial(torch.optim.SGD, momentum=0.9)

ZOO: dict[str, Callable[[], Step]] = {
    "regnet_y_16gf_b16_bf16": partial(vision, "regnet_y_16gf", 16, optimizer=SGD, **BF16),
    "regnet_x_3_2gf_b32_fp32": partial(vision, "regnet_x_3_2gf", 32, optimizer=SGD),
    "resnext50_b32_last_bf16": partial(vision, "resnext50_32x4d", 32, last=True, optimizer=SGD, **BF16),
    "resnet50_b64_last_bf16": partial(vision, "resnet50", 64, last=True, optimizer=SGD, **BF16),
    "efficientnet_b0_b64_last_bf16": partial(vision, "efficientnet_b0", 64, last=True, **BF16),
    "densenet121_b32_fp32": partial(vision, "densenet121", 32, optimizer=SGD),
    "swin_t_b32_bf16": partial(vision, "swin_t", 32, clip=1.0, **BF16),
    "shufflenet_b128_fp32": partial(vision, "shufflenet_v2_x1_0", 128, optimizer=SGD),
    "resnet34_b64_scaler": partial(vision, "resnet34", 64, optimizer=SGD, scaler=True, clip=1.0, **FP16),
    "inception_v3_b32_fp32": partial(vision, "inception_v3", 32, side=299, optimizer=SGD),
    "deeplabv3_b8_bf16": partial(segmentation, "deeplabv3_resnet50", 8, 512, optimizer=SGD, **BF16),
    "fcn_b4_fp32": partial(segmentation, "fcn_resnet50", 4, 480, optimizer=SGD),
    "r3d_18_b8_bf16": partial(video, "r3d_18", 8, optimizer=SGD, **BF16),
    "timm_vit_small_b64_bf16": partial(timm_model, "vit_small_patch16_224", 64, clip=1.0, **BF16),
    "timm_convnextv2_b32_bf16": partial(timm_model, "convnextv2_tiny", 32, **BF16),
    "timm_mixer_b32_bf16": partial(timm_model, "mixer_b16_224", 32, **BF16),
    "timm_maxvit_b16_bf16": partial(timm_model, "maxvit_tiny_rw_224", 16, **BF16),
    "timm_resnest_b32_bf16": partial(timm_model, "resnest50d", 32, drop_path=0.0, **BF16),
    "llama_gqa_mask_b4_s1024": partial(language, "LlamaConfig", "LlamaForCausalLM", 4, 1024, LLAMA, True, clip=1.0,
                                       **BF16),
    "qwen3_b2_s2048": partial(language, "Qwen3Config", "Qwen3ForCausalLM", 2, 2048, QWEN3, **BF16),
    "gpt_neox_b4_s512": partial(language, "GPTNeoXConfig", "GPTNeoXForCausalLM", 4, 512,
                                {"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072,
                                 "num_hidden_layers": 8, "num_attention_heads": 12}, True, **BF16),
    "mixtral_b2_s512": partial(language, "MixtralConfig", "MixtralForCausalLM", 2, 512, MIXTRAL, **BF16),
    "deberta_b16_s256": partial(language, "DebertaV2Config", "DebertaV2ForMaskedLM", 16, 256, DEBERTA, True, **BF16),
    "modernbert_b16_s512": partial(language, "ModernBertConfig", "ModernBertForMaskedLM", 16, 512,
                                   {"num_hidden_layers": 10}, True, **BF16),
    "roberta_mask_b32_s256_fp32": partial(language, "RobertaConfig", "RobertaForMaskedLM", 32, 256,
                                          {"num_hidden_layers": 6, "max_position_embeddings": 514}, True, clip=1.0),
    "t5_clip_b16_s256": partial(language, "T5Config", "T5ForConditionalGeneration", 16, 256,
                                {"decoder_start_token_id": 0}, True, clip=1.0, **BF16),
    "whisper_b8_bf16": partial(whisper, 8, **BF16),
    "clip_b64_bf16": partial(clip, 64, **BF16),
    "decode_b16_c4096": partial(decoding, 16, 4096),
    "decode_b1_c2048": partial(decoding, 1, 2048),
    "resnet50_inference_b64": partial(inference, "resnet50", 64),
    "vit_b_32_inference_b8": partial(inference, "vit_b_32", 8),
    "lstm_b64_s128": partial(recurrent, "LSTM", 64, 128, 1024, 2, clip=1.0),
    "gru_b32_s64_both": partial(recurrent, "GRU", 32, 64, 512, 2, both=True),
    "lstm_b128_s64_bf16": partial(recurrent, "LSTM", 128, 64, 512, 3, **BF16),
    "unet_b8_64_last_bf16": partial(diffusion, 8, 64, True, **BF16),
    "unet_b4_32_fp32": partial(diffusion, 4, 32, False),
    "graph_100k": partial(graph, 100_000, 800_000, 128),
    "fourier_b16_128": partial(fourier, 16, 128),
    "gan_b128": partial(gan, 128),
    "cross_network_b8192": partial(cross_network, 8192),
    "two_towers_b4096": partial(two_towers, 4096),
    "encoder_b32_s256": partial(encoder, 32, 256, 512, False),
    "encoder_causal_b8_s1024_bf16": partial(encoder, 8, 1024, 768, True, clip=1.0, **BF16),
    "encoder_inference_b32_s128": partial(encoder, 32, 128, 512, False, training=False),
    "warped_b64": partial(warped, 64),
    "dilated_sequence_b8": partial(dilated_sequence, 8, 16384),
    "muon_b4096": partial(perceptron, 4096, [1024, 2048, 2048, 1024], optimizer=Muon),
    "shampoo_b1024": partial(perceptron, 1024, [512, 1024, 512], optimizer=Shampoo),
    "tiny_policy_b64": partial(perceptron, 64, [16, 64, 64, 4], optimizer=torch.optim.Adam, clip=0.5),
    "per_sample_b256": partial(per_sample, 256),
    "averaged_b64": partial(averaged, 64),
    "rotary_b4_s2048": partial(rotary, 4, 2048, clip=1.0),
    "rotary_checkpointed_b4_s2048": partial(rotary, 4, 2048, checkpointed=True),
    "eight_bits_16k": partial(eight_bits, 16384),
    "adafactor_b4_s512": partial(rotary, 4, 512, optimizer=torch.optim.Adafactor),
    **TASKS,
}  # fmt: skip
"""Steps by name, and how to build each on the current device."""

BLIND = frozenset(name for name in ZOO if crc32(name.encode()) % 2)
"""Steps that nobody looks at before they are scored."""
