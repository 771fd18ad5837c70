"""Makes measurements of the kernels of random compiled models, which `benchmarks.truth.compiled_truth` recorded.

    python -m benchmarks.truth.compiled_kernels FOLDER OUT

reads ``FOLDER/pool`` and ``FOLDER/kernels.jsonl`` and writes ``OUT/compiled.jsonl.gz``: each kernel as it ran in its
step, whatever was in the cache, with what its source says of its work. Launches of one kernel are one measurement.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from foretrace import load
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.kernels.families.compiled import COMPILED
from foretrace.graph import Op
from foretrace.graph.generated_kernels import kernel_facts
from foretrace.graph.op import signature
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import SUFFIX, Batch, Measurement, Repeat, close_batch, open_batch

MOST = 8
"""Launches of one kernel that are kept."""


def launches(step: Path, facts: dict[tuple[str, str], dict[str, object]]) -> Iterator[tuple[Op, float]]:
    """The generated kernels of a recorded step with what their sources say, and their microseconds."""
    calls = dispatched_calls(load(step).graphs[0]).calls
    kernels = calls.kernels
    for row, start, end in zip(kernels.op.tolist(), kernels.start.tolist(), kernels.end.tolist()):
        name = calls.ops.names[calls.ops.name[row]] if row >= 0 else ""
        if found := facts.get((step.name, name)):
            op = calls.ops[row]
            yield Op(name, op.args, found), end - start  # type: ignore[arg-type]


def measured(step: Path, facts: dict[tuple[str, str], dict[str, object]]) -> list[Measurement]:
    times: dict[object, list[Repeat]] = defaultdict(list)
    ops: dict[object, Op] = {}
    for op, us in launches(step, facts):
        key = signature(op)
        ops.setdefault(key, op)
        times[key].append([(op.name, round(us, 3))])
    return [Measurement(Case(ops[key]), cold=seen[:MOST], warm=seen[:MOST]) for key, seen in times.items()]


def main() -> int:
    folder, out = map(Path, sys.argv[1:3])
    with (folder / "kernels.jsonl").open() as lines:
        sources = {(line["step"], line["name"]): line["source"] for line in map(json.loads, lines)}
    facts = {key: kernel_facts(source) for key, source in sources.items()}
    path, first = out / f"{COMPILED}{SUFFIX}", 0
    out.mkdir(parents=True, exist_ok=True)
    for step in sorted((folder / "pool").iterdir()):
        found = measured(step, facts)
        machine = {"device": "NVIDIA H200", "series": f"models {step.name}"}
        batch = Batch(first, first + len(found), machine, found)
        open_batch(path, batch)
        close_batch(path, batch)
        first = batch.last
        print(f"{step.name}: {len(found)} kernels", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
