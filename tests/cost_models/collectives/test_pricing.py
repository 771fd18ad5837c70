from __future__ import annotations

import csv
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.cost_models.collectives.curves import fit_curves, time_at
from foretrace.cost_models.collectives.pricing import TRAFFIC, Range, assumptions, price_collective
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Fabric
from foretrace.platform.measurements.fabric import TimedCollective

SIZES = [4**power for power in range(3, 15)]


def predict(fabric: Fabric, kind: str, nbytes: int, ranks: int, nodes: int = 1) -> Range:
    """The price for a group that uses all of some nodes, evenly."""
    return price_collective(fabric, kind, nbytes, range(ranks), -(-ranks // nodes))


def line(size, latency=20.0, gbps=100.0):
    return latency + size / (1e3 * gbps)


def fabric(kind="all_reduce", ranks=8, nodes=1, sizes=SIZES, time=line):
    return Fabric(
        "ours", fit_curves(TimedCollective(kind, ranks, nodes, size, (time(size),)) for size in sizes), "made up"
    )


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
    rows = [TimedCollective("all_reduce", 2, 1, size, tuple(line(size) * noise.lognormal(0, 0.3, 5))) for size in SIZES]
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


@given(
    name=st.sampled_from(["h100-2x8-p5", "a100-8x-nvswitch", "v100-mesh", "v100-2x-pcie"]),
    kind=st.sampled_from([*TRAFFIC, "barrier"]),
    nbytes=st.integers(0, 2**40),
    first=st.integers(0, 64),
    ranks=st.integers(2, 300),
    stride=st.sampled_from([1, 2, 3, 8, 16]),
)
def test_so_has_every_group_on_shipped_fabrics(name, kind, nbytes, first, ranks, stride):
    members = range(first, first + ranks * stride, stride)
    low, typical, high = price_collective(Fabric.named(name), kind, nbytes, members)
    assert 0 < low <= typical <= high < math.inf


def test_a_group_inside_a_node_is_faster_than_one_across_and_that_than_one_that_shares_its_cards():
    h100 = Fabric.named("h100-2x8-p5")
    inside, across, strided = range(8), range(4, 12), range(0, 64, 8)
    times = [price_collective(h100, "all_gather", 2**28, group).typical for group in (inside, across, strided)]
    assert times == sorted(times)
    assert price_collective(h100, "all_gather", 2**28, range(8, 16)).typical == times[0], (
        "the second node is like the first"
    )


def test_rank_counts_between_measured_ones_are_between_them():
    ours = Fabric("ours", fabric(ranks=2).curves + fabric(ranks=8, time=lambda size: 4 * line(size)).curves, "")
    low, four, high = (predict(ours, "all_reduce", 2**28, ranks).typical for ranks in (2, 4, 8))
    assert low < four < high
    assert four == pytest.approx(math.sqrt(low * (3 / 4) / (1 / 2) * high * (3 / 4) / (7 / 8)), rel=0.02)


def test_measured_shapes_keep_their_times_where_links_are_known():
    h100 = Fabric.named("h100-8x")
    known, unlinked = predict(h100, "all_reduce", 2**26, 8), Fabric("bare", h100.curves, "")
    assert known == pytest.approx(predict(unlinked, "all_reduce", 2**26, 8))
    assert known.typical == pytest.approx(324.7, rel=0.03), "the published table"


def test_what_is_extrapolated_by_links_has_a_wider_range():
    h100 = Fabric.named("h100-8x")
    h100 = replace(h100, curves=tuple(one for one in h100.curves if (one.kind, one.ranks) == ("all_reduce", 8)))
    measured, other_ranks, other_kind = (
        predict(h100, kind, 2**26, ranks) for kind, ranks in (("all_reduce", 8), ("all_reduce", 4), ("all_gather", 8))
    )
    assert measured.high / measured.low < other_ranks.high / other_ranks.low < other_kind.high / other_kind.low


def test_sizes_below_those_measured_follow_the_links_with_a_wider_range():
    a100 = Fabric.named("a100-8x-nvswitch")
    large = tuple(replace(one, knots=tuple(knot for knot in one.knots if knot[0] >= 2**22)) for one in a100.curves)
    a100 = replace(a100, curves=tuple(one for one in large if one.knots))
    smallest = int(min(curve.knots[0][0] for curve in a100.curves if curve.kind == "all_to_all"))
    least, tiny = predict(a100, "all_to_all", smallest, 8), predict(a100, "all_to_all", 64, 8)
    assert tiny.typical < least.typical / 2
    assert tiny.high / tiny.low > 1.5 * least.high / least.low


def test_of_uneven_splits_the_busiest_rank_decides_and_parts_are_gathered_together():
    a100 = Fabric.named("a100-nvswitch")
    sizes = [2**20, 2**26, 2**20, 0]
    assert price_collective(a100, "all_to_all", sizes, range(4)) == price_collective(
        a100, "all_to_all", 2**26, range(4)
    )
    assert price_collective(a100, "all_gather", sizes, range(4)) == price_collective(
        a100, "all_gather", sum(sizes), range(4)
    )


def test_a_fabric_smaller_than_the_world_is_refused_or_its_assumption_is_stated():
    alone = fabric(ranks=8)
    with pytest.raises(ForetraceError, match=r"16 ranks are on 2 \(8 a node\)\. Take a fabric of several nodes"):
        assumptions(alone, 16)
    with pytest.raises(ForetraceError, match="was not measured between nodes"):
        price_collective(alone, "all_reduce", 64, range(16))
    assert "measured with up to 8 ranks: 16 are extrapolated" in assumptions(alone, 16, gpus_per_node=16)[0]
    assert price_collective(alone, "all_reduce", 64, range(16), gpus_per_node=16).typical > 0
    (said,) = assumptions(Fabric.named("h100-2x8-p5"), 64)
    assert "measured on up to 2 nodes: 8 are extrapolated by its links" in said
    (said,) = assumptions(Fabric.named("h100-8x"), 16)
    assert "measured on up to 1 node: 2 are extrapolated" in said
    assert assumptions(Fabric.named("h100-2x8-p5"), 16) == []


def test_a_fabric_of_which_only_two_nodes_were_measured_knows_its_node_by_its_links():
    bare = Fabric("bare", Fabric.named("h100-2x8-p5").curves, "")
    with pytest.raises(ForetraceError, match="fabric bare was not measured inside a node"):
        predict(bare, "all_reduce", 64, 8)
    assert predict(Fabric.named("h100-2x8-p5"), "all_reduce", 64, 8).typical > 0


def test_of_two_rank_counts_the_nearer_one_is_extrapolated_with_a_wider_range():
    ours = Fabric("ours", fabric(ranks=2).curves + fabric(ranks=8, time=lambda size: 2 * line(size)).curves, "")
    large = 2**30
    assert predict(ours, "all_reduce", large, 8).typical == pytest.approx(2 * line(large), rel=0.02)
    twelve = predict(ours, "all_reduce", large, 12)
    assert twelve.typical == pytest.approx(2 * line(large) * (11 / 12) / (7 / 8), rel=0.05)
    small, known = predict(ours, "all_reduce", 64, 64), predict(ours, "all_reduce", 64, 8)
    assert small.high / small.low > known.high / known.low


def test_a_kind_that_was_not_measured_is_extrapolated_by_its_traffic():
    large = 2**32
    gathered = predict(fabric(), "all_gather", large, 8)
    assert gathered.typical == pytest.approx(line(large) / 2, rel=0.02)
    assert gathered.low < gathered.typical / 1.5 and gathered.high > gathered.typical * 1.5


def test_alone_a_rank_exchanges_nothing():
    assert predict(fabric(), "all_reduce", 2**20, 1) == (0, 0, 0)


def test_a_fabric_inside_a_node_says_nothing_of_several():
    with pytest.raises(ForetraceError, match="fabric ours was not measured between nodes"):
        predict(fabric(), "all_reduce", 64, 16, nodes=2)


def test_an_unknown_collective_is_named():
    with pytest.raises(ForetraceError, match="no collective is called 'gossip'"):
        predict(fabric(), "gossip", 64, 8)


@pytest.mark.parametrize("sizes", [[1024], [1024, 4096]])
def test_few_sizes_make_a_curve_too(sizes):
    assert predict(fabric(sizes=sizes), "all_reduce", 1024, 8).typical == pytest.approx(line(1024), rel=0.05)


def test_times_that_do_not_grow_make_a_curve_too():
    assert predict(fabric(time=lambda size: 30.0), "all_reduce", 2**20, 8).typical == pytest.approx(30, rel=0.05)


def test_zeros_are_no_measurements():
    assert (
        fit_curves([TimedCollective("all_reduce", 2, 1, 0, (5.0,)), TimedCollective("all_reduce", 2, 1, 64, (0.0,))])
        == ()
    )


def test_published_tables_are_met_at_the_sizes_that_were_left_out(shared):
    folder, misses, inside = shared / "public" / "nccl", [], []
    for entry in csv.DictReader((folder / "INDEX.csv").open()):
        lines = [text for text in (folder / entry["file"]).open() if not text.startswith("#")]
        ranks, nodes = int(entry["nranks"]), int(entry["nodes"])
        rows = [
            TimedCollective(entry["collective"], ranks, nodes, int(row["size_bytes"]), (float(row["time_us"]),))
            for row in csv.DictReader(lines)
        ]
        ours = Fabric("ours", fit_curves(rows[::2]), "")
        for kind, _, _, nbytes, (us,) in rows[1::2]:
            seen = predict(ours, kind, nbytes, ranks, nodes)
            misses.append(abs(seen.typical / us - 1))
            inside.append(seen.low <= us <= seen.high)
    assert np.exp(np.mean(np.log(np.maximum(misses, 1e-4)))) < 0.03
    assert np.mean(inside) > 0.75


def test_small_messages_alone_show_no_endless_bandwidth():
    small = [
        TimedCollective("all_to_all", 8, 1, nbytes, (us,)) for nbytes, us in ((192, 8.0), (1536, 8.0), (24576, 11.0))
    ]
    (curve,) = fit_curves(small)
    assert time_at(curve, 24576) == pytest.approx(11.0, rel=0.05)
    assert time_at(curve, 24576 * 1000) > 2000.0
