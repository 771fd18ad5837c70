from __future__ import annotations

import pytest
import torch

from foretrace.calibration.timing.call import Call, resolve_overload
from foretrace.calibration.timing.timer import time_cases
from foretrace.graph import Constant, ForetraceError, Op, Tensor
from foretrace.platform.measurements.cases import Case, Ids

CPU = torch.device("cpu")
F = "float32"


def call(name, *args, overload="default", ids=None, **kwargs):
    return Call(Case(Op(name, args, kwargs, overload=overload), ids=ids), CPU)


def test_tensors_have_the_shape_stride_dtype_and_offset_described():
    made = call(
        "aten::mm", Tensor((4, 6), "bfloat16", stride=(1, 4)), Tensor((6, 8), "bfloat16", stride=(16, 1), offset=3)
    )
    first, second = made["self"], made["mat2"]
    assert first.stride() == (1, 4) and first.dtype == torch.bfloat16
    assert second.shape == (6, 8) and second.stride() == (16, 1) and second.storage_offset() == 3


def test_tensors_of_one_storage_share_memory_and_others_do_not():
    shape = (2, 3, 4)
    a = Tensor(shape, F, stride=(12, 4, 1), storage=0)
    turned = Tensor((2, 4, 3), F, stride=(12, 1, 4), storage=0)
    made = call("aten::bmm", a, turned)
    assert torch.equal(made["mat2"], made["self"].transpose(1, 2))
    apart = call("aten::add", Tensor((8,), F), Tensor((8,), F), overload="Tensor")
    assert apart["self"].data_ptr() != apart["other"].data_ptr()


def test_words_become_those_of_pytorch():
    made = call(
        "aten::_to_copy", Tensor((3,), F), dtype=Constant("dtype", "float16"), device=Constant("device", "cuda:0")
    )
    assert made().dtype == torch.float16 and made().device == CPU


def test_an_op_that_this_pytorch_lacks_is_named():
    with pytest.raises(ForetraceError, match=r"has no aten::no_such_thing.default"):
        call("aten::no_such_thing")


def test_a_bag_s_ids_lie_in_its_table_and_its_offsets_are_in_order():
    args = (Tensor((50, 4), F), Tensor((60,), "int64"), Tensor((20,), "int64"), False, 0, True, None)
    made = call("aten::_embedding_bag", *args, ids=Ids(60, skew=1.0))
    assert made["offsets"].tolist() == list(range(0, 60, 3))
    assert int(made["indices"].max()) < 50
    assert made.indices.rows == 50 and made.indices.bags == 20 and made.indices.count == 60
    assert made()[0].shape == (20, 4)


def test_a_bag_s_gradient_gets_what_the_forward_would_have_left():
    ids, bags = Tensor((60,), "int64"), Tensor((20,), "int64")
    args = (Tensor((20, 4), F), ids, bags, ids, bags, Tensor((0,), "int64"), 50, False, 0, False, None)
    made = call("aten::_embedding_bag_backward", *args)
    table = torch.zeros(50, 4)
    result = torch.ops.aten._embedding_bag.default(table, made["indices"], made["offsets"])
    assert torch.equal(made["offset2bag"], torch.arange(20).repeat_interleave(3))
    assert torch.equal(made["bag_size"], torch.full((20,), 3))
    expected = torch.zeros(50, 4).index_add_(0, made["indices"], made["grad"][made["offset2bag"]])
    assert torch.allclose(made(), expected, atol=1e-5)
    assert result[0].shape == (20, 4)


def test_a_layer_norm_s_gradient_gets_the_mean_and_deviation_of_its_input():
    rows, weight = Tensor((6, 1), F), Tensor((32,), F)
    x = Tensor((6, 32), F)
    made = call("aten::native_layer_norm_backward", x, x, [32], rows, rows, weight, weight, [True, True, True])
    assert torch.allclose(made["mean"], made["input"].mean(1, keepdim=True), atol=1e-5)
    assert torch.allclose(made["rstd"], made["input"].var(1, keepdim=True, correction=0).rsqrt(), atol=1e-3)


