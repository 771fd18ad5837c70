from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.calibration.timing.call import Call, overload_of
from foretrace.cost_models.kernels.families import DRAWN, HELD_OUT, case_number
from foretrace.graph import Constant, Tensor
from foretrace.graph.codec import from_lines, to_lines
from foretrace.platform.measurements.cases import strides
from tests.narrowing import instance, present

NOT_ON_META = (
    "aten::_unique2", "aten::nonzero", "aten::_fused_sgd_", "aten::_local_scalar_dense", "aten::_coalesce",
    "aten::bincount", "aten::_cudnn_rnn_backward", "aten::cudnn_grid_sampler", "aten::cudnn_grid_sampler_backward",
)  # fmt: skip
"""Calls whose output shapes depend on values, or that have no meta implementation."""

families = pytest.mark.parametrize("family", DRAWN)


def shapes_only(value):
    """The argument on the meta device."""
    if isinstance(value, Tensor):
        dtype = getattr(torch, value.dtype)
        if value.layout != "strided":
            return torch.sparse_coo_tensor(size=value.shape, dtype=dtype, device="meta", check_invariants=False)
        return torch.empty_strided(value.shape, value.stride or strides(value.shape), dtype=dtype, device="meta")
    if isinstance(value, Constant):
        return torch.device("meta") if value.kind == "device" else getattr(torch, value.value)
    return [shapes_only(item) for item in value] if isinstance(value, list) else value


@families
@settings(max_examples=15)
@given(number=st.integers(0, 10**6))
def test_every_case_for_the_cpu_runs_on_it(family, number):
    case = case_number(family, number, most=2**14, kind="cpu")
    with torch.no_grad():
        Call(case, torch.device("cpu"))()


@families
@settings(max_examples=15)
@given(number=st.integers(0, 10**6))
def test_every_case_for_a_gpu_is_a_call_that_pytorch_accepts(family, number):
    op = case_number(family, number, most=2**29, kind="cuda").op
    function = overload_of(op)
    if op.name not in NOT_ON_META:
        function(*map(shapes_only, op.args), **{name: shapes_only(value) for name, value in op.kwargs.items()})


@families
@settings(max_examples=25)
@given(number=st.integers(0, 10**6), most=st.sampled_from([2**16, 2**22, 2**29]))
def test_a_case_stays_within_what_it_may_hold(family, number, most):
    case = case_number(family, number, most, kind="cuda")
    # A table of rows may be larger than what flows through a step; the smallest convolutions cannot be shrunk further.
    allowed = 4 * most if family == "lookups" or most > 2**16 else 64 * most
    assert all(tensor.numel <= allowed for tensor in case.op.tensors)


@families
def test_a_case_is_written_and_read_without_loss(family):
    ops = [case_number(family, number, most=2**20, kind="cuda").op for number in range(20)]
    for op in ops:
        read = from_lines(to_lines([op]), "here")[0]
        assert read.name == op.name and read.overload == op.overload and read.tensors == op.tensors


@families
def test_the_same_number_is_the_same_case_and_another_one_mostly_another(family):
    first, again = ([case_number(family, n, 2**20, "cuda") for n in range(30)] for _ in range(2))
    assert first == again
    assert len({str(case) for case in first}) > 25


def test_gemms_come_in_all_layouts_dtypes_and_settings():
    cases = [case_number("matrix", n, 2**26, "cuda") for n in range(600)]
    products = [case for case in cases if case.op.name == "aten::mm" and case.op.overload == "default"]
    turned = {tuple(present(t.stride)[0] == 1 for t in case.op.tensors) for case in products}
    assert turned == {(False, False), (False, True), (True, False), (True, True)}
    dtypes = {"bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"}
    assert {case.op.tensors[0].dtype for case in cases} == dtypes
    assert {case.op.name for case in cases} > {"aten::_scaled_mm", "aten::_grouped_mm", "aten::addmm", "aten::bmm"}
    assert {case.tf32 for case in cases if case.op.tensors[0].dtype == "float32"} == {True, False}
    assert not any(case.tf32 for case in cases if case.op.tensors[0].dtype != "float32")


@families
def test_the_cases_held_out_are_other_ones(family):
    fitted = {str(case_number(family, n, 2**20, "cuda")) for n in range(60)}
    held = [str(case_number(family, n, 2**20, "cuda", HELD_OUT)) for n in range(60)]
    assert sum(case in fitted for case in held) < 12


def test_an_attention_is_followed_by_its_gradient():
    for number in range(0, 40, 2):
        forward, backward = (case_number("attention", number + turn, 2**26, "cuda").op for turn in (0, 1))
        assert backward.name == f"{forward.name}_backward"
        assert forward.tensors[:3] == backward.tensors[1:4]


def test_attention_comes_with_masks_shared_heads_other_lengths_and_packed_projections():
    cases = [case_number("attention", 2 * n, 2**26, "cuda").op for n in range(300)]
    queries, keys = ([op.tensors[place] for op in cases] for place in (0, 1))
    assert any(isinstance(op.args[3], Tensor) for op in cases)
    assert any(q.shape[1] > k.shape[1] for q, k in zip(queries, keys))
    assert any(q.shape[2] != k.shape[2] for q, k in zip(queries, keys))
    assert any(q.storage == k.storage and q.offset != k.offset for q, k in zip(queries, keys))


def test_convolutions_come_in_one_two_and_three_dimensions_deep_and_upward():
    ops = [case_number("convolutions", n, 2**24, "cuda").op for n in range(400)]
    weights = [op.tensors[1 if op.name == "aten::convolution" else 2] for op in ops]
    assert {len(weight.shape) for weight in weights} == {3, 4, 5}
    assert any(weight.shape[1] == 1 and weight.shape[0] > 8 for weight in weights)
    assert any(op.args[6] is True for op in ops if op.name == "aten::convolution")
    assert {tuple(instance(list, op.args[-1])) for op in ops if op.name != "aten::convolution"} >= {
        (True, True, True), (True, True, False), (False, True, False), (False, True, True),
    }  # fmt: skip
