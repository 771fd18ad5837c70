from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import foretrace as ft
from foretrace.cost_models.kernels.cross_device import CallRoofline, achieved_rates, scale_factors, scaling_notes
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.ratios import attention, grouped_linear
from foretrace.graph import Graph, Op, OpTable, Storage, Tensor, Tf32
from foretrace.platform.device import Device
from foretrace.platform.hypothetical import CrossDeviceScaling
from foretrace.platform.platform import Platform
from tests.narrowing import present

H200 = Platform.named("h200")


def product(side: int, dtype: str = "bfloat16", rows: int | None = None) -> Op:
    left, right = (Tensor((rows or side, side), dtype, "cuda:0"), Tensor((side, side), dtype, "cuda:0"))
    return Op("aten::mm", (left, right), outputs=(left,))


def addition(elements: int) -> Op:
    numbers = Tensor((elements,), "float32", "cuda:0")
    return Op("aten::add", (numbers, numbers), outputs=(numbers,))


def us(op: Op, platform: Platform) -> float:
    return float(price_kernels(Graph(OpTable.of([op])), np.zeros(1, np.int32), platform).typical.sum())


def test_a_large_gemm_scales_with_the_peak_rates():
    ratio = us(product(8192), Platform.named("a100")) / us(product(8192), H200)
    assert ratio == pytest.approx(989 / 312, rel=0.1)


def test_a_large_addition_scales_with_the_memory_bandwidth():
    ratio = us(addition(2**28), Platform.named("a100")) / us(addition(2**28), H200)
    assert ratio == pytest.approx(4800 / 2039, rel=0.05)


def test_the_smallest_kernels_change_little():
    assert us(addition(16), Platform.named("a100")) < 2.5 * us(addition(16), H200)


def pinned_upload(gpu: str) -> float:
    """Microseconds of 64 MiB from page-locked memory."""
    here = Tensor((2**24,), "float32", "cuda:0", storage=0)
    there = Tensor((2**24,), "float32", "cpu", storage=1)
    copy = Op("aten::copy_", (here, there, True), overload="default")
    graph = Graph(OpTable.of([copy]), storages={1: Storage(1, 4 * 2**24, "cpu", pinned=True)})
    return float(price_kernels(graph, np.zeros(1, np.int32), Platform.named(gpu)).typical.sum())


def test_copies_to_the_device_scale_with_the_link_to_the_host_and_not_with_memory():
    h200 = pinned_upload("h200")
    assert pinned_upload("b200") == pytest.approx(h200, rel=0.05), "both have PCIe of the fifth generation"
    assert pinned_upload("a100") == pytest.approx(2 * h200, rel=0.1)
    assert pinned_upload("v100") == pytest.approx(4 * h200, rel=0.1)


def test_attention_on_another_makers_gpu_takes_what_was_published_of_it():
    # PyTorch on an MI300X, causal, 16 sequences and heads: midiareshadi/attn-dsl-bench.
    published = {(1024, 64): 258.9, (4096, 64): 2416, (16384, 64): 32621, (2048, 128): 1281, (8192, 128): 15189}
    for (length, width), measured in published.items():
        shape = (16, 16, length, width)
        assert us(attention("flash", shape, shape, True), Platform.named("mi300x")) == pytest.approx(measured, rel=0.15)


def test_small_kernels_of_a_gpu_take_as_long_to_start_as_others_traces_of_it_show():
    start = present(Platform.named("v100").cross_device).start
    assert start == present(Device.named("v100").measured.start) > 2
    assert us(addition(16), Platform.named("v100")) == pytest.approx(start * us(addition(16), H200), rel=0.1)


def priced(op: Op, gpu: str, **settings: str | int | bool) -> tuple[float, float, float]:
    """10th percentile, median and 90th percentile of a call on a GPU."""
    graph = Graph(OpTable.of([op]), settings=settings)
    costs = price_kernels(graph, np.zeros(1, np.int32), Platform.named(gpu))
    return float(costs.low.sum()), float(costs.typical.sum()), float(costs.high.sum())


