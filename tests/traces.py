"""Small profiler traces for tests, written event by event on a clock that moves by itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 101
BASE_NS = 1_790_857_026_000_000_000


class Trace:
    """A profiler trace in the making.

    >>> trace = Trace(rank=1, world=2)
    >>> with trace.op("aten::mm"):
    ...     trace.launch("gemm", us=10)
    >>> [event["name"] for event in trace.events]
    ['cudaLaunchKernel', 'gemm', 'aten::mm']
    """

    def __init__(self, rank: int | None = None, world: int = 1, start: float = 1_000_000.0) -> None:
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
            "baseTimeNanoseconds": BASE_NS,
        }
        if rank is not None:
            self.head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
        self.now = start
        self._free: dict[tuple[int, int], float] = {}
        self._ids = iter(range(1, 1_000_000))

    def add(
        self, cat: str, name: str, ts: float, dur: float, tid: Any = MAIN, pid: Any = 1, **args: Any
    ) -> dict[str, Any]:
        """Append one event as it is."""
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        self.events.append(event)
        return event

    @contextmanager
    def op(self, name: str, cat: str = "cpu_op", tid: int = MAIN, **args: Any) -> Iterator[dict[str, Any]]:
        """An event around what happens inside the block."""
        args = {"External id": next(self._ids), **args}
        event: dict[str, Any] = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": self.now, "dur": 0.0}
        event["args"] = args
        self.now += 1.0
        yield event
        self.now += 1.0
        event["dur"] = self.now - event["ts"]
        self.events.append(event)

    def step(self, number: int) -> Any:
        """A step of the profiler around what happens inside the block."""
        return self.op(f"ProfilerStep#{number}", "user_annotation")

    def call(self, name: str, us: float = 3.0, tid: int = MAIN, **args: Any) -> int:
        """A call into the runtime; returns its correlation id."""
        correlation = next(self._ids)
        self.add("cuda_runtime", name, self.now, us, tid, correlation=correlation, **args)
        self.now += us
        return correlation

    def launch(
        self, kernel: str, us: float = 10.0, stream: int = 7, device: int = 0, tid: int = MAIN,
        call: str = "cudaLaunchKernel", cat: str = "kernel", **args: Any,
    ) -> None:  # fmt: skip
        """A launch, and the kernel that starts as soon as its stream is free."""
        correlation = self.call(call, tid=tid)
        start = max(self.now, self._free.get((device, stream), 0.0))
        self._free[device, stream] = start + us
        args = {
            "device": device,
            "stream": stream,
            "correlation": correlation,
            "grid": [4, 1, 1],
            "block": [128, 1, 1],
            **args,
        }
        self.add(cat, kernel, start, us, stream, device, **args)

    def text(self, **options: Any) -> bytes:
        """The trace as JSON."""
        return json.dumps({**self.head, "traceEvents": self.events, "traceName": "trace.json"}, **options).encode()

    def write(self, path: Path, **options: Any) -> Path:
        """Write it, gzipped where the name says so."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.text(**options)
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def training_step(rank: int | None = None, world: int = 1, late_us: float = 0.0, start: float = 1_000_000.0) -> Trace:
    """One step of a small model: forward, backward on its own thread, an all_reduce where there are ranks, AdamW."""
    trace = Trace(rank, world, start)
    matrix: dict[str, Any] = {
        "Input Dims": [[64, 32], [32, 16]],
        "Input type": ["float", "float"],
        "Concrete Inputs": ["", ""],
    }
    with trace.step(3):
        trace.now += late_us
        with (
            trace.op("nn.Module: Linear_0", "python_function"),
            trace.op("aten::linear"),
            trace.op("aten::mm", **matrix),
        ):
            trace.launch("gemm_forward", us=20)
        node = "autograd::engine::evaluate_function: MmBackward0"
        with (
            trace.op(node, tid=AUTOGRAD),
            trace.op("MmBackward0", tid=AUTOGRAD),
            trace.op("aten::mm", tid=AUTOGRAD, **matrix),
        ):
            trace.launch("gemm_backward", us=30, tid=AUTOGRAD)
        if world > 1:
            all_reduce(trace, 1024, world, ends=start + 1000)
        with trace.op("Optimizer.step#AdamW.step", "user_annotation"), trace.op("aten::_foreach_add_"):
            trace.launch("multi_tensor_apply", us=5)
        trace.call("cudaDeviceSynchronize", us=40.0)
    return trace


def all_reduce(trace: Trace, elements: int, world: int, ends: float) -> None:
    """An all_reduce of NCCL on a stream of its own, as today's PyTorch tells of it: all ranks end it at once."""
    told: dict[str, Any] = {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": world,
        "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": str(list(range(world))),
    }  # fmt: skip
    c10d, nccl = trace.op("c10d::allreduce_"), trace.op("nccl:all_reduce", "user_annotation")
    with c10d, trace.op("record_param_comms", **told), nccl:
        trace.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", stream=22)
    kernel = next(event for event in reversed(trace.events) if event["cat"] == "kernel")
    kernel["dur"] = ends - kernel["ts"]
