"""Claim: watching a step changes nothing of it: same kernels, same count, for 12 workloads on a GPU.

For each workload the kernels of a plain step are compared with those of the step while it is watched for structure,
and with those that the recording holds; the calls seen are compared with the sketch of the same step.

    python -m benchmarks.claims.replay.recorder_kernels [WORKLOAD …]
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.lib.table import keep
from benchmarks.lib.workloads import WORKLOADS, Step
from foretrace.formats.kineto import read_kineto
from foretrace.graph import Graph
from foretrace.record.recording import load_recording
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.session import record_step
from foretrace.record.watch.watch import Watch


def kernels_of(run: Callable[[], None]) -> Counter[str]:
    """Names of the kernels that a call launches, under the lightest profile."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiled.export_chrome_trace(f"{folder}/k.json")
        return names_of(read_kineto(Path(f"{folder}/k.json")))


def names_of(graph: Graph) -> Counter[str]:
    return Counter(graph.kernels.names[code] for code in graph.kernels.name)


def watched(step: Step) -> Counter[str]:
    def run() -> None:
        with Watch():
            step()

    return kernels_of(run)


def compare(name: str, out: Path) -> dict[str, Any]:
    step = WORKLOADS[name]()
    for _ in range(5):
        step()
    plain, seen = kernels_of(step), watched(step)
    graph = load_recording(record_step(step, out / name, plain=20, profile=3)).graphs[0]
    recorded = names_of(graph)
    del step
    gc.collect()
    torch.cuda.empty_cache()
    sketched = sketch(WORKLOADS[name], device="cuda")
    calls, paper = ([op.name for op in g.ops if not op.is_side_call] for g in (graph, sketched))
    return {
        "workload": name,
        "kernels": plain.total(),
        "watched": seen.total(),
        "recorded": recorded.total(),
        "same watched": plain == seen,
        "same recorded": plain == recorded,
        "owned": round(float((graph.kernels.op >= 0).mean()), 4),
        "calls": len(calls),
        "sketched": len(paper),
        "same sketched": calls == paper,
        "step ms": round(float(np.median(graph.unprofiled.synced_ms)), 3),
        "profile slows": round(graph.profiling_overhead, 2),
        "more": dict((seen - plain) + (recorded - plain)),
        "less": dict((plain - seen) + (plain - recorded)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--recordings", type=Path, help="keep the recordings here")
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as recordings:
        for name in chosen.workloads:
            rows.append(compare(name, chosen.recordings or Path(recordings)))
            keep("recorder_kernels", rows, chosen.out, hide=("more", "less"))
    differing = [row["workload"] for row in rows if not (row["same watched"] and row["same recorded"])]
    if differing:
        raise SystemExit(f"watching changed {', '.join(differing)}")


if __name__ == "__main__":
    main()
