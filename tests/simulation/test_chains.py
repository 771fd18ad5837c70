from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.simulation.engine import pass_in_order, simulate
from foretrace.simulation.task_graph import TaskGraph
from foretrace.simulation.uncertainty import CHAINS_AT_ONCE, Chains


@st.composite
def steps(draw_one: st.DrawFn) -> TaskGraph:
    """Tasks that each wait for some before them: often for the one before alone, as those of a host do."""
    tasks = draw_one(st.integers(1, 20))
    edges = set()
    for after in range(1, tasks):
        edges |= {(before, after) for before in draw_one(st.sets(st.integers(0, after - 1), max_size=2))}
        edges |= {(after - 1, after)} if draw_one(st.booleans()) else set()
    times = st.floats(0, 1e4, allow_subnormal=False)
    column, lags = (draw_one(st.lists(times, min_size=n, max_size=n)) for n in (tasks, len(edges)))
    return TaskGraph.of(column, [0] * tasks, sorted(edges, key=lambda edge: edge[::-1]), np.array(lags))


@given(steps())
def test_the_last_chain_ends_when_the_last_task_does(program: TaskGraph) -> None:
    chains = Chains(program)
    each = np.arange(len(program), dtype=np.int32)
    _, ends = pass_in_order(chains, chains.sampled(each, np.ones((len(program), 1)))[:, 0].tolist(), max)
    assert max(ends) == pytest.approx(simulate(program).end.max())


@given(steps())
def test_a_chain_comes_after_all_it_waits_for(program: TaskGraph) -> None:
    chains = Chains(program)
    for chain in range(len(chains)):
        assert (chains.before[chains.first[chain] : chains.first[chain + 1]] < chain).all()


def test_a_host_that_launches_kernels_is_as_many_chains_as_it_launches_and_the_kernels() -> None:
    host = [(i, i + 1) for i in range(8)]  # every third task launches
    kernels = [(2, 9), (5, 10), (8, 11), (9, 10), (10, 11)]
    chains = Chains(TaskGraph.of([1.0] * 12, [0] * 9 + [1] * 3, host + kernels))
    assert np.bincount(chains.chain).tolist() == [3, 3, 3, 1, 1, 1]


def test_what_a_chain_takes_is_drawn_by_the_groups_of_its_tasks() -> None:
    chains = Chains(TaskGraph.of([1.0, 2.0, 4.0], [0] * 3, [(0, 1), (1, 2)], lag=0.5))
    drawn = chains.sampled(np.array([0, 1, 0], np.int32), np.array([[1.0, 10.0], [1.0, 100.0]]))
    assert drawn.tolist() == [[8.0, 251.0]]


def test_more_chains_than_are_added_up_at_once() -> None:
    tasks = 2 * CHAINS_AT_ONCE + 1
    chains = Chains(TaskGraph.of(np.arange(tasks, dtype=float), [0] * tasks, []))
    drawn = chains.sampled(np.zeros(tasks, np.int32), np.array([[2.0]]))
    assert drawn[:, 0].tolist() == [2.0 * task for task in range(tasks)]
