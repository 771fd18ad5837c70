"""One of several processes that calibrate the same CPUs at once; `benchmarks.truth.sharding_gloo_truth` starts them.

    python -m benchmarks.truth.sharding_gloo_machine WORLD NUMBER OUT

measures the host, then exactly the lookups, gradients and updates of each table of
`benchmarks.truth.sharding_gloo_jobs`, whole, as jobs of so many ranks have them. As many processes do so at once as the
job has ranks: these share caches, memory and clock, and a call that is timed alone is faster than one in a job. Each
begins at another table, so that together they have measured all of them several times when the time is up.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.truth.sharding_gloo_jobs import BATCH, Spec, jobs
from foretrace.calibration.machine import calibrate
from foretrace.graph import Graph, OpTable
from foretrace.sharding.lookups import lookup_graph
from foretrace.sharding.options import SHARDING_TYPES, Ranks
from foretrace.sharding.shards import Shards
from foretrace.sharding.tables import TABLE_WISE, Table

HOST_MINUTES, CALLS_MINUTES = 0.05, 0.35
"""At most, for the host and for the calls."""


def table_of(spec: Spec) -> Table:
    """A table of a job, as plans are made for it."""
    return Table(spec.name, spec.rows, spec.dim, spec.pooling, zipf=spec.zipf)


def calls_of_tables(tables: list[Table], world: int) -> Graph:
    """The calls of one table after the other."""
    ranks = Ranks(world, world, BATCH)
    graph, owner, _ = lookup_graph(Shards.of([SHARDING_TYPES[TABLE_WISE].shard(table, ranks, 1) for table in tables]))
    order = np.argsort(owner, kind="stable").tolist()
    known = [replace(graph.indices[row], op=place) for place, row in enumerate(order)]
    return Graph(OpTable.of([graph.ops[row] for row in order]), indices=known)


def main() -> int:
    world, number, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    tables = [table_of(spec) for _, size, specs in jobs() if size == world for spec in specs]
    first = len(tables) * number // world
    if number == 0:  # the only host that is read
        calibrate(out, ("host",), HOST_MINUTES, "cpu")
    calibrate(out, ("device",), CALLS_MINUTES, "cpu", like=calls_of_tables(tables[first:] + tables[:first], world))
    return 0


if __name__ == "__main__":
    sys.exit(main())
