"""Claim: the kernels of an H100 are predicted within 10 % on average by what an H200 tells, the step's device time too.

Published profiler traces of single ranks: every call whose shapes and dtypes its trace has, or lets deduce, is priced
on the GPU's platform and held against its kernels; so much of the device time is known. Calls whose kernels shared the
device with those of other streams for most of their time (a quarter of the DLRMs' calls) are left out: how long these
take depends on the others, and the simulation has that, not the price. By family: share of the device time, sum
predicted over sum measured, and the mean error of calls. The mean over a trace is weighted by time. Traces of other
GPUs stand below, with no limit: their software is years older than the H200's (an A100 in 2022 rounded float32 products
to tf32 unasked, and their profiler makes short kernels longer), and nothing of the MI300X was fitted on its trace but
how short its kernels get and how wide its range is; its attention is scaled by what others published. Copies from the
host are those of a GPU alone on its link, which GPUs of such jobs share. GEMMs of the H100 are priced by published
tables of it, of older cuBLAS where the trace's is older; no constant was fitted on these traces, but for how long
kernels take to start, which was set by hand with all of them in sight; that of the V100 is fitted on another trace.

    python -m benchmarks.claims.accuracy.other_gpu_kernels
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.process import shared
from benchmarks.lib.table import keep
from foretrace import load
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.kernels.families import family_of
from foretrace.cost_models.kernels.families.compiled import Compiled
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Op
from foretrace.graph.tables import COLLECTIVE, Floats, KernelTable
from foretrace.platform.platform import Platform

MEAN = 10.0
"""Percent: the time-weighted error of an H100's kernels, and how far their sum is off."""
TRACES = {
    "h100_qwen_0.5b.kineto.json.gz": "h100",
    "h100_bert_small.kineto.json.gz": "h100",
    "mi300_qwen_0.5b.kineto.json.gz": "mi300x",
    "a100_dlrm_one_of_8.kineto.json.gz": "a100-40gb",
    "v100_dlrm_one_of_2.kineto.json.gz": "v100",
}
"""And what each ran on."""
WITHOUT_STRIDES = ("matrix", "elementwise", "reductions", "norms", "joins", "transfers")
"""Families whose calls are mostly dense: shapes will do."""
ALONE = 0.5
"""Share of a call's kernel time that kernels of other streams may overlap."""


@dataclass
class Calls:
    """Calls of one family: what each took, and what is predicted."""

    measured: Floats
    predicted: Floats

    def words(self) -> dict[str, Any]:
        """How far the calls are off."""
        off = np.abs(self.predicted / self.measured - 1)
        return {
            "calls": len(off),
            "measured ms": round(float(self.measured.sum()) / 1e3, 3),
            "sum off %": round(100 * float(self.predicted.sum() / self.measured.sum() - 1), 1),
            "mean error %": round(100 * float(np.average(off, weights=self.measured)), 1),
        }


def is_told(op: Op) -> bool:
    """Whether a trace tells what a call's time depends on: old ones tell no strides, and lists have no dtypes."""
    family = family_of(op)
    if family is None or family.name == Compiled.name or not all(tensor.dtype for tensor in op.tensors):
        return False
    return family.name in WITHOUT_STRIDES or all(tensor.stride is not None for tensor in op.tensors if tensor.shape)


def overlapped_us(kernels: KernelTable) -> Floats:
    """For each kernel the microseconds in which one of another stream ran too."""
    result = np.zeros(len(kernels))
    for stream in np.unique(kernels.stream).tolist():
        here = kernels.stream == stream
        starts, ends = union(kernels.start[~here], kernels.end[~here])
        before = np.concatenate([[0.0], np.cumsum(ends - starts)])
        at = [np.searchsorted(starts, times, "right") for times in (kernels.start[here], kernels.end[here])]
        covered = [
            before[place] - np.maximum(0.0, np.append(ends, -np.inf)[place - 1] - times)
            for place, times in zip(at, (kernels.start[here], kernels.end[here]))
        ]
        result[here] = covered[1] - covered[0]
    return result


def union(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Spans of time in which at least one of some spans is."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    first = np.append(True, start[1:] > end[:-1]) if len(start) else np.zeros(0, bool)
    return start[first], end[np.append(first[1:], True)] if len(start) else end


def by_family(path: Path, on: str) -> tuple[dict[str, Calls], float]:
    """A trace's calls that are told, by family, and their share of the device time without collectives."""
    calls = dispatched_calls(load(path).graphs[0]).calls
    kernels, count = calls.kernels, len(calls.ops)
    ours = (kernels.op >= 0) & (kernels.kind != COLLECTIVE)
    measured = np.bincount(kernels.op[ours], (kernels.end - kernels.start)[ours], count)
    costs = price_kernels(calls, np.arange(count, dtype=np.int32), Platform.named(on))
    predicted = np.bincount(costs.op, costs.typical, count)
    told = np.array([is_told(op) for op in calls.ops]) & (measured > 0) & (predicted > 0)
    told &= np.bincount(kernels.op[ours], overlapped_us(kernels)[ours], count) <= ALONE * measured
    names = np.array([family.name if (family := family_of(op)) else "" for op in calls.ops])
    found = {name: told & (names == name) for name in sorted(set(names[told].tolist()))}
    groups = {name: Calls(measured[rows], predicted[rows]) for name, rows in found.items()}
    groups["all"] = Calls(measured[told], predicted[told])
    return groups, float(measured[told].sum() / measured.sum())


def main() -> int:
    folder, rows = shared("public/single_rank"), []
    for name, on in TRACES.items():
        groups, told = by_family(folder / name, on)
        for family, calls in sorted(groups.items(), key=lambda one: -one[1].measured.sum()):
            share = float(100 * told * calls.measured.sum() / groups["all"].measured.sum())
            trace = name.removesuffix(".kineto.json.gz")
            rows.append({"trace": trace, "on": on, "family": family, "told %": round(share, 1), **calls.words()})
    keep("other_gpu_kernels", rows)
    kernels = [row for row in rows if row["on"] == "h100" and row["family"] == "all"]
    ms = [row["measured ms"] for row in kernels]
    mean = float(np.average([row["mean error %"] for row in kernels], weights=ms))
    whole = float(np.average([row["sum off %"] for row in kernels], weights=ms))
    print(f"H100: calls {mean:.1f} % off on average, weighted by time; their sum {whole:+.1f} %")
    return max(mean, abs(whole)) > MEAN


if __name__ == "__main__":
    sys.exit(main())
