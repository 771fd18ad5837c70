"""Models at random, as people train them, for their calls to be measured: none is a step of the zoo.

Layers that repeat add no call, so that language models are shallow; sizes, batches, dtypes, layouts are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.model_kinds import KINDS as OTHER
from benchmarks.lib.workloads import Step
from benchmarks.lib.zoo import CUDA, ZOO, logits_of, trained

KINDS = {"timm": 8, "vision": 4, "segmentation": 2, "video": 2, "words": 6, "sequences": 1, "diffusion": 2,
         "recurrent": 1, "perceptron": 1, "sound": 1}  # fmt: skip
"""Kinds of models, and how often each is drawn."""
TOO_LARGE = ("giant", "gigantic", "huge", "enormous", "_so400m", "_so150m", "_7b", "_xxl", "_g14", "_l2", "_1b", "_2b")
OPTIMIZERS = {"AdamW": torch.optim.AdamW, "SGD": partial(torch.optim.SGD, momentum=0.9), "Adam": torch.optim.Adam,
              "fused": partial(torch.optim.AdamW, fused=True), "RMSprop": torch.optim.RMSprop}  # fmt: skip
LANGUAGE = (
    ("BertConfig", "BertForMaskedLM"), ("RobertaConfig", "RobertaForSequenceClassification"),
    ("ElectraConfig", "ElectraForMaskedLM"), ("AlbertConfig", "AlbertForMaskedLM"), ("GPT2Config", "GPT2LMHeadModel"),
    ("OPTConfig", "OPTForCausalLM"), ("BloomConfig", "BloomForCausalLM"), ("LlamaConfig", "LlamaForCausalLM"),
    ("MistralConfig", "MistralForCausalLM"), ("Qwen2Config", "Qwen2ForCausalLM"), ("GemmaConfig", "GemmaForCausalLM"),
    ("PhiConfig", "PhiForCausalLM"), ("FalconConfig", "FalconForCausalLM"), ("GPTJConfig", "GPTJForCausalLM"),
    ("DistilBertConfig", "DistilBertForMaskedLM"), ("MPNetConfig", "MPNetForMaskedLM"),
    ("BartConfig", "BartForConditionalGeneration"), ("MarianConfig", "MarianMTModel"),
    ("DebertaConfig", "DebertaForMaskedLM"), ("MT5Config", "MT5ForConditionalGeneration"),
)  # fmt: skip


def drawn(seed: int, other: bool = False) -> tuple[str, Callable[[], Step]]:
    """A model by number: what it is, and how to build its step on the current device.

    Models of images and language; ``other`` ones are of `benchmarks.lib.model_kinds`.
    """
    dice = random.Random(f"{'other ' if other else ''}model {seed}")
    kinds = {name: share for name, (_, share) in OTHER.items()} if other else KINDS
    kind = dice.choices(list(kinds), list(kinds.values()))[0]
    options: dict[str, Any] = {"optimizer": OPTIMIZERS[dice.choice(list(OPTIMIZERS))]}
    options["dtype"] = dice.choice([torch.bfloat16, torch.bfloat16, torch.float16, None, None])
    options["clip"] = dice.choice([None, None, 1.0])
    if other:
        return kind, partial(OTHER[kind][0], dice, options)
    name, build = _BUILD[kind](dice)
    return f"{kind} {name}", partial(build, options)


def _batch(dice: random.Random, most: int, least: int = 1) -> int:
    """Mostly powers of two, now and then another number."""
    powers = [2**n for n in range(12) if least <= 2**n <= most]
    return dice.choice(powers) if dice.random() < 0.75 else dice.randint(least, most)


def _ran(dice: random.Random, model: nn.Module, x: torch.Tensor, options: dict[str, Any], last: bool) -> Step:
    """A model's training step, or one without gradients."""
    model = model.to(CUDA)
    if last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    if dice.random() < 0.8:
        return trained(model.train(), lambda model: _loss(model(x)), **options)
    dtype = options["dtype"]
    half = dice.random() < 0.5 and dtype is not None
    model, x = (model.to(dtype), x.to(dtype)) if half else (model, x)

    @torch.no_grad()
    def step() -> None:
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None and not half):
            model(x)

    model.eval()
    return step


