"""Claim: of 40 sharding tasks, the plan picked is the fastest or within 10 % of it in 97 %, within 2 % in 85 %.

And: it loses 0.5 % on average, predicted and true cost have a rank correlation of 0.97, the slowest rank's lookups are
predicted within 5 % (geometric mean), our plans are as fast as those of TorchRec's planner in 90 % and 10 % faster in
the geometric mean, and lookups of distributions that nothing was fitted on are predicted within 6 %. Tasks are like
those of the TPDS paper; each has a dozen candidate plans. Truth: each rank's lookups as
`benchmarks.truth.sharding_truth` timed them on the H200, one rank after the other; the slowest rank, plus the exchange
by the fabric's model. The law of fused
lookups was chosen looking at other tasks: those are shown beside, as seen, and not judged (TorchRec's plans
are known for 34 of them, and ours are those of an earlier search). The 40 tasks that are judged were timed
when the law was final; our plans for them are those of the search before its second start, from plans in which all
heavy tables are split.

    python -m benchmarks.claims.sharding.sharding
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks.lib.correlation import rank_correlation
from benchmarks.lib.sharding_candidates import costing_of
from benchmarks.lib.sharding_loads import EXTRA, Candidate, fresh, seen, timed_tasks
from benchmarks.lib.sharding_tasks import Task
from benchmarks.lib.table import H200, keep
from foretrace.graph.tables import Floats
from foretrace.platform.platform import Platform
from foretrace.sharding.lookups import price_lookups
from foretrace.sharding.shards import HISTOGRAM_BINS, Shard, Shards
from foretrace.sharding.tables import Table

MEASURED_ON = H200
LIMITS = {"within 10 %": 0.97, "within 2 %": 0.85, "loss": 0.005, "rank correlation": 0.97, "slowest rank": 0.05,
          "not slower than TorchRec": 0.9, "faster than TorchRec": 0.10, "unusual spreads": 0.06}  # fmt: skip
AT_MOST = ("loss", "slowest rank", "unusual spreads")


def gmae(ratios: Floats) -> float:
    """Geometric mean of how far ratios are from one."""
    return float(np.exp(np.log(np.maximum(np.abs(ratios - 1), 1e-4)).mean()))


def scored(task: Task, candidates: dict[str, Candidate], platform: Platform) -> dict[str, Any]:
    """A task: what was picked, and what would have been the best."""
    costing = costing_of(task, platform)
    expected, true, slowest = [], [], []
    for plan, us in candidates.values():
        said = costing.estimate(plan)
        rest = said.step - said.slowest
        expected.append(said.step)
        true.append(us.sum(axis=1).max() + rest)
        slowest.append(said.slowest / us.sum(axis=1).max())
    names, cost = list(candidates), np.array(true)
    picked = int(np.argmin(expected))
    row = {
        "task": task.name, "tables": len(task.tables), "ranks": task.ranks.world, "candidates": len(names),
        "picked": names[picked], "ms": cost[picked] / 1e3, "loss": float(cost[picked] / cost.min() - 1),
        "rank correlation": rank_correlation(expected, true),
        "slowest rank": gmae(np.array(slowest)),
    }  # fmt: skip
    if "torchrec" in names:
        row["TorchRec's over ours"] = float(cost[names.index("torchrec")] / cost[names.index("ours")])
    return row | {"ratios": {"slowest": slowest}}


def unusual(cases: list[dict[str, Any]], platform: Platform) -> Floats:
    """Predicted over true time of lookups whose ids follow other distributions, forward and backward together."""
    shards, us = [], []
    for case in cases:
        histogram = np.zeros(HISTOGRAM_BINS)
        histogram[: len(case["reuse"])] = case["reuse"]
        ids = case["bags"] * case["pooling"]
        table = Table("t", case["rows"], case["dim"])
        shards.append(Shard(table, case["rows"], case["dim"], case["bags"], ids, case["unique"], histogram))
        us.append(case["us"])
    return np.asarray(price_lookups(Shards.of(shards), platform).typical / np.array(us))


def noise(measured: dict[str, Any]) -> float:
    """How far the slowest rank of a plan that was timed twice lies from itself, on average over the tasks."""
    pairs = [(np.array(task["ranks"][name]), np.array(again))
             for task in measured["tasks"] for name, again in task["again"].items()]  # fmt: skip
    return float(np.mean([abs(b.sum(axis=1).max() / a.sum(axis=1).max() - 1) for a, b in pairs]))


def figures(measured: dict[str, Any], platform: Platform) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """What is claimed, of tasks that were timed; and a row for each. Nothing, where none was."""
    rows = [scored(*one, platform) for one in timed_tasks(measured) if not one[0].name.startswith(EXTRA)]
    if not rows:
        return {}, []
    loss = np.array([row["loss"] for row in rows])
    theirs = np.array([row["TorchRec's over ours"] for row in rows if "TorchRec's over ours" in row])
    found = {
        "within 10 %": float((loss <= 0.10).mean()),
        "within 2 %": float((loss <= 0.02).mean()),
        "loss": float(loss.mean()),
        "rank correlation": float(np.mean([row["rank correlation"] for row in rows])),
        "slowest rank": gmae(np.concatenate([row["ratios"]["slowest"] for row in rows])),
        "not slower than TorchRec": float((theirs >= 1 - 0.005).mean()),
        "faster than TorchRec": float(np.exp(np.log(theirs).mean()) - 1),
        "unusual spreads": gmae(unusual(measured["spreads"], platform)),
    }
    return found, rows


def main() -> int:
    h200 = Platform.named("h200")
    told = fresh()
    found, rows = figures(told, h200)
    before, _ = figures(seen(), h200)
    claims = [
        {"figure": name, "limit": limit, "found": found.get(name), "seen": before[name],
         "holds": name in found and (found[name] <= limit if name in AT_MOST else found[name] >= limit)}
        for name, limit in LIMITS.items()
    ]  # fmt: skip
    details = {row["task"]: {k: v for k, v in row.items() if k not in ("task", "ratios")} for row in rows}
    keep(
        "sharding",
        [{**claim, "tasks": details if not number else {}} for number, claim in enumerate(claims)],
        hide=["tasks"],
    )
    print(f"{len(rows)} tasks; a plan that is timed twice differs by {noise(told):.2%} on average" if found else
          "the fresh tasks are not timed yet: benchmarks.truth.sharding_truth does that, on an H200")  # fmt: skip
    return int(not all(claim["holds"] for claim in claims))


if __name__ == "__main__":
    sys.exit(main())
