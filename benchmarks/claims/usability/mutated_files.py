"""Claim: no damaged file ends Foretrace in a traceback, a hang or 4 GB of memory, whichever reader it is for. 20,000
copies of recordings, wild traces, reports of Nsight Systems, traces of rocprofv3, tables, platforms, fabrics, stacks,
logs of nccl-tests, points of sweeps, sharding plans, stored forecasts, tables of step times, baselines, span logs,
flight-recorder dumps, labels, stores and suites of fleets end in a result or in one line with an advice. Each copy is
cut, or has fields deleted, types swapped, numbers too large or junk in it.

The damage is that of `benchmarks.claims.accuracy.mutated_traces`. Copy N of a seed is the same on every machine.

    python -m benchmarks.claims.usability.mutated_files [--count 20000] [--seed 0] [--workers 1] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gzip
import json
import os
import pickle
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import foretrace as ft
from benchmarks.claims.accuracy.mutated_traces import ending, mutated, outcome, sources
from benchmarks.lib.process import shared
from benchmarks.lib.table import keep
from foretrace.errors import ForetraceError
from foretrace.fleet.span_log import COLUMNS
from foretrace.platform.fabric import FABRICS, LINKS
from foretrace.platform.registry import SHIPPED
from foretrace.report import as_json
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import Placement, read_plan, write_plan
from foretrace.sharding.tables import Table
from foretrace.ui.documents import checked, document_page
from foretrace.whatif.gate import predicted_baseline
from foretrace.whatif.step_table import read_table
from foretrace.whatif.stored_points import read_points

RECORDING = Path(__file__).resolve().parents[3] / "tests" / "data" / "h200" / "dlrm_default_b512"
MOST_BYTES = 4 * 2**30
CHUNK = 50
TABLES = "name,rows,dim,pooling\n" + "".join(f"t{n},{10 ** (2 + n % 5)},{16 << n % 3},{1 + n}\n" for n in range(8))
LOG = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor)
#  Rank  0 Group  0 Pid  10563 on node-1 device  0 [0000:06:00] NVIDIA A100
#  Rank  1 Group  0 Pid  10564 on node-1 device  1 [0000:09:00] NVIDIA A100
#  size   count   type   redop    root   time   algbw   busbw #wrong   time   algbw   busbw #wrong
   1024      256   float     sum     -1   36.0    0.03    0.05      0   35.77    0.03    0.05      0
   1048576  262144 float     sum     -1   74.8   14.02   24.54    N/A   76.17   13.77   24.09    N/A
"""
STEP_TIMES = f"model,parallel,gpu,ms\n{RECORDING},,h200,3.4\n{RECORDING},data=2,a100,7\n"
LABELS = "recording,team,gpu_hours\ndlrm_default_b512,ads,120\nother,search,7.5\n"
NSIGHT = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
INSERT INTO StringIds VALUES (0, 'cudaLaunchKernel_v7000'), (1, 'gemm'), (2, 'training step');
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, busLocation TEXT);
INSERT INTO TARGET_INFO_GPU VALUES (3, 'NVIDIA H200', '0000:00:1e.0');
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (11000, 14000, 0, 1291845637, 1, 0, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid,
    demangledName, shortName, gridX, gridY, gridZ, blockX, blockY, blockZ);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (20000, 50500, 0, 1, 7, 1, 1291845632, 1, 1, 4, 2, 1, 128, 1, 1);
CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid, textId, domainId);
INSERT INTO NVTX_EVENTS VALUES (0, 100000, 59, NULL, 1291845637, 2, 0),
    (10000, 19000, 59, 'aten::mm, op_id = 12, sizes = [[2, 3], [3, 4]]', 1291845637, NULL, 0);
