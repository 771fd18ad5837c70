"""Graphs as recordings of the same step would be."""

import numpy as np
import pytest

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.graph import ForetraceError, Graph, Indices, Op, OpTable, Tensor
from foretrace.graph.tables import ANNOTATION, NODE
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
