"""Widths of layers, hidden width and heads: compared with models of that width."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import bert
import dlrm
import gpt
import resnet
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.transforms.fusion.ddp_buckets import buckets
from foretrace.transforms.resize.width import ResizableHidden, heads, hidden, width
from tests.transforms.agreement import assert_same, sketched
from tests.transforms.parallel.steps import data_parallel


def test_the_next_layer_follows() -> None:
    assert_same(width(sketched(dlrm), 48, "top.0"), sketched(dlrm, top=(48, 16, 1)))
    assert_same(width(sketched(dlrm), 40, "DLRM.dense.bottom.0"), sketched(dlrm, bottom=(13, 40, 16)))


def test_the_optimizers_state_goes_with_its_weight() -> None:
    wider = width(sketched(gpt), 512, "blocks.0.mlp.0")
    (state,) = [op for op in wider.ops if op.name == "aten::_foreach_lerp_"][:1]
    assert sum(tensor.shape == (512, 64) for tensor in state.tensors) == 2 + 2  # the vocabulary is 512 too


def test_an_unknown_layer_is_refused_with_similar_names() -> None:
    with pytest.raises(ForetraceError, match=r"no linear layer 'top.9'"):
        width(sketched(dlrm), 48, "top.9")
    with pytest.raises(ForetraceError, match="names 2 layers"):
        width(sketched(gpt), 48, "mlp.0")


DATA = Tensor((64,), "float32", "cuda:0", (1,), id=100_000, storage=100_000)


@pytest.mark.parametrize("model", [gpt, bert])
def test_everything_as_wide_as_the_blocks_follows(model: ModuleType) -> None:
    # Batch, length and vocabulary are multiples of the width too, and stay.
    small: dict[str, Any] = {"layers": 2, "batch": 32, "seq": 32, "dim": 32, "vocabulary": 64}
    assert_same(hidden(sketched(model, **small), 48), sketched(model, **small | {"dim": 48}))


def test_casts_of_autocast_follow_and_what_was_found_once_serves_for_every_width() -> None:
    half = {"dtype": "bf16"}
    widths = ResizableHidden(sketched(gpt, options=half))
    for new in (32, 128):
        assert_same(widths.to(new), sketched(gpt, options=half, dim=new))


@pytest.mark.parametrize("model", [gpt, bert])
def test_the_same_width_is_shared_by_other_heads(model: ModuleType) -> None:
    assert_same(heads(sketched(model), 8), sketched(model, heads=8))


def test_of_a_model_without_blocks_the_layers_between_others_change() -> None:
    before = sketched(dlrm, bottom=(13, 32, 24, 16), top=(32, 16, 1))
    after = sketched(dlrm, bottom=(13, 48, 48, 16), top=(48, 48, 1))
    assert_same(hidden(before, 48), after)


def test_gradients_that_ranks_share_fill_other_buckets() -> None:
    shared = data_parallel(sketched(gpt), 4)
    assert_same(hidden(shared, 128), data_parallel(sketched(gpt, dim=128), 4))  # two buckets instead of one
    assert_same(heads(shared, 8), data_parallel(sketched(gpt, heads=8), 4))


def test_the_width_and_the_heads_that_a_step_has_leave_its_buckets_alone() -> None:
    small = buckets(data_parallel(sketched(gpt), 4), 0.01)
    assert_same(hidden(small, gpt.PRESETS["tiny"].dim), small)
    assert_same(heads(small, gpt.PRESETS["tiny"].heads), small)


def test_what_ranks_exchange_otherwise_is_refused_with_its_call() -> None:
    step = Graph(OpTable.of([Op("c10d::_allgather_base_", (DATA,), phase="forward"), *sketched(gpt).ops]))
    with pytest.raises(
        ForetraceError, match="call 0, c10d::_allgather_base_, communicates tensors whose size hidden changes"
    ):
        hidden(step, 128)


def test_a_width_that_heads_can_not_share_is_refused_with_those_that_can() -> None:
    with pytest.raises(ForetraceError, match=r"90 is not divisible by 4 heads.*88 and 92.*heads=2"):
        hidden(sketched(gpt), 90)
    with pytest.raises(ForetraceError, match=r"64 is not divisible by 12 heads.*8 and 16"):
        heads(sketched(gpt), 12)


def test_a_model_without_a_width_or_heads_says_so() -> None:
    with pytest.raises(ForetraceError, match="neither repeated blocks nor consecutive linear layers"):
        hidden(sketched(resnet, batch=2), 128)
    with pytest.raises(ForetraceError, match=r"no blocks with attention heads.*traces lack modules"):
        heads(sketched(dlrm), 4)
