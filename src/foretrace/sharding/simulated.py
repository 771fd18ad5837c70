"""A plan as a whole job: all ranks simulated together, with the rest of the model's step.

The search adds costs up. Here each rank's host and device do one thing after the other, collectives start when their
last rank arrives, and what may run beside something else does. Lookups take what the search says they take.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from foretrace.forecast.forecast import Forecast
from foretrace.forecast.jobs.doubt import add_range
from foretrace.forecast.jobs.rank import PricedRank, part_of
from foretrace.forecast.jobs.simulated import simulate_job
from foretrace.forecast.jobs.supposed import Supposed
from foretrace.forecast.jobs.unrolled import back_to_back
from foretrace.forecast.rest import after_a_wait
from foretrace.forecast.timetable import timetable
from foretrace.graph import Graph, Job
from foretrace.platform.device import Device
from foretrace.sharding.costing import Costing
from foretrace.sharding.hybrid import RankStep, steps_of_ranks
from foretrace.sharding.lookups import Priced
from foretrace.sharding.plan import Plan


class Simulated(NamedTuple):
    """Milliseconds of the whole step, one after the other: about, 10th and 90th percentile."""

    step_ms: float
    low_ms: float
    high_ms: float


def simulate_plan(step: Graph, costing: Costing, plan: Plan) -> Simulated:
    """The step of all ranks under a plan.

    Parameters
    ----------
    step
        That of one rank alone, which has all tables.
    costing
        What the plan was made by; its platform is where the ranks run.
    plan
        Where the tables lie.
    """
    where = costing.kernels.platform.having(fabric=costing.exchange.fabric)
    made = steps_of_ranks(step, costing, plan)
    lookups = _lookups(costing, plan)
    ranks = [
        _with_lookups(PricedRank.of(one.graph, None, where, "model"), one, lookups, number, where.device)
        for number, one in enumerate(made)
    ]
    job = Job([rank.graph for rank in ranks], step.source)
    done, _ = simulate_job(job, list(ranks), costing.exchange.fabric, Supposed(), costing.ranks.per_node)
    forecast = Forecast(source=step.source, world=job.world, step_ms=done.timeline.span / 1e3)
    add_range(forecast, done)
    settled = back_to_back(ranks, done.met, done.transfers.typical, where.device) or forecast.step_ms
    low, high = (bound / forecast.step_ms for bound in (forecast.low_ms, forecast.high_ms))
    return Simulated(settled, settled * low, settled * high)


def _lookups(costing: Costing, plan: Plan) -> Priced:
    """What lookups take on each rank's device; the slowest one's, wherever rows that are hit often happen to lie."""
    pieces, rank = costing.held(plan)
    priced = costing.kernels.devices(pieces, costing.each(plan), rank, costing.ranks.world)
    estimate = costing.estimate(plan)
    uneven = estimate.slowest / max(float(estimate.lookups.max()), 1e-9)
    return Priced(*(us * uneven for us in priced))


def _with_lookups(rank: PricedRank, step: RankStep, lookups: Priced, number: int, device: Device) -> PricedRank:
    """A rank whose lookups take what the search says, each its part of that."""
    work = rank.step.work
    low, typical, high = work.low.copy(), work.typical.copy(), work.high.copy()
    for phase, rows in enumerate(step.lookups):
        ours = np.isin(rank.flat.rows[work.call], rows)
        said = max(float(work.typical[ours].sum()), 1e-9)
        for times, us in zip((low, typical, high), lookups):
            times[ours] = work.typical[ours] * (us[number, phase] / said)
    priced = replace(rank.step, work=replace(work, low=low, typical=typical, high=high))
    table = after_a_wait(priced, timetable(priced, device))
    kernels = np.array([one.kernel for one in rank.graph.collectives], np.int64)
    return replace(rank, step=priced, table=table, part=part_of(table, kernels))
