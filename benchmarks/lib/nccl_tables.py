"""The published tables of nccl-tests, the links of the machines they were taken on, and how the tests were driven."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.collectives.topology import LinkConstants, Placement, link_time
from foretrace.platform.fabric import Links
from foretrace.platform.measurements.fabric import TimedCollective

Floats = NDArray[np.float64]

TABLES = Path(__file__).resolve().parents[3] / "shared" / "public" / "nccl"


@dataclass(frozen=True)
class Machine:
    """What the tables of a machine have in common."""

    links: str
    gpus_per_process: int = 1
    """Above 1, one process launches on them in turn: no collective is seen to take less than that."""
    through_pytorch: bool = False
    """Timed around PyTorch's call, which a synchronised host makes: that comes on top."""
    source: str = ""
    """Where the index has no address, in words."""


MACHINES = {
    "a100_galvatron": Machine("a100-nvswitch", through_pytorch=True),
    "a100_p4d": Machine("a100-p4d"),
    "a100_sxm4": Machine("a100-nvswitch", gpus_per_process=8),
    "b200_lambda": Machine("b200-nvswitch"),
    "h100_8gpu": Machine("h100-nvswitch"),
    "h100_a3mega": Machine("h100-a3mega"),
    "h100_p5": Machine("h100-p5"),
    "v100_pcie": Machine("v100-pcie", gpus_per_process=2, source="E. Aksoy, GPU cluster setup guide, January 2026"),
    "v100_sxm2_16g": Machine("v100-mesh", gpus_per_process=8, source="a blog's note on NCCL, 2019-09-26"),
    "v100_sxm2_2x2": Machine("v100-quad", gpus_per_process=2, source="NIG supercomputer, user guide"),
    "v100_sxm3": Machine("v100-dgx2", gpus_per_process=12, source="results on a DGX-2, nccl-tests notes"),
}
"""By how the tables' names begin. What drove the tests is in their sources (``-g 8`` and the like)."""


@dataclass(frozen=True)
class Driven:
    """What driving a test costs, in microseconds; fitted beside the constants of the links."""

    launch: float
    """Of a collective, on one GPU after the other."""
    exchange: float
    """Of an all_to_all: a send and a receive for each rank."""
    pytorch: float


@dataclass(frozen=True)
class Table:
    """One table: times of one kind of collective over sizes."""

    name: str
    machine: Machine
    links: Links
    kind: str
    ranks: int
    nodes: int
    sizes: Floats
    us: Floats
    source: str

    @property
    def exchanges(self) -> list[TimedCollective]:
        """Its rows, as they are measured."""
        return [
            TimedCollective(self.kind, self.ranks, self.nodes, int(size), (us,))
            for size, us in zip(self.sizes.tolist(), self.us.tolist())
        ]

    def by_links(self, constants: LinkConstants) -> Floats:
        """What the specification of its links says that the GPUs take."""
        return link_time(self.links, self.kind, self.sizes, Placement.even(self.ranks, self.nodes), constants)

    def expected(self, constants: LinkConstants, driven: Driven) -> Floats:
        """The same as the test shows it."""
        on_gpu = self.by_links(constants)
        if self.machine.through_pytorch:
            return on_gpu + driven.pytorch
        return np.maximum(on_gpu, self.floor(driven))

    def floor(self, driven: Driven) -> float:
        """What launching alone takes."""
        each = driven.exchange if self.kind == "all_to_all" else driven.launch
        return each * self.machine.gpus_per_process


def tables(folder: Path = TABLES) -> list[Table]:
    """All of them, as ``INDEX.csv`` names them."""
    return [_table(folder, entry) for entry in csv.DictReader((folder / "INDEX.csv").open())]


def _table(folder: Path, entry: dict[str, str]) -> Table:
    lines = [line for line in (folder / entry["file"]).open() if not line.startswith("#")]
    rows = [(float(row["size_bytes"]), float(row["time_us"])) for row in csv.DictReader(lines)]
    sizes, us = np.array(rows).T
    name = entry["file"].removesuffix(".csv")
    machine = next(machine for start, machine in MACHINES.items() if name.startswith(start))
    return Table(
        name=name,
        machine=machine,
        links=Links.named(machine.links),
        kind=entry["collective"],
        ranks=int(entry["nranks"]),
        nodes=int(entry["nodes"]),
        sizes=sizes,
        us=us,
        source=machine.source or entry["source"],
    )
