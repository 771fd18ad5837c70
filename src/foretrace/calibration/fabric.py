"""Fabrics from what is at hand: logs of nccl-tests, the collectives of a recorded job, the specification of links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from foretrace.analysis.collectives import CollectiveTimes, collective_times
from foretrace.api import load
from foretrace.cost_models.collectives.topology import Placement
from foretrace.fitting import fit
from foretrace.formats.nccl_tests import read_nccl_tests
from foretrace.graph import ForetraceError, Job
from foretrace.platform.fabric import Fabric
from foretrace.platform.folder import FABRIC, RAW
from foretrace.platform.measurements import fabric as fabric_measurements
from foretrace.platform.measurements.fabric import FABRIC_FILE, Exchange
from foretrace.record.folder import is_recording

TRACES = (".json", ".json.gz", ".et", ".et.gz")
"""How the names of traces end; logs have other ones."""


class Seen(NamedTuple):
    """Collectives of one source."""

    device: str
    provenance: str
    exchanges: list[Exchange]


def make_fabric(
    sources: Iterable[Path], folder: Path, links: str | Path | None = None, gpus_per_node: int | None = None
) -> None:
    """Keep what logs and jobs show of collectives among a platform's measurements, and fit its fabric.

    Parameters
    ----------
    sources
        Logs of nccl-tests; recordings, or folders and files of traces, of all ranks of a job.
    folder
        The platform's.
    links
        The specification of the links, by name or file: by it, shapes and kinds that were not seen are carried over.
    gpus_per_node
        Of recorded jobs: how many ranks share a node; all of them where left out.
    """
    known = None if links is None else specification(links)
    seen = [one for source in sources for one in _read(source, gpus_per_node)]
    path = folder / RAW / FABRIC_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    for device, provenance, exchanges in seen:
        fabric_measurements.open_run(path, {"device": device, "provenance": provenance})
        fabric_measurements.add_exchanges(path, exchanges)
    fit(folder, parts=("fabric",))
    if known:
        replace(Fabric.read(folder / FABRIC), links=known.links).write(folder / FABRIC)


def specification(links: str | Path) -> Fabric:
    """A fabric by name or file, of which the links are known.

    >>> specification("h100-nvswitch").links.gpus_per_node
    8
    """
    path = Path(links)
    fabric = Fabric.read(path) if path.is_file() else Fabric.named(str(links))
    if fabric.links is None:
        raise ForetraceError(f"{links} says nothing of links", "Give a file that describes some, or a fabric's name.")
    return fabric


def _read(source: Path, gpus_per_node: int | None) -> Iterator[Seen]:
    if source.is_dir() or is_recording(source) or source.name.endswith(TRACES):
        job = load(source)
        devices = ", ".join(dict.fromkeys(graph.device or "CPU" for graph in job.graphs))
        yield Seen(devices, f"{source.name}: collectives of a job of {job.world} ranks", transfers(job, gpus_per_node))
        return
    for table in read_nccl_tests(source):
        nodes = "one node" if table.nodes == 1 else f"{table.nodes} nodes"
        where = f"{source.name}: {table.ranks} x {table.device} in {nodes}, by nccl-tests"
        rows = [Exchange(table.kind, table.ranks, table.nodes, size, (us,)) for size, us in table.rows]
        yield Seen(table.device, where, rows)


def transfers(job: Job, gpus_per_node: int | None = None) -> list[Exchange]:
    """What the collectives of a job took without waiting: from the arrival of the last rank to the last end.

    Those of which a rank's trace is missing are left out: nobody knows when it arrived.

    >>> from foretrace.graph import Graph, OpTable
    >>> transfers(Job([Graph(OpTable.of([]), rank=0, world=2)]))
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: the job shows no collective on all of its ranks. Record every rank of it.
    """
    groups, _ = collective_times(job.graphs)
    times: dict[tuple[str, int, int, int], list[float]] = {}
    for group in groups:
        if len(group.members) < max(2, _size(group, job)):
            continue
        ranks = [job.graphs[member].rank for member in group.members]
        nodes = Placement.of(ranks, gpus_per_node or job.world).nodes
        for kind, nbytes, us in zip(group.kinds, group.nbytes.tolist(), group.transfer.tolist()):
            if nbytes > 0 and us > 0:
                times.setdefault((kind, len(ranks), nodes, nbytes), []).append(us)
    if not times:
        raise ForetraceError("the job shows no collective on all of its ranks", "Record every rank of it.")
    return [Exchange(*shape, tuple(us)) for shape, us in sorted(times.items())]


def _size(group: CollectiveTimes, job: Job) -> int:
    """Ranks of a group, those without a trace included; all of the job where nobody says."""
    graph = job.graphs[group.members[0]]
    said = (c.ranks for c in graph.collectives if c.group == group.group)
    return len(next(said, ())) or len(graph.groups.get(group.group, ())) or job.world
