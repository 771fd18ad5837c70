"""A document with something in every place, as `show --json` would have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RANKS = range(3)
WORDS: dict[str, Any] = {
    "source": "traces/small",
    "world": 4,
    "missing": [3],
    "step": "ProfilerStep#3",
    "steps": 2,
    "step_ms": {0: 12.5, 1: 12.75, 2: 12.5},
    "device_active_ms": {0: 5.0, 1: 5.5, 2: 6.0},
    "device_idle_ms": {0: 5.0, 1: 4.5, 2: 4.0},
    "device_span_ms": 10.0,
    "wait_ms": {0: 0.25, 1: 2.0, 2: 2.5},
    "transfer_ms": {"all_reduce": 1.5},
    "collectives": [
        {
            "kind": "all_reduce",
            "nbytes": 2**26,
            "count": 2,
            "transfer_ms": 0.75,
            "total_transfer_ms": 1.5,
            "wait_ms": 4.75,
        }
    ],
    "stragglers": [{"rank": 0, "held_ms": 4.5, "why": "its host launches late"}],
    "overlap": {r: {"communication_ms": 2.0, "hidden_ms": 0.5, "exposed_ms": 1.5} for r in RANKS},
    "critical_path_ms": 10.0,
    "critical_path": [
        {"what": "T2", "name": "aten::linear", "rank": 0, "ms": 6.0, "share": 0.6},
        {
            "what": "kernel",
            "name": "void at::native::foo<4, at::native::AddFunctor<float>>(int)",
            "rank": 1,
            "ms": 4.0,
            "share": 0.4,
        },
    ],
    "critical_path_ranks": {0: 6.0, 1: 4.0},
    "overheads": {f"T{i}": {"ms": 1.0 * i, "count": 10 * i, "mean_us": 100.0, "share": 0.06 * i} for i in range(1, 6)},
    "by_op": [
        {"name": f"aten::op_{i}", "device_ms": 5.0 / (i + 1), "host_ms": 1.0, "count": 3, "share": 0.5 / (i + 1)}
        for i in range(12)
    ],
    "by_family": [{"name": "matrix product", "device_ms": 5.0, "host_ms": 2.0, "count": 6, "share": 1.0}],
    "by_phase": [
        {"name": "backward", "device_ms": 3.0, "host_ms": 1.0, "count": 6, "share": 0.6},
        {"name": "forward", "device_ms": 2.0, "host_ms": 1.0, "count": 6, "share": 0.4},
    ],
    "by_module": [
        {"name": "bottom.0", "device_ms": 3.0, "host_ms": 1.0, "count": 6, "share": 0.6},
        {"name": "", "device_ms": 2.0, "host_ms": 1.0, "count": 6, "share": 0.4},
    ],
    "queue_depth": {"mean": 3.5, "max": 9},
    "peak_memory_bytes": {0: 2**30, 1: 2**30, 2: None},
    "attributed": 0.998,
    "launched_before_ms": {0: 0.0, 1: 0.125, 2: 0.0},
    "notes": ["no trace of rank 3"],
    "plain": {},
    "slowdown": 1.0,
}


@dataclass
class Told:
    """What has words to show."""

    words: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.words
