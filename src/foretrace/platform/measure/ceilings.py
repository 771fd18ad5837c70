"""Calls that come close to what a device can do at best: square products of every dtype, and a large copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrace.graph import Op, Tensor
from foretrace.platform.cases import Case
from foretrace.platform.measure.machine import facts
from foretrace.platform.measure.timed import timed
from foretrace.platform.measurements import SUFFIX, Batch, close_batch, open_batch
from foretrace.platform.rates import CEILINGS

SIDE = {"cuda": 8192, "cpu": 256}
"""Of the square matrices."""
COPIED = {"cuda": 2**28, "cpu": 2**25}
"""Elements of float32: more than caches hold."""
DTYPES = ("bfloat16", "float16", "float32", "float64")


def measure_ceilings(folder: Path, device: Any) -> None:
    """Measure them into the folder of the families' measurements, once."""
    path = folder / f"{CEILINGS}{SUFFIX}"
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    cases = ceiling_cases(device.type)
    batch = Batch(0, len(cases), facts(device), timed(cases, device))
    open_batch(path, batch)
    close_batch(path, batch)


def ceiling_cases(kind: str) -> list[Case]:
    """The calls, for a device of this kind.

    >>> [case.op.name for case in ceiling_cases("cpu")]
    ['aten::mm', 'aten::mm', 'aten::mm', 'aten::mm', 'aten::copy_']
    """
    square = (SIDE[kind], SIDE[kind])
    products = [Op("aten::mm", (Tensor(square, dtype),) * 2, overload="default") for dtype in DTYPES]
    cases = [Case(op) for op in products]
    if kind == "cuda":
        cases.append(Case(products[DTYPES.index("float32")], tf32=True))
    whole = Tensor((COPIED[kind],), "float32")
    return [*cases, Case(Op("aten::copy_", (whole, whole), overload="default"))]
