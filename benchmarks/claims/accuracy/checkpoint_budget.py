"""Claim: under a memory budget `whatif --set checkpoint=…` finds plans as fast as those of PyTorch's `sac_ilp`, or
faster.

Both choose for each block of a GPT whether it is recomputed, and which results it keeps. `sac_ilp` plans for budgets
from nine tenths of what it takes the step to need to a third; ours get the memory that the simulated step takes under
each of its plans (``peak``), and no more. ``ms`` is the simulated step on an H200. MEASURED is a folder of
``benchmarks.truth.checkpoint_truth``, which runs the same plans on one: ``measured ms`` and ``measured`` (peak).

    python -m benchmarks.claims.accuracy.checkpoint_budget [MEASURED]

Needs ``pip install pulp pwlf pydoe``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lib.checkpoint_plans import ATTENTION, SHAPE, SacIlp, make_step
from benchmarks.lib.table import H200, keep
from foretrace.analysis.memory import peak_memory
from foretrace.api import predict
from foretrace.graph import Graph
from foretrace.platform.registry import load_platform
from foretrace.record.sketch.sketch import sketch
from foretrace.whatif.changes import edit_step
from foretrace.whatif.recomputation import least_recomputation

MEASURED_ON = H200
SHARES = (0.9, 0.75, 0.6, 0.45, 0.33)
"""Of the memory that `sac_ilp` takes the step to need."""
SAME = 0.002
"""Plans as fast as each other may differ by this: kernels of equal work are priced a little apart."""
GIB = 2**30


def under(step: Graph, plan: Sequence[str]) -> Graph:
    return edit_step(step, [f"checkpoint={text}" for text in plan])


def as_here(plan: Sequence[str], step: Graph) -> list[str]:
    """A plan with the step's name of attention: PyTorch's planner saw that of a CPU."""
    attention = next(op.name for op in step.ops if ATTENTION in op.name).removeprefix("aten::")
    names = (name for text in plan for name in text.partition(":")[2].split("+") if ATTENTION in name)
    theirs = {name.rpartition(".")[0] for name in names}
    for other in theirs:
        plan = [text.replace(f"{other}.", f"{attention}.") for text in plan]
    return list(plan)


def main() -> int:
    step, platform = sketch(partial(make_step, device="cuda"), device="cuda"), load_platform("h200")
    planner = SacIlp()
    rows = list[dict[str, Any]]()
    slower = []

    def add(share: float | None, method: str, plan: Sequence[str]) -> dict[str, Any]:
        graph = under(step, plan)
        found = {"budget": share, "method": method, "ms": predict(graph, platform).step_ms}
        rows.append({**found, "peak": (peak_memory(graph) or 0) / GIB, "plan": " ".join(plan)})
        print(rows[-1], file=sys.stderr, flush=True)
        return rows[-1]

    add(None, "nothing recomputed", [])
    add(None, "all recomputed", [f"0-{SHAPE.layers - 1}"])
    for share in SHARES:
        plan = planner.plan(share * planner.peak_gib)
        if plan is None:
            rows.append({"budget": share, "method": "sac_ilp finds none", "ms": None, "peak": None, "plan": ""})
            continue
        theirs = add(share, "sac_ilp", as_here(plan, step))

        def fits(plan: Sequence[str], limit: float = theirs["peak"]) -> bool:
            return (peak_memory(under(step, plan)) or 0) <= limit * GIB

        ours = add(share, "ours", least_recomputation(step, platform, fits) or [])
        if ours["ms"] > theirs["ms"] * (1 + SAME):
            slower.append(f"{share:.0%}")
    if len(sys.argv) > 1:
        measured = {row["plan"]: row for line in _lines(sys.argv[1]) for row in [json.loads(line)]}
        for row in rows:
            found = measured.get(row["plan"], {})
            row |= {"measured ms": found.get("ms"), "measured": found and found["peak"] / GIB}
    keep("checkpoint_budget", rows, verdict=f"Does not hold: slower at {', '.join(slower)}" if slower else None)
    return bool(slower)


def _lines(folder: str) -> list[str]:
    return (Path(folder) / "checkpoint.jsonl").read_text().splitlines()


if __name__ == "__main__":
    sys.exit(main())
