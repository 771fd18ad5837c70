"""Ranks on one clock."""

from pathlib import Path

import numpy as np
import pytest

from foretrace.formats.kineto import read_kineto
from foretrace.formats.ranks import on_one_clock
from foretrace.graph import Graph
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


def test_ranks_of_one_host_keep_their_times(tmp_path: Path) -> None:
    graphs, notes = on_one_clock([rank(tmp_path, 0), rank(tmp_path, 1, host_late_us=300)])
    assert notes == []
    assert graphs[0].origin_ns == graphs[1].origin_ns
    assert np.allclose(ends(graphs[0]), ends(graphs[1]))
    assert np.allclose(graphs[1].kernels.start - graphs[0].kernels.start, 300)


@pytest.mark.parametrize("ahead", [5_000_000.0, -2500.0])
def test_clocks_of_two_hosts_are_brought_together_by_their_collectives(tmp_path: Path, ahead: float) -> None:
    graphs, (note,) = on_one_clock([rank(tmp_path, 0), rank(tmp_path, 1, host_late_us=300, clock_us=ahead)])
    assert np.allclose(ends(graphs[0]), ends(graphs[1]), atol=1e-3)
    assert np.allclose(graphs[1].kernels.start - graphs[0].kernels.start, 300, atol=1e-3)
    assert graphs[0].origin_ns == graphs[1].origin_ns
    assert f"differ by {abs(ahead) / 1e3:.3f} ms" in note
    assert f"{COLLECTIVES} collectives" in note


def test_a_difference_that_the_collectives_allow_is_left_alone(tmp_path: Path) -> None:
    graphs, notes = on_one_clock([rank(tmp_path, 0), rank(tmp_path, 1, clock_us=20)])
    assert notes == []
    assert np.allclose(ends(graphs[1]) - ends(graphs[0]), 20)


def test_ranks_without_a_wall_time_meet_at_their_collectives(tmp_path: Path) -> None:
    one, other = rank(tmp_path, 0), rank(tmp_path, 1)
    one.origin_ns, other.origin_ns = 0, 777
    graphs, (note,) = on_one_clock([one, other])
    assert np.allclose(ends(graphs[0]), ends(graphs[1]))
    assert "collectives" in note


def test_the_published_ranks_share_a_clock(shared: Path) -> None:
    for name in ("megatron_tp8_8xA100", "dlrm_8xV100", "megatron_tp2_2xV100"):
        files = sorted((shared / "public" / name).glob("*kineto*"))
        graphs, notes = on_one_clock([read_kineto(file) for file in files])
        assert notes == []
        last = np.array([[g.kernels.end[c.kernel] for c in g.collectives] for g in graphs])
        assert np.median(last.max(axis=0) - last.min(axis=0)) < 50
