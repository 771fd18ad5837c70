"""Fabrics from logs of nccl-tests, from the collectives of a recorded job, and from the specification of links."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from foretrace.analysis.collectives import CollectiveTimes, collective_times
from foretrace.calibration.fitting import fit
from foretrace.cost_models.collectives.topology import Placement
from foretrace.errors import ForetraceError
from foretrace.formats.nccl_tests import read_nccl_tests
from foretrace.graph import Job
from foretrace.platform.fabric import Fabric
from foretrace.platform.measurements.fabric import FABRIC_FILE, TimedCollective, add_collectives, begin_run
from foretrace.platform.platform import FABRIC, RAW
from foretrace.record.folder import is_recording

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


def import_collectives(tables: Path, gpu: str | None, folder: Path) -> int:
    """Give a platform the fabric that the tables of a folder show, of one GPU; how many tables there are of it.

    Tables are logs of nccl-tests, or files of their rows (``.csv``) that name ``gpu``, ``nranks``, ``nodes`` and
    ``collective`` in lines before those, as ``# gpu: H100``.
    """
    files = sorted(path for path in tables.glob("*") if path.is_file() and path.name != "INDEX.csv")
    found = [one for path in files for one in (published_tables(path) if path.suffix == ".csv" else _read(path, None))]
    devices = sorted({one.device for one in found})
    named = [one for one in found if gpu is None or gpu.lower() in one.device.lower()]
    if not named or (gpu is None and len(devices) > 1):
        raise ForetraceError(f"{tables} has tables of {', '.join(devices) or 'no GPU'}", "Name one: --gpu h100.")
    _fit(folder, named)
    return len(named)


def published_tables(path: Path) -> list[Source]:
    """The table of a file of rows, with what its head says of them."""
    try:
        lines = path.read_text().splitlines()
        head = dict(line[1:].partition(":")[::2] for line in lines if line.startswith("#"))
        head = {name.strip(): value.strip() for name, value in head.items()}
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        kind, ranks, nodes = head["collective"], int(head["nranks"]), int(head["nodes"])
        times = [(int(float(row["size_bytes"])), float(row["time_us"])) for row in rows]
        where = f"{path.name}: {ranks} x {head['gpu']} on {nodes} nodes"
        return [Source(head["gpu"], where, [TimedCollective(kind, ranks, nodes, size, (us,)) for size, us in times])]
    except (KeyError, TypeError, ValueError, OverflowError, csv.Error) as error:
        raise ForetraceError(
            f"{path} is no table of collectives ({error})",
            "It needs lines like `# gpu: H100`, with nranks, nodes and collective, and columns size_bytes and time_us.",
        ) from None


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
