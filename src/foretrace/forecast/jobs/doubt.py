"""How sure the forecast of a job is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.cost_models.percentiles import TENTH
from foretrace.forecast.doubt import DRAWS, PERCENTILES
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.jobs.simulated import Simulated
from foretrace.graph.numbers import percentiles
from foretrace.simulation.forward import Doubt, draw

DRAWN_TASKS = 20_000_000
"""Tasks of all draws together: large jobs are drawn less often."""
FEWEST_DRAWS = 20


def add_range(forecast: Forecast, done: Simulated) -> None:
    """The 10th and the 90th percentile, from what may be off in the ranks and in the transfers."""
    program = done.program.program
    count = min(max(DRAWN_TASKS // max(len(program), 1), FEWEST_DRAWS), DRAWS)
    ends = draw(program, _doubt(done), count) - float(done.timeline.start.min())
    low, high = percentiles(ends / 1e3, PERCENTILES)
    forecast.low_ms, forecast.high_ms = min(low, forecast.step_ms), max(high, forecast.step_ms)
    if forecast.workings is not None:
        forecast.workings = replace(forecast.workings, draws_ms=ends / 1e3)


def _doubt(done: Simulated) -> Doubt:
    """Calls and kernels of a rank vary by themselves; the models of host, kernels and fabric are off for all alike.

    Ranks that drew the factor of their whole host each by themselves would make every job as slow as its unluckiest
    rank: most of that factor is how far the host's model is off, and they share that.
    """
    each = [rank.doubt() for rank in done.ranks]
    sizes = np.cumsum([0] + [len(one.down) for one in each])
    transfers = done.transfers
    _, example = np.unique(transfers.alike, return_index=True)
    low, typical, high = (np.maximum(some[example], 1e-9) for some in transfers[:3])
    # Number 0 is the hosts', those of the families follow, and the fabric's comes last.
    fabric = 1 + max((int(one.common.max(initial=0)) for one in each), default=0)
    return Doubt(
        group=np.concatenate(
            [one.group + size for one, size in zip(each, sizes)] + [transfers.alike + sizes[-1]]
        ).astype(np.int32),
        down=np.concatenate([one.down for one in each] + [np.log(typical / np.minimum(low, typical)) / TENTH]),
        up=np.concatenate([one.up for one in each] + [np.log(np.maximum(high, typical) / typical) / TENTH]),
        common=np.concatenate([one.common for one in each] + [np.full(len(example), fabric)]).astype(np.int32),
        weight=np.concatenate([one.weight for one in each] + [np.ones(len(example))]),
    )
