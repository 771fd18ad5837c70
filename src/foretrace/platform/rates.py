"""The best rates that measurements of a device show: what of its peaks can be reached."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from foretrace.graph import Op, Tensor
from foretrace.platform.measurements import SUFFIX, Measurement, read_batches

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
CEILINGS = "ceilings"
"""The file of calls that come close to what the device can do, beside those of the families."""
LARGE_BYTES = 2**28
"""A copy of this many bytes does not fit into any cache."""


def best_tflops(found: Iterable[Measurement]) -> dict[str, float]:
    """The best rate of matrix products by dtype, ``tf32`` apart from float32.

    >>> from foretrace.platform.cases import Case
    >>> square = Tensor((1000, 1000), "bfloat16")
    >>> best_tflops([Measurement(Case(Op("aten::mm", (square, square))), warm=[[("gemm", 10.0)]])])
    {'bfloat16': 200.0}
    """
    best: dict[str, float] = {}
    for one in found:
        if one.case.op.name in PRODUCTS and not one.error and one.warm:
            dtype = _factors(one.case.op)[0].dtype
            if dtype == "float32" and one.case.tf32:
                dtype = "tf32"
            best[dtype] = max(best.get(dtype, 0.0), flops(one.case.op) / one.us("warm") / 1e6)
    return {dtype: _rounded(rate) for dtype, rate in sorted(best.items())}


def flops(op: Op) -> float:
    """Floating-point operations of a matrix product.

    >>> flops(Op("aten::mm", (Tensor((2, 3), "float32"), Tensor((3, 4), "float32"))))
    48.0
    """
    first, second = _factors(op)
    return 2.0 * math.prod(first.shape) * second.shape[-1]


def _factors(op: Op) -> list[Tensor]:
    """The two matrices that are multiplied: after what is added to them, and before what the result is put into."""
    return [value for value in op.args if isinstance(value, Tensor)][-2:]


def best_gbps(found: Iterable[Measurement]) -> float | None:
    """The best rate of a copy from and to the device's own memory, read and written bytes together.

    None where no copy was large enough to tell.
    """
    rates = [
        sum(tensor.nbytes for tensor in one.case.op.tensors) / one.us("cold") / 1e3
        for one in found
        if one.case.op.name == "aten::copy_" and not one.error and one.cold and _is_large(one.case.op)
    ]
    return _rounded(max(rates)) if rates else None


def _rounded(rate: float) -> float:
    """Four figures: repeats agree on no more."""
    return float(f"{rate:.4g}")


def _is_large(op: Op) -> bool:
    dense = all(tensor.stride is None and not tensor.device for tensor in op.tensors)
    return dense and sum(tensor.nbytes for tensor in op.tensors) >= LARGE_BYTES


def read_all(folder: Path, *families: str) -> list[Measurement]:
    """All that was measured of some families."""
    return [
        one for family in families for batch in read_batches(folder / f"{family}{SUFFIX}") for one in batch.measurements
    ]
