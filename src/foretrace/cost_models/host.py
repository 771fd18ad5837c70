"""What each call of a step costs the host: T1 before it, T2 to T5 inside it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import numpy as np

from foretrace.cost_models.host_sharded import sharded_us
from foretrace.cost_models.host_terms import HostCalls, rested, terms
from foretrace.graph import Graph
from foretrace.graph.tables import Floats, Ints
from foretrace.platform.host import TERMS, CallCost, Host

IS_GAP = np.array([name.endswith(("_call", "_view")) for name in TERMS])


@dataclass(frozen=True)
class HostCosts:
    """Microseconds of host time, a row for each call. Waiting for the device is not among them."""

    before: Floats
    """T1: between the call before and this one."""
    gap: Floats
    """The part of T1 that every call of a phase has."""
    to_launch: Floats
    """T2: from its start to its first launch; all of a call that launches nothing."""
    launch: Floats
    """T4: in one launch."""
    between: Floats
    """T5: from one launch to the next."""
    after: Floats
    """T3: from its last launch to its end."""
    rested: Floats
    """What T1 is longer by for each doubling of a millisecond that the host waited before the step."""
    spread: Floats
    """Standard deviation of the logarithm of each call's time."""
    common: float
    """The same of a factor that all calls of a step share."""


def price_host(graph: Graph, rows: Ints, launches: Ints, host: Host) -> HostCosts:
    """Host time of dispatcher calls.

    Parameters
    ----------
    graph
        The step: a recording, a sketch or a trace.
    rows
        Rows of ``graph.ops`` that are dispatcher calls, in order.
    launches
        How many launches each of them makes.
    host
        Whose time.

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
    inside, counts, costs = _inside(calls, host), terms(calls), np.array(astuple(host.before))
    return HostCosts(
        before=counts @ costs + sharded_us(graph, rows, host.sharded),
        gap=counts[:, IS_GAP] @ costs[IS_GAP],
        to_launch=inside["to_launch"] * np.where(calls.first, host.first, 1.0) + inside["tensor"] * calls.tensors,
        launch=inside["launch"],
        between=inside["between"],
        after=inside["after"],
        rested=rested(calls) @ np.array(astuple(host.rested)),
        spread=inside["spread"],
        common=host.common,
    )


def _inside(calls: HostCalls, host: Host) -> dict[str, Floats]:
    """The fields of each call's cost, as columns: looked up once for each name, with launches and without."""
    views, launching = ([host.cost(name, launches) for name in calls.names.items] for launches in (0, 1))
    code = calls.name + np.where(calls.launches > 0, len(views), 0)
    return {f.name: np.array([getattr(c, f.name) for c in views + launching])[code] for f in fields(CallCost)}
