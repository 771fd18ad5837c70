"""Claim: 10,000 recordings are added in 30 minutes and 2 GB on two cores; again in 10 s; shown in 2 s; a suite in 60 s.

Recordings are recorded steps, each with other timings, so that no two have the same contents. By default 300 of them
are added, in two sizes, which shows that the time is linear, and the rest of the store is made of their records; with
``--all`` every one of them is added.

    python -m benchmarks.claims.fleet.fleet_scale [--all] [RECORDINGS…]
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lib.fleet import heavy_tail, recorded_steps
from benchmarks.lib.table import keep
from foretrace.fleet.recordings import find_recordings
from foretrace.fleet.store import Store

COUNT, SAMPLE, WORKERS = 10_000, (100, 300), 2
ADD_S, AGAIN_S, SHOW_S, SUITE_S, MEMORY_GB, KILOBYTES = 1800.0, 10.0, 2.0, 60.0, 2.0, 20.0


def main(arguments: list[str]) -> int:
    every = "--all" in arguments
    paths = recorded_steps([Path(one) for one in arguments if one != "--all"])
    if not paths:
        print("no recorded steps are here: give folders of recordings")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Path(folder), paths, every)
    keep("fleet_scale", rows)
    return int(not all(row["holds"] for row in rows))


def measured(folder: Path, paths: list[Path], every: bool) -> list[dict[str, Any]]:
    runs, rows = variants(folder / "runs", paths, COUNT), list[dict[str, Any]]()
    for count in (COUNT,) if every else SAMPLE:
        store = folder / f"store-{count}"
        inside = [str(one) for one in sorted(runs.glob("*/*"))[:count]]
        took, cpu, gigabytes = timed("add", store, *inside, "--workers", WORKERS)
        rows.append(
            row(f"adding {count:,}", took, ADD_S * count / COUNT, cpu, gigabytes)
            | {"for 10,000 at two cores": round(cpu / count * COUNT / WORKERS)}
        )
        print(rows[-1], file=sys.stderr, flush=True)
    whole = store if every else replicated(folder / "whole", store, runs, len(paths))
    size = (whole / "index.parquet").stat().st_size / COUNT / 1e3
    rows.append({"what": "kB of the index a recording", "seconds": size, "limit": KILOBYTES, "holds": size < KILOBYTES})
    for what, limit, command in (
        ("adding 10,000 again", AGAIN_S, ("add", whole, runs)),
        ("show of 10,000", SHOW_S, ("show", whole)),
        ("whatif of 10,000", SUITE_S, ("whatif", whole)),
        ("suite of 12 of 10,000", SUITE_S, ("suite", whole, "--out", folder / "suite", "--size", 12)),
    ):
        took, cpu, gigabytes = timed(*command)
        rows.append(row(what, took, limit, cpu, gigabytes))
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def variants(folder: Path, paths: list[Path], count: int) -> Path:
    """A folder of so many recordings, each another one."""
    for number in range(count):
        variant(paths[number % len(paths)], folder / f"{number // 100:03d}" / f"{number:05d}", number)
    return folder


def variant(path: Path, out: Path, number: int) -> None:
    """The recording with other timings: the same files but for one."""
    shutil.copytree(path, out, copy_function=os.link)
    timings = next(out.glob("rank-*/rank.json"), out / "measured.json")
    about = json.loads(timings.read_text())
    timings.unlink()
    about["synced_ms"] = [ms * (1 + number * 1e-6) for ms in about.get("synced_ms", [])]
    timings.write_text(json.dumps({**about, "variant": number}))


def replicated(path: Path, sample: Path, runs: Path, steps: int) -> Path:
    """A store of all variants, of the records of a sample: as if each had been added from its place.

    The first of the sample are of one variant of each of the recorded steps.
    """
    records = sorted(Store.open(sample).records(), key=lambda record: record.source)[:steps]
    hours = heavy_tail(COUNT)
    store = Store.open(path, create=True)
    found = list(find_recordings(str(runs)))
    store.add(
        [
            replace(
                records[number % len(records)], id=f"{number:032x}", name=one.name, source=one.path, stamp=one.stamp,
                gpu_hours=hours[number], job=f"job {number % 700}", made=f"2026-{1 + number % 12:02d}-15",
            )
            for number, one in enumerate(found)
        ]
    )  # fmt: skip
    store.merge()
    return path


def timed(*arguments: object) -> tuple[float, float, float]:
    """Wall seconds and processor seconds of a command, and the most gigabytes that one of its processes had."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "foretrace", "fleet", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu, after.ru_maxrss / 1e6


def row(what: str, took: float, limit: float, cpu: float, gigabytes: float) -> dict[str, Any]:
    return {
        "what": what, "seconds": round(took, 2), "limit": limit, "processor seconds": round(cpu, 2),
        "GB of the largest process": round(gigabytes, 3), "holds": took <= limit and gigabytes <= MEMORY_GB,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
