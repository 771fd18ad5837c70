"""Fit the shipped software stacks on every second row of published tables: platform/data/stacks/*.json.

    python -m benchmarks.fit.make_stacks [torch-2.6 megatron-2022 megatron-te]

The other rows are scored by the claim `published_steps`. Of vTrain only rows of one node are fitted on.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.lib.process import shared
from benchmarks.lib.published_steps import PublishedStep, is_fitted, published
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.platform.platform import Platform
from foretrace.platform.stack import STACKS, Stack
from foretrace.whatif import step_table

BETWEEN_CLUSTERS = 0.1
"""Standard deviation of the logarithm between clusters with the same GPU and software, beside that of the fit."""
KNOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "torch-2.6": (
        "torchtitan",
        "Llama 3.1 8B on 8 and 128 H100 (pytorch/torchtitan, December 2024)",
        {"attention": "flash", "devices": ("h100-hbm2e",)},
    ),
    "megatron-2022": (
        "vtrain single_node",
        "GPT on 2 to 8 A100 out of vTrain's table (VIA-Research/vTrain f8dda847)",
        {"devices": (), "unfused_attention": ("a100", "a100-40gb", "a100-pcie", "a100-pcie-40gb")},
    ),
    "megatron-te": (
        "simumax",
        "Llama 3 on 8 B200 (MooreThreads/SimuMax 4dcaae51)",
        {"devices": ("b200",)},
    ),
}
"""Each stack: the rows that it is fitted on, what they are, and what is known of it."""


def fitted(name: str) -> Stack:
    source, what, known = KNOWN[name]
    rows: list[PublishedStep] = [one for one in published() if one.source == source and is_fitted(one)]
    subjects = []
    for one in rows:
        print(one.name, flush=True)
        subjects.append(step_table.TableStep(one.row))
    if name == "megatron-te":
        known = {**known, "attention_rate": round(attention_rate("b200"), 4)}
    stack = step_table.fit_stack(subjects, name, f"fitted on {len(rows)} steps of {what}", known=known)
    return replace(stack, spread=round(math.hypot(stack.spread, BETWEEN_CLUSTERS), 4))


def attention_rate(device: str) -> float:
    """What SimuMax measured of attention by itself, over what is modelled: forward and backward of each shape.

    Steps of a few thousand tokens do not tell it, since most of their time is in GEMMs.
    """
    with gzip.open(shared("public/simumax") / "op_efficiency.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["system"].startswith(device) and "sdp" in row["op"]]
    measured: dict[str, dict[str, float]] = {}
    for row in rows:
        size = dict(part.split("=", 1) for part in row["shape"].split(", "))
        if size["qk_head_dim"] == size["v_head_dim"] and size["qkv_contiguous"] == "True":
            flops = 4 * int(size["seq_len"]) ** 2 * int(size["head_num"]) * int(size["v_head_dim"])
            us = flops / (float(row["efficiency"]) * float(row["peak_tflops"]) * 1e6)
            measured.setdefault(row["shape"], {})[row["op"]] = us * (2.5 if row["op"] == "sdp_bwd" else 1.0)
    ratios = []
    for shape, both in measured.items():
        size = dict(part.split("=", 1) for part in shape.split(", "))
        length, heads, keys, width = (int(size[name]) for name in ("seq_len", "head_num", "kv_head_num", "v_head_dim"))
        calls = attention_calls(length, heads, keys, width)
        costs = price_kernels(Graph(OpTable.of(calls)), np.arange(2, dtype=np.int32), Platform.named(device))
        ratios.append(float(costs.typical.sum()) / sum(both.values()))
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def attention_calls(length: int, heads: int, keys: int, width: int) -> list[Op]:
    """Causal attention of one sequence, forward and backward, as PyTorch calls cuDNN's."""
    q, k, v = (
        Tensor((1, count, length, width), "bfloat16", "cuda:0", storage=number)
        for number, count in enumerate((heads, keys, keys))
    )
    made, lse = replace(q, storage=3), Tensor((1, heads, length), "float32", "cuda:0", storage=4)
    seed = Tensor((), "int64")
    forward = Op("aten::_scaled_dot_product_cudnn_attention", (q, k, v, None, True, 0.0, True, False),
                 outputs=(made, lse), overload="default")  # fmt: skip
    given = (made, q, k, v, made, lse, seed, seed, None, None, None, length, length, 0.0, True)
    backward = Op(f"{forward.name}_backward", given, outputs=(q, k, v), overload="default")
    return [forward, backward]


def main() -> None:
    for name in sys.argv[1:] or KNOWN:
        stack = fitted(name)
        stack.write(STACKS / f"{name}.json")
        print(stack)


if __name__ == "__main__":
    main()
