from __future__ import annotations

import pytest

from foretrace.cost_models.collectives.topology import Layout
from foretrace.graph import ForetraceError


def test_ranks_that_share_a_node_are_counted_together():
    assert Layout.of([0, 1, 8, 9], gpus_per_node=8) == Layout(ranks=4, nodes=2, per_node=2, cards=0.25)


def test_the_fullest_node_decides():
    assert Layout.of([0, 1, 2, 8], gpus_per_node=4) == Layout(ranks=4, nodes=2, per_node=3, cards=0.75)


def test_a_rank_named_twice_is_one_rank():
    assert Layout.of([3, 3, 4], gpus_per_node=8).ranks == 2


def test_nobody_is_no_group():
    assert Layout.of([], gpus_per_node=8).ranks == 0


def test_a_node_without_gpus_is_refused():
    with pytest.raises(ForetraceError, match="a node can't have 0 GPUs"):
        Layout.of([0], gpus_per_node=0)
