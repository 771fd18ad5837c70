"""More steps of the zoo: tasks that train otherwise than by one model, one loss and one backward of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.workloads import Step, mlp

CUDA = "cuda"


def _update(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    wanted = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(wanted, lr=1e-4, **options)


def _stepped(optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor], dtype: torch.dtype | None) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = loss_of()
        loss.backward()
        optimizer.step()

    return step


def distilled(batch: int) -> Step:
    """A small network learns from a large one's answers."""
    import torchvision

    teacher = torchvision.models.resnet101(weights=None).to(CUDA).eval().requires_grad_(False)
    student = torchvision.models.mobilenet_v2(weights=None).to(CUDA).train()
    x = torch.randn(batch, 3, 224, 224, device=CUDA)

    def loss() -> torch.Tensor:
        with torch.no_grad():
            wanted = F.log_softmax(teacher(x) / 4, -1)
        return F.kl_div(F.log_softmax(student(x) / 4, -1), wanted, log_target=True, reduction="batchmean")

    return _stepped(_update(student), loss, torch.float16)


class Block(nn.Module):
    """A transformer's block as GPT-2 has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.first(x)).split(c, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.fall(F.gelu(self.rise(self.second(x)), approximate="tanh"))


class Words(nn.Module):
    """A language model of such blocks."""

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))


def preferred(batch: int, length: int) -> Step:
    """Direct preference optimization: a policy and its frozen reference, on chosen and rejected answers."""
    policy, reference = (Words(32000, 768, 12, 6, length).to(CUDA) for _ in range(2))
    reference.requires_grad_(False).eval()
    ids = torch.randint(0, 32000, (2 * batch, length), device=CUDA)

    def chance(model: nn.Module) -> torch.Tensor:
        logits = model(ids)[:, :-1].float().log_softmax(-1)
        return logits.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)

    def loss() -> torch.Tensor:
        with torch.no_grad():
            before = chance(reference)
        gain = chance(policy) - before
        return -F.logsigmoid(0.1 * (gain[:batch] - gain[batch:])).mean()

    return _stepped(_update(policy), loss, torch.bfloat16)


class Adapted(nn.Module):
    """A frozen linear layer with a trained one of low rank beside it."""

    def __init__(self, whole: nn.Linear, rank: int) -> None:
        super().__init__()
        self.whole = whole
        self.down = nn.Linear(whole.in_features, rank, bias=False)
        self.up = nn.Linear(rank, whole.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.whole(x) + 2.0 * self.up(self.down(F.dropout(x, 0.05)))


def adapted(batch: int, length: int) -> Step:
    """Low-rank adapters of a frozen model in 16 bits."""
    model = Words(32000, 1024, 16, 8, length).to(CUDA, torch.bfloat16).requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = Adapted(block.qkv, 16), Adapted(block.out, 16)
    model = model.to(CUDA)
    ids = torch.randint(0, 32000, (batch, length), device=CUDA)
    return _stepped(_update(model), lambda: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()), torch.bfloat16)


def smoothed(batch: int, length: int) -> Step:
    """A large vocabulary, with label smoothing and a z-loss."""
    model = Words(128256, 512, 8, 4, length).to(CUDA)
    ids = torch.randint(0, 128256, (batch, length), device=CUDA)

    def loss() -> torch.Tensor:
        logits = model(ids).flatten(0, 1)
        return F.cross_entropy(logits, ids.flatten(), label_smoothing=0.1) + 1e-4 * logits.logsumexp(-1).square().mean()

    return _stepped(_update(model, fused=True), loss, torch.bfloat16)


def rendered(rays: int, samples: int) -> Step:
    """A radiance field: positions encoded by sines, a perceptron, and densities summed along rays."""
    model = mlp([63, 256, 256, 256, 256, 4], relu_at_end=False).to(CUDA)
    at = torch.rand(rays, samples, 3, device=CUDA)
    gaps, wanted = torch.rand(rays, samples, device=CUDA), torch.rand(rays, 3, device=CUDA)
    scales = 2.0 ** torch.arange(10, device=CUDA)

    def loss() -> torch.Tensor:
        turned = at[..., None] * scales
        given = torch.cat([at, turned.sin().flatten(-2), turned.cos().flatten(-2)], -1)
        found = model(given)
        opacity = 1 - torch.exp(-F.softplus(found[..., 3]) * gaps)
        left = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], -1), -1)[:, :-1]
        color = ((opacity * left)[..., None] * found[..., :3].sigmoid()).sum(1)
        return F.mse_loss(color, wanted)

    return _stepped(_update(model), loss, None)


def points(batch: int, count: int) -> Step:
    """Point clouds: each point's nearest neighbours, an edge convolution, the maximum over them."""
    first, second = nn.Conv2d(6, 64, 1).to(CUDA), nn.Conv1d(64, 256, 1).to(CUDA)
    head = mlp([256, 128, 40], relu_at_end=False).to(CUDA)
    model = nn.ModuleList([first, second, head])
    x, labels = torch.randn(batch, 3, count, device=CUDA), torch.randint(0, 40, (batch,), device=CUDA)

    def loss() -> torch.Tensor:
        inner = torch.cdist(x.transpose(1, 2), x.transpose(1, 2))
        near = inner.topk(20, largest=False).indices
        found = x.unsqueeze(2).expand(-1, -1, count, -1).gather(3, near[:, None].expand(-1, 3, -1, -1))
        edges = torch.cat([found - x.unsqueeze(-1), x.unsqueeze(-1).expand_as(found)], 1)
        h = F.leaky_relu(first(edges), 0.2).amax(-1)
        return F.cross_entropy(head(second(h).amax(-1)), labels)

    return _stepped(_update(model), loss, None)


