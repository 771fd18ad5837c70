"""Steps whose memory forecasts are held against a GPU's: of the zoo, two that fragment on purpose, and six by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.lib import zoo
from benchmarks.lib.workloads import Step

ZOO_STEPS = (
    "resnet50_b64_last_bf16", "encoder_b32_s256", "lstm_b64_s128", "unet_b8_64_last_bf16", "gan_b128",
    "rotary_b4_s2048",
    "rotary_checkpointed_b4_s2048", "mixtral_b2_s512", "densenet121_b32_fp32", "adafactor_b4_s512", "two_towers_b4096",
    "cross_network_b8192", "clip_b64_bf16", "swin_t_b32_bf16", "timm_maxvit_b16_bf16", "whisper_b8_bf16",
    "deberta_b16_s256", "qwen3_b2_s2048", "llama_gqa_mask_b4_s1024", "deeplabv3_b8_bf16", "resnet34_b64_scaler",
    "efficientnet_b0_b64_last_bf16", "graph_100k", "fourier_b16_128", "muon_b4096", "per_sample_b256",
    "linear_attention_b8_s2048", "preferred_b4_s512", "adapted_b8_s512", "accumulated_b128_4", "segformer_b8_512",
    "modernbert_b16_s512", "t5_clip_b16_s256", "roberta_mask_b32_s256_fp32", "inception_v3_b32_fp32", "r3d_18_b8_bf16",
    "distilled_b64_fp16", "next_items_b256_s100", "encoder_inference_b32_s128", "averaged_b64",
)  # fmt: skip
"""Steps of `benchmarks.lib.zoo`, those that differ most first."""


def _of_sizes(
    make_model: Callable[[], torch.nn.Module], batches: Sequence[torch.Tensor], dtype: torch.dtype | None
) -> list[Step]:
    """Steps of one model, each over one of the batches, by one optimizer."""
    model = make_model().to(zoo.CUDA)
    update = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(words: torch.Tensor) -> None:
        update.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()
        update.step()

    return [partial(step, words) for words in batches]


def _words(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 10000, (batch, length), device=zoo.CUDA)


def varying_batch() -> list[Step]:
    """An encoder whose batch changes from step to step: blocks that were cached are too small for the next."""
    sizes = (16, 18, 21, 25, 19, 30, 23, 34, 28, 38, 17, 41)
    return _of_sizes(lambda: zoo.Encoder(512, 6, False), [_words(size, 256) for size in sizes], None)


def long_sequences() -> list[Step]:
    """A causal encoder over sequences of very different lengths: masks and logits of every size."""
    sizes = (512, 2048, 700, 3072, 1100, 2500, 900, 3500, 1800, 4096, 640, 3300)
    return _of_sizes(lambda: zoo.Encoder(512, 6, True), [_words(4, size) for size in sizes], torch.bfloat16)


FRAGMENTING: dict[str, Callable[[], list[Step]]] = {"varying_batch": varying_batch, "long_sequences": long_sequences}

LIMIT_GB = 10.0
"""Memory that a batch has to fit in: less than the device's, so that the steps are short."""
BY_BATCH: dict[str, Callable[[int], Step]] = {
    "encoder": lambda batch: zoo.encoder(batch, 256, 512, causal=False),
    "encoder_causal_bf16": lambda batch: zoo.encoder(batch, 512, 768, causal=True, dtype=torch.bfloat16),
    "lstm": lambda batch: zoo.recurrent("LSTM", batch, 64, 512, 2),
    "unet_bf16": lambda batch: zoo.diffusion(batch, 32, last=True, dtype=torch.bfloat16),
    "gan": zoo.gan,
    "cross_network": lambda batch: zoo.cross_network(64 * batch),
}
"""The step by its batch."""
