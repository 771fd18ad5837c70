"""Measures what `benchmarks.claims.accuracy.host_time` is held to: host times of real models' steps, and a host
calibrated meanwhile.

On a GPU, with ``transformers`` and ``torchvision``. Batches are so small that the host is what a step waits for. Steps
take turns with the calibration's, round by round: a host that is slow for a while is slow for both.

    python -m benchmarks.truth.host_truth OUT --minutes 3

writes ``OUT/host.jsonl.gz``, the calibration, and ``OUT/host_truth.json.gz``, the truth.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib import workloads
from benchmarks.lib.table import machine
from foretrace._progress import Progress
from foretrace.api import load
from foretrace.calibration.host.measure import measure_host
from foretrace.cost_models.host.pricing import longest_list
from foretrace.graph import PHASES
from foretrace.platform.measurements.host import HOST_FILE, read_host_runs
from foretrace.record.watch.session import record_step

Step = Callable[[], None]
IN_A_ROW = 3

LLAMA = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
SMALL: dict[str, Callable[[], Step]] = {
    "dlrm_default_b64": partial(workloads.dlrm, "default", 64),
    "dlrm_mlperf_b64": partial(workloads.dlrm, "mlperf", 64),
    "dlrm_ddp_b64": partial(workloads.dlrm, "ddp", 64),
    "bert_b1_bf16": partial(workloads.transformer, "bert", 1, 32),
    "bert_b1_fp32_sgd": partial(workloads.transformer, "bert", 1, 32, bf16=False, optimizer=torch.optim.SGD),
    "gpt2_b1_bf16": partial(workloads.transformer, "gpt2", 1, 32),
    "gpt2_b1_fp32_fused": partial(
        workloads.transformer, "gpt2", 1, 32, bf16=False, optimizer=partial(torch.optim.AdamW, fused=True)
    ),
    "t5_b1_bf16": partial(workloads.transformer, "t5", 1, 32, decoder_start_token_id=0),
    "t5_b1_fp32": partial(workloads.transformer, "t5", 1, 32, bf16=False, decoder_start_token_id=0),
    "llama_b1_bf16": partial(workloads.transformer, "llama", 1, 32, vocab_size=8000, **LLAMA),
    "llama_b1_fp32": partial(workloads.transformer, "llama", 1, 32, bf16=False, vocab_size=8000, **LLAMA),
    "resnet50_b1_fp32": partial(workloads.vision, "resnet50", 1),
    "resnet50_b1_bf16": partial(workloads.vision, "resnet50", 1, bf16=True),
    "vit_b_16_b1_fp32": partial(workloads.vision, "vit_b_16", 1),
    "vit_b_16_b1_bf16": partial(workloads.vision, "vit_b_16", 1, bf16=True),
    "mobilenet_v3_small_b1_fp32": partial(workloads.vision, "mobilenet_v3_small", 1),
    "convnext_tiny_b1_fp32": partial(workloads.vision, "convnext_tiny", 1),
    "convnext_tiny_b1_bf16": partial(workloads.vision, "convnext_tiny", 1, bf16=True),
}
"""Steps of models that no calibration sees, each with its builder."""


def host_us(step: Step) -> float:
    """How long the host takes for a step, whatever the device has still to do."""
    began = time.perf_counter_ns()
    step()
    taken = (time.perf_counter_ns() - began) / 1e3
    torch.cuda.synchronize()
    return taken


def columns(recording: Path) -> dict[str, list[Any]]:
    """The calls of a recorded step, with how many kernels each launched."""
    graph = load(recording).graphs[0]
    launches = [0] * (len(graph.ops) + 1)
    for op in graph.kernels.op.tolist():
        launches[op] += 1
    rows = [
        (op.name, PHASES.index(op.phase), op.entered, longest_list(op), count)
        for op, count in zip(graph.ops, launches)
        if not op.is_side_call
    ]
    return dict(zip(("name", "phase", "entered", "tensors", "launches"), map(list, zip(*rows))))


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=3.0)
    chosen = options.parse_args()
    with torch.device("cuda"):
        steps = {name: make() for name, make in SMALL.items()}
    chosen.out.mkdir(parents=True, exist_ok=True)
    truth: dict[str, Any] = {}
    for name, step in steps.items():
        recording = record_step(step, chosen.out / "recordings" / name, plain=2, profile=1, warmup=3)
        truth[name] = {**columns(recording), "host_us": []}
        print(name, len(truth[name]["name"]), flush=True)

    def between(progress: Progress) -> None:
        for name, step in steps.items():
            host_us(step)
            truth[name]["host_us"].append([round(host_us(step), 1) for _ in range(IN_A_ROW)])
        calibration = read_host_runs(chosen.out / HOST_FILE)[-1].machine["made"]
        kept = {"machine": machine(), "calibration": calibration, "steps": truth}
        (chosen.out / "host_truth.json.gz").write_bytes(gzip.compress(json.dumps(kept).encode(), 9, mtime=0))
        print(f"{progress.text}, {progress.done:.0f} s", flush=True)

    measure_host(chosen.out, chosen.minutes, between)
    return 0


if __name__ == "__main__":
    sys.exit(main())
