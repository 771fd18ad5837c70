"""Claim: a replay does to the GPU what its original does: each system metric is within 5 % of the original's.

Activity of the multiprocessors and of their matrix units, traffic of the memory, hits in the L2 cache and occupancy, as
Nsight Compute counts them over some calls of a step, the same ones of both; power and clock as NVML has them while each
runs over and over, in turns. Reads what `benchmarks.truth.replay_truth` measured of three steps on an H200.

    python -m benchmarks.claims.replay.replay_system TRUTH
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.claims.replay.replay import asked, off
from benchmarks.lib.table import H200, keep

MEASURED_ON = H200
MOST = 0.05


def metric_rows(name: str, words: dict[str, Any]) -> list[dict[str, Any]]:
    """The system metrics of an original and its replay."""
    original, replay, power = words["counted"]["original"], words["counted"]["replay"], words["power"]
    pairs = {metric: (value, replay.get(metric)) for metric, value in original.items() if metric != "kernels"}
    pairs |= {metric: (value, power["paced"].get(metric)) for metric, value in power["original"].items()}
    return [
        {"workload": name, "metric": metric, "original": was, "replay": ours, "off": off(ours, was)}
        for metric, (was, ours) in pairs.items()
    ]


def main() -> int:
    found, out = asked(__doc__)
    rows = [row for name, words in found.items() if "counted" in words for row in metric_rows(name, words)]
    keep("replay_system", rows, out)
    return int(not rows or any(row["off"] is None or abs(row["off"]) > MOST for row in rows))


if __name__ == "__main__":
    sys.exit(main())