@pytest.mark.parametrize("gpu", ["v100", "a100", "h100"])
def test_short_kernels_have_the_range_of_what_drivers_and_profilers_make_of_their_start(gpu: str):
    low, typical, high = priced(addition(16), gpu)
    assert low < typical / 1.4
    assert high > 1.4 * typical


def test_copies_to_a_host_that_was_not_measured_have_a_wide_range():
    here, there = Tensor((2**24,), "float32", "cuda:0"), Tensor((2**24,), "float32", "cpu")
    _, typical, high = priced(Op("aten::copy_", (here, there, True), overload="default"), "a100")
    assert high > 2 * typical, "GPUs may share the link"


def test_gemms_of_a_published_table_may_be_off_on_other_machines():
    low, typical, high = priced(product(4096), "a100")
    assert low < 0.92 * typical
    assert high > 1.08 * typical


@pytest.mark.parametrize("gpu", ["l40s", "b200", "h100"])
@pytest.mark.parametrize("rows", [2, 16, 4096])
def test_grouped_gemms_by_tables_take_as_long_as_the_weights_of_their_experts_take_to_read(gpu: str, rows: int):
    op = grouped_linear(rows, 8, 2048, 2048)
    used = 8 * (1 - math.exp(-rows / 8))
    assert priced(op, gpu)[1] > 0.999 * used * 2 * 2048**2 / Device.named(gpu).memory_gbps / 1e3


@pytest.mark.parametrize("gpu", ["v100", "t4", "p100"])
def test_the_setting_for_tf32_means_nothing_on_a_gpu_without_it(gpu: str):
    image, weight = Tensor((32, 64, 56, 56), "float32", "cuda:0"), Tensor((64, 64, 3, 3), "float32", "cuda:0")
    convolution = Op("aten::convolution", (image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1))
    for op in (product(2048, "float32"), convolution):
        allowed = priced(op, gpu, matmul_precision="high", cudnn_tf32=True)
        assert allowed == priced(op, gpu, matmul_precision="highest", cudnn_tf32=False)


def test_more_memory_bandwidth_leaves_gemms_alone_and_speeds_up_copies():
    faster = H200.scaled(hbm=1.5)
    assert us(product(8192), faster) == pytest.approx(us(product(8192), H200), rel=0.01)
    assert us(addition(2**28), faster) == pytest.approx(us(addition(2**28), H200) / 1.5, rel=0.03)


def test_scaling_by_one_changes_nothing():
    for op in (product(4096), product(777, "float32"), addition(10**6), addition(3)):
        assert us(op, H200.scaled(hbm=1.0)) == us(op, H200)
        scaled = replace(H200, cross_device=CrossDeviceScaling(H200.device))
        assert us(op, scaled) == pytest.approx(us(op, H200))


def test_a_last_wave_that_is_nearly_empty_on_the_other_device_counts():
    full, spilled = product(128, "float16", 108 * 128), product(128, "float16", 109 * 128)
    a100 = Device.named("a100")
    assert CallRoofline.of(full, None, Tf32(), a100).wave_quantization == 1.0
    assert CallRoofline.of(spilled, None, Tf32(), a100).wave_quantization > 1.2


def test_what_is_held_in_the_cache_does_not_wait_for_memory():
    limits = CallRoofline.of(addition(2**20), None, Tf32(), H200.device)
    assert limits.us(H200.device, warm=1.0) < limits.us(H200.device, warm=0.0)


def test_a_device_that_lacks_a_dtype_multiplies_it_as_float32():
    t4 = Platform.named("t4")
    assert us(product(4096, "bfloat16"), t4) > 3 * us(product(4096, "float16"), t4)
    (scaled, lacking) = scaling_notes(Graph(OpTable.of([product(64)])), t4)
    assert scaled == "t4 was not calibrated: kernel times are scaled from h200"
    assert lacking == "t4 has no bfloat16 arithmetic: the rate of float32 is taken"


