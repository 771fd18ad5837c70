import pytest

from foretrace.graph import Op, Tensor
from foretrace.graph.operators import launches_nothing

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