def _loss(found: Any) -> torch.Tensor:
    """Cross entropy of classes or pixels against what the model itself takes for likely; squares of anything else."""
    found = logits_of(found["out"] if isinstance(found, dict) and "out" in found else found)
    if found.dim() not in (2, 4):
        return found.float().square().mean()
    return F.cross_entropy(found, found.detach().argmax(1))


def _vision(dice: random.Random, timm: bool) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    if timm:
        from timm import list_models

        names = [name for name in list_models() if not any(part in name for part in TOO_LARGE)]
    else:
        from torchvision.models import detection, optical_flow, quantization, segmentation, video
        from torchvision.models import list_models as listed

        other = {n for part in (segmentation, detection, video, quantization, optical_flow) for n in listed(part)}
        names = sorted(set(listed()) - other)
    used = " ".join(ZOO)
    name = dice.choice([name for name in names if name not in used])
    batch, last, scale = _batch(dice, 128, 2), dice.random() < 0.4, dice.choice([1, 1, 1, 0.75, 1.25])

    def build(options: dict[str, Any]) -> Step:
        if timm:
            from timm import create_model

            model = create_model(name, num_classes=1000)
            side = model.default_cfg.get("input_size", (3, 224, 224))[-1]
            side = side if model.default_cfg.get("fixed_input_size") else int(side * scale) // 32 * 32
        else:
            from torchvision.models import get_model

            model, side = get_model(name, weights=None), 224 if scale == 1 or "vit" in name else 256
        return _ran(dice, model, torch.randn(batch, 3, side, side, device=CUDA), options, last)

    return f"{name} {batch}", build


def _segmentation(dice: random.Random) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    name = dice.choice(
        ["deeplabv3_mobilenet_v3_large", "deeplabv3_resnet101", "lraspp_mobilenet_v3_large", "fcn_resnet101"]
    )
    batch, side, last = _batch(dice, 16, 2), dice.choice([256, 320, 384, 448, 513]), dice.random() < 0.5

    def build(options: dict[str, Any]) -> Step:
        from torchvision.models import get_model

        model = get_model(name, weights=None, weights_backbone=None, num_classes=dice.choice([2, 21, 150]))
        return _ran(dice, model, torch.randn(batch, 3, side, side, device=CUDA), options, last)

    return f"{name} {batch}x{side}", build


def _video(dice: random.Random) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    name, batch = dice.choice(["mc3_18", "r2plus1d_18", "s3d", "mvit_v2_s", "swin3d_t", "volumes"]), _batch(dice, 16)

    def build(options: dict[str, Any]) -> Step:
        from torchvision.models import get_model

        if name == "volumes":
            width = dice.choice([16, 24, 32, 48])
            blocks = [nn.Conv3d(1, width, 3, padding=1)]
            for level in range(3):
                wide = width << level
                blocks += [nn.InstanceNorm3d(wide), nn.LeakyReLU(), nn.Conv3d(wide, 2 * wide, 3, 2, 1)]
            blocks += [nn.ConvTranspose3d(8 * width, 4 * width, 2, 2), nn.ReLU(), nn.Conv3d(4 * width, 4, 1)]
            sides = [dice.choice([64, 96, 128])] * 3
            return _ran(
                dice, nn.Sequential(*blocks), torch.randn(min(4, batch), 1, *sides, device=CUDA), options, False
            )
        side, frames = (224, 16) if name in ("mvit_v2_s",) else (dice.choice([112, 128, 224]), dice.choice([8, 16, 32]))
        return _ran(
            dice, get_model(name, weights=None), torch.randn(batch, 3, frames, side, side, device=CUDA), options, False
        )

    return f"{name} {batch}", build


