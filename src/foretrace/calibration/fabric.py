"""Fabrics from logs of nccl-tests, from the collectives of a recorded job, and from the specification of links."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from foretrace.analysis.collectives import CollectiveTimes, collective_times
from foretrace.calibration.fitting import fit
from foretrace.cost_models.collectives.pricing import TRAFFIC
from foretrace.cost_models.collectives.topology import Placement
from foretrace.errors import ForetraceError
from foretrace.formats.nccl_tests import read_nccl_tests
from foretrace.graph import Job
from foretrace.platform.device import Device
from foretrace.platform.fabric import Fabric
from foretrace.platform.measurements.fabric import FABRIC_FILE, TimedCollective, add_collectives, begin_run
from foretrace.platform.platform import FABRIC, RAW
from foretrace.record.folder import is_recording

DISAGREE = 1.5
"""Times by which two tables may differ for the same collective."""
MOST_GBPS = 10_000.0
"""Bandwidth of the memory of a GPU that is not known."""
MAX_SPEED = 1.25
"""Times the bandwidth of its memory that a GPU may seem to send: more is another unit."""
TRACES = (".json", ".json.gz", ".et", ".et.gz")
"""Endings of the names of traces; logs have other ones."""


class Source(NamedTuple):
    """Collectives of a log or a job."""

    device: str
    provenance: str
    collectives: list[TimedCollective]


def make_fabric(
    sources: Iterable[Path], folder: Path, links: str | Path | None = None, gpus_per_node: int | None = None
) -> None:
    """Add the collectives of logs and jobs to a platform's measurements, and fit its fabric.

    Sources are logs of nccl-tests, or recordings and traces of all ranks of a job, of which so many share a node, or
    all. By the links, a name or a file, unmeasured shapes and kinds are scaled.
    """
    known = None if links is None else specification(links)
    _fit(folder, [one for source in sources for one in _read(source, gpus_per_node)])
    if known:
        replace(Fabric.read(folder / FABRIC), links=known.links).write(folder / FABRIC)


def import_collectives(tables: Path, gpu: str | None, folder: Path) -> list[str]:
    """Give a platform the fabric that the tables of a folder show, of one GPU, and say on what it is fitted.

    Tables are logs of nccl-tests, or files of their rows (``.csv``) that name ``gpu``, ``nranks``, ``nodes`` and
    ``collective`` in lines before those, as ``# gpu: H100``.
    """
    files = sorted(path for path in tables.glob("*") if path.is_file() and path.name != "INDEX.csv")
    found = [one for path in files for one in (published_tables(path) if path.suffix == ".csv" else _read(path, None))]
    devices = sorted({one.device for one in found})
    named = [one for one in found if gpu is None or gpu.lower() in one.device.lower()]
    if not named or (gpu is None and len(devices) > 1):
        raise ForetraceError(f"{tables} has tables of {', '.join(devices) or 'no GPU'}", "Name one: --gpu h100.")
    kept, notes = _agreeing(named)
    if not any(one.collectives for one in kept):
        raise ForetraceError(f"all tables contradict each other: {notes[0]}", "Leave those of other machines out.")
    _fit(folder, kept)
    return [*notes, f"its fabric is fitted on {len(kept)} tables"]


def _agreeing(found: Sequence[Source]) -> tuple[list[Source], list[str]]:
    """Tables without the sizes for which two of them tell very different times."""
    seen: defaultdict[tuple[str, int, int, int], list[tuple[float, str]]] = defaultdict(list)
    for device, where, collectives in found:
        for one in collectives:
            seen[one.kind, one.ranks, one.nodes, one.nbytes] += [(us, f"{where}, {device}") for us in one.us]
    apart = {key: sorted(times) for key, times in seen.items() if max(times)[0] > DISAGREE * min(times)[0]}
    notes = []
    for kind, ranks in dict.fromkeys((kind, ranks) for kind, ranks, _, _ in apart):
        here = {key: times for key, times in apart.items() if key[:2] == (kind, ranks)}
        key, times = next(iter(here.items()))
        notes.append(
            f"{times[0][1]} and {times[-1][1]} tell {times[0][0]:.4g} and {times[-1][0]:.4g} us for {kind} of "
            f"{key[3]:,} bytes: {len(here)} such sizes are left out"
        )
    kept = [
        one._replace(collectives=[c for c in one.collectives if (c.kind, c.ranks, c.nodes, c.nbytes) not in apart])
        for one in found
    ]
    return kept, notes


def published_tables(path: Path) -> list[Source]:
    """The table of a file of rows, with what its head says of them."""
    try:
        lines = path.read_text().splitlines()
        head = dict(line[1:].partition(":")[::2] for line in lines if line.startswith("#"))
        head = {name.strip(): value.strip() for name, value in head.items()}
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        kind, ranks, nodes = head["collective"], int(head["nranks"]), int(head["nodes"])
        first = next(number for number, line in enumerate(lines) if not line.startswith("#")) + 2
        times = [_checked(row, kind, ranks, head["gpu"], f"line {first + place}") for place, row in enumerate(rows)]
        where = f"{path.name}: {ranks} x {head['gpu']} on {nodes} nodes"
        return [Source(head["gpu"], where, [TimedCollective(kind, ranks, nodes, size, (us,)) for size, us in times])]
    except (KeyError, TypeError, ValueError, OverflowError, StopIteration, csv.Error) as error:
        raise ForetraceError(
            f"{path} is no table of collectives ({error})",
            "It needs lines like `# gpu: H100`, with nranks, nodes and collective, and columns size_bytes and time_us.",
        ) from None


def _checked(row: dict[str, str], kind: str, ranks: int, gpu: str, where: str) -> tuple[int, float]:
    """Bytes and microseconds of a row: numbers, and no faster than the GPU's memory."""
    try:
        size, us = int(float(row["size_bytes"])), float(row["time_us"])
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{where}: size_bytes and time_us are no numbers") from None
    if not (math.isfinite(us) and us > 0 and size >= 0):
        raise ValueError(f"{where}: {size} bytes in {us:g} us")
    device = Device.closest(gpu)
    gbps = MAX_SPEED * (device.memory_gbps if device else MOST_GBPS)
    traffic = TRAFFIC[kind](ranks) if kind in TRAFFIC else 1.0
    if size * traffic > us * 1e3 * gbps:
        raise ValueError(
            f"{where}: {size:,} bytes in {us:g} us are more than the memory of the GPU can do; in another unit?"
        )
    return size, us