def next_items(batch: int, length: int) -> Step:
    """Sequential recommendation: items seen before, and sampled ones to be told from the next."""
    items = nn.Embedding(100_000, 128).to(CUDA)
    layer = nn.TransformerEncoderLayer(128, 2, 256, 0.2, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(CUDA).train()
    seen, after = (torch.randint(0, 100_000, (batch, length), device=CUDA) for _ in range(2))
    others = torch.randint(0, 100_000, (batch, length, 16), device=CUDA)
    mask = nn.Transformer.generate_square_subsequent_mask(length, device=CUDA)

    def loss() -> torch.Tensor:
        h = encoder(items(seen) * math.sqrt(128), mask=mask, is_causal=True)
        right = (h * items(after)).sum(-1, keepdim=True)
        wrong = torch.einsum("btc,btkc->btk", h, items(others))
        return -(F.logsigmoid(right) + F.logsigmoid(-wrong).mean(-1, keepdim=True)).mean()

    return _stepped(_update(nn.ModuleList([items, encoder])), loss, None)


def factorized(batch: int) -> Step:
    """DeepFM: features by id, their pairwise products by sums of squares, a perceptron, Adagrad."""
    fields = 26
    wide, deep = nn.Embedding(fields * 50_000, 1).to(CUDA), nn.Embedding(fields * 50_000, 16).to(CUDA)
    net = mlp([fields * 16, 400, 400, 1], relu_at_end=False).to(CUDA)
    ids = torch.randint(0, fields * 50_000, (batch, fields), device=CUDA)
    clicks = torch.randint(0, 2, (batch,), device=CUDA).float()
    optimizer = torch.optim.Adagrad([*wide.parameters(), *deep.parameters(), *net.parameters()], lr=0.01)

    def loss() -> torch.Tensor:
        found = deep(ids)
        pairs = 0.5 * (found.sum(1).square() - found.square().sum(1)).sum(-1)
        logit = wide(ids).sum((1, 2)) + pairs + net(found.flatten(1)).squeeze(-1)
        return F.binary_cross_entropy_with_logits(logit, clicks)

    return _stepped(optimizer, loss, None)


def played(batch: int) -> Step:
    """Proximal policy optimization of a game: small convolutions, clipped ratios, an entropy."""
    body = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3),
                         nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()).to(CUDA)  # fmt: skip
    actor, critic = nn.Linear(512, 18).to(CUDA), nn.Linear(512, 1).to(CUDA)
    model = nn.ModuleList([body, actor, critic])
    frames = torch.randint(0, 255, (batch, 4, 84, 84), dtype=torch.uint8, device=CUDA)
    taken, before = torch.randint(0, 18, (batch,), device=CUDA), torch.randn(batch, device=CUDA)
    gain, returned = torch.randn(batch, device=CUDA), torch.randn(batch, device=CUDA)
    optimizer = _update(model)

    def step() -> None:
        optimizer.zero_grad()
        h = body(frames.float() / 255)
        chosen = torch.distributions.Categorical(logits=actor(h), validate_args=False)
        ratio = (chosen.log_prob(taken) - before).exp()
        advantage = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = -torch.min(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage).mean()
        loss = policy + 0.5 * F.mse_loss(critic(h).squeeze(-1), returned) - 0.01 * chosen.entropy().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    return step


