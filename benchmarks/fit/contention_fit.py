"""Fits how much longer kernels take while they overlap with a collective, and it with them:
src/foretrace/cost_models/contention.json.

    python -m benchmarks.fit.contention_fit TRACE ...

Of profiler traces that show both: kernels of one name, grid and op with the same shapes, some with a collective
overlap_share them all the time and some with none. An op that launches a kernel several times is left out: nobody can
tell which is which. Beside a collective a kernel takes a factor longer, and a fixed time more: it waits for its share
of the device.

Each trace is then predicted by what the others say. Where that is no better than no correction at all, none is kept.

How much longer a collective takes overlap_share kernels is the median of what others measured and published, each
machine with one figure (benchmarks/data/contention_transfers.json): the time of one all_reduce with GEMMs during all
the time over its time alone. Galvatron's figures are the larger one of both sides' slow-downs. Each machine is
predicted by the others in the same way.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.collectives.contention import FILE
from foretrace.formats.load import load_traces
from foretrace.graph import Graph
from foretrace.graph.tables import COLLECTIVE, COMPUTE
from foretrace.simulation.contention import overlap_share

FEWEST = 3
"""Kernels of each kind that a pair of medians needs."""
Medians = NDArray[np.float64]
"""Rows of microseconds, alone and beside a collective."""
TRANSFERS = Path(__file__).resolve().parents[1] / "data" / "contention_transfers.json"
FACTORS, ADDED = np.linspace(1.0, 1.5, 51), np.linspace(0.0, 10.0, 101)


def pairs(graph: Graph) -> list[tuple[float, float]]:
    """Medians of kernels alone and beside a collective."""
    kernels = graph.kernels
    talks = kernels.kind == COLLECTIVE
    rows = np.flatnonzero((kernels.kind == COMPUTE) & (kernels.op >= 0))
    share = overlap_share(kernels.start[rows], kernels.end[rows], kernels.start[talks], kernels.end[talks])
    launched = Counter(zip(kernels.op[rows].tolist(), kernels.name[rows].tolist()))
    found: dict[tuple[object, ...], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for row, part in zip(rows.tolist(), share.tolist()):
        op = graph.ops[int(kernels.op[row])]
        shapes = tuple(tensor.shape for tensor in op.tensors)
        if shapes and launched[int(kernels.op[row]), int(kernels.name[row])] == 1 and (part < 0.05 or part > 0.95):
            key = int(kernels.name[row]), int(kernels.grid[row]), int(kernels.block[row]), op.name, shapes
            found[key][part > 0.95].append(float(kernels.end[row] - kernels.start[row]))
    enough = (both for both in found.values() if min(map(len, both)) >= FEWEST)
    return [(float(np.median(alone)), float(np.median(shared))) for alone, shared in enough]


def fitted(seen: Medians) -> tuple[float, float]:
    """The factor and the fixed time that come closest."""
    miss = [[off(seen, factor, added) for added in ADDED] for factor in FACTORS]
    factor, added = np.unravel_index(np.argmin(miss), (len(FACTORS), len(ADDED)))
    return float(FACTORS[factor]), float(ADDED[added])


def off(seen: Medians, factor: float = 1.0, added: float = 0.0) -> float:
    """How far kernels beside a collective are from what is said of them, geometric mean."""
    alone, shared = seen.T
    return float(np.expm1(np.abs(np.log((alone * factor + added) / shared)).mean()))


def transfers() -> dict[str, Any]:
    """The factor of collectives overlap_share kernels, and where it is from: how far machines are from what others
    say."""
    rows = json.loads(TRANSFERS.read_text())
    by_machine: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_machine[row["machine"]].append(row["factor"])
    each = np.array([np.exp(np.mean(np.log(factors))) for factors in by_machine.values()])
    others = np.array([np.median(np.delete(each, place)) for place in range(len(each))])
    left_out, without = (float(np.expm1(np.abs(np.log(each / said)).mean())) for said in (others, np.ones(len(each))))
    sources = ", ".join(dict.fromkeys(row["source"] for row in rows))
    least, most = (some(row["factor"] for row in rows) for some in (min, max))
    return {
        "transfer": round(float(np.median(each)), 3) if left_out < without else 1.0,
        "transfer_provenance": f"all_reduce with GEMMs during all the time against alone, median of {len(each)} "
        f"machines ({least:g} to {most:g}), each predicted by the others: {left_out:.0%} off, {without:.0%} with no "
        f"correction; {sources}",
    }


def main() -> int:
    graphs = [load_traces(path).graphs[0] for path in map(Path, sys.argv[1:])]
    seen = [np.array(pairs(graph)) for graph in graphs]
    scores = []
    for place, (graph, ours) in enumerate(zip(graphs, seen)):
        others = fitted(np.concatenate([*seen[:place], *seen[place + 1 :]]))
        scores.append((f"{Path(graph.source).name} ({graph.device})", len(ours), off(ours, *others), off(ours)))
    helps = all(left_out < without for *_, left_out, without in scores)
    factor, added = fitted(np.concatenate(seen)) if helps else (1.0, 0.0)
    told = "; ".join(f"{name}: {left:.0%} off, {without:.0%} with no correction" for name, _, left, without in scores)
    kept = {
        "factor": round(factor, 3),
        "added_us": round(added, 2),
        "provenance": f"{sum(map(len, seen))} kinds of kernels alone and beside a collective in traces published with "
        f"HolisticTraceAnalysis, each trace predicted by what the others say: {told}",
        **transfers(),
    }
    FILE.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(kept, indent=1))
    return int(not helps)


if __name__ == "__main__":
    sys.exit(main())
