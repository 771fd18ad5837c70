"""Times the lookups of ranks on the GPU at hand, one rank after the other: the truth of `claims.sharding.sharding`.

Of each candidate plan of each task, each rank's pieces are looked up as they would be: those with rows as long lie in
one tensor, and are looked up, differentiated and updated (SGD) by one call each. Equal loads are timed once. Also
lookups whose ids follow distributions that no model was fitted on. Writes a line a task as it goes; called again, it
goes on with what is missing.

    python -m benchmarks.truth.sharding_truth benchmarks/data/sharding_tasks.json.gz OUT.jsonl --seconds 200

`benchmarks.lib.sharding_candidates` writes the tasks. OUT.jsonl, gzipped, is benchmarks/data/sharding_times.jsonl.gz.
Needs torch, numpy and msgspec alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from foretrace.calibration.timing.arguments import draw_ids
from foretrace.calibration.timing.arguments import id_statistics as spread_of
from foretrace.platform.measurements.cases import Ids

aten = torch.ops.aten

REPEATS = 4
SLEEP = 4_000_000
"""Clock ticks for which the device is held up, so that all calls are queued when it begins."""
ELEMENTS = {"cuda": 21_500_000_000, "cpu": 40_000_000}
"""Of the tensor that stands for all tables."""
AGAIN = "ours"
"""The candidate that is timed twice."""
FLUSHED = 64_000_000
"""Elements that are cleared to empty the caches before a call that is timed alone."""


class Part(NamedTuple):
    """What a rank holds of a table, and the ids that it looks up."""

    rows: int
    dim: int
    ids: torch.Tensor
    sizes: torch.Tensor
    """Ids of each bag."""
    dense: bool


class Timer:
    """Times calls on a device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.weights = torch.zeros(ELEMENTS[device], device=device)

    def phases(self, *calls: Callable[[], None]) -> list[float]:
        """Microseconds of each of some calls that follow each other; medians of repeats."""
        times = [self._once(calls) for _ in range(REPEATS + 1)][1:]
        return [round(statistics.median(column), 2) for column in zip(*times)]

    def _once(self, calls: tuple[Callable[[], None], ...]) -> list[float]:
        if self.device == "cpu":
            marks = [time.perf_counter_ns()]
            for call in calls:
                call()
                marks.append(time.perf_counter_ns())
            return [(b - a) / 1e3 for a, b in pairwise(marks)]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        torch.cuda._sleep(SLEEP)
        events[0].record()
        for call, event in zip(calls, events[1:]):
            call()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in pairwise(events)]

    def table(self, first: int, rows: int, dim: int) -> torch.Tensor:
        """So many rows from an element on; from the start again where there are no more."""
        first = first if first + rows * dim <= len(self.weights) else 0
        return self.weights[first : first + rows * dim].view(rows, dim)


class Lookup:
    """One call for several parts: forward, backward, update."""

    def __init__(self, timer: Timer, parts: list[Part], first: int = 0) -> None:
        dim, self.dense = parts[0].dim, parts[0].dense
        starts = list(accumulate((part.rows for part in parts), initial=0))
        self.weight = timer.table(first, starts[-1], dim)
        self.ids = torch.cat([part.ids + start for part, start in zip(parts, starts)])
        sizes = torch.cat([part.sizes for part in parts])
        self.offsets = sizes.cumsum(0) - sizes
        self.gradient = torch.full((len(sizes), dim), 1e-3, device=timer.device)

    def forward(self) -> None:
        self.made = aten._embedding_bag.default(
            self.weight, self.ids, self.offsets, False, 0, not self.dense, None, False, -1
        )

    def backward(self) -> None:
        _, bag_of_id, sizes, maxima = self.made
        gradient = aten._embedding_bag_backward.default(
            self.gradient, self.ids, self.offsets, bag_of_id, sizes, maxima, len(self.weight), False, 0, not self.dense,
            None, -1,
        )  # fmt: skip
        self.weight.add_(gradient, alpha=-0.01)


def time_rank(timer: Timer, parts: list[Part]) -> list[float]:
    """Microseconds of all forwards, and of all backwards with their updates."""
    groups: dict[tuple[int, bool], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.dim, part.dense), []).append(part)
    calls: list[Lookup] = []
    for group in groups.values():
        calls.append(Lookup(timer, group, sum(call.weight.numel() for call in calls)))
    if not calls:
        return [0.0, 0.0]

    def forward() -> None:
        for call in calls:
            call.forward()

    def backward() -> None:
        for call in calls:
            call.backward()

    return timer.phases(forward, backward)


