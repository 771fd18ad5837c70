"""A profiler trace of any size: steps of forward and backward calls with shapes, launches, kernels and flows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85045542912}],
  "traceEvents": [
"""
TAIL = '\n  ],\n  "traceName": "synthetic.json"\n}\n'
OPS = (
    ("aten::linear", "aten::addmm", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"),
    ("aten::layer_norm", "aten::native_layer_norm", "void at::native::vectorized_layer_norm_kernel<c10::BFloat16>"),
    ("aten::dropout", "aten::native_dropout", "void at::native::fused_dropout_kernel_vec<c10::BFloat16, float, 4>"),
    ("aten::scaled_dot_product_attention", "aten::_flash_attention_forward", "flash_fwd_kernel<Flash_traits<128>>"),
    ("aten::add", "aten::add_", "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>"),
)
FORWARD_THREAD, BACKWARD_THREAD, STREAM = 4711, 4712, 7


def write_trace(path: Path, megabytes: int, steps: int, seed: int = 0) -> None:
    """Write a trace of about that size; the same one for the same seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partly_written = path.with_suffix(".part")
    calls = _Calls(seed)
    with partly_written.open("w") as file:
        written = file.write(HEAD)
        for step in range(1, steps + 1):
            began = calls.now
            while written < megabytes * 1_000_000 * step // steps:
                backward = written > megabytes * 1_000_000 * (step - 0.6) // steps
                written += sum(file.write(event + ",\n") for event in calls.next(backward))
            mark = _event("user_annotation", f"ProfilerStep#{step}", FORWARD_THREAD, began, calls.now - began, "")
            written += file.write(mark + (",\n" if step < steps else ""))
        file.write(TAIL)
    partly_written.rename(path)


class _Calls:
    """Calls one after the other, each with the kernel it launches."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._id = 0
        self._device_free = 0.0
        self.now = 1_790_857_026_000_000.0

    def next(self, backward: bool) -> Iterator[str]:
        """The events of one call: itself, what is inside it, its launch, its kernel and the flow between them."""
        draw, thread = self._random.random, BACKWARD_THREAD if backward else FORWARD_THREAD
        outer, inner, kernel = OPS[int(draw() * len(OPS))]
        rows, columns = 128 << int(draw() * 5), 1024 << int(draw() * 3)
        args = (
            f'"Record function id": 0, "Concrete Inputs": ["", "", "", "1", "1"], '
            f'"Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"], '
            f'"Input Strides": [[1], [{columns}, 1], [1, {columns}], [], []], '
            f'"Input Dims": [[{columns}], [{rows}, {columns}], [{columns}, {columns}], [], []], "Ev Idx": {self._id}'
        )
        start, length = self.now, 8.0 + 12.0 * draw()
        if backward:
            yield self._call(f"autograd::engine::evaluate_function: {outer}", thread, start - 0.5, length + 1.0, "")
        yield self._call(outer, thread, start, length, args)
        yield self._call(inner, thread, start + 1.0, length - 1.5, args)
        self._id += 1
        launched = start + 2.5
        ran, took = max(self._device_free, launched + 5.0), 2.0 + 20.0 * draw()
        told = f'"External id": {self._id}, "cbid": 211, "correlation": {self._id}'
        yield _event("cuda_runtime", "cudaLaunchKernel", thread, launched, 3.0, told)
        told = (
            f'"External id": {self._id}, "queued": 0, "device": 0, "context": 1, "stream": {STREAM}, '
            f'"correlation": {self._id}, "registers per thread": 32, "shared memory": 0, "blocks per SM": 3.87, '
            f'"warps per SM": 15.5, "grid": [{rows}, 4, 1], "block": [128, 1, 1], "est. achieved occupancy %": 25'
        )
        yield _event("kernel", kernel, STREAM, ran, took, told)
        yield _flow("s", self._id, thread, launched)
        yield _flow("f", self._id, STREAM, ran)
        self._device_free, self.now = ran + took, start + length + 1.5 + 3.0 * draw()

    def _call(self, name: str, thread: int, start: float, length: float, args: str) -> str:
        self._id += 1
        return _event("cpu_op", name, thread, start, length, f'"External id": {self._id}{", " if args else ""}{args}')


def _event(category: str, name: str, thread: int, start: float, length: float, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 1, "tid": {thread},\n'
        f'    "ts": {start:.3f}, "dur": {length:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def _flow(phase: str, number: int, thread: int, at: float) -> str:
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": 1, "tid": {thread}, "ts": {at:.3f},\n'
        '    "cat": "ac2g", "name": "ac2g"\n  }'
    )
