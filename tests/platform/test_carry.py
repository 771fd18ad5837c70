from __future__ import annotations

import pytest

from foretrace.platform.carry import Carry, Constants
from foretrace.platform.device import Device
from foretrace.platform.folder import machines

H200 = Device.named("h200")


@pytest.mark.parametrize("name", machines())
def test_every_described_gpu_can_be_carried_over_to(name):
    carry = Carry.over(H200, Device.named(name))
    assert carry.source == H200
    assert 0.2 < carry.products <= 1.0 and 0.8 < carry.plain < 1.5 and 0.5 < carry.start < 6.0


def test_a_gpu_of_the_same_kind_reaches_the_same_shares():
    carry = Carry.over(H200, Device.named("h100"))
    assert (carry.products, carry.plain, carry.memory) == (1.0, 1.0, 1.0)


def test_a_board_that_may_draw_little_does_not_hold_its_clock():
    assert Carry.over(H200, Device.named("l4")).products < 0.7
    assert Carry.over(H200, Device.named("v100")).products == 1.0


def test_half_as_many_lanes_are_easier_to_feed():
    known = Constants(1.2, 2.8, 0.7, 1.0, 3.0, 0.2, 0.3, "made up")
    assert Carry.over(H200, Device.named("v100"), known).plain == 1.2
    other = Carry.over(H200, Device.named("mi210"), known)
    assert (other.products, other.spread) == (0.7, 0.3)
