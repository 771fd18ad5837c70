"""Claim: 8 of 40 recorded steps, replayed on the H200 and weighted, have the fleet's kernel time within 5 % a family.

A fleet of 40 steps that an H200 recorded, with hours drawn once; a suite of 8 of them, or of parts of them, whose
benchmarks were run on an H200 again (``python run.py --json`` in each folder). Weighted, their kernel time by family is
held against the fleet's recorded one (families below a hundredth of the hours against that), and their steps against
the hours (8 %).

    python -m benchmarks.claims.fleet.fleet_measured STORE SUITE RESULTS

STORE is the fleet, SUITE the folder that `foretrace fleet suite` wrote, RESULTS a folder with NAME.json for each of its
folders.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import foretrace as ft
from benchmarks.lib.table import H200, keep
from foretrace.analysis.breakdown import kernel_family
from foretrace.fleet.mix import FAMILY, fleet_mix
from foretrace.fleet.record import PartRecord
from foretrace.fleet.response import COMPONENTS, kernel_families
from foretrace.fleet.store import Store
from foretrace.fleet.suite import part_selection
from foretrace.replay.generate.choices import select

MEASURED_ON = H200
FAMILY_LIMIT, STEP_LIMIT = 0.05, 0.08
LONGEST_NAME = 500


def main(store: str, suite: str, results: str) -> int:
    opened = Store.open(Path(store))
    mix, records = fleet_mix(opened), {record.id: record for record in opened.records()}
    measured: dict[str, float] = defaultdict(float)
    hours = 0.0
    for member in json.loads((Path(suite) / "suite.json").read_text())["members"]:
        record = records[member["id"]]
        part = next((one for one in record.parts if one.name == member["part"]), None)
        step_ms, active_ms, kernel_ms = (
            (part.step_ms, part.active_ms, sum(part.ms))
            if part
            else (record.step_ms, record.active_ms, record.kernel_ms)
        )
        replayed = json.loads((Path(results) / f"{member['folder']}.json").read_text())
        each = member["hours"] / step_ms
        for family, ms in by_family(record.source, part, replayed).items():
            measured[family] += each * ms * active_ms / kernel_ms
        hours += each * replayed["step_ms"]
    target, scale = mix.target, mix.scale(mix.target)
    rows: list[dict[str, Any]] = []
    for place in mix.places(FAMILY).tolist():
        name = mix.figures[place].name
        off = (measured[name] - target[place]) / scale[place]
        rows.append(row(f"kernel time: {name}", target[place], measured[name], off, FAMILY_LIMIT))
    rows.sort(key=lambda one: -one["fleet hours"])
    whole = float(mix.hours.sum())
    rows.append(row("step time", whole, hours, hours / whole - 1, STEP_LIMIT))
    missed = [f"{one['what']} {one['off']:+.1%}" for one in rows if not one["holds"]]
    keep("fleet_measured", rows, verdict=f"Does not hold: {', '.join(missed)}" if missed else None)
    return int(bool(missed))


def row(what: str, fleet: float, suite: float, off: float, limit: float) -> dict[str, Any]:
    return {
        "what": what,
        "fleet hours": float(fleet),
        "suite hours": suite,
        "off": float(off),
        "holds": bool(abs(off) <= limit),
    }


def by_family(recording: str, part: PartRecord | None, replayed: dict[str, Any]) -> dict[str, float]:
    """Replayed milliseconds by family: kernels by name, each as those of that name are in the recording or its part."""
    (graph,) = ft.load(recording).graphs
    recorded: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    kernels, ops = graph.kernels, list(graph.ops)
    rows = set(select(ops, part_selection(part)) if part else range(len(ops)))
    for name, family, op, ms in zip(kernels.name, kernel_families(graph), kernels.op, kernels.end - kernels.start):
        if part is None or int(op) in rows:
            recorded[kernels.names[name][:LONGEST_NAME]][COMPONENTS[family]] += float(ms)
    found: dict[str, float] = defaultdict(float)
    listed = replayed["kernels"]
    for kernel in (*listed["matched"], *listed["extra"]):
        parts = recorded.get(kernel["name"]) or {kernel_family(kernel["name"]): 1.0}
        for family, part in parts.items():
            found[family] += kernel["ms"] * part / sum(parts.values())
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
