"""More and fewer blocks: compared with models of that depth."""

from __future__ import annotations

import pytest

import dlrm
import gpt
from foretrace.graph import ForetraceError
from foretrace.transforms.blocks import repeated_blocks
from foretrace.transforms.structure.depth import depth
from tests.transforms.agreement import assert_same, calls, sketched


def test_new_blocks_have_weights_of_their_own_that_are_trained() -> None:
    assert_same(depth(sketched(gpt), 4), sketched(gpt, layers=4))


def test_many_blocks_at_once_are_those_that_one_after_the_other_would_be() -> None:
    made = depth(sketched(gpt, layers=4), 7)  # two at once, then one
    assert_same(made, sketched(gpt, layers=7))
    assert {f"GPT.blocks.{number}" for number in range(7)} == set(repeated_blocks(list(made.ops)))


def test_an_optimizer_that_goes_weight_by_weight_goes_through_the_new_ones_too() -> None:
    loop = {"optimizer": "loop"}
    assert_same(depth(sketched(gpt, options=loop), 3), sketched(gpt, options=loop, layers=3))


def test_neighbours_of_a_removed_block_are_connected() -> None:
    assert_same(depth(sketched(gpt, layers=4), 2), sketched(gpt))


def test_casts_of_autocast_are_made_for_new_weights() -> None:
    half = {"dtype": "bf16"}
    assert calls(depth(sketched(gpt, options=half), 3)) == calls(sketched(gpt, options=half, layers=3))


def test_a_depth_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ForetraceError, match="The minimum is 2"):
        depth(sketched(gpt), 1)
    with pytest.raises(ForetraceError, match=r"can't be 999,999,999. The maximum is 1,000"):
        depth(sketched(gpt), 999_999_999)
    with pytest.raises(ForetraceError, match="depth can't be 0"):
        depth(sketched(gpt), 0)


def test_layers_of_different_sizes_are_no_blocks() -> None:
    with pytest.raises(ForetraceError, match=r"no repeated blocks|no two adjacent blocks"):
        depth(sketched(dlrm), 5)
