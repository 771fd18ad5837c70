"""What it costs the host that parameters are shards: Python around gathers, and around the optimizer's calls."""

from __future__ import annotations

import numpy as np

from foretrace.cost_models.host_terms import longest_list
from foretrace.graph import PHASES, Graph
from foretrace.graph.tables import Floats, Ints
from foretrace.platform.host import Sharded

SHARDING = "fsdp::"
"""How the names of calls begin that a step makes where its parameters are shards."""
GATHER = "fsdp::all_gather_copy_in"
"""The call that a gather begins with; its longest list is the parameters."""
PLANNED = ("aten::addcdiv_", "aten::_foreach_addcdiv_")
"""Calls that Adam and its kin give a number that changes with each step."""


def sharded_us(graph: Graph, rows: Ints, costs: Sharded) -> Floats:
    """Microseconds on top of T1 of each call among some rows of a graph.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> small, large = (Op("aten::addcdiv_", (Tensor((n,), "float32"),), phase="optimizer") for n in (8, 9))
    >>> gather = Op("fsdp::all_gather_copy_in", ([Tensor((8,), "float32"), Tensor((9,), "float32")],))
    >>> graph = Graph(OpTable.of([gather, small, small, large]))
    >>> costs = Sharded(call=40.0, planned=1000.0, gather=500.0, gathered=50.0)
    >>> sharded_us(graph, np.arange(4, dtype=np.int32), costs).tolist()
    [600.0, 1040.0, 40.0, 1040.0]
    """
    ops = graph.ops
    us = np.zeros(len(rows))
    if costs == Sharded() or not any(name.startswith(SHARDING) for name in ops.names.items):
        return us
    updates = ops.phase[rows] == PHASES.index("optimizer")
    us[updates] = costs.call
    for place in np.flatnonzero(ops.names.matching(GATHER.__eq__)[ops.name[rows]]).tolist():
        us[place] += costs.gather + costs.gathered * longest_list(ops[int(rows[place])])
    planned = updates & ops.names.matching(PLANNED.__contains__)[ops.name[rows]]
    seen: set[object] = set()
    for place in np.flatnonzero(planned).tolist():
        op = ops[int(rows[place])]
        key = op.name, tuple(tensor.shape for tensor in op.tensors)
        us[place] += costs.planned * (key not in seen)
        seen.add(key)
    return us