def test_a_prediction_for_a_gpu_that_was_not_measured_says_so_and_has_a_wider_range():
    graph = Graph(OpTable.of([product(8192, "float16")] * 4))
    there, here = ft.predict(graph, on="h200"), ft.predict(graph, on="v100")
    assert "v100 was not calibrated: kernel times are scaled from h200" in here.notes
    assert here.high_ms / here.low_ms > there.high_ms / there.low_ms
    assert sum(here.coverage.values()) == pytest.approx(1.0) and here.memory_bytes == 32e9


def test_a_scaled_platform_says_that_it_is_hypothetical():
    (said,) = scaling_notes(Graph(OpTable.of([])), H200.scaled(compute=1.2))
    assert said == "h200:compute=1.2 is hypothetical: kernel times are scaled from h200"
    assert scaling_notes(Graph(OpTable.of([])), H200.scaled(host=2.0)) == []


def test_the_constants_of_a_device_can_be_replaced():
    a100 = Platform.named("a100")
    assert a100.cross_device
    half = replace(a100, cross_device=replace(a100.cross_device, gemm=a100.cross_device.gemm / 2))
    assert us(product(8192), half) == pytest.approx(2 * us(product(8192), a100), rel=0.05)
    assert us(addition(2**28), half) == pytest.approx(us(addition(2**28), a100), rel=0.001)


def test_the_further_a_time_is_scaled_the_wider_is_its_range():
    def width(platform: Platform) -> float:
        costs = price_kernels(Graph(OpTable.of([product(8192)])), np.zeros(1, np.int32), platform)
        return float(costs.high[0] / costs.low[0])

    def described(name: str) -> Platform:
        device = Device.named(name)
        return replace(Platform.named(name), cross_device=CrossDeviceScaling.between(H200.device, device))

    assert width(H200) == pytest.approx(width(described("h100")), rel=0.05)  # the same chip
    assert width(H200) < width(H200.scaled(compute=1.2)) < width(described("a100"))


def test_a_device_reaches_what_the_measured_one_does_of_its_peaks():
    l4 = Device.named("l4")
    tflops, gbps = achieved_rates(l4, "bfloat16", CrossDeviceScaling(H200.device))
    best = H200.device.measured
    assert tflops / 121 == pytest.approx(best.tflops["bfloat16"] / 989)
    assert best.memory_gbps and gbps / 300 == pytest.approx(best.memory_gbps / 4800)


def test_what_others_published_of_a_device_counts_for_more():
    mi300x = Device.named("mi300x")
    tflops, gbps = achieved_rates(mi300x, "bfloat16", CrossDeviceScaling(H200.device, gemm=0.5, memory=0.5))
    published = mi300x.measured
    assert (tflops, gbps) == (published.tflops["bfloat16"] / 2, present(published.memory_gbps) / 2)
    assert (
        achieved_rates(mi300x, "float16", CrossDeviceScaling(H200.device))[0] > tflops
    )  # no rate was published for that dtype


def test_a_described_gpu_keeps_what_was_published_and_takes_the_rest_from_the_measured_one():
    known = Platform.named("mi300x").device.measured
    assert known.tflops == Device.named("mi300x").measured.tflops and known.queue_depth
    assert "stas00" in known.provenance and "as on h200" in known.provenance


def test_calls_of_no_family_are_scaled_by_their_bytes():
    numbers = Tensor((2**26,), "float32", "cuda:0")
    odd = Op("aten::cholesky", (numbers,), outputs=(numbers,))
    took = np.array([1000.0])
    (factor,) = scale_factors(
        [odd], took, {}, Tf32(), np.zeros(1), Device.named("a100"), CrossDeviceScaling(H200.device)
    )
    assert 1.5 < factor < 4800 / 2039 * 1.1
