"""Measurements that follow a rule, for tests of what is fitted on them."""

from __future__ import annotations

from pathlib import Path
from random import Random

from foretrace.graph import Op, Tensor
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import SUFFIX, Batch, Measurement, close_batch, open_batch

BYTES_PER_US = 4e6


def relu(numel: int) -> Op:
    return Op("aten::relu", (Tensor((numel,), "float32", "cuda:0"),), overload="default")


def relu_us(numel: int) -> float:
    """Two microseconds, and every byte read and written at the memory's rate."""
    return 2.0 + 8 * numel / BYTES_PER_US


def relus(count: int = 200) -> list[Measurement]:
    """Calls of one op over four orders of size; a warm cache saves a fifth."""
    random = Random(3)
    sizes = [round(10 ** random.uniform(4, 8)) for _ in range(count)]
    return [
        Measurement(
            Case(relu(numel)),
            cold=[[("void at::native::vectorized_elementwise_kernel<4>", relu_us(numel))]],
            warm=[[("void at::native::vectorized_elementwise_kernel<4>", 0.8 * relu_us(numel))]],
        )
        for numel in sizes
    ]


def write(folder: Path, family: str, measurements: list[Measurement]) -> None:
    """Into the file of a family, as measuring does."""
    folder.mkdir(parents=True, exist_ok=True)
    batch = Batch(0, len(measurements), {"device": "NVIDIA H200"}, measurements, reference_us=1.0)
    open_batch(folder / f"{family}{SUFFIX}", batch)
    close_batch(folder / f"{family}{SUFFIX}", batch)
