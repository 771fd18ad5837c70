from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.analysis.collectives import collective_times
from foretrace.analysis.measure import measure_step
from foretrace.graph import Graph, Job, Op, OpTable
from foretrace.report.pages.timeline import MAX_RANKS_DRAWN, RANK_WAIT, timeline, waits_for_ranks
from tests.narrowing import present
from tests.report.steps import rank


def pieces(drawn, number):
    """What a lane shows: name, kind, and from when to when, in microseconds."""
    lane = drawn["lanes"][number]
    start = np.cumsum(lane["start"]) / 10
    spans = zip(start.tolist(), (start + np.array(lane["length"]) / 10).tolist())
    return [(*drawn["what"][row][:2], *span) for row, span in zip(lane["what"], spans)]


def test_threads_come_before_streams_rank_by_rank():
    drawn = timeline(present(measure_step(Job([rank(0, 100.0), rank(1, 50.0)])).workings), "measured")
    labels = [(lane["rank"], lane["label"]) for lane in drawn["lanes"]]
    assert labels == [(r, lane) for r in (0, 1) for lane in ("thread 0", "stream 7", "stream 20")]
    assert drawn["end_ms"] == 0.15


def test_a_rank_that_arrives_early_waits_before_it_transfers():
    drawn = timeline(present(measure_step(Job([rank(0, 100.0), rank(1, 50.0)])).workings), "measured")
    late, early = pieces(drawn, 2), pieces(drawn, 5)
    assert [(kind, start, end) for _, kind, start, end in late] == [("communication", 100.0, 150.0)]
    assert [(kind, start, end) for _, kind, start, end in early] == [
        (RANK_WAIT, 50.0, 100.0),
        ("communication", 100.0, 150.0),
    ]


def test_a_kernel_that_only_the_simulation_matches_waits_as_well():
    graphs = [rank(0, 100.0), rank(1, 50.0)]
    workings = present(measure_step(Job([replace(graph, collectives=[]) for graph in graphs])).workings)
    assert not any(wait.any() for wait in waits_for_ranks(workings))
    waits = waits_for_ranks(replace(workings, collectives=collective_times(graphs)[0]))
    assert [wait.tolist() for wait in waits] == [[0.0, 0.0], [0.0, 50.0]]


def test_the_critical_path_goes_over_to_the_rank_that_arrives_last():
    drawn = timeline(present(measure_step(Job([rank(0, 100.0), rank(1, 50.0)])).workings), "measured")
    assert drawn["path"]["lane"][-1] == 2
    assert sum(drawn["path"]["start"]) + drawn["path"]["length"][-1] == 1500


def test_of_very_many_ranks_some_are_drawn_and_the_rest_counted():
    job = Job([rank(number, 50.0, world=40) for number in range(40)])
    drawn = timeline(present(measure_step(job).workings), "measured")
    assert len(drawn["ranks"]) == MAX_RANKS_DRAWN and drawn["ranks"][0] == 0 and drawn["ranks"][-1] == 39
    assert drawn["left_out"] == 40 - MAX_RANKS_DRAWN


def test_ops_inside_a_call_are_not_drawn_over_it():
    inner = Op("aten::empty", phase="forward", start_us=1.0, end_us=2.0, parent=0)
    graph = Graph(OpTable.of([Op("aten::addmm", phase="forward", start_us=0.0, end_us=9.0), inner]))
    drawn = timeline(present(measure_step(graph).workings), "measured")
    assert [what[0] for what in drawn["what"]] == ["aten::addmm"]
