from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.graph import Op, Tensor
from foretrace.platform.cases import Case
from foretrace.platform.device import Device
from foretrace.platform.measurements import Measurement
from foretrace.platform.rates import best_gbps, best_tflops, read_all

H200 = Path(__file__).resolve().parents[2] / "measurements" / "h200"


def product(us, dtype="float32", side=1000, name="aten::mm", **given):
    matrix = Tensor((side, side), dtype)
    args = (matrix, matrix) if name == "aten::mm" else (Tensor((side,), dtype), matrix, matrix)
    return Measurement(Case(Op(name, args), **given), cold=[[("k", 2 * us)]], warm=[[("k", us)]])


def copied(us, elements=2**28, **given):
    whole = Tensor((elements,), "float32", **given)
    return Measurement(Case(Op("aten::copy_", (whole, whole))), cold=[[("copy", us)]], warm=[[("copy", us / 2)]])


def test_the_best_product_of_each_dtype_counts():
    found = [product(10.0), product(20.0), product(5.0, tf32=True), product(4.0, "bfloat16", name="aten::addmm")]
    assert best_tflops(found) == {"float32": 200.0, "tf32": 400.0, "bfloat16": 500.0}


def test_where_the_result_is_put_does_not_matter():
    into = product(10.0)
    into.case.op.kwargs["out"] = Tensor((1000, 50_000), "bfloat16")
    assert best_tflops([into]) == {"float32": 200.0}


def test_what_failed_counts_for_nothing():
    failed = Measurement(product(1.0).case, error="out of memory")
    assert best_tflops([failed]) == {} and best_gbps([failed]) is None


def test_a_copy_counts_where_no_cache_helps():
    assert best_gbps([copied(1000.0), copied(500.0)]) == pytest.approx(2 * 2**30 / 500e3, rel=1e-3)
    assert best_gbps([copied(0.1, elements=2**20)]) is None
    assert best_gbps([copied(500.0, device="cpu")]) is None


def test_the_h200_reaches_most_of_its_peaks_and_never_more():
    found, h200 = read_all(H200, "matrix", "copies"), Device.named("h200")
    for dtype, rate in best_tflops(found).items():
        assert 0.7 < rate / h200.peak_tflops[dtype] < 1, dtype
    assert 0.85 < best_gbps(found) / h200.memory_gbps < 1