def _fit(folder: Path, found: Iterable[Source]) -> None:
    path = folder / RAW / FABRIC_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    for device, provenance, collectives in found:
        begin_run(path, {"device": device, "provenance": provenance})
        add_collectives(path, collectives)
    fit(folder, parts=("fabric",))


def specification(links: str | Path) -> Fabric:
    """A fabric by name or file that has links.

    >>> specification("h100-nvswitch").links.gpus_per_node
    8
    """
    path = Path(links)
    fabric = Fabric.read(path) if path.is_file() else Fabric.named(str(links))
    if fabric.links is None:
        raise ForetraceError(f"{links} says nothing of links", "Give a file that describes some, or a fabric's name.")
    return fabric


def _read(source: Path, gpus_per_node: int | None) -> Iterator[Source]:
    if source.is_dir() or is_recording(source) or source.name.endswith(TRACES):
        from foretrace.api import load

        job = load(source)
        devices = ", ".join(dict.fromkeys(graph.device or "CPU" for graph in job.graphs))
        provenance = f"{source.name}: collectives of a job of {job.world} ranks"
        yield Source(devices, provenance, job_collectives(job, gpus_per_node))
        return
    for table in read_nccl_tests(source):
        nodes = "one node" if table.nodes == 1 else f"{table.nodes} nodes"
        where = f"{source.name}: {table.ranks} x {table.device} in {nodes}, by nccl-tests"
        rows = [TimedCollective(table.kind, table.ranks, table.nodes, size, (us,)) for size, us in table.rows]
        yield Source(table.device, where, rows)


def job_collectives(job: Job, gpus_per_node: int | None = None) -> list[TimedCollective]:
    """The collectives of a job without waiting: from the arrival of the last rank to the last end.

    Those of groups with a rank that has no trace are left out: its arrival is not known.
    """
    groups, _ = collective_times(job.graphs)
    times: dict[tuple[str, int, int, int], list[float]] = {}
    for group in groups:
        if len(group.members) < max(2, _group_size(group, job)):
            continue
        ranks = [job.graphs[member].rank for member in group.members]
        nodes = Placement.of(ranks, gpus_per_node or job.world).nodes
        for kind, nbytes, us in zip(group.kinds, group.nbytes.tolist(), group.transfer.tolist()):
            if nbytes > 0 and us > 0:
                times.setdefault((kind, len(ranks), nodes, nbytes), []).append(us)
    if not times:
        raise ForetraceError("the job shows no collective on all of its ranks", "Record every rank of it.")
    return [TimedCollective(*shape, tuple(us)) for shape, us in sorted(times.items())]


def _group_size(group: CollectiveTimes, job: Job) -> int:
    """Ranks of a group, those without a trace included; all ranks of the job where the group is unknown."""
    graph = job.graphs[group.members[0]]
    known = (c.ranks for c in graph.collectives if c.group == group.group)
    return len(next(known, ())) or len(graph.groups.get(group.group, ())) or job.world
