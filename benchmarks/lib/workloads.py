"""The training steps that benchmarks run: DLRMs, transformers and image models, each a function that builds one.

The transformers come from ``transformers`` and the image models from ``torchvision``: the real code of real models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import nn

Step = Callable[[], None]

CRITEO_ROWS = (39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155,
               4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36)  # fmt: skip
DLRM_SHAPES: dict[str, dict[str, Any]] = {
    "default": {"rows": [1_000_000] * 8, "dim": 64, "bottom": [512, 512, 64], "top": [1024] * 3, "pooling": 100},
    "mlperf": {
        "rows": [min(rows, 4_000_000) for rows in CRITEO_ROWS],
        "dim": 128,
        "bottom": [13, 512, 256],
        "top": [1024, 1024, 512, 256],
        "pooling": 1,
    },
    "ddp": {"rows": [80_000] * 8, "dim": 128, "bottom": [128] * 4, "top": [512, 512, 512, 256], "pooling": 100},
}


class DLRM(nn.Module):
    """Bottom MLP, embedding bags, pairwise dot interaction, top MLP."""

    def __init__(self, rows: Sequence[int], dim: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(count, dim, mode="sum", sparse=True) for count in rows])
        features = len(rows) + 1
        self.bottom = mlp([*bottom, dim], relu_at_end=True)
        self.top = mlp([features * (features - 1) // 2 + dim, *top, 1], relu_at_end=False)
        pairs = torch.tril_indices(features, features, -1)
        self.register_buffer("first", pairs[0])
        self.register_buffer("second", pairs[1])

    def forward(self, dense: torch.Tensor, ids: list[torch.Tensor], offsets: list[torch.Tensor]) -> torch.Tensor:
        bottom = self.bottom(dense)
        looked_up = [table(i, o) for table, i, o in zip(self.tables, ids, offsets)]
        features = torch.cat([bottom, *looked_up], dim=1).view(dense.shape[0], -1, bottom.shape[1])
        products = torch.bmm(features, features.transpose(1, 2))[:, self.first, self.second]
        return self.top(torch.cat([bottom, products], dim=1))


def mlp(sizes: Sequence[int], relu_at_end: bool) -> nn.Sequential:
    """Linear layers of these widths with ReLUs between them."""
    layers: list[nn.Module] = []
    for given, made in pairwise(sizes):
        layers += [nn.Linear(given, made), nn.ReLU()]
    return nn.Sequential(*(layers if relu_at_end else layers[:-1]))


def skewed_ids(count: int, rows: int, skew: float, device: str) -> torch.Tensor:
    """Row ids; skew 0 is uniform, more follows a power law whose hot rows lie scattered over the table."""
    if skew == 0:
        return torch.randint(0, rows, (count,), device=device)
    drawn = torch.rand(count, device=device, dtype=torch.float64)
    ranks = (drawn * (rows ** (1 - skew) - 1) + 1) ** (1 / (1 - skew)) - 1
    return (ranks.clamp(0, rows - 1).long() * 2654435761) % rows


def dlrm(shape: str, batch: int, skew: float = 0.0, device: str = "cuda") -> Step:
    """A DLRM of a shape of the literature, with SGD."""
    return dlrm_of(DLRM_SHAPES[shape], batch, skew, device)


def random_dlrm(number: int, device: str = "cuda") -> Step:
    """A DLRM whose tables, widths, batch and skew were drawn at random; a number always gives the same."""
    random = Random(f"dlrm {number}")
    dim = random.choice((32, 64, 96, 128))
    sizes = {
        "rows": [round(10 ** random.uniform(3, 6.5)) for _ in range(random.randint(4, 32))],
        "dim": dim,
        "bottom": [
            random.choice((13, 128, 512)),
            *(random.choice((128, 256, 512)) for _ in range(random.randint(1, 3))),
        ],
        "top": [random.choice((256, 512, 1024)) for _ in range(random.randint(2, 4))],
        "pooling": random.choice((1, 1, 2, 5, 10, 20, 40)),
    }
    return dlrm_of(sizes, 2 ** random.randint(9, 13), random.choice((0.0, 0.4, 0.8, 1.05)), device)


def dlrm_of(shape: dict[str, Any], batch: int, skew: float, device: str) -> Step:
    """A DLRM of these sizes, with SGD."""
    sizes = dict(shape)
    pooling = sizes.pop("pooling")
    model = DLRM(**sizes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dense = torch.randn(batch, sizes["bottom"][0], device=device)
    clicked = torch.rand(batch, 1, device=device)
    ids = [skewed_ids(batch * pooling, rows, skew, device) for rows in sizes["rows"]]
    offsets = [torch.arange(0, batch * pooling, pooling, device=device) for _ in sizes["rows"]]
    loss = nn.BCEWithLogitsLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(dense, ids, offsets), clicked).backward()
        optimizer.step()

    return step


def transformer(
    kind: str,
    batch: int,
    length: int,
    bf16: bool = True,
    device: str = "cuda",
    optimizer: Any = torch.optim.AdamW,
    **sizes: Any,
) -> Step:
    """A language model of ``transformers``, in its default size where none is given."""
    import transformers

    transformers.logging.set_verbosity_error()
    config, model_class = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
    }[kind]
    model = model_class(config(**sizes)).to(device).train()
    update = optimizer(model.parameters(), lr=1e-4)
    words = torch.randint(0, model.config.vocab_size, (batch, length), device=device)

    def step() -> None:
        update.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bf16):
            loss = model(input_ids=words, labels=words).loss
        loss.backward()
        update.step()

    return step


def vision(name: str, batch: int, bf16: bool = False, device: str = "cuda") -> Step:
    """An image model of ``torchvision``, with SGD and momentum."""
    import torchvision

    model = getattr(torchvision.models, name)(weights=None).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bf16):
            error = loss(model(images), labels)
        error.backward()
        optimizer.step()

    return step


WORKLOADS: dict[str, Callable[[], Step]] = {
    "dlrm_default_b512": partial(dlrm, "default", 512),
    "dlrm_default_b2048": partial(dlrm, "default", 2048),
    "dlrm_default_b4096": partial(dlrm, "default", 4096),
    "dlrm_mlperf_b2048": partial(dlrm, "mlperf", 2048),
    "dlrm_ddp_b2048": partial(dlrm, "ddp", 2048),
    "dlrm_mlperf_zipf_b8192": partial(dlrm, "mlperf", 8192, skew=1.05),
    "bert_base_b16_s128_bf16": partial(transformer, "bert", 16, 128),
    "bert_base_b64_s512_bf16": partial(transformer, "bert", 64, 512),
    "gpt2_b16_s1024_bf16": partial(transformer, "gpt2", 16, 1024),
    "gpt2_b2_s256_fp32": partial(transformer, "gpt2", 2, 256, bf16=False),
    "resnet50_b64_fp32": partial(vision, "resnet50", 64),
    "vit_b_16_b32_bf16": partial(vision, "vit_b_16", 32, bf16=True),
}
"""The steps of the recordings in traces/h200, and how to build each."""

_LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
OTHERS: dict[str, Callable[[], Step]] = {
    "bert_base_b32_s128_fp32": partial(transformer, "bert", 32, 128, bf16=False),
    "bert_small_b8_s64_bf16": partial(transformer, "bert", 8, 64, hidden_size=768, num_hidden_layers=4),
    "gpt2_b4_s512_bf16": partial(transformer, "gpt2", 4, 512),
    "gpt2_medium_b4_s1024_bf16": partial(transformer, "gpt2", 4, 1024, n_embd=1024, n_layer=24, n_head=16),
    "llama_b4_s1024_bf16": partial(transformer, "llama", 4, 1024, vocab_size=32000, **_LLAMA),
    "llama_b1_s256_fp32": partial(transformer, "llama", 1, 256, bf16=False, vocab_size=32000, **_LLAMA),
    "t5_small_b16_s256_bf16": partial(transformer, "t5", 16, 256, decoder_start_token_id=0),
    "vit_b_16_b64_fp32": partial(vision, "vit_b_16", 64),
    "resnet18_b128_fp32": partial(vision, "resnet18", 128),
    "resnet50_b32_bf16": partial(vision, "resnet50", 32, bf16=True),
    "mobilenet_v3_large_b64_fp32": partial(vision, "mobilenet_v3_large", 64),
    "mobilenet_v2_b32_bf16": partial(vision, "mobilenet_v2", 32, bf16=True),
    "convnext_tiny_b32_bf16": partial(vision, "convnext_tiny", 32, bf16=True),
    "convnext_tiny_b16_fp32": partial(vision, "convnext_tiny", 16),
    **{f"random_dlrm_{number}": partial(random_dlrm, number) for number in range(20)},
}
"""More steps, of other sizes and other models: what forecasts are scored on beside them."""

ALL = {**WORKLOADS, **OTHERS}


def built(make: Callable[[], Step]) -> Step:
    """A step, built on the GPU at once where there is one: large tables take a CPU half a minute."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return make()
