from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.cost_models.collectives.topology import ROUTES, LinkConstants, Placement, link_time
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Links
from tests.narrowing import present


def test_ranks_that_share_a_node_are_counted_together():
    assert Placement.of([0, 1, 8, 9], gpus_per_node=8) == Placement(ranks=4, nodes=2, per_node=2, nic_share=0.25)


def test_the_fullest_node_decides():
    assert Placement.of([0, 1, 2, 8], gpus_per_node=4) == Placement(ranks=4, nodes=2, per_node=3, nic_share=0.75)


def test_a_rank_named_twice_is_one_rank():
    assert Placement.of([3, 3, 4], gpus_per_node=8).ranks == 2


def test_an_empty_group_has_no_ranks():
    assert Placement.of([], gpus_per_node=8).ranks == 0


def test_a_node_without_gpus_is_refused():
    with pytest.raises(ForetraceError, match="a node can't have 0 GPUs"):
        Placement.of([0], gpus_per_node=0)


PLAIN = LinkConstants(
    10.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1, "made up: latency and transfer add up, links reach their rates"
)
A100, H100, V100, PCIE = (Links.named(name) for name in ("a100-nvswitch", "h100-nvswitch", "v100-mesh", "v100-pcie"))
NODE, TWO_NODES = Placement.even(8), Placement.even(16, 2)
LARGE = 2**34


def gbps(links, kind, layout):
    """Bytes of the collective a nanosecond, where latency counts for nothing."""
    few, many = link_time(links, kind, np.array([LARGE, 2 * LARGE]), layout, PLAIN)
    return LARGE / 1e3 / (many - few)


def latency(links, kind, layout):
    return link_time(links, kind, 0, layout, PLAIN)


def test_a_ring_inside_a_node_moves_its_traffic_at_the_rate_of_the_links():
    assert gbps(A100, "all_reduce", NODE) == pytest.approx(300 / (2 * 7 / 8))
    assert gbps(A100, "all_gather", NODE) == gbps(A100, "reduce_scatter", NODE) == pytest.approx(300 / (7 / 8))
    assert gbps(A100, "broadcast", NODE) == pytest.approx(300)


def test_a_switch_that_adds_up_lets_every_byte_pass_once():
    assert gbps(H100, "all_reduce", NODE) == pytest.approx(450)


def test_between_nodes_the_slower_of_links_and_cards_counts():
    assert gbps(A100, "all_gather", TWO_NODES) == pytest.approx(200 / (15 / 16))
    one_card = replace(A100, network=replace(present(A100.network), nics=1))
    assert gbps(one_card, "all_gather", TWO_NODES) == pytest.approx(25 / (15 / 16))


def test_a_strided_group_has_the_cards_of_its_own_gpus():
    strided = Placement.of(range(0, 64, 8), 8)
    assert gbps(A100, "all_gather", strided) == pytest.approx(25 / (7 / 8))


def test_an_exchange_sends_all_that_is_for_other_nodes_through_the_cards():
    assert gbps(A100, "all_to_all", NODE) == pytest.approx(300 / (7 / 8))
    assert gbps(A100, "all_to_all", TWO_NODES) == pytest.approx(200 / (8 * 8 / 16))


def test_a_send_takes_a_link_or_a_share_of_the_cards():
    near, far = Placement.of([0, 1], 8), Placement.of([0, 8], 8)
    assert gbps(A100, "send", near) == pytest.approx(300)
    assert gbps(A100, "recv", far) == pytest.approx(25)


def test_two_gpus_of_a_mesh_have_the_links_between_them():
    assert gbps(V100, "broadcast", Placement.even(2)) == pytest.approx(50)
    assert gbps(V100, "broadcast", NODE) == pytest.approx(150)


def test_what_goes_through_host_memory_goes_twice():
    assert gbps(PCIE, "broadcast", Placement.even(2)) == pytest.approx(15.75 / 2)


def test_a_tree_of_nodes_keeps_small_messages_fast_where_a_ring_grows_with_the_nodes():
    few, many = Placement.even(16, 2), Placement.even(1024, 128)
    assert latency(A100, "all_gather", many) > 20 * latency(A100, "all_gather", few)
    assert latency(A100, "all_reduce", many) == pytest.approx(10 + 2 * 7 + 2 * 7 * 5)


def test_an_exchange_with_many_takes_turns():
    assert latency(A100, "all_to_all", Placement.even(64, 8)) == pytest.approx(10 + 1 + 7 * 5)


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("layout", [Placement.even(2), NODE, TWO_NODES, Placement.of(range(0, 64, 8), 8)])
def test_more_bytes_never_take_less(kind, layout):
    times = link_time(H100, kind, np.exp2(np.arange(40.0)), layout)
    assert (np.diff(times) >= 0).all() and times[0] > 0


def test_several_nodes_need_a_network():
    with pytest.raises(ForetraceError, match="h100-nvswitch has no network, and a group of 16 ranks lies on 2 nodes"):
        link_time(replace(H100, network=None), "all_reduce", 64, TWO_NODES)
