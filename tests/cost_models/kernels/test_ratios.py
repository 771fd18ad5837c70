"""Ratios of kernel times between GPUs, fitted on published tables."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.ratios import RatioModel, attention, linear, ratios_of, reference_of
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.platform.device import Device
from foretrace.platform.hypothetical import RATIOS
from foretrace.platform.platform import Platform
from tests.narrowing import present


def us(op: Op, on: str) -> float:
    return float(price_kernels(Graph(OpTable.of([op])), np.zeros(1, np.int32), Platform.named(on)).typical.sum())


def weight_gradient(rows: int, width: int) -> Op:
    grad = Tensor((width, rows), "bfloat16", "cuda:0", stride=(1, width))
    return Op("aten::mm", (grad, Tensor((rows, width), "bfloat16", "cuda:0")), overload="default")


def test_other_layouts_have_the_ratio_of_the_linear_layer_of_their_size():
    gradient, layer = weight_gradient(4096, 2048), linear(2048, 2048, 4096)
    assert us(gradient, "b200") / us(gradient, "h200") == pytest.approx(us(layer, "b200") / us(layer, "h200"))


def test_backward_of_an_attention_refers_to_its_forward():
    q = Tensor((2, 8, 512, 64), "bfloat16", "cuda:0")
    sums, none = Tensor((2, 8, 512), "float32", "cuda:0"), None
    args = (q, q, q, q, q, sums, none, none, 512, 512, 0.0, True)
    kinds = reference_of(Op("aten::_scaled_dot_product_flash_attention_backward", args))
    assert [kind for kind, _ in kinds] == ["flash", "attention"]
    assert kinds[0].op.args[4] is True and kinds[0].op.name.endswith("flash_attention")


def test_what_no_table_has_is_left_to_the_descriptions():
    single = linear(512, 512, 512, "float32")
    assert reference_of(single) == []
    assert len(ratios_of([single, linear(512, 512, 512)], RATIOS / "l40s", Device.named("l40s")).place) == 1


def test_sizes_that_no_table_has_for_their_alignment_are_left_to_the_descriptions():
    assert reference_of(linear(5185, 64, 1024)) and not reference_of(linear(64, 5185, 1024))
    assert not reference_of(linear(64, 1024, 5185))


def test_gemms_of_an_older_cublas_take_longer_on_hopper():
    layer = Graph(OpTable.of([linear(8192, 4096, 4096)]))

    def us_with(cuda: int, on: str) -> float:
        return float(
            price_kernels(replace(layer, cuda_runtime=cuda), np.zeros(1, np.int32), Platform.named(on)).typical.sum()
        )

    assert us_with(12010, "h100") > 1.05 * us_with(12080, "h100") == us_with(0, "h100") * 1.05
    assert us_with(12010, "b200") == us_with(12080, "b200")


def test_attention_of_flash_attention_2_is_known_where_it_was_measured():
    shape = (4, 32, 2048, 128)
    flash, other = (attention(style, shape, shape, causal=True) for style in ("flash", "cudnn"))
    assert us(flash, "a100") == pytest.approx(1016, rel=0.05), "the published table"
    assert us(other, "a100") == us(flash, "a100"), "there is no other"
    assert us(other, "b200") < 0.8 * us(other, "h200"), "by one harness on both"


@pytest.mark.parametrize("gpu", ["a100", "h100", "b200", "gb200", "l40s"])
def test_a_large_gemm_stays_below_the_peak_and_its_range_holds_it(gpu):
    costs = price_kernels(Graph(OpTable.of([linear(8192, 8192, 8192)])), np.zeros(1, np.int32), Platform.named(gpu))
    peak = Device.named(gpu).peak("bfloat16")
    assert 0.4 * peak < 2 * 8192**3 / costs.typical.sum() / 1e6 < 1.02 * peak
    assert costs.low.sum() < costs.typical.sum() < costs.high.sum() < 1.7 * costs.low.sum()


def test_a_gpu_that_nobody_measured_is_scaled_from_the_nearest_one_with_tables():
    gemm = linear(4096, 4096, 4096)
    assert us(gemm, "b300") == pytest.approx(us(gemm, "b200"), rel=0.1)
    assert us(gemm, "rtx-pro-6000") < 0.8 * us(gemm, "l40s")


def test_kinds_that_a_gpus_own_tables_lack_are_taken_from_those_of_its_chip():
    own, shape = linear(4096, 4096, 4096), (4, 32, 2048, 128)
    heads, eight_bits = attention("cudnn", shape, shape, causal=True), linear(8192, 8192, 8192, "float8_e4m3fn")
    assert us(own, "gb200") != us(own, "b200"), "a table of its own"
    for call in (heads, eight_bits):
        assert us(call, "gb200") == pytest.approx(us(call, "b200"), rel=0.1)
        assert us(call, "gb300") == pytest.approx(us(call, "gb200"), rel=0.1)
    tables = present(present(Platform.named("gb200").cross_device).tables).kinds
    assert ", of b200" in tables["attention"].table and ", of " not in tables["bf16"].table


def test_calls_that_no_table_of_a_gpu_has_are_in_ranges_as_wide_as_gpus_differ():
    rows = Tensor((4096, 4096), "bfloat16", "cuda:0")
    added = Graph(OpTable.of([Op("aten::add", (rows, rows), overload="Tensor")]))
    here, there = (price_kernels(added, np.zeros(1, np.int32), Platform.named(gpu)) for gpu in ("h200", "h100"))
    assert there.high.sum() / there.low.sum() > 1.25 * here.high.sum() / here.low.sum()


def test_a_hypothetical_gpu_is_scaled_from_the_fitted_one():
    gemm = linear(8192, 8192, 8192)
    assert 0.5 * us(gemm, "h100") <= us(gemm, "h100:compute=2") < 0.65 * us(gemm, "h100")


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "bf16.npz"
    shutil.copy(RATIOS / "h100" / "fp8.npz", path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ForetraceError, match=r"bf16.npz is no fitted model"):
        RatioModel.read(path)
