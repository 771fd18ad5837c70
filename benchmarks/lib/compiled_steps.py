"""Training steps that are compiled, to hold sketches and forecasts of compiled steps against: none was fitted on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib import model_pool, workloads, zoo
from benchmarks.lib.workloads import Step
from benchmarks.lib.zoo import CUDA, trained

EAGER, COMPILED, GRAPHED = "eager", "compiled", "reduce-overhead"
MODES: dict[str, dict[str, str] | None] = {EAGER: None, COMPILED: {}, GRAPHED: {"mode": GRAPHED}}
"""What torch.compile is given in each mode of a step; it is not called for None."""


def compiled(function: Any, options: dict[str, str] | None) -> Any:
    return function if options is None else torch.compile(function, **options)  # type: ignore[call-overload]


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(0.1)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.drop(self.out(mixed))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class GPT(nn.Module):
    """A language model with its loss."""

    def __init__(self, layers: int = 12, width: int = 768, words: int = 50257, length: int = 1024) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), ids.flatten())


class Broken(nn.Module):
    """Two blocks with a graph break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(512, 8), Block(512, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x).square().mean()


class Mixer(nn.Module):
    """Perceptrons over patches and over channels in turns."""

    def __init__(self, patches: int = 196, width: int = 512) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(width), nn.Linear(patches, 256), nn.Linear(256, patches), nn.LayerNorm(width),
                           nn.Linear(width, 2048), nn.Linear(2048, width)])
            for _ in range(8)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down, second, wide, narrow in self.layers:  # type: ignore[misc]
            x = x + down(F.gelu(up(norm(x).transpose(1, 2)))).transpose(1, 2)
            x = x + narrow(F.gelu(wide(second(x))))
        return x.square().mean()


def words(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50257, (batch, length), device=CUDA)


def language(batch: int, length: int, options: dict[str, str] | None, whole: bool = True, half: bool = False,
             **training: Any) -> Step:  # fmt: skip
    """A GPT, compiled as a whole or block by block."""
    model, ids = GPT().to(CUDA, torch.bfloat16 if half else torch.float32), words(batch, length)
    if options is not None and not whole:
        for block in model.blocks:
            block.compile(**options)
    run = compiled(model, options if whole else None)
    return trained(model, lambda _: run(ids), **training)


def drawn(model: nn.Module, shape: tuple[int, ...], options: dict[str, str] | None, **training: Any) -> Step:
    """A model that returns its loss, given random numbers."""
    x, run = torch.randn(shape, device=CUDA), compiled(model.to(CUDA), options)
    return trained(model, lambda _: run(x), **training)


def images(name: str, batch: int, options: dict[str, str] | None, **training: Any) -> Step:
    """Image classification by a model of torchvision."""
    return compiled_model(partial(zoo.vision, name, batch, **training), zoo, options)


def compiled_model(build: Callable[[], Step], module: Any, options: dict[str, str] | None) -> Step:
    """A step of the zoo or of the pool: what it passes to ``trained`` to compute its loss is compiled."""
    original = module.trained

    def with_compiled(model: nn.Module, loss_of: Callable[[Any], torch.Tensor], *args: Any, **kwargs: Any) -> Step:
        run = compiled(lambda: loss_of(model), options)
        return original(model, lambda _: run(), *args, **kwargs)  # type: ignore[no-any-return]

    with patch.object(module, "trained", with_compiled):
        return build()


def of_zoo(name: str, options: dict[str, str] | None) -> Step:
    return compiled_model(zoo.ZOO[name], zoo, options)


def of_pool(seed: int, options: dict[str, str] | None) -> Step:
    """A random model, to measure kernels of."""
    return compiled_model(model_pool.drawn(seed)[1], model_pool, options)


def recommender(batch: int, options: dict[str, str] | None) -> Step:
    """The DLRM with sparse gradients, compiled in place."""

    class Model(workloads.DLRM):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if options is not None:
                self.compile(**options)

    with patch.object(workloads, "DLRM", Model):
        return workloads.dlrm("default", batch)


HALF = {"dtype": torch.bfloat16}
SGD = partial(torch.optim.SGD, momentum=0.9)
STEPS: dict[str, Callable[[dict[str, str] | None], Step]] = {
    "gpt_b16_s1024_bf16": partial(language, 16, 1024, half=True),
    "resnet50_b64_last_amp": partial(images, "resnet50", 64, last=True, optimizer=SGD, **HALF),
    "gpt_b2_s256_fp32": partial(language, 2, 256),
    "rotary_b4_s2048": partial(of_zoo, "rotary_b4_s2048"),
    "unet_b8_64_last_bf16": partial(of_zoo, "unet_b8_64_last_bf16"),
    "cross_network_b8192": partial(of_zoo, "cross_network_b8192"),
    "encoder_b32_s256": partial(of_zoo, "encoder_b32_s256"),
    "mixer_b32_amp": lambda options: drawn(Mixer(), (32, 196, 512), options, **HALF),
    "breaks_b8_s512_amp": lambda options: drawn(Broken(), (8, 512, 512), options, **HALF),
    "dlrm_b2048": partial(recommender, 2048),
    "two_towers_b4096": partial(of_zoo, "two_towers_b4096"),
    "tiny_policy_b64": partial(of_zoo, "tiny_policy_b64"),
    "gpt_regional_b4_s512_amp": partial(language, 4, 512, whole=False, **HALF),
    "dilated_sequence_b8": partial(of_zoo, "dilated_sequence_b8"),
    "encoder_causal_b8_s1024_bf16": partial(of_zoo, "encoder_causal_b8_s1024_bf16"),
    "convnext_tiny_b32": partial(images, "convnext_tiny", 32, **HALF),
    "unet_b4_32_fp32": partial(of_zoo, "unet_b4_32_fp32"),
    "resnet50_b32_fp32": partial(images, "resnet50", 32, optimizer=SGD),
    "vit_b_16_b32_amp": partial(images, "vit_b_16", 32, **HALF),
}
"""Each takes the options of torch.compile."""
WITH_GRAPHS = ("gpt_b2_s256_fp32", "tiny_policy_b64", "breaks_b8_s512_amp", "two_towers_b4096")
"""Steps that are measured with ``mode="reduce-overhead"`` as well."""


def modes_of(step: str) -> list[str]:
    """The modes in which a step is measured."""
    return [EAGER, COMPILED, *([GRAPHED] if step in WITH_GRAPHS else [])]


IN_MODES: dict[str, Callable[[], Step]] = {
    f"{name}.{mode}": partial(build, MODES[mode]) for name, build in STEPS.items() for mode in modes_of(name)
}
"""Each step in each of its modes, as it is called in a folder of recordings."""