"""
Reader = Callable[[random.Random, Path], str]
"""Damages a file in an empty folder, reads it, and says how that ends."""


def of_recordings(rng: random.Random, folder: Path) -> str:
    run = folder / "run"
    shutil.copytree(RECORDING, run)
    path = rng.choice([path for path in sorted(run.rglob("*")) if path.is_file()])
    damage(rng, path)
    command = rng.choice((["show"], ["predict", "--on", "h200"], ["check"], ["show", "--json"], ["export"]))
    more = ["--perfetto", str(folder / "out.json")] if command == ["export"] else command[1:]
    return outcome([command[0], str(run), *more])


def of_traces(rng: random.Random, folder: Path) -> str:
    _, files = rng.choice(wild())
    which = rng.randrange(len(files))
    for place, (name, text) in enumerate(files):
        (folder / name).write_bytes(mutated(rng, text)[1] if place == which else text)
    return outcome(["show", str(folder if len(files) > 1 else folder / files[0][0])])


@cache
def wild() -> list[tuple[str, list[tuple[str, bytes]]]]:
    with tempfile.TemporaryDirectory() as scratch:
        return list(sources(shared("public/wild"), Path(scratch) / "feeder"))


def of_tables(rng: random.Random, folder: Path) -> str:
    path = folder / "tables.csv"
    path.write_bytes(mutated(rng, TABLES.encode())[1])
    return outcome(["shard", str(path), "--world", "2", "--seconds", "0.05", "--batch", "512"])


def of_platforms(rng: random.Random, folder: Path) -> str:
    mine = folder / "mine"
    shutil.copytree(SHIPPED / "h200", mine, copy_function=os.link if _same_device(folder) else shutil.copy)
    files = [path for path in sorted(mine.rglob("*")) if path.is_file()]
    plain = [path for path in files if path.suffix == ".json"]
    path = rng.choice(plain if rng.random() < 0.7 else files)
    text = path.read_bytes()
    path.unlink()  # perhaps a link to the shipped file
    path.write_bytes(text)
    damage(rng, path)
    if rng.random() < 0.5:
        return outcome(["platform", "show", str(mine)])
    return outcome(["predict", str(RECORDING), "--kernels", "model", "--on", str(mine)])


def _same_device(folder: Path) -> bool:
    return folder.stat().st_dev == SHIPPED.stat().st_dev


def of_fabrics(rng: random.Random, folder: Path) -> str:
    original = rng.choice(sorted([*FABRICS.glob("*.json"), *LINKS.glob("*.json")]))
    path = folder / "fabric.json"
    shutil.copy(original, path)
    damage(rng, path)
    return outcome(["predict", str(RECORDING), "--on", "h200", "--world", "8", "--fabric", str(path)])


def of_logs(rng: random.Random, folder: Path) -> str:
    path = folder / "nccl.log"
    path.write_bytes(mutated(rng, LOG.encode())[1])
    return outcome(["platform", "fabric", "--from", str(path), "--out", str(folder / "made")])


def of_points(rng: random.Random, folder: Path) -> str:
    path = folder / "points.jsonl"
    path.write_bytes(mutated(rng, stored("points"))[1])
    return reading(lambda: read_points(path))


def of_plans(rng: random.Random, folder: Path) -> str:
    tables = [Table(f"t{number}", 1000 * (number + 1), 16) for number in range(4)]
    path = folder / "plan.json"
    write_plan(tuple(Placement("table_wise", (number % 2,)) for number in range(4)), tables, Ranks(2), path)
    damage(rng, path)
    return reading(lambda: read_plan(path, tables, Ranks(2)))


def of_forecasts(rng: random.Random, folder: Path) -> str:
    path = folder / "forecast.json"
    path.write_bytes(mutated(rng, stored(rng.choice(["forecast", "what_if", "sweep"])))[1])

    def draw() -> None:
        page = document_page(path, path.name)
        if page is not None:
            checked(page, path.name)

    return reading(draw)


def of_nsight(rng: random.Random, folder: Path) -> str:
    path = folder / "report.sqlite"
    if rng.random() < 0.5:  # a sound database with odd contents
        text = mutated(rng, NSIGHT.encode())[1].decode(errors="replace").replace("\0", "")
        with closing(sqlite3.connect(path)) as database, contextlib.suppress(sqlite3.Error, sqlite3.Warning):
            for statement in text.split(";\n"):
                with contextlib.suppress(sqlite3.Error, sqlite3.Warning):
                    database.execute(statement)
            database.commit()
    else:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(NSIGHT)
        damage(rng, path)
    return outcome(["show", str(path)])


def of_rocprof(rng: random.Random, folder: Path) -> str:
    def record(kind: int, correlation: int, start: int, end: int, **more: Any) -> dict[str, Any]:
        times = {"start_timestamp": 900_000_000 + start, "end_timestamp": 900_000_000 + end}
        about = {"kind": kind, "operation": 1, "thread_id": 501, "correlation_id": {"internal": correlation}}
        return {**about, **times, **more}

    size = {"workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 1024, "y": 3, "z": 1}}
    dispatch = {"agent_id": {"handle": 9001}, "queue_id": {"handle": 1}, "kernel_id": 17, **size}
    process = {
        "metadata": {"pid": 501, "init_time": 900_000_000, "fini_time": 901_000_000},
        "agents": [{"id": {"handle": 9001}, "type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X"}],
        "kernel_symbols": [{"kernel_id": 17, "kernel_name": "_Z3addPf.kd", "formatted_kernel_name": "add(float*)"}],
        "strings": {
            "buffer_records": [{"kind": "NONE", "operations": []},
                               {"kind": "HIP_RUNTIME_API", "operations": ["NONE", "hipLaunchKernel"]}],
            "marker_api": [{"key": 40, "value": "ProfilerStep#2"}],
        },
        "buffer_records": {
            "hip_api": [record(1, 1, 11_000, 13_000)],
            "kernel_dispatch": [record(4, 1, 20_000, 45_250, dispatch_info=dispatch)],
            "marker_api": [record(3, 40, 0, 90_000)],
        },
    }  # fmt: skip
    path = folder / "results.json"
    path.write_bytes(mutated(rng, json.dumps({"rocprofiler-sdk-tool": [process]}).encode())[1])
    return outcome(["show", str(path)])


def of_stacks(rng: random.Random, folder: Path) -> str:
    path = folder / "stack.json"
    shutil.copy(rng.choice(sorted((SHIPPED.parent / "stacks").glob("*.json"))), path)
    damage(rng, path)
    return outcome(["predict", str(RECORDING), "--on", "h200", "--stack", str(path)])


def of_step_times(rng: random.Random, folder: Path) -> str:
    path = folder / "steps.csv"
    path.write_bytes(mutated(rng, STEP_TIMES.encode())[1])
    return reading(lambda: read_table(path)) if rng.random() < 0.8 else outcome(["check-table", str(path)])


def of_baselines(rng: random.Random, folder: Path) -> str:
    path = folder / "perf.json"
    path.write_bytes(mutated(rng, stored("baseline"))[1])
    return outcome(["gate", str(RECORDING), "--on", "h200", "--baseline", str(path)])


def of_spans(rng: random.Random, folder: Path) -> str:
    rows = [
        (dp, stage, 2 * stage + dp, step, "forward-compute", float(batch), 1.0 + dp, batch, 0, stage)
        for step in range(3) for dp in (0, 1) for stage in (0, 1) for batch in (0, 1)
    ]  # fmt: skip
    text = "\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in rows), ""])
    path = folder / "spans.csv"
    path.write_bytes(mutated(rng, text.encode())[1])
    return outcome(["fleet", "stragglers", str(path)])


def of_dumps(rng: random.Random, folder: Path) -> str:
    waits = [
        {"process_group": ("0", "default_pg"), "collective_seq_id": number, "profiling_name": "nccl:all_reduce",
         "input_sizes": [[1024]], "state": state, "time_created_ns": 1000 + number, "is_p2p": False}
        for number, state in ((1, "completed"), (2, "scheduled"))
    ]  # fmt: skip
    pickled = rng.random() < 0.5
    for rank in range(4):
        group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
        dump = {"version": "2.4", "pg_config": {"0": group}, "entries": waits[: 1 if rank == 2 else 2]}
        text = pickle.dumps(dump, 2) if pickled else json.dumps(dump).encode()
        (folder / f"nccl_trace_rank_{rank}").write_bytes(mutated(rng, text)[1] if rank < 2 else text)
    return outcome(["fleet", "hang", str(folder)])


def of_fleets(rng: random.Random, folder: Path) -> str:
    store, suite = folder / "store", folder / "suite"
    shutil.copytree(fleet() / "store", store)
    shutil.copytree(fleet() / "suite", suite)
    what = rng.choice(("labels", "store", "suite"))
    if what == "labels":
        path = folder / "labels.csv"
        path.write_bytes(mutated(rng, LABELS.encode())[1])
        return outcome(["fleet", "add", str(store), str(RECORDING), "--labels", str(path), "--relabel"])
    if what == "suite":
        damage(rng, suite / "suite.json")
        return outcome(["fleet", "drift", str(store), str(suite)])
    damage(rng, rng.choice([path for path in sorted(store.rglob("*")) if path.is_file() and path.stat().st_size]))
    command = rng.choice((["show"], ["whatif"]))
    return outcome(["fleet", *command, str(store)])


@cache
def fleet() -> Path:
    """A store of one recording, and its suite; kept for as long as this process lives."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for arguments in (["add", "store", str(RECORDING), "--workers", "1"], ["suite", "store", "--size", "1", "--out"]):
        where = [str(folder / word) if word == "store" else word for word in arguments]
        ended = outcome(["fleet", *where, *([str(folder / "suite")] if where[-1] == "--out" else [])])
        assert ended == "report", ended
    return folder


