"""Graphs as recordings of the same step would be; what a profiler's trace leaves out of its calls is deduced."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.analysis.dispatched import (
    deduce_copied_memory,
    deduce_list_dtypes,
    dispatched_calls,
    rename_old_gradients,
    uses_tf32,
)
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Constant, ForetraceError, Graph, Indices, Names, Op, OpTable, Tensor
from foretrace.graph.tables import ANNOTATION, COMPUTE, NODE, KernelTable
from foretrace.platform.platform import Platform
from tests.analysis.builders import Call, Orphan, all_reduce, launch, rank


def test_kernels_and_runtime_calls_belong_to_the_dispatcher_call_around_them() -> None:
    graph = rank(
        Call("aten::linear", 0, 20),
        Call("aten::addmm", 1, 19),
        Call("aten::empty", 2, 8),
        launch(10, 11, (12, 30)),
        Call("aten::relu", 30, 40),
        launch(35, 36, (40, 50)),
    )
    step = dispatched_calls(graph)
    assert [op.name for op in step.calls.ops] == ["aten::addmm", "aten::relu"]
    assert step.rows.tolist() == [1, 3]
    assert step.calls.kernels.op.tolist() == [0, 1] == step.calls.calls.op.tolist()


def test_a_call_knows_the_autograd_node_around_it() -> None:
    graph = rank(Call("AddmmBackward0", 0, 20, kind=NODE), Call("aten::mm", 1, 9), Call("aten::mm", 30, 40))
    assert [op.node for op in dispatched_calls(graph).calls.ops] == ["AddmmBackward0", ""]


def test_index_statistics_go_with_their_op() -> None:
    ops = OpTable.of([Op("aten::embedding_bag"), Op("aten::_embedding_bag", parent=0)])
    graph = Graph(ops, indices=[Indices(op=1, rows=10, count=4, unique=2, bags=4, reuse=(0, 2))])
    assert dispatched_calls(graph).calls.indices[0].op == 0


def test_a_kernel_whose_launch_is_not_in_the_trace_is_nobodys() -> None:
    step = dispatched_calls(rank(Call("aten::mm", 0, 5), Orphan(12, 30)))
    assert step.calls.kernels.op.tolist() == [-1]


def test_what_is_launched_outside_of_any_call_is_a_call_of_its_own() -> None:
    graph = rank(
        Call("aten::add", 0, 2),
        Call("ProfilerStep#1", 3, 100, kind=ANNOTATION),
        Call("aten::mm", 5, 10),
        launch(6, 7, (8, 9), name="gemm"),
        launch(20, 21, (22, 30), name="matmul_k"),
        Call("aten::relu", 40, 50),
        launch(200, 201, (202, 230), name="fill"),
    )
    step = dispatched_calls(graph)
    assert [op.name for op in step.calls.ops] == ["aten::add", "aten::mm", "matmul_k", "aten::relu", "fill"]
    assert step.calls.kernels.op.tolist() == step.calls.calls.op.tolist() == [1, 2, 4]
    assert (step.calls.ops[2].start_us, step.calls.ops[2].end_us) == (20, 21)
    assert step.rows.tolist() == [0, 2, 2, 3, 3]


def test_the_kernels_of_a_cuda_graph_are_of_the_call_that_launches_it() -> None:
    graph = rank(Call("aten::mm", 0, 5), launch(10, 11, (12, 30)), launch(40, 41, (42, 50)))
    graph.calls.names.items[:] = ["cudaGraphLaunch"]
    graph.kernels.call[:] = 0
    step = dispatched_calls(graph)
    assert [op.name for op in step.calls.ops] == ["aten::mm", "cudaGraphLaunch"]
    assert step.calls.kernels.op.tolist() == [1, 1]


def test_a_number_that_a_trace_shows_as_a_tensor_is_a_number_again() -> None:
    x, half = Tensor((4,), "float32", "cuda:0"), Tensor((), "float64", "cpu")
    ops = [Op("aten::linear"), Op("aten::mul", (x, half), parent=0), Op("aten::_local_scalar_dense", (half,), parent=0)]
    calls = dispatched_calls(Graph(OpTable.of(ops))).calls
    assert calls.ops[0].args == (x, 1.0) and calls.ops[1].args == (half,)


def test_an_op_inside_a_later_one_is_refused_with_the_names_of_both() -> None:
    ops = OpTable.of([Op("aten::mm"), Op("aten::linear")])
    ops.parent = np.array([1, -1], np.int32)
    with pytest.raises(ForetraceError, match=r"op 0 \(aten::mm\) is inside op 1 \(aten::linear\)"):
        dispatched_calls(Graph(ops))


def test_ops_inside_each_other_are_refused() -> None:
    ops = OpTable.of([Op("aten::mm"), Op("aten::linear")])
    ops.parent = np.array([1, 0], np.int32)
    with pytest.raises(ForetraceError, match="does not come before it"):
        dispatched_calls(Graph(ops))


def test_a_collective_in_a_graph_is_issued_by_the_call_that_launches_it() -> None:
    step_mark, call = Call("ProfilerStep#1", 0, 100, kind=ANNOTATION), Call("aten::mm", 1, 5)
    step = dispatched_calls(rank(step_mark, call, all_reduce(10, 12, (20, 40))))
    assert [op.name for op in step.calls.ops] == ["aten::mm", "nccl"]
    assert [(one.op, one.kernel) for one in step.calls.collectives] == [(1, 0)]


def kernels(*launched: tuple[str, int]) -> KernelTable:
    """Kernels by their names, and the rows of the calls that launched them."""
    count = len(launched)
    zeros, names = np.zeros(count), Names([""])
    codes = np.array([names.code(name) for name, _ in launched], np.int32)
    numbers, longs = np.zeros(count, np.int32), np.zeros(count, np.int64)
    return KernelTable(
        codes, zeros, zeros + 1, numbers, np.full(count, COMPUTE, np.int8), numbers - 1,
        np.array([row for _, row in launched], np.int32), longs, longs, longs, names,
    )  # fmt: skip


def test_tensors_of_a_list_are_like_the_last_ones_of_their_shape():
    view = Tensor((8, 32), "bfloat16", stride=(64, 1))
    ids = Op("aten::add", (Tensor((4,), "int64"), 1))
    joined = Op("aten::cat", ([Tensor((8, 32), ""), Tensor((8, 16), "")], -1))
    calls = [Op("aten::neg", (view,)), ids, joined]
    deduce_list_dtypes(calls)
    assert [(each.dtype, each.stride) for each in joined.tensors] == [("bfloat16", (64, 1)), ("bfloat16", None)]
    assert ids.tensors[0].dtype == "int64"


def test_a_trace_without_lists_stays_as_it_is():
    call = Op("aten::neg", (Tensor((8,), ""),))
    deduce_list_dtypes([call])
    assert call.tensors[0].dtype == ""


def test_a_copy_from_the_host_is_known_by_its_kernel():
    rows = Tensor((1 << 20,), "float32")
    to, back, inside = (
        Op("aten::_to_copy", (rows,)),
        Op("aten::copy_", (rows, rows, False)),
        Op("aten::_to_copy", (rows,)),
    )
    device = kernels(("Memcpy HtoD (Pinned -> Device)", 0), ("Memcpy DtoH (Device -> Pageable)", 1), ("cast", 2))
    deduce_copied_memory([to, back, inside], device)
    assert to.tensors[0].device == "cpu" and to.kwargs["device"] == Constant("device", "cuda:0")
    assert [each.device for each in back.tensors] == ["cpu", "cuda:0"] and back.args[2] is False
    assert inside.tensors[0].device == "" and not inside.kwargs
    graph = Graph(OpTable.of([to, inside]))
    costs = price_kernels(graph, np.arange(2, dtype=np.int32), Platform.named("h200"))
    link, memory = np.bincount(costs.op, costs.typical, 2)
    assert link > 5 * memory


def test_a_copy_of_a_trace_without_shapes_stays_as_it_is():
    calls = [Op("aten::_to_copy"), Op("aten::copy_"), Op("aten::copy_", (Tensor((8,), "float32"),))]
    deduce_copied_memory(calls, kernels(*(("Memcpy HtoD (Pageable -> Device)", row) for row in range(3))))
    assert [call.args for call in calls] == [(), (), (Tensor((8,), "float32"),)]


def test_tf32_is_seen_in_the_kernels_of_float32_gemms_alone():
    single, half = (Op("aten::mm", (Tensor((64, 64), dtype),) * 2) for dtype in ("float32", "bfloat16"))
    rounding = "ampere_sgemm_tf32_128x128"
    assert uses_tf32([single, half], kernels((rounding, 0)))
    assert not uses_tf32([single, half], kernels(("ampere_s16816gemm_bf16", 1), ("ampere_sgemm_64x64", 0)))


def test_a_step_of_deduced_precision_keeps_what_its_recording_says():
    graph = Graph(
        OpTable.of([Op("aten::mm", (Tensor((64, 64), "float32"),) * 2)]), settings={"matmul_precision": "highest"}
    )
    graph.kernels = kernels(("tf32", 0))
    assert dispatched_calls(graph).calls.settings == {"matmul_precision": "highest"}
    graph.settings = {}
    assert dispatched_calls(graph).calls.tf32.gemms


def test_a_convolution_of_an_old_trace_has_the_sizes_that_its_gradient_tells():
    x, grad, weight = (Tensor(shape, "float32") for shape in ((8, 16, 14, 14), (8, 32, 7, 7), (32, 16, 3, 3)))
    unknown = Constant("object", "GenericList")
    forward = Op("aten::convolution", (x, weight, None, unknown, unknown, unknown, True, unknown, 1))
    other = Op("aten::convolution", (grad, weight, None, unknown, unknown, unknown, True, unknown, 1))
    backward = Op(
        "aten::cudnn_convolution_backward", (x, grad, weight, unknown, unknown, unknown, 1, False, False, True)
    )
    rename_old_gradients([forward, other, backward])
    assert forward.args[3:7] == ([2, 2], [1, 1], unknown, False)
    assert other.args[3] is unknown
    assert backward.name == "aten::convolution_backward" and backward.args[0] is grad
