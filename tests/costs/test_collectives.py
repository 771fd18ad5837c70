from __future__ import annotations

import csv
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.costs.collectives import TRAFFIC, fit_curves, predict
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Fabric
from foretrace.platform.fabric_measurements import Exchange

SIZES = [4**power for power in range(3, 15)]


def line(size, latency=20.0, gbps=100.0):
    return latency + size / (1e3 * gbps)


def fabric(kind="all_reduce", ranks=8, nodes=1, sizes=SIZES, time=line):
    return Fabric("ours", fit_curves(Exchange(kind, ranks, nodes, size, (time(size),)) for size in sizes), "made up")


@pytest.mark.parametrize("nbytes", [0, 1, 64, 1000, 3 * 2**20, 2**30, 2**36])
def test_latency_and_bandwidth_are_found_and_hold_beyond_what_was_measured(nbytes):
    assert predict(fabric(), "all_reduce", nbytes, 8).typical == pytest.approx(line(nbytes), rel=0.02)


def test_between_sizes_that_were_measured_the_measurements_lead():
    def slow_in_the_middle(size):
        return line(size) * (1.5 if 4**6 <= size <= 4**8 else 1.0)

    seen = predict(fabric(time=slow_in_the_middle), "all_reduce", 4**7, 8)
    assert seen.typical == pytest.approx(slow_in_the_middle(4**7), rel=0.01)


def test_what_lies_apart_by_noise_alone_leaves_the_curve_smooth():
    noise = np.random.default_rng(0)
    rows = [Exchange("all_reduce", 2, 1, size, tuple(line(size) * noise.lognormal(0, 0.3, 5))) for size in SIZES]
    (curve,) = fit_curves(rows)
    times = [predict(Fabric("ours", (curve,), ""), "all_reduce", size, 2) for size in SIZES]
    assert 0.15 < curve.spread < 0.6
    assert all(early.typical < 1.2 * late.typical for early, late in pairwise(times))
    assert all(seen.low < line(size) < seen.high for seen, size in zip(times, SIZES))


@given(
    kind=st.sampled_from([*TRAFFIC, "barrier"]),
    nbytes=st.integers(0, 2**40),
    ranks=st.integers(2, 4096),
    nodes=st.integers(1, 2),
)
def test_every_collective_has_a_time_and_a_range_around_it(kind, nbytes, ranks, nodes):
    ours = Fabric("ours", fabric().curves + fabric(nodes=2, ranks=16).curves, "")
    low, typical, high = predict(ours, kind, nbytes, ranks, nodes)
    assert 0 < low <= typical <= high < math.inf


def test_of_two_rank_counts_the_nearer_one_is_carried_over_with_a_wider_range():
    ours = Fabric("ours", fabric(ranks=2).curves + fabric(ranks=8, time=lambda size: 2 * line(size)).curves, "")
    large = 2**30
    assert predict(ours, "all_reduce", large, 8).typical == pytest.approx(2 * line(large), rel=0.02)
    twelve = predict(ours, "all_reduce", large, 12)
    assert twelve.typical == pytest.approx(2 * line(large) * (11 / 12) / (7 / 8), rel=0.05)
    small, known = predict(ours, "all_reduce", 64, 64), predict(ours, "all_reduce", 64, 8)
    assert small.high / small.low > known.high / known.low


def test_a_kind_that_was_not_measured_is_carried_over_by_its_traffic():
    large = 2**32
    gathered = predict(fabric(), "all_gather", large, 8)
    assert gathered.typical == pytest.approx(line(large) / 2, rel=0.02)
    assert gathered.low < gathered.typical / 1.5 and gathered.high > gathered.typical * 1.5


def test_alone_a_rank_exchanges_nothing():
    assert predict(fabric(), "all_reduce", 2**20, 1) == (0, 0, 0)


def test_a_fabric_inside_a_node_says_nothing_of_several():
    with pytest.raises(ForetraceError, match="fabric ours was not measured between nodes"):
        predict(fabric(), "all_reduce", 64, 16, nodes=2)


def test_a_collective_nobody_knows_is_named():
    with pytest.raises(ForetraceError, match="no collective is called 'gossip'"):
        predict(fabric(), "gossip", 64, 8)


@pytest.mark.parametrize("sizes", [[1024], [1024, 4096]])
def test_few_sizes_make_a_curve_too(sizes):
    assert predict(fabric(sizes=sizes), "all_reduce", 1024, 8).typical == pytest.approx(line(1024), rel=0.05)


def test_times_that_do_not_grow_make_a_curve_too():
    assert predict(fabric(time=lambda size: 30.0), "all_reduce", 2**20, 8).typical == pytest.approx(30, rel=0.05)


def test_zeros_are_no_measurements():
    assert fit_curves([Exchange("all_reduce", 2, 1, 0, (5.0,)), Exchange("all_reduce", 2, 1, 64, (0.0,))]) == ()


def test_published_tables_are_met_at_the_sizes_that_were_left_out(shared):
    folder, misses, inside = shared / "public" / "nccl", [], []
    for entry in csv.DictReader((folder / "INDEX.csv").open()):
        lines = [text for text in (folder / entry["file"]).open() if not text.startswith("#")]
        ranks, nodes = int(entry["nranks"]), int(entry["nodes"])
        rows = [
            Exchange(entry["collective"], ranks, nodes, int(row["size_bytes"]), (float(row["time_us"]),))
            for row in csv.DictReader(lines)
        ]
        ours = Fabric("ours", fit_curves(rows[::2]), "")
        for kind, _, _, nbytes, (us,) in rows[1::2]:
            seen = predict(ours, kind, nbytes, ranks, nodes)
            misses.append(abs(seen.typical / us - 1))
            inside.append(seen.low <= us <= seen.high)
    assert np.exp(np.mean(np.log(np.maximum(misses, 1e-4)))) < 0.03
    assert np.mean(inside) > 0.75
