"""Published times of collectives inside a node, a rack and a cluster: aiconfigurator, XLA, and GH200 on Slingshot."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterable, Iterator

from benchmarks.lib.nccl_tables import tables
from benchmarks.lib.process import shared
from foretrace.platform.measurements.fabric import TimedCollective

SYSTEMS = {"h200-8x": "h200_sxm", "h100-8x": "h100_sxm", "b200-8x": "b200_sxm", "a100-8x-nvswitch": "a100_sxm",
           "l40s-8x-pcie": "l40s", "gb200-nvl72": "gb200"}  # fmt: skip
REDUCING = ("all_reduce", "reduce_scatter")
AICONFIGURATOR = "NCCL tables of ai-dynamo/aiconfigurator, the median of its NCCL versions"
XLA_NVL72 = "sm_100_GB200"
XLA_KINDS = {"all-gather": "all_gather", "all-reduce": "all_reduce", "reduce-scatter": "reduce_scatter",
             "all-to-all": "all_to_all"}  # fmt: skip
ALPS = "nccl-tests_nccl-2.23.4-1-aws-1.13.0-v0"
"""The setting of the GH200's tables with nothing changed."""
Key = tuple[str, int, int, int]
"""Kind, ranks, nodes and bytes."""


def node_times(fabric: str) -> tuple[list[TimedCollective], list[str]]:
    """The timed collectives of a shipped fabric, and where they are from."""
    if fabric == "gh200-slingshot":
        return _merged(alps()), ["all_reduce of boeschf/nccl-benchmark-on-alps-2025, default settings"]
    found, sources = list(aiconfigurator(SYSTEMS[fabric])), [AICONFIGURATOR]
    if fabric == "gb200-nvl72":
        found += nvl72()
        sources.append("XLA's table of collectives (openxla/xla) above 4 ranks")
    if fabric == "a100-8x-nvswitch":
        table = next(table for table in tables() if table.name.endswith("8gpu_broadcast"))
        found += [((one.kind, one.ranks, 1, one.nbytes), one.us[0]) for one in table.exchanges if one.nbytes >= 1 << 20]
        sources.append(f"broadcast: {table.source}")
    return _merged(found), sources


def aiconfigurator(system: str) -> Iterator[tuple[Key, float]]:
    """Inside a node; of reductions those of floats, which the switch does, as no training sums 8-bit integers."""
    for row in _rows("aiconfigurator/nccl_intra_node.csv.gz"):
        kind = row["op_name"].replace("alltoall", "all_to_all")
        if row["system"] == system and (row["nccl_dtype"] == "half" or kind not in REDUCING):
            yield (kind, int(row["num_gpus"]), 1, int(row["bytes"])), 1e3 * float(row["latency_ms"])


def nvl72() -> Iterator[tuple[Key, float]]:
    """In a rack of 72 GPUs, of more than 4 ranks; the rate is that of the bytes of a rank's larger buffer."""
    for row in _rows("xla/collective_perf_table.csv.gz"):
        kind, ranks = XLA_KINDS.get(row["op"]), float(row["ranks_per_group"] or 0)
        if row["device"] == XLA_NVL72 and kind and ranks > 4:
            nbytes = int(row["elements"])  # bytes in fact: its B200 rows agree with aiconfigurator's so
            yield (kind, int(ranks), 1, nbytes), 1e6 * nbytes / float(row["bytes_per_s"])


def alps() -> Iterator[tuple[Key, float]]:
    """all_reduce on nodes of 4 GH200."""
    for row in _rows("alps_gh200_nccl/all_reduce.csv.gz"):
        if row["setting"] == ALPS:
            yield ("all_reduce", int(row["ranks"]), int(row["nodes"]), int(row["size"])), float(row["time"])


def _rows(name: str) -> Iterator[dict[str, str]]:
    folder, _, file = name.partition("/")
    with gzip.open(shared(f"public/{folder}") / file, "rt") as lines:
        yield from csv.DictReader(lines)


def _merged(times: Iterable[tuple[Key, float]]) -> list[TimedCollective]:
    """One for each kind, ranks and size, with all its times."""
    found: defaultdict[Key, list[float]] = defaultdict(list)
    for key, us in times:
        found[key].append(us)
    return [TimedCollective(*key, tuple(us)) for key, us in sorted(found.items())]
