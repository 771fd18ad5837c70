"""Host time of a step's calls: T1 between calls, T2 to T5 inside them."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import numpy as np

from foretrace.cost_models.host.terms import HostCalls, cold_host_terms, longest_list, t1_terms
from foretrace.graph import PHASES, Graph
from foretrace.graph.tables import Floats, Ints
from foretrace.platform.host import TERMS, CallCost, Host, Sharded

PER_CALL = np.array([name.endswith(("_call", "_view")) for name in TERMS])
"""The terms of T1 that every call of a phase has."""
FSDP = "fsdp::"
"""Prefix of the calls that FSDP adds to a step."""
GATHER = "fsdp::all_gather_copy_in"
"""The first call of a gather; its longest list is the parameters."""
REPLANNED = ("aten::addcdiv_", "aten::_foreach_addcdiv_")
"""Calls to which Adam and its variants pass a number that changes with each step: DTensor plans them anew for each
shape."""


@dataclass(frozen=True)
class HostCosts:
    """Microseconds of host time, a row for each call. Waiting for the device is not included."""

    before: Floats
    """T1: between the previous call and this one."""
    gap: Floats
    """The part of T1 that every call of a phase has."""
    to_launch: Floats
    """T2: from the start to the first launch; all of a call that launches nothing."""
    launch: Floats
    """T4: in one launch."""
    between: Floats
    """T5: from one launch to the next."""
    after: Floats
    """T3: from the last launch to the end."""
    cold_penalty: Floats
    """Additional T1 per doubling of the milliseconds that the host waited before the step."""
    spread: Floats
    """Standard deviation of the logarithm of each call's time."""
    common: float
    """Standard deviation of the logarithm of a factor that all calls of a step share."""


def price_host(graph: Graph, rows: Ints, launches: Ints, host: Host) -> HostCosts:
    """Host time of dispatcher calls.

    Parameters
    ----------
    graph
        The step: a recording, a sketch or a trace.
    rows
        Rows of ``graph.ops`` that are dispatcher calls, in order.
    launches
        Number of launches of each of them.
    host
        The calibrated host.

    >>> from foretrace.graph import Op, OpTable
    >>> from foretrace.platform.host import Before
    >>> cost = CallCost(to_launch=6.0, launch=4.0, between=3.0, after=1.0, tensor=0.0, spread=0.1)
    >>> host = Host("mine", {}, cost, cost, Before(*[2.0] * 17), common=0.1, provenance="made up")
    >>> graph = Graph(OpTable.of([Op("aten::mm", phase="forward"), Op("aten::relu", phase="forward")]))
    >>> costs = price_host(graph, np.arange(2, dtype=np.int32), np.ones(2, np.int32), host)
    >>> costs.before.tolist(), costs.to_launch.tolist()
    ([8.0, 4.0], [6.0, 6.0])
    """
    calls = HostCalls.of(graph, rows, launches)
    inside, counts, costs = _inside(calls, host), t1_terms(calls), np.array(astuple(host.before))
    return HostCosts(
        before=counts @ costs + fsdp_us(graph, rows, host.sharded),
        gap=counts[:, PER_CALL] @ costs[PER_CALL],
        to_launch=inside["to_launch"] * np.where(calls.first, host.first, 1.0) + inside["tensor"] * calls.tensors,
        launch=inside["launch"],
        between=inside["between"],
        after=inside["after"],
        cold_penalty=cold_host_terms(calls) @ np.array(astuple(host.rested)),
        spread=inside["spread"],
        common=host.common,
    )


def _inside(calls: HostCalls, host: Host) -> dict[str, Floats]:
    """The fields of each call's `CallCost`, as columns: looked up once per name, with launches and without."""
    views, launching = ([host.cost(name, launches) for name in calls.names.items] for launches in (0, 1))
    code = calls.name + np.where(calls.launches > 0, len(views), 0)
    return {f.name: np.array([getattr(c, f.name) for c in views + launching])[code] for f in fields(CallCost)}


def fsdp_us(graph: Graph, rows: Ints, costs: Sharded) -> Floats:
    """Microseconds that FSDP adds to T1 of each call: Python around gathers, and around the optimizer's calls.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> small, large = (Op("aten::addcdiv_", (Tensor((n,), "float32"),), phase="optimizer") for n in (8, 9))
    >>> gather = Op("fsdp::all_gather_copy_in", ([Tensor((8,), "float32"), Tensor((9,), "float32")],))
    >>> graph = Graph(OpTable.of([gather, small, small, large]))
    >>> costs = Sharded(call=40.0, planned=1000.0, gather=500.0, gathered=50.0)
    >>> fsdp_us(graph, np.arange(4, dtype=np.int32), costs).tolist()
    [600.0, 1040.0, 40.0, 1040.0]
    """
    ops = graph.ops
    us = np.zeros(len(rows))
    if costs == Sharded() or not any(name.startswith(FSDP) for name in ops.names.items):
        return us
    updates = ops.phase[rows] == PHASES.index("optimizer")
    us[updates] = costs.call
    for place in np.flatnonzero(ops.names.matching(GATHER.__eq__)[ops.name[rows]]).tolist():
        us[place] += costs.gather + costs.gathered * longest_list(ops[int(rows[place])])
    replanned = updates & ops.names.matching(REPLANNED.__contains__)[ops.name[rows]]
    seen: set[object] = set()
    for place in np.flatnonzero(replanned).tolist():
        op = ops[int(rows[place])]
        key = op.name, tuple(tensor.shape for tensor in op.tensors)
        us[place] += costs.planned * (key not in seen)
        seen.add(key)
    return us