def test_an_attention_s_gradient_is_the_one_autograd_computes():
    shape = (2, 3, 16, 8)
    x, sums = Tensor(shape, F), Tensor((2, 3, 16), F)
    made = call("aten::_scaled_dot_product_flash_attention_for_cpu_backward", x, x, x, x, x, sums, 0.0, True, scale=0.3)
    inputs = [made[name].clone().requires_grad_() for name in ("query", "key", "value")]
    out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True, scale=0.3)
    expected = torch.autograd.grad(out, inputs, made["grad_out"])
    for mine, theirs in zip(made(), expected):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_a_pool_s_gradient_goes_to_where_the_largest_elements_were():
    x, small = Tensor((1, 2, 8, 8), F), (1, 2, 4, 4)
    window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    made = call("aten::max_pool2d_with_indices_backward", Tensor(small, F), x, *window, Tensor(small, "int64"))
    assert len(made["indices"].unique()) > 4
    assert made().count_nonzero() == 32


def test_a_sparse_update_has_a_row_for_each_id():
    table, grad = Tensor((100, 8), F), Tensor((100, 8), F, layout="sparse_coo")
    made = call("aten::add_", table, grad, overload="Tensor", ids=Ids(40, skew=1.0), alpha=-0.1)
    assert made["other"]._nnz() == 40
    before = made["self"].clone()
    made()
    assert torch.allclose(made["self"], before - 0.1 * made["other"].to_dense(), atol=1e-5)


def test_a_dropout_s_mask_keeps_as_many_as_its_scale_says():
    made = call("aten::native_dropout_backward", Tensor((10_000,), F), Tensor((10_000,), "bool"), 1 / 0.9)
    assert made["mask"].float().mean() == pytest.approx(0.9, abs=0.03)


X = Tensor((4, 4), "float32")
UNSAID = Constant("object", "Scalar")


@pytest.mark.parametrize(
    ("op", "overload"),
    [
        (Op("aten::add", (X, X, UNSAID)), "Tensor"),
        (Op("aten::add_", (X, 1.5, 1)), "Scalar"),
        (Op("aten::mean", (X, [-1], True, None)), "dim"),
        (Op("aten::mean", (X, None)), "default"),
        (Op("aten::sum", (X, None, False, None)), "dim_IntList"),
        (Op("aten::gelu", (X, None)), "default"),
        (Op("aten::_to_copy", (X, 5, None, "cuda:0", UNSAID, False, None)), "default"),
        (Op("aten::clamp", (X, Constant("float", "-inf"), 1)), "default"),
        (Op("aten::index", (X, [None, Tensor((2,), "int64")])), "Tensor"),
    ],
)
def test_a_call_of_a_profiler_finds_its_overload_and_runs(op, overload):
    assert resolve_overload(op).overload == overload
    Call(Case(op), torch.device("cpu"))()


def test_arguments_by_name_are_taken_out_of_the_row():
    made = resolve_overload(Op("aten::_to_copy", (X, 5, None, "cuda:0", UNSAID, False, None)))
    assert made.args == (X,) and made.kwargs == {"dtype": 5, "non_blocking": False}


@pytest.mark.parametrize(
    "op",
    [
        Op("aten::gather", (X, UNSAID, Tensor((4,), "int64"), False)),  # along which dimension?
        Op("fb::offsets_range", (X,)),
        Op("aten::no_such_thing", (X,)),
        Op("aten::from_file", ("/tmp/x", True, 10)),
        Op("nccl:all_to_all", (X,)),
        Op("aten::cat", ([Tensor((2,), ""), Tensor((2,), "")], 0)),
    ],
)
def test_what_can_t_be_made_of_a_trace_fails_alone(op):
    with pytest.raises(ForetraceError):
        Call(Case(op), torch.device("cpu"))
    (failed,) = time_cases([Case(op)], torch.device("cpu"))
    assert failed.error and not failed.cold


def test_a_recording_can_not_make_it_open_files(tmp_path):
    path = tmp_path / "made"
    op = Op("aten::from_file", (str(path), True, 10), overload="default")
    (failed,) = time_cases([Case(op)], torch.device("cpu"))
    assert "is not an operator that a trace may name" in failed.error and not path.exists()