def _words(dice: random.Random) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    config, model = dice.choice(LANGUAGE)
    size, heads = dice.choice([(256, 4), (384, 6), (512, 8), (768, 12), (1024, 16), (1280, 20), (2048, 16), (4096, 32)])
    batch, length = _batch(dice, 64), dice.choice([64, 128, 192, 256, 384, 512, 1024, 2048])
    batch = max(1, min(batch, 32768 // length, 2**26 // (length * size)))
    vocabulary = dice.choice([30522, 32000, 50257, 50304, 65024, 128256])
    masked, layers = dice.random() < 0.4, dice.choice([1, 2])

    def build(options: dict[str, Any]) -> Step:
        import transformers

        kind = getattr(transformers, config)
        known = kind()
        sizes: dict[str, Any] = {"vocab_size": vocabulary, "num_hidden_layers": layers, "hidden_size": size,
                                 "num_attention_heads": heads}  # fmt: skip
        if config in ("BartConfig", "MarianConfig"):
            sizes = {"vocab_size": vocabulary, "d_model": size, "encoder_layers": layers, "decoder_layers": layers,
                     "encoder_attention_heads": heads, "decoder_attention_heads": heads, "encoder_ffn_dim": 4 * size,
                     "decoder_ffn_dim": 4 * size, "pad_token_id": 1, "decoder_start_token_id": 2}  # fmt: skip
        elif config == "MT5Config":
            sizes = {"vocab_size": vocabulary, "d_model": size, "num_layers": layers, "num_heads": heads,
                     "d_ff": 2 * size, "d_kv": size // heads, "decoder_start_token_id": 0}  # fmt: skip
        if hasattr(known, "intermediate_size"):
            sizes["intermediate_size"] = dice.choice([4 * size, int(size * 8 / 3) // 128 * 128])
        if hasattr(known, "num_key_value_heads") and config not in ("FalconConfig",):
            sizes["num_key_value_heads"] = dice.choice([heads, max(1, heads // 4)])
        if hasattr(known, "max_position_embeddings"):
            sizes["max_position_embeddings"] = max(length + 2, 512)
        if config in ("GPT2Config", "GPTJConfig"):
            sizes["n_positions"] = max(length, 512)
        for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
            sizes.setdefault(token, 1)
        net = getattr(transformers, model)(kind(**sizes)).to(CUDA).train()
        ids = torch.randint(2, vocabulary, (batch, length), device=CUDA)
        given: dict[str, Any] = {"input_ids": ids}
        if masked:
            given["attention_mask"] = torch.ones_like(ids)
        given["labels"] = ids[:, 0] % 2 if "Sequence" in model else ids
        return trained(net, lambda net: net(**given).loss, **options)

    return f"{model} {batch}x{length}x{size}", build


def _sequences(dice: random.Random) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    width, heads = dice.choice([(128, 4), (256, 4), (256, 8), (512, 8), (768, 12), (1024, 16)])
    batch, length = _batch(dice, 128), dice.choice([20, 50, 100, 128, 200, 256, 512, 1000])
    causal, first = dice.random() < 0.5, dice.random() < 0.5

    def build(options: dict[str, Any]) -> Step:
        kind = dice.choice(["relu", "gelu"])
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, kind, batch_first=True, norm_first=first)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(CUDA)
        x = torch.randn(batch, length, width, device=CUDA)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=CUDA) if causal else None
        return trained(model.train(), lambda model: model(x, mask=mask, is_causal=causal).square().mean(), **options)

    return f"encoder {batch}x{length}x{width}", build


class Residual(nn.Module):
    """A U-Net's block, at one level: with a time that is added, and maybe attention."""

    def __init__(self, inner: int, outer: int, attends: bool, groups: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(groups, inner), nn.GroupNorm(groups, outer)
        self.a, self.b = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1)
        self.time = nn.Linear(512, outer)
        self.attention = nn.MultiheadAttention(outer, max(1, outer // 64), batch_first=True) if attends else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.a(F.silu(self.first(x))) + self.time(F.silu(time))[:, :, None, None]
        h = self.b(F.silu(self.second(h))) + self.skip(x)
        if self.attention is not None:
            flat = h.flatten(2).transpose(1, 2)
            h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(h.shape)
        return h


class UNet(nn.Module):
    """Down and up again, with what was joined on the way."""

    def __init__(self, width: int, levels: int, groups: int) -> None:
        super().__init__()
        wide = [width * n for n in (1, 2, 3, 4, 4)[: levels + 1]]
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(a, b, at > 1, groups) for at, (a, b) in enumerate(pairwise(wide))])
        self.shrink = nn.ModuleList([nn.Conv2d(b, b, 3, 2, 1) for b in wide[1:]])
        self.up = nn.ModuleList([Residual(2 * b, a, at > 1, groups) for at, (a, b) in enumerate(pairwise(wide))])
        self.leave = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x, kept = self.enter(x), []
        for block, shrink in zip(self.down, self.shrink):
            kept.append(block(x, time))
            x = shrink(kept[-1])
        for block, skip in zip(reversed(self.up), reversed(kept)):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skip], 1), time)
        return self.leave(x)


def _diffusion(dice: random.Random) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    width, groups = dice.choice([(32, 8), (64, 32), (96, 32), (128, 32), (160, 32), (192, 32), (256, 32), (320, 32)])
    batch, side, levels, last = (
        _batch(dice, 64),
        dice.choice([32, 64, 64, 96, 128]),
        dice.choice([2, 3]),
        dice.random() < 0.5,
    )
    batch = max(1, min(batch, 2**25 // (side * side * width)))

    def build(options: dict[str, Any]) -> Step:
        model = UNet(width, levels, groups).to(CUDA)
        x = torch.randn(batch, 4, side, side, device=CUDA)
        if last:
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        time = torch.randn(batch, 512, device=CUDA)
        return trained(model.train(), lambda model: F.mse_loss(model(x, time), x), **options)

    return f"unet {batch}x{side}x{width}", build


def _recurrent(dice: random.Random) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    kind, width = dice.choice(["LSTM", "GRU"]), dice.choice([128, 200, 256, 512, 650, 1024, 1500])
    batch, length, layers = _batch(dice, 256), dice.choice([16, 32, 35, 64, 100, 200]), dice.choice([1, 2, 3])

    def build(options: dict[str, Any]) -> Step:
        model = getattr(nn, kind)(width, width, layers, batch_first=True, bidirectional=dice.random() < 0.3,
                                  dropout=0.1 * (layers > 1)).to(CUDA)  # fmt: skip
        x = torch.randn(batch, length, width, device=CUDA)
        return trained(model.train(), lambda model: model(x)[0].square().mean(), **options)

    return f"{kind} {batch}x{length}x{width}x{layers}", build


def _perceptron(dice: random.Random) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    widths = [dice.choice([13, 64, 100, 128, 256, 400, 512, 1000, 1024, 2048]) for _ in range(5)]
    batch, norm = _batch(dice, 2048 * 8, 16), dice.choice([nn.BatchNorm1d, nn.LayerNorm, None])

    def build(options: dict[str, Any]) -> Step:
        parts: list[nn.Module] = []
        for a, b in pairwise(widths):
            parts += [nn.Linear(a, b), *([norm(b)] if norm else []), dice.choice([nn.ReLU, nn.GELU, nn.SiLU])(),
                      nn.Dropout(0.1)]  # fmt: skip
        model, x = nn.Sequential(*parts).to(CUDA), torch.randn(batch, widths[0], device=CUDA)
        return trained(model.train(), lambda model: model(x).square().mean(), **options)

    return f"perceptron {batch} {widths}", build


def _sound(dice: random.Random) -> tuple[str, Callable[[dict[str, Any]], Step]]:
    batch, samples = _batch(dice, 16), dice.choice([16000, 48000, 80000])

    def build(options: dict[str, Any]) -> Step:
        from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

        known = Wav2Vec2Config(num_hidden_layers=2, hidden_size=dice.choice([512, 768, 1024]), mask_time_prob=0.0,
                               num_attention_heads=8, num_conv_pos_embeddings=dice.choice([64, 128]),
                               feat_extract_norm=dice.choice(["group", "layer"]))  # fmt: skip
        model, x = Wav2Vec2ForCTC(known).to(CUDA), torch.randn(batch, samples, device=CUDA)
        return trained(model.train(), lambda model: model(x).logits.float().square().mean(), **options)

    return f"wav2vec {batch}x{samples}", build


_BUILD: dict[str, Callable[[random.Random], tuple[str, Callable[[dict[str, Any]], Step]]]] = {
    "timm": partial(_vision, timm=True), "vision": partial(_vision, timm=False), "segmentation": _segmentation,
    "video": _video, "words": _words, "sequences": _sequences, "diffusion": _diffusion, "recurrent": _recurrent,
    "perceptron": _perceptron, "sound": _sound,
}  # fmt: skip
