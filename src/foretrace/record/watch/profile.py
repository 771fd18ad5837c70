"""Profiles of recorded steps: kernel times (`LightProfile`), and the arguments of compiled kernels (`ExecutionTrace`).

A light profile leaves kernel times as they are; host times include the profiler's overhead. Kernels of compiled regions
are no dispatcher calls, so a job that has any is also observed for one step by PyTorch's execution trace observer.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd import profiler
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

STARTS = ("_prepare_profiler", "_enable_profiler")
"""Functions that every PyTorch profiler calls first."""
ADVICE = ": turn it off, or record with --profile 0"


class ExclusiveProfile:
    """PyTorch's profiler, which crashes where two run at once: the job's own takes precedence."""

    def __init__(self, **options: Any) -> None:
        self._profile: Any = profile(**options)
        self._patches: list[Any] = []

    def start(self) -> None:
        """Begin, unless the job is profiling itself."""
        if torch.autograd._profiler_enabled():
            raise RuntimeError(f"the job runs a profiler of its own{ADVICE}")
        with (
            warnings.catch_warnings()
        ):  # one of them is about cycles of the profiler, which the job's output need not have
            warnings.simplefilter("ignore")
            self._profile.start()
        self._patches = [patch.object(profiler, name, self._yielding(name)) for name in STARTS]
        for patched in self._patches:
            patched.start()

    def stop(self) -> None:
        """End; raises where the job has begun to profile itself since."""
        if not self._patches:
            raise RuntimeError(f"the job started a profiler of its own{ADVICE}")
        self._stop()

    def save(self, path: Path) -> None:
        """Write the trace, gzipped, and free it."""
        self._profile.export_chrome_trace(str(path))
        self.free()

    def free(self) -> None:
        """Free the events: otherwise a later garbage collection would, while another profiler runs."""
        self._profile = None

    def _stop(self) -> None:
        patches, self._patches = self._patches, []
        for patched in patches:
            patched.stop()
        self._profile.stop()

    def _yielding(self, name: str) -> Any:
        original = getattr(profiler, name)

        def start(*args: Any, **kwargs: Any) -> Any:
            self._stop()
            return original(*args, **kwargs)

        return start


class LightProfile(ExclusiveProfile):
    """A profile without shapes and stacks, in which each step is annotated as ``ProfilerStep#N``."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        super().__init__(activities=activities)
        self._step: Any = None
        self._count = 0

    def __enter__(self) -> LightProfile:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def step_begins(self) -> None:
        """Open the annotation of the next step."""
        self._step = record_function(f"ProfilerStep#{self._count}")
        self._step.__enter__()
        self._count += 1

    def step_ended(self) -> None:
        """Close it."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _stop(self) -> None:
        self.step_ended()  # an annotation that ends under another profiler writes to memory of this one
        super()._stop()


def something_is_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process.

    >>> something_is_compiled()
    False
    """
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo and dynamo.counters["stats"].get("unique_graphs", 0))


def watching_undoes_compilation() -> bool:
    """Whether this torch has no way to watch a compiled step without falling back to eager, for good.

    >>> watching_undoes_compilation()
    False
    """
    return not hasattr(TorchDispatchMode, "ignore_compile_internals")


class ExecutionTrace:
    """One step under PyTorch's execution trace observer: names and tensors of compiled kernels.

    A profiler with shapes runs along with it: compiled kernels report their arguments only under one. It is the second
    one in this process. An annotation that was opened under the first and ends under this one would write to memory of
    the first, which is gone: several steps must lie between the two, and both must start and stop between steps.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "et.json"
        self._observer = ExecutionTraceObserver().register_callback(str(self._path))
        self._profile = ExclusiveProfile(
            activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=self._observer
        )

    def __enter__(self) -> ExecutionTrace:
        self._profile.start()
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self._profile.stop()
        finally:
            self._observer.unregister_callback()
            self._profile.free()

    def save(self, path: Path) -> None:
        """Write the trace, gzipped; there is none where the job has an observer of its own, which can be only one."""
        if self._path.exists():
            path.write_bytes(gzip.compress(self._path.read_bytes()))
        self._folder.cleanup()
