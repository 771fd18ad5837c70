"""What each rank of a job waits for."""

import numpy as np
import pytest

from foretrace.analysis.breakdown import device_span
from foretrace.analysis.collectives import CollectiveTimes, pair_waits, wait_ms
from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import PairWait
from tests.analysis.builders import all_reduce, job, launch, rank


def met(group: str, *times: tuple[float, float]) -> CollectiveTimes:
    """One collective of two ranks, that come at these times and are done at those."""
    start, end = np.array([times]).transpose(2, 0, 1)
    return CollectiveTimes(group, [0, 1], ["all_reduce"], np.array([1024]), np.zeros((1, 2), np.int64), start, end)


def test_a_rank_that_waits_in_two_collectives_at_a_time_waits_once() -> None:
    graphs = [rank(number=0, world=2), rank(number=1, world=2)]
    both = [met("one", (0.0, 120.0), (100.0, 120.0)), met("other", (50.0, 170.0), (150.0, 170.0))]
    assert wait_ms(graphs, both) == {0: pytest.approx(0.15), 1: 0.0}
    assert pair_waits(graphs, both) == [PairWait(rank=0, waits_for=1, ms=pytest.approx(0.15), count=2)]


def test_what_was_measured_is_told_in_the_same_words() -> None:
    early = rank(all_reduce(0, 1, (10, 50)), launch(2, 3, (0, 15)), world=2)
    both = job(early, rank(all_reduce(0, 1, (40, 50)), number=1, world=2))
    seen = measure_step(both)
    assert seen.by_rank("wait_ms") == {0: pytest.approx(0.03), 1: 0.0}
    assert seen.device_span_ms == device_span(both.graphs) == pytest.approx(0.05)