@cache
def stored(what: str) -> bytes:
    """A result as Foretrace stores it."""
    if what == "forecast":
        return as_json(ft.predict(RECORDING, on="h200")).encode()
    if what == "baseline":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "perf.json"
            predicted_baseline(str(RECORDING), "h200").write(path)
            return path.read_bytes()
    if what == "what_if":
        return as_json(ft.what_if(RECORDING, "h200", ["dtype=bf16"])).encode()
    with tempfile.TemporaryDirectory() as folder:
        points = Path(folder) / "points.jsonl"
        found = ft.sweep(RECORDING, "h200", sets={"batch": [256, 512]}, out=points, workers=1)
        return points.read_bytes() if what == "points" else as_json(found).encode()


READERS: dict[str, Reader] = {
    "recordings": of_recordings, "traces": of_traces, "tables": of_tables, "platforms": of_platforms,
    "fabrics": of_fabrics, "logs of nccl-tests": of_logs, "points of sweeps": of_points, "plans": of_plans,
    "forecasts": of_forecasts, "reports of Nsight Systems": of_nsight, "traces of rocprofv3": of_rocprof,
    "stacks": of_stacks, "tables of step times": of_step_times, "baselines": of_baselines, "span logs": of_spans,
    "flight-recorder dumps": of_dumps, "fleets": of_fleets,
}  # fmt: skip