class TaskTruth:
    """A task's ids, drawn once, and its tables' places."""

    def __init__(self, timer: Timer, task: dict[str, Any]) -> None:
        self.timer, self.world, self.batch = timer, task["world"], task["batch"]
        self.tables = task["tables"]
        torch.manual_seed(len(self.tables))
        self.ids = [self._drawn(table) for table in self.tables]

    def _drawn(self, table: dict[str, Any]) -> torch.Tensor:
        count = self.batch * self.world * round(table["pooling"])
        spread = Ids(count, skew=table["zipf"], reuse=tuple(table["reuse"]))
        return draw_ids(spread, table["rows"], self.timer.device)

    def parts(self, plan: list[tuple[str, list[int]]], rank: int) -> Iterator[tuple[tuple[Any, ...], Part]]:
        """What a rank holds under a plan; each with a name that equal ones share."""
        for number, (table, ids, (kind, ranks)) in enumerate(zip(self.tables, self.ids, plan)):
            for place, where in enumerate(ranks):
                if where == rank:
                    yield self._part(number, table, ids, kind, place, len(ranks))

    def _part(
        self, number: int, table: dict[str, Any], ids: torch.Tensor, kind: str, place: int, parts: int
    ) -> tuple[tuple[Any, ...], Part]:
        rows, dim, pooling = table["rows"], table["dim"], round(table["pooling"])
        sizes = torch.full((self.batch * self.world,), pooling, device=ids.device)
        if kind == "row_wise":
            rows = -(-rows // parts)
            mine = ids // rows == place
            sizes = mine.view(-1, pooling).sum(dim=1)
            ids = ids[mine] - place * rows
        elif kind == "column_wise":
            dim //= parts
        elif kind == "data_parallel":
            sizes, ids, place = sizes[: self.batch], ids[: self.batch * pooling], 0
        key = (number, kind, parts, place)
        return key, Part(rows, dim, ids, sizes, kind == "data_parallel")

    def time_plan(
        self, plan: list[tuple[str, list[int]]], seen: dict[frozenset[tuple[Any, ...]], list[float]]
    ) -> list[list[float]]:
        """Forward and backward of each rank; a load that was timed before is not timed again."""
        found = []
        for rank in range(self.world):
            held = dict(self.parts(plan, rank))
            load = frozenset(held)
            if load not in seen:
                seen[load] = time_rank(self.timer, list(held.values()))
            found.append(seen[load])
        return found


def time_task(timer: Timer, task: dict[str, Any]) -> dict[str, Any]:
    """Forward and backward of each rank, by candidate; and of one of them again at the end, for the noise."""
    truth = TaskTruth(timer, task)
    seen: dict[frozenset[tuple[Any, ...]], list[float]] = {}
    found = {name: truth.time_plan(plan, seen) for name, plan in task["plans"].items()}
    again = truth.time_plan(task["plans"][AGAIN], {})
    return {"task": task["name"], "ranks": found, "again": {AGAIN: again}, "loads": len(seen)}


def time_spreads(timer: Timer, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Single lookups with ids that follow unusual distributions: what was seen of the ids, and microseconds."""
    torch.manual_seed(0)
    clear = timer.weights[-min(FLUSHED, len(timer.weights) // 2) :]
    found = []
    for case in cases:
        rows, bags, pooling = case["rows"], case["bags"], case["pooling"]
        ids = _unusual(case["spread"], rows, bags * pooling, timer.device)
        sizes = torch.full((bags,), pooling, device=timer.device)
        lookup = Lookup(timer, [Part(rows, case["dim"], ids, sizes, False)])
        _, forward, _, backward = timer.phases(clear.zero_, lookup.forward, clear.zero_, lookup.backward)  # type: ignore[arg-type]
        seen = spread_of(ids, rows, bags)
        found.append({**case, "unique": seen.unique, "reuse": list(seen.reuse), "us": [forward, backward]})
    return {"task": "spreads", "cases": found}


def _unusual(spread: str, rows: int, count: int, device: str) -> torch.Tensor:
    """A mixture of even and skewed ids; a hot set; a power law whose popular rows lie anywhere."""
    if spread == "mixture":
        ids = torch.cat([draw_ids(Ids(count - count // 2), rows, device), draw_ids(Ids(count // 2, 1.1), rows, device)])
        return ids[torch.randperm(count, device=device)]
    if spread == "hot set":
        hot = torch.rand(count, device=device) < 0.8
        few = torch.randint(max(1, rows // 100), (count,), device=device)
        return torch.where(hot, few, torch.randint(rows, (count,), device=device))
    return torch.randperm(rows, device=device)[draw_ids(Ids(count, 0.9), rows, device)]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tasks", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--seconds", type=float, default=200.0)
    chosen = options.parse_args()
    begun = time.monotonic()
    told = json.loads(gzip.decompress(chosen.tasks.read_bytes()))
    done = {json.loads(line)["task"] for line in chosen.out.open()} if chosen.out.exists() else set()
    timer = Timer("cuda" if torch.cuda.is_available() else "cpu")
    work: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        (task["name"], lambda task=task: time_task(timer, task))
        for task in told["tasks"]  # type: ignore[misc]
    ]
    work.insert(min(8, len(work)), ("spreads", lambda: time_spreads(timer, told["spreads"])))
    for name, measure in work:
        if name in done or time.monotonic() - begun > chosen.seconds:
            continue
        found = measure()
        with chosen.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{name}: {found.get('loads', '')} {time.monotonic() - begun:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