def quantized_codes(batch: int) -> Step:
    """VQ-VAE: an image's codes are the nearest of a book, with the gradient passed straight through."""
    down = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(),
                         nn.Conv2d(128, 64, 3, 1, 1)).to(CUDA)  # fmt: skip
    up = nn.Sequential(nn.Conv2d(64, 128, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(),
                       nn.ConvTranspose2d(64, 3, 4, 2, 1)).to(CUDA)  # fmt: skip
    book = nn.Embedding(512, 64).to(CUDA)
    x = torch.randn(batch, 3, 128, 128, device=CUDA)

    def loss() -> torch.Tensor:
        h = down(x).permute(0, 2, 3, 1)
        flat = h.reshape(-1, 64)
        far = flat.square().sum(1, keepdim=True) - 2 * flat @ book.weight.t() + book.weight.square().sum(1)
        code = book(far.argmin(1)).view_as(h)
        kept = F.mse_loss(code.detach(), h) * 0.25 + F.mse_loss(code, h.detach())
        return F.mse_loss(up((h + (code - h).detach()).permute(0, 3, 1, 2)), x) + kept

    return _stepped(_update(nn.ModuleList([down, up, book])), loss, None)


def spoken(batch: int, frames: int) -> Step:
    """Speech: convolutions over a spectrogram, recurrent layers both ways, a CTC loss."""
    first = nn.Sequential(nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
    second = nn.Sequential(nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
    convolved = nn.Sequential(first, second).to(CUDA)
    net, head = nn.GRU(32 * 41, 512, 3, batch_first=True, bidirectional=True).to(CUDA), nn.Linear(1024, 29).to(CUDA)
    x = torch.randn(batch, 1, 161, frames, device=CUDA)
    said = torch.randint(1, 29, (batch, 40), device=CUDA)
    lengths = torch.full((batch,), 40, dtype=torch.long, device=CUDA)

    def loss() -> torch.Tensor:
        h = convolved(x).flatten(1, 2).transpose(1, 2)
        logits = head(net(h)[0]).transpose(0, 1).log_softmax(-1)
        given = torch.full((batch,), logits.shape[0], dtype=torch.long, device=CUDA)
        return F.ctc_loss(logits, said, given, lengths)

    return _stepped(_update(nn.ModuleList([convolved, net, head])), loss, None)


def translated(batch: int, length: int) -> Step:
    """Translation by cells that attend to the source, a word at a time."""
    words, cell = nn.Embedding(16000, 256).to(CUDA), nn.GRUCell(512, 256).to(CUDA)
    source, head = nn.GRU(256, 256, batch_first=True).to(CUDA), nn.Linear(512, 16000).to(CUDA)
    model = nn.ModuleList([words, cell, source, head])
    given, wanted = (torch.randint(0, 16000, (batch, length), device=CUDA) for _ in range(2))

    def loss() -> torch.Tensor:
        memory, state = source(words(given))
        h, lost = state[0], torch.zeros((), device=CUDA)
        for at in range(length):
            weight = torch.softmax(torch.bmm(memory, h.unsqueeze(-1)).squeeze(-1), -1)
            context = torch.bmm(weight.unsqueeze(1), memory).squeeze(1)
            h = cell(torch.cat([words(wanted[:, at]), context], -1), h)
            lost = lost + F.cross_entropy(head(torch.cat([h, context], -1)), wanted[:, at])
        return lost / length

    return _stepped(_update(model), loss, None)


def linear_attention(batch: int, length: int) -> Step:
    """Attention without a softmax: running sums of keys times values, by chunks."""
    width, heads, chunk = 768, 12, 64
    layers = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(4)]).to(CUDA)
    x = torch.randn(batch, length, width, device=CUDA)
    mask = torch.ones(chunk, chunk, device=CUDA).tril()

    def loss() -> torch.Tensor:
        h = x
        for layer in layers:
            q, k, v = (
                part.view(batch, length // chunk, chunk, heads, -1).permute(0, 3, 1, 2, 4)
                for part in layer(F.layer_norm(h, (width,))).split(width, -1)
            )
            q, k = F.elu(q) + 1, F.elu(k) + 1
            summed = torch.einsum("bhncd,bhnce->bhnde", k, v).cumsum(2)
            before = F.pad(summed, (0, 0, 0, 0, 1, 0))[:, :, :-1]
            found = q @ before + ((q @ k.transpose(-1, -2)) * mask) @ v
            h = h + found.permute(0, 2, 3, 1, 4).reshape(batch, length, width)
        return h.square().mean()

    return _stepped(_update(layers), loss, torch.bfloat16)


def long_convolution(batch: int, length: int) -> Step:
    """A state-space layer as a long convolution, by Fourier transforms."""
    kernel = nn.Parameter(torch.randn(256, length, device=CUDA) * 0.02)
    mix, out = nn.Linear(256, 512).to(CUDA), nn.Linear(256, 256).to(CUDA)
    x = torch.randn(batch, length, 256, device=CUDA)
    optimizer = torch.optim.AdamW([kernel, *mix.parameters(), *out.parameters()], lr=1e-3)

    def loss() -> torch.Tensor:
        value, gate = mix(x).chunk(2, -1)
        far = torch.fft.rfft(value.transpose(1, 2), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        found = torch.fft.irfft(far, n=2 * length)[..., :length].transpose(1, 2)
        return (out(found * gate.sigmoid()) - x).square().mean()

    return _stepped(optimizer, loss, None)


def accumulated(batch: int, parts: int) -> Step:
    """Gradients of several parts of a batch added up, and one update by the schedule."""
    import torchvision

    model = torchvision.models.resnet18(weights=None).to(CUDA, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    x = torch.randn(batch, 3, 224, 224, device=CUDA).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device=CUDA)

    def step() -> None:
        optimizer.zero_grad()
        for images, answers in zip(x.chunk(parts), labels.chunk(parts)):
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(images), answers) / parts
            loss.backward()
        optimizer.step()
        schedule.step()

    return step


def hugging(config: str, model: str, given: Callable[[], dict[str, torch.Tensor]], sizes: dict[str, Any]) -> Step:
    """A model of ``transformers`` that takes no words."""
    import transformers

    net = getattr(transformers, model)(getattr(transformers, config)(**sizes)).to(CUDA).train()
    inputs = given()
    return _stepped(_update(net), lambda: net(**inputs).loss, torch.bfloat16)


def _pixels(batch: int, side: int, mask: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    found = {"pixel_values": torch.randn(batch, 3, side, side, device=CUDA)}
    return {**found, "labels": torch.randint(0, 150, (batch, *mask), device=CUDA)} if mask else found


TASKS: dict[str, Callable[[], Step]] = {
    "distilled_b64_fp16": partial(distilled, 64),
    "preferred_b4_s512": partial(preferred, 4, 512),
    "adapted_b8_s512": partial(adapted, 8, 512),
    "smoothed_b8_s512": partial(smoothed, 8, 512),
    "rendered_4096x64": partial(rendered, 4096, 64),
    "points_b16_1024": partial(points, 16, 1024),
    "next_items_b256_s100": partial(next_items, 256, 100),
    "factorized_b16384": partial(factorized, 16384),
    "played_b512": partial(played, 512),
    "quantized_codes_b64": partial(quantized_codes, 64),
    "spoken_b16_t400": partial(spoken, 16, 400),
    "translated_b64_s24": partial(translated, 64, 24),
    "linear_attention_b8_s2048": partial(linear_attention, 8, 2048),
    "long_convolution_b8_8192": partial(long_convolution, 8, 8192),
    "accumulated_b128_4": partial(accumulated, 128, 4),
    "segformer_b8_512": partial(hugging, "SegformerConfig", "SegformerForSemanticSegmentation",
                                partial(_pixels, 8, 512, (512, 512)), {"num_labels": 150}),
    "masked_images_b32": partial(hugging, "ViTMAEConfig", "ViTMAEForPreTraining", partial(_pixels, 32, 224),
                                 {"num_hidden_layers": 6}),
}  # fmt: skip
"""By name, how to build each on the current device."""
