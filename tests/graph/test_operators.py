"""Operators that synchronize with the device, and that launch nothing."""

from __future__ import annotations

import pytest

from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.operators import launches_nothing, waits_for_device

CPU, GPU = Tensor((4,), "float32", "cpu"), Tensor((4,), "float32", "cuda:0")
MASK = Tensor((4,), "bool", "cuda:0")


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Op("aten::_local_scalar_dense", (GPU,)), True),
        (Op("aten::_local_scalar_dense", (CPU,)), False),
        (Op("aten::nonzero", (GPU,)), True),
        (Op("aten::_to_copy", (GPU,), {"device": Constant("device", "cpu")}, (CPU,)), True),
        (Op("aten::_to_copy", (CPU,), {"non_blocking": True}, (GPU,)), False),
        (Op("aten::_to_copy", (GPU,), {"dtype": Constant("dtype", "bfloat16")}, (GPU,)), False),
        (Op("aten::copy_", (GPU, CPU)), True),
        (Op("aten::copy_", (GPU, CPU, True)), False),
        (Op("aten::copy_", (GPU, GPU)), False),
        (Op("aten::_to_copy", (Tensor((0,), "float32", "cpu"),), outputs=(GPU,)), False),
        (Op("aten::index", (GPU, [MASK])), True),
        (Op("aten::index", (MASK, [Tensor((2,), "int64", "cuda:0")])), False),
        (Op("aten::mm", (GPU, GPU)), False),
    ],
)
def test_calls_that_need_a_value_or_a_copy_wait_for_the_device(op: Op, expected: bool) -> None:
    assert waits_for_device(op) is expected


X = Tensor((8,), "float32", "cuda:0")


@pytest.mark.parametrize(
    "name", ["aten::view", "aten::t", "aten::empty", "aten::detach", "c10d::allreduce_", "cuda::event_record"]
)
def test_views_empty_memory_and_steering_launch_nothing(name):
    assert launches_nothing(Op(name, (X,)), "cuda")


def test_a_call_on_the_device_launches():
    assert not launches_nothing(Op("aten::relu", (X,)), "cuda")


def test_a_call_on_the_host_launches_on_a_cpu_only():
    host = Tensor((8,), "float32", "cpu")
    assert launches_nothing(Op("aten::relu", (host,)), "cuda")
    assert not launches_nothing(Op("aten::relu", (host,)), "cpu")


def test_nothing_to_do_launches_nothing():
    assert launches_nothing(Op("aten::relu", (Tensor((0, 8), "float32", "cuda:0"),)), "cuda")


def test_a_sparse_operand_is_something_to_do():
    assert not launches_nothing(Op("aten::add_", (X, Tensor((8,), "float32", "cuda:0", layout="sparse_coo"))), "cuda")


def test_a_copy_from_the_host_is_something_to_do():
    host = Tensor((8,), "float32", "cpu")
    assert not launches_nothing(Op("aten::_to_copy", (host,), outputs=(X,)), "cuda")
