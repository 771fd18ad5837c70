"""Aligning the clocks and process groups of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.formats.kineto import read_kineto
from foretrace.formats.ranks import align_clocks, infer_groups, numbered_by_name
from foretrace.graph import Collective, Graph, OpTable
from tests.traces import Trace, all_reduce

COLLECTIVES = 20


def rank(folder: Path, number: int, host_late_us: float = 0.0, clock_us: float = 0.0) -> Graph:
    """One of two ranks: its host may be late for each collective, its clock may be ahead."""
    trace = Trace(number, 2)
    for start in np.arange(COLLECTIVES) * 1000.0 + 1_000_000.0:
        trace.now = start + host_late_us
        all_reduce(trace, 1024, 2, ends=start + 600)
    for event in trace.events:
        event["ts"] += clock_us
    return read_kineto(trace.write(folder / f"rank{number}.json"))


def ends(graph: Graph) -> np.ndarray:
    return graph.kernels.end


@pytest.mark.parametrize(("names", "ranks"), [(["worker1.16900.json", "worker0.16901.json"], [1, 0]),
                                              (["host_4107.json", "host_4100.json"], [1, 0])])  # fmt: skip
def test_traces_that_do_not_say_their_rank_are_numbered_by_their_names(names, ranks):
    reduce = Collective("all_reduce", "", 1024, kernel=-1, op=0)
    graphs = [Graph(OpTable.of([]), source=name, collectives=[reduce]) for name in names]
    numbered_by_name(graphs)
    assert [graph.rank for graph in graphs] == ranks
    assert any("numbered by the names" in note for note in graphs[0].notes)


def test_traces_that_exchange_nothing_are_no_ranks_of_one_job():
    graphs = [Graph(OpTable.of([]), source=name) for name in ("worker0.json", "worker1.json")]
    numbered_by_name(graphs)
    assert [graph.rank for graph in graphs] == [0, 0]


def test_ranks_of_one_host_keep_their_times(tmp_path: Path) -> None:
    graphs, notes = align_clocks([rank(tmp_path, 0), rank(tmp_path, 1, host_late_us=300)])
    assert notes == []
    assert graphs[0].origin_ns == graphs[1].origin_ns
    assert np.allclose(ends(graphs[0]), ends(graphs[1]))
    assert np.allclose(graphs[1].kernels.start - graphs[0].kernels.start, 300)


@pytest.mark.parametrize("ahead", [5_000_000.0, -2500.0])
def test_clocks_of_two_hosts_are_brought_together_by_their_collectives(tmp_path: Path, ahead: float) -> None:
    graphs, (note,) = align_clocks([rank(tmp_path, 0), rank(tmp_path, 1, host_late_us=300, clock_us=ahead)])
    assert np.allclose(ends(graphs[0]), ends(graphs[1]), atol=1e-3)
    assert np.allclose(graphs[1].kernels.start - graphs[0].kernels.start, 300, atol=1e-3)
    assert graphs[0].origin_ns == graphs[1].origin_ns
    assert f"differ by {abs(ahead) / 1e3:.3f} ms" in note
    assert f"{COLLECTIVES} collectives" in note


def test_a_difference_that_the_collectives_allow_is_left_alone(tmp_path: Path) -> None:
    graphs, notes = align_clocks([rank(tmp_path, 0), rank(tmp_path, 1, clock_us=20)])
    assert notes == []
    assert np.allclose(ends(graphs[1]) - ends(graphs[0]), 20)


def test_ranks_without_a_wall_time_meet_at_their_collectives(tmp_path: Path) -> None:
    one, other = rank(tmp_path, 0), rank(tmp_path, 1)
    one.origin_ns, other.origin_ns = 0, 777
    graphs, (note,) = align_clocks([one, other])
    assert np.allclose(ends(graphs[0]), ends(graphs[1]))
    assert note.startswith(f"the traces have no wall time: aligned by {COLLECTIVES} collectives")


def test_the_published_ranks_share_a_clock(shared: Path) -> None:
    for name in ("megatron_tp8_8xA100", "dlrm_8xV100", "megatron_tp2_2xV100"):
        files = sorted((shared / "public" / name).glob("*kineto*"))
        graphs, notes = align_clocks([read_kineto(file) for file in files])
        assert notes == []
        last = np.array([[g.kernels.end[c.kernel] for c in g.collectives] for g in graphs])
        assert np.median(last.max(axis=0) - last.min(axis=0)) < 50


def calling(number: int, *calls: tuple[str, str, tuple[int, ...]]) -> Graph:
    collectives = [Collective(kind, group, 1024, -1, 0, ranks) for kind, group, ranks in calls]
    return Graph(OpTable.of([]), rank=number, world=4, collectives=collectives)


def groups(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.group, one.ranks) for one in graph.collectives]


def test_a_rank_without_names_is_in_the_groups_of_one_that_does_the_same_and_shares_them() -> None:
    pairs = [calling(0, ("all_reduce", "pair", (0, 1))), calling(2, ("all_reduce", "pair", (2, 3)))]
    (*_, last), notes = infer_groups([*pairs, calling(3, ("all_reduce", "", ()))])
    assert groups(last) == [("pair", (2, 3))]
    assert notes == ["the trace of rank 3 names no process groups: those of rank 2 are assumed"]


def test_a_rank_that_does_something_else_stays_as_it_is() -> None:
    graphs = [calling(0, ("all_reduce", "world", ())), calling(1, ("all_gather", "", ()))]
    assert infer_groups(graphs) == (graphs, [])


def test_without_any_named_group_there_is_no_note() -> None:
    graphs = [calling(0, ("all_reduce", "", ())), calling(1, ("all_reduce", "", ()))]
    assert infer_groups(graphs) == (graphs, [])
