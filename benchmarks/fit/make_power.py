"""Fit what GPUs draw, on published GEMMs that ran for a second each: `platform/data/power.json`.

    python -m benchmarks.fit.make_power

Watts at rest, at the peak rate and at full bandwidth, by least absolute errors of the logarithm; and by how much longer
than in a burst the GEMMs take that would draw more than the limit.
"""

from __future__ import annotations

import csv
import gzip

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.lib.process import shared
from foretrace.platform.device import Device
from foretrace.platform.power import POWER, PowerModel, capped
from foretrace.platform.typed_json import write

TABLES = {"h200": "h200_sxm", "b200": "b200_sxm", "gb200": "gb200"}
SAMPLE = 5000
Floats = NDArray[np.float64]
Sizes = dict[tuple[int, int, int], tuple[float, float]]


def rows(kind: str, system: str, version: str) -> Sizes:
    """Microseconds and watts of each GEMM; no watts in a table of bursts."""
    path = shared("public/aiconfigurator") / f"gemm_bf16_{kind}{system}_vllm-{version}.csv.gz"
    with gzip.open(path, "rt") as lines:
        found = list(csv.DictReader(lines))
    sizes = [(int(row["m"]), int(row["n"]), int(row["k"])) for row in found]
    return {size: (1e3 * float(row["latency_ms"]), float(row.get("power_w", 0))) for size, row in zip(sizes, found)}


def shares(sizes: list[tuple[int, int, int]], us: Floats, device: Device) -> tuple[Floats, Floats]:
    """Share of the peak rate and of the bandwidth that GEMMs reach."""
    m, n, k = np.array(sizes, np.float64).T
    rate = 2 * m * n * k / us / 1e6 / device.peak("bfloat16")
    return rate, 2 * (m * k + n * k + m * n) / us / 1e3 / device.memory_gbps


def fitted(device: Device, sustained: Sizes) -> tuple[float, float, float]:
    """Watts at rest, at the peak rate and at full bandwidth."""
    sizes = list(sustained)
    us, watts = np.array([sustained[size] for size in sizes]).T
    rate, bandwidth = shares(sizes, us, device)
    limit = device.power_w or 1.0

    def off(logs: Floats) -> float:
        rest, full, memory = np.exp(logs)
        return float(np.abs(np.log(capped(rest + full * rate + memory * bandwidth, limit) / watts)).mean())

    start = np.log([0.2 * limit, limit, 0.4 * limit])
    found = minimize(off, start, method="Nelder-Mead", options={"maxiter": 2000}).x
    rest, full, memory = np.exp(found).round(1).tolist()
    return rest, full, memory


def main() -> None:
    """Fit all GPUs whose tables have watts."""
    known, slopes = {}, []
    for name, system in TABLES.items():
        device = Device.named(name)
        table = rows("power_", system, "0.22.0")
        chosen = np.random.default_rng(7).permutation(len(table))[:SAMPLE]
        keys = list(table)
        sample = {keys[place]: table[keys[place]] for place in chosen.tolist()}
        rest, full, memory = fitted(device, sample)
        known[name] = {"rest_w": rest, "full_w": full, "memory_w": memory}
        burst = rows("", system, "0.24.0")
        both = [size for size in sample if size in burst]
        us = np.array([burst[size][0] for size in both])
        rate, bandwidth = shares(both, us, device)
        over = (full * rate + memory * bandwidth) / ((device.power_w or 1.0) - rest)
        longer = np.array([sample[size][0] for size in both]) / us
        hot = (over > 1.1) & (us > 100)
        slopes.append(float(np.median(np.log(longer[hot]) / np.log(over[hot]))))
        print(name, known[name], "slower by", slopes[-1], f"of {hot.sum()} GEMMs")
    provenance = "gemm_bf16_power tables of ai-dynamo/aiconfigurator (vllm-0.22.0): GEMMs that ran for a second each"
    write(POWER, {"known": known, "slowdown": round(float(np.median(slopes)), 2), "provenance": provenance})
    for name in TABLES:
        print(PowerModel.of(Device.named(name)))


if __name__ == "__main__":
    main()
