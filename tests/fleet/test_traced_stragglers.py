"""Stragglers over the steps of a job's traces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.analysis.collectives import collective_times
from foretrace.fleet.traced_stragglers import _stages, step_stragglers
from foretrace.graph import Graph, Job, Span
from foretrace.report.fleet import straggler_facts
from tests.analysis.builders import Runtime, all_reduce, job, launch, rank

NAMES = ["ProfilerStep#7"]


def with_step(*ranks: Graph) -> Job:
    """A job whose ranks mark all they do as one step."""
    made = job(*ranks)
    return replace(made, graphs=[replace(graph, steps=[Span(NAMES[0], -50.0, 600.0)]) for graph in made.graphs])


def ahead(busy: float) -> Graph:
    """A rank that launches all at once; every 100 us a kernel, then a collective that the slowest rank begins at 80."""
    events: list[Runtime] = []
    for turn in range(5):
        t, at = 100.0 + 100.0 * turn, 4.0 * turn
        events.append(launch(at, at + 1, (t, t + busy), stream=20))
        events.append(all_reduce(at + 2, at + 3, (t + busy, t + 100.0)))
    return rank(*events)


def test_ranks_that_are_alike_cost_nothing():
    found = step_stragglers(with_step(ahead(80), ahead(80), ahead(80)), NAMES)
    assert found.slowdown == pytest.approx(1.0) and found.without_workers == 0.0
    assert found.heat == [[1.0], [1.0], [1.0]] and found.by_stage == {} and list(found.by_step) == [7]


def test_a_rank_with_longer_kernels_costs_what_its_kernels_do():
    found = step_stragglers(with_step(ahead(20), ahead(20), ahead(80)), NAMES)
    assert found.by_worker[0].rank == 2 and found.slowest_workers == [2]
    # Five kernels of 80 us and five transfers of 20 us, instead of kernels of 40 us.
    assert found.slowdown == pytest.approx(5 * 100 / (5 * 60), rel=0.2) and found.without_workers == pytest.approx(1.0)
    assert found.by_worker[0].slowdown == pytest.approx(found.slowdown)
    assert all(row.slowdown == pytest.approx(1.0) for row in found.by_worker[1:])
    assert found.heat[2][0] > found.heat[0][0]


def test_slow_ranks_that_are_the_faster_ones_where_it_counts_save_nothing_and_that_is_said():
    found = step_stragglers(with_step(ahead(20), ahead(20), ahead(80)), NAMES)
    found = replace(found, without_workers=-0.5, explained_s=0.004, ideal_s=0.002)
    (said,) = [fact for fact in straggler_facts(found) if fact[0] == "M_W"]
    assert said[1] == "0 %" and said[2].endswith("the step takes 1.00 ms longer then: where it counts these are faster")


def test_stages_follow_what_ranks_send_each_other():
    graphs = with_step(ahead(80), ahead(80), ahead(80)).graphs
    (group,) = collective_times(graphs)[0]

    def sent(source: int, target: int, at: float):
        return replace(group, members=[source, target], kinds=["send"] * len(group), start=group.start[:, :2] * 0 + at)

    there, back = [sent(0, 1, 1.0), sent(1, 2, 2.0)], [sent(2, 1, 5.0), sent(1, 0, 6.0)]
    assert _stages([*there, *back, group], 3) == [0, 1, 2]
    assert _stages([group], 3) == [0, 0, 0]
