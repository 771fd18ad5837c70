"""Interpreted and compiled passes: the same times."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace._jit import JitBudget
from foretrace.simulation import engine, uncertainty
from foretrace.simulation.engine import DeadlockError, simulate
from foretrace.simulation.task_graph import TaskGraph
from foretrace.simulation.uncertainty import Uncertainty, sample_ends

ENDLESS, NONE = JitBudget(float("inf")), JitBudget(-1.0)


def both_ways(run):
    """What something gives that runs passes: interpreted, then compiled. A deadlock is what it names."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for left in (ENDLESS, NONE):
            patch.setattr(engine, "jit_budget", left)
            patch.setattr(uncertainty, "jit_budget", left)
            try:
                found.append(run())
            except DeadlockError as deadlock:
                found.append(deadlock.held)
    return found


@st.composite
def programs(draw_one: st.DrawFn) -> TaskGraph:
    """Rows of tasks with lags, releases and edges between any of them, deadlocks among them."""
    sizes = draw_one(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    tasks, times = sum(sizes), st.floats(0, 1e6, allow_subnormal=False)
    edges = draw_one(st.lists(st.tuples(st.integers(0, tasks - 1), st.integers(0, tasks - 1)), max_size=20))
    edges = sorted((e for e in edges if e[0] != e[1]), key=lambda edge: edge[1])
    first = np.searchsorted([after for _, after in edges], np.arange(tasks + 1)).astype(np.int64)
    column = st.lists(times, min_size=tasks, max_size=tasks)
    return TaskGraph(
        duration=np.array(draw_one(column)),
        lane=np.zeros(tasks, np.int32),
        first=first,
        before=np.array([before for before, _ in edges], np.int32),
        lag=np.array(draw_one(st.lists(times, min_size=len(edges), max_size=len(edges)))),
        release=np.array(draw_one(st.one_of(st.just([]), column))),
        row_starts=np.cumsum([0, *sizes[:-1]]),
    )


@given(programs())
def test_a_pass_gives_the_same_times_interpreted_and_compiled(program: TaskGraph) -> None:
    def run() -> object:
        timeline = simulate(program)
        return timeline.start.tolist(), timeline.end.tolist()

    interpreted, compiled = both_ways(run)
    assert interpreted == compiled


@given(programs(), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=50)
def test_samples_are_the_same_all_at_once_and_one_by_one(program: TaskGraph, count: int, seed: int) -> None:
    tasks = len(program)
    numbers = np.random.default_rng(seed)
    uncertain = Uncertainty(
        group=np.arange(tasks, dtype=np.int32)[::-1].copy(),
        down=numbers.random(tasks),
        up=numbers.random(tasks),
        common=(np.arange(tasks) % 2).astype(np.int32),
        weight=numbers.random(tasks),
    )
    at_once, one_by_one = both_ways(lambda: sample_ends(program, uncertain, count, seed).tolist())
    assert at_once == pytest.approx(one_by_one, rel=1e-12)


def test_no_tasks_end_at_once_in_every_sample() -> None:
    none = np.zeros(0)
    uncertain = Uncertainty(none.astype(np.int32), none, none, none.astype(np.int32), none)
    assert both_ways(lambda: sample_ends(TaskGraph.of([], [], []), uncertain, 3).tolist()) == [[0.0] * 3] * 2


def test_a_process_that_simulates_little_never_loads_the_compiler_and_one_that_simulates_much_does() -> None:
    code = """
import sys
import numpy as np
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import TaskGraph

chain = TaskGraph.of(np.ones({tasks}), np.zeros({tasks}, np.int32), np.stack([np.arange({tasks} - 1)] * 2, 1) + [0, 1])
assert simulate(chain).span == {tasks}
print("numba" in sys.modules)
"""
    for tasks, loaded in ((10_000, "False"), (2_000_000, "True")):
        command = [sys.executable, "-c", code.format(tasks=tasks)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == loaded