def damage(rng: random.Random, path: Path) -> None:
    """Damage a file, or what is packed in it."""
    text = path.read_bytes()
    if path.suffix == ".gz" and rng.random() < 0.7:
        path.write_bytes(gzip.compress(mutated(rng, gzip.decompress(text))[1], 1))
    else:
        path.write_bytes(mutated(rng, text)[1])


def reading(read: Callable[[], Any]) -> str:
    """How a reader ends: report, refused, bug or hang."""

    def outcome_of() -> str:
        try:
            read()
        except ForetraceError:
            return "refused"
        return "report"

    return ending(outcome_of)


def run_some(numbers: range, seed: int, names: tuple[str, ...], kept: Path | None) -> list[tuple[str, str, int]]:
    """Reader and ending of some copies, and the peak memory of this process."""
    found = []
    for number in numbers:
        name = names[number % len(names)]
        with tempfile.TemporaryDirectory() as scratch:
            ended = READERS[name](random.Random(f"{seed} {number}"), Path(scratch))
            if ended in ("bug", "hang"):
                print(number, name, ended, flush=True)
                if kept:
                    shutil.copytree(scratch, kept / f"{number}-{name}", dirs_exist_ok=True, symlinks=True)
        found.append((name, ended, peak_memory()))
    return found


def peak_memory() -> int:
    """Bytes of this process, or of the largest one it started, at their peak."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def all_of(count: int, seed: int, names: tuple[str, ...], workers: int, kept: Path | None) -> Iterator[Any]:
    """What `run_some` gives for all copies."""
    chunks = [range(start, min(count, start + CHUNK)) for start in range(0, count, CHUNK)]
    if workers == 1:
        for chunk in chunks:
            yield from run_some(chunk, seed, names, kept)
        return
    with ProcessPoolExecutor(workers) as pool:
        for some in pool.map(run_some, chunks, *zip(*[(seed, names, kept)] * len(chunks))):
            yield from some


def main() -> int:
    """Damage, read and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", choices=list(READERS))
    parser.add_argument("--keep", type=Path, help="where copies that end badly are put")
    options = parser.parse_args()
    names = (options.only,) if options.only else tuple(READERS)
    ends, most = {name: Counter[str]() for name in names}, 0
    every = all_of(options.count, options.seed, names, options.workers, options.keep)
    for number, (name, ended, memory) in enumerate(every):
        if memory > MOST_BYTES >= most:
            print(number, name, "took 4 GiB", flush=True)
        ends[name][ended] += 1
        most = max(most, memory)
        if number % 1000 == 999:
            print(f"{number + 1} read, peak memory {most / 2**30:.2f} GiB", flush=True)
    kinds = ("report", "refused", "bug", "hang")
    rows = [{"files": name, "copies": c.total(), **{kind: c[kind] for kind in kinds}} for name, c in ends.items()]
    total = sum(ends.values(), Counter[str]())
    whole = {"files": "all", "copies": total.total(), **{kind: total[kind] for kind in kinds}}
    whole["peak GiB"] = round(most / 2**30, 2)
    bad = total["bug"] + total["hang"]
    if not options.only:
        keep(
            "mutated_files",
            [*({**row, "peak GiB": None} for row in rows), whole],
            verdict=f"{bad} end badly" if bad else None,
        )
    return int(bool(bad) or most > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
