"""What a profiler's trace leaves out of its calls, deduced from the rest of it."""

from __future__ import annotations

import numpy as np

from foretrace.analysis.deduced import deduce_copied_memory, deduce_list_dtypes, rename_old_gradients, uses_tf32
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Constant, Graph, Names, Op, OpTable, Tensor
from foretrace.graph.tables import COMPUTE, KernelTable
from foretrace.platform.platform import Platform


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
