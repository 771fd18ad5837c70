"""Claim: memory of Megatron-LM on 8 B200, allocated and reserved, is predicted from a model's code within 4 % (mean).

The Llamas and DeepSeeks of SimuMax's published measurements, with fewer layers, split by tensor, pipeline, expert and
data parallel ranks, with the distributed optimizer. ``allocated`` is of the fullest rank, ``reserved`` of the first
one, as published. Context parallel rows are left to `published_steps`.

    python -m benchmarks.claims.accuracy.megatron_memory
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from benchmarks.lib.published_steps import PublishedStep, simumax
from benchmarks.lib.table import keep
from foretrace.api import read
from foretrace.platform.device import Device
from foretrace.prediction.memory import rank_memory
from foretrace.whatif.changes import EditedJob
from foretrace.whatif.grammar import read_changes, read_parallel

MEAN = 0.04
GIB = 2**30


def row(one: PublishedStep, device: Device) -> dict[str, Any]:
    """A published step, and what is predicted of its memory."""
    changes = [*read_changes(one.row.set.split(";")), *read_parallel(one.row.parallel)]
    job = EditedJob(read(one.row.model, device.kind)).by(changes)
    needs = [need for graph in job.graphs if (need := rank_memory(graph, None, device)) is not None]
    allocated, reserved = max(need.allocated for need in needs) / GIB, (needs[0].reserved or 0) / GIB
    assert one.allocated_gib is not None and one.reserved_gib is not None
    return {
        "step": one.name,
        "allocated GiB": one.allocated_gib,
        "predicted": allocated,
        "allocated": allocated / one.allocated_gib - 1,
        "reserved GiB": one.reserved_gib,
        "predicted reserved": reserved,
        "reserved": reserved / one.reserved_gib - 1,
    }


def main() -> int:
    gc.disable()
    device, rows = Device.named("b200"), list[dict[str, Any]]()
    for one in (one for one in simumax() if one.source != "simumax context"):
        rows.append(row(one, device))
        print(one.name, rows[-1], file=sys.stderr, flush=True)
    means = {what: sum(abs(r[what]) for r in rows) / len(rows) for what in ("allocated", "reserved")}
    rows.append({**dict.fromkeys(rows[0]), "step": "mean", **means})
    beyond = [f"{what} memory is off by {mean:.1%}" for what, mean in means.items() if mean > MEAN]
    keep("megatron_memory", rows, verdict=f"Does not hold: {' and '.join(beyond)}" if beyond else None)
    return bool(beyond)


if __name__ == "__main__":
    sys.exit(main())
