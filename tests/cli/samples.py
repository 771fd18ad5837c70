"""A profiler trace small enough to read."""

from __future__ import annotations


def event(name: str, category: str, start: float, took: float, thread: int = 1, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": took, "pid": 1, "tid": thread, "args": args}


def step_of_two_ops(name: str = "aten::mm", kernel_us: float = 40.0) -> dict[str, object]:
    """A profiler trace: one step, two ops, a kernel each."""
    kernel = {"device": 0, "stream": 7}
    events = [
        event("ProfilerStep#1", "user_annotation", 100, 200),
        event(name, "cpu_op", 110, 30, **{"External id": 1}),
        event("cudaLaunchKernel", "cuda_runtime", 120, 5, correlation=11, **{"External id": 1}),
        event("gemm_kernel", "kernel", 130, kernel_us, 7, correlation=11, **{"External id": 1}, **kernel),
        event("aten::relu", "cpu_op", 150, 20, **{"External id": 2}),
        event("cudaLaunchKernel", "cuda_runtime", 155, 5, correlation=12, **{"External id": 2}),
        event("relu_kernel", "kernel", 130 + kernel_us + 10, 10, 7, correlation=12, **{"External id": 2}, **kernel),
    ]
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A GPU"}], "traceEvents": events}
