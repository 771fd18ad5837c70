"""Claim: a step sketched at A and edited to B makes the calls of the step sketched at B, with all their shapes; and its
forecast is within 5 % (geometric mean) of the forecast of B itself.

The steps are the examples' DLRM, GPT, BERT and ResNet on a pretended GPU; `edits_recorded` has recorded ones.

    python -m benchmarks.claims.accuracy.edits
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.lib.table import keep

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import torch

import bert
import dlrm
import foretrace as ft
import gpt
import resnet
from foretrace import transforms
from foretrace.graph import Graph

MOST = 0.05


def sketched(
    model: Any, dtype: torch.dtype = torch.float32, options: dict[str, Any] | None = None, **shape: Any
) -> Graph:
    """A step of an example with parts of its shape set."""

    def build() -> Callable[[], Any]:
        torch.set_default_dtype(dtype)
        try:
            return model.make_step(**{"device": "cuda", "preset": "tiny"} | (options or {}))
        finally:
            torch.set_default_dtype(torch.float32)

    with patch.dict(model.PRESETS, {"tiny": replace(model.PRESETS["tiny"], **shape)}):
        return ft.sketch(build, device="cuda")


def pairs() -> Iterator[tuple[str, str, Callable[[], Graph], Callable[[], Graph]]]:
    """Name of the model, the edit in words, the edited step, the truth."""
    base = {dlrm: {"batch": 512}, gpt: {"batch": 8}, bert: {"batch": 8}, resnet: {"batch": 4}}
    for model, shape in base.items():
        name, old = model.__name__, shape["batch"]
        for new in (old // 2, old * 8):
            yield (
                name, f"batch {old} to {new}",
                lambda m=model, s=shape, n=new: transforms.batch(sketched(m, **s), n),
                lambda m=model, n=new: sketched(m, batch=n),
            )  # fmt: skip
    for model in (gpt, bert):
        for new in (48, 256):
            yield (
                model.__name__, f"seq 32 to {new}",
                lambda m=model, n=new: transforms.sequence(sketched(m), n),
                lambda m=model, n=new: sketched(m, seq=n),
            )  # fmt: skip
    yield (
        "dlrm",
        "rows 10000 to 500",
        lambda: transforms.table_rows(sketched(dlrm), 500),
        lambda: sketched(dlrm, rows=(500,) * 4),
    )
    yield "dlrm", "pooling 4 to 20", lambda: transforms.pooling(sketched(dlrm), 20), lambda: sketched(dlrm, pooling=20)
    yield (
        "dlrm", "dim 16 to 64", lambda: transforms.table_dim(sketched(dlrm), 64),
        lambda: sketched(dlrm, dim=64, bottom=(13, 32, 64)),
    )  # fmt: skip
    for old, new in (("loop", "fused"), ("fused", "foreach"), ("foreach", "loop")):
        yield (
            "gpt", f"optimizer {old} to {new}",
            lambda o=old, n=new: transforms.optimizer(sketched(gpt, options={"optimizer": o}), n),
            lambda n=new: sketched(gpt, options={"optimizer": n}),
        )  # fmt: skip
    yield (
        "dlrm", "top MLP 32 to 256", lambda: transforms.width(sketched(dlrm), 256, "top.0"),
        lambda: sketched(dlrm, top=(256, 16, 1)),
    )  # fmt: skip
    for model in (gpt, bert):
        for new in (32, 192):
            yield (
                model.__name__, f"hidden 64 to {new}",
                lambda m=model, n=new: transforms.hidden(sketched(m), n),
                lambda m=model, n=new: sketched(m, dim=n),
            )  # fmt: skip
        yield (
            model.__name__, "heads 4 to 8",
            lambda m=model: transforms.heads(sketched(m), 8),
            lambda m=model: sketched(m, heads=8),
        )  # fmt: skip
    yield (
        "dlrm", "all MLPs to 256", lambda: transforms.hidden(sketched(dlrm), 256),
        lambda: sketched(dlrm, bottom=(13, 256, 16), top=(256, 256, 1)),
    )  # fmt: skip
    for model in (dlrm, gpt, bert, resnet):
        yield (
            model.__name__, "fp32 to bf16 autocast",
            lambda m=model: transforms.autocast(sketched(m), "bf16"),
            lambda m=model: sketched(m, options={"dtype": "bf16"}),
        )  # fmt: skip
    yield (
        "gpt", "gelu taken out and put in again",
        lambda: transforms.insert(transforms.without(sketched(gpt), "gelu"), "gelu", "addmm@mlp.0"),
        lambda: sketched(gpt),
    )  # fmt: skip
    for dtype in ("fp32", "bf16"):
        yield (
            "gpt", f"checkpointing, {dtype}",
            lambda d=dtype: transforms.checkpointing(sketched(gpt, options={"dtype": d})),
            lambda d=dtype: sketched(gpt, options={"dtype": d, "recompute": True}),
        )  # fmt: skip
    for model in (dlrm, gpt, bert):
        yield (
            model.__name__, "bf16 autocast to fp32",
            lambda m=model: transforms.dtype(sketched(m, options={"dtype": "bf16"}), "fp32"),
            lambda m=model: sketched(m),
        )  # fmt: skip
    for model, dtype, word in (
        (gpt, torch.bfloat16, "bf16"),
        (bert, torch.bfloat16, "bf16"),
        (resnet, torch.float16, "fp16"),
    ):
        yield (
            model.__name__, f"fp32 to {word}",
            lambda m=model, w=word: transforms.dtype(sketched(m), w),
            lambda m=model, d=dtype: sketched(m, d),
        )  # fmt: skip


def row(model: str, edit: str, edited: Graph, truth: Graph) -> dict[str, Any]:
    """How far an edited step is from the true one."""
    ours, theirs = (
        [(op.name, *(t.shape for t in (*op.tensors, *op.produced))) for op in g.ops] for g in (edited, truth)
    )
    same = sum(a == b for a, b in zip(ours, theirs)) / max(len(ours), len(theirs))
    forecasts = [ft.predict(graph, on="h200", kernels="model") for graph in (edited, truth)]
    figures = {
        word: abs(getattr(forecasts[0], name) / getattr(forecasts[1], name) - 1)
        for word, name in (
            ("step off", "step_ms"),
            ("device off", "device_active_ms"),
            ("memory off", "peak_memory_bytes"),
        )
    }
    return {"model": model, "edit": edit, "calls": len(theirs), "same": same, **figures}


def geomean(off: list[float]) -> float:
    """Of how far ratios are off, so that a zero does not make it zero."""
    return exp(sum(log(1 + abs(value)) for value in off) / len(off)) - 1


def main() -> int:
    rows = [row(model, edit, edited(), truth()) for model, edit, edited, truth in pairs()]
    total = {"model": "all", "edit": f"{len(rows)} edits", "calls": sum(row["calls"] for row in rows)}
    total["same"] = min(row["same"] for row in rows)
    total |= {word: geomean([row[word] for row in rows]) for word in ("step off", "device off", "memory off")}
    keep("edits", [*rows, total])
    return 0 if total["same"] == 1 and total["step off"] <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
