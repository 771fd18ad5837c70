"""Measures on a GPU what CUDA graphs cost: their launch on the host, and steps of the examples, eager and captured.

Writes what `benchmarks/claims/accuracy/cudagraph.py` is held against. Needs nothing but torch; takes half a minute.

    python -m benchmarks.truth.cudagraph_truth cudagraph.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import dlrm
import resnet

Calls = Callable[[], Any]
CHAINS = {1: (10, 30, 100, 300, 1000, 2000), 12_000_000: (10, 30, 100, 300)}
"""Elements of the tensor that the kernels of a chain work on, and how many kernels it has."""
PROFILED = 300
"""Kernels of the longest chain that is profiled."""
SMALL = {"preset": "default", "batch": 512, "max_rows": 10_000}


def timed(call: Calls, times: int = 30) -> dict[str, float]:
    """Microseconds until a call returns, and until the device is done; the device has nothing to do before it."""
    host, whole = [], []
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        host.append((time.perf_counter() - begun) * 1e6)
        torch.cuda.synchronize()
        whole.append((time.perf_counter() - begun) * 1e6)
    return {"host_us": statistics.median(host[3:]), "whole_us": statistics.median(whole[3:])}


def back_to_back(call: Calls, times: int = 20) -> float:
    """Milliseconds from one call to the next, with no sync between them."""
    rounds = []
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - begun) / times * 1e3)
    return statistics.median(rounds)


def kernels_of(call: Calls) -> dict[str, float]:
    """How many kernels a call launches, their time, and the gaps between them."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        call()
        torch.cuda.synchronize()
    seen = watched.profiler.kineto_results.events()
    kernels = [e for e in seen if str(e.device_type()).endswith("CUDA") and e.duration_ns() and "Sync" not in e.name()]
    kernels.sort(key=lambda e: e.start_ns())
    gaps = [after.start_ns() - before.start_ns() - before.duration_ns() for before, after in pairwise(kernels)]
    return {
        "kernels": len(kernels),
        "kernel_us": sum(e.duration_ns() for e in kernels) / 1e3,
        "gap_us_median": statistics.median(gaps) / 1e3,
        "gap_us_mean": statistics.fmean(gaps) / 1e3,
    }


def captured(call: Calls) -> Calls:
    """What launches the CUDA graph of a call."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def both(call: Calls, is_profiled: bool = True) -> dict[str, Any]:
    """A call by itself, and then captured."""
    call()
    found = {}
    for name, made in (("eager", lambda: call), ("graph", lambda: captured(call))):
        one = made()
        found[name] = {**timed(one), "back_to_back_ms": back_to_back(one)}
        if is_profiled:
            found[name]["profiled"] = kernels_of(one)
    return found


def chain(elements: int, count: int) -> Calls:
    """So many small kernels, one after the other."""
    x = torch.zeros(elements, device="cuda")

    def call() -> None:
        for _ in range(count):
            x.add_(1)

    return call


def dense(rows: int, dim: int) -> nn.EmbeddingBag:
    """A table with a gradient of all its rows."""
    return nn.EmbeddingBag(rows, dim, mode="sum")


def steps() -> dict[str, Calls]:
    """Steps of the examples that a GPU is done with before the host is."""
    few = replace(dlrm.PRESETS["default"], pooling=10)
    with patch.dict(dlrm.PRESETS, {"default": few}):
        made = {"dlrm_sparse_b512": dlrm.make_step(device="cuda", **SMALL)}
        with patch.object(dlrm, "table", dense):
            made["dlrm_dense_b512"] = dlrm.make_step(device="cuda", **SMALL)
            made["dlrm_dense_tiny"] = dlrm.make_step(device="cuda", preset="tiny")
    return made | {"resnet_tiny": resnet.make_step(device="cuda", preset="tiny")}


def main() -> int:
    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0)}
    found |= {"cuda": torch.version.cuda, "chains": [], "steps": []}
    for elements, counts in CHAINS.items():
        for count in counts:
            measured = both(chain(elements, count), count <= PROFILED)
            found["chains"].append({"elements": elements, "kernels": count, **measured})
    torch.manual_seed(0)
    for name, call in steps().items():
        found["steps"].append({"name": name, **both(call)})
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
