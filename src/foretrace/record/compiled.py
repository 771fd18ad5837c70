"""Steps with compiled regions: their kernels are no dispatcher calls, so PyTorch's execution trace is kept too."""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch.profiler import ExecutionTraceObserver, ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode

from foretrace.record.profile import OurProfile


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

    A profiler runs beside it: compiled kernels tell their arguments only while one is on.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "et.json"
        self._observer = ExecutionTraceObserver().register_callback(str(self._path))
        self._profile = OurProfile(
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

    def save(self, path: Path) -> None:
        """Write the trace, gzipped."""
        path.write_bytes(gzip.compress(self._path.read_bytes()))
        self._folder.cleanup()
