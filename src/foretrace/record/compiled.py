"""Steps with compiled regions: their kernels are no dispatcher calls, so PyTorch's execution trace is kept too."""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch.profiler import ExecutionTraceObserver
from torch.utils._python_dispatch import TorchDispatchMode


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

    A profiler must be running: compiled kernels tell their arguments only while one is. It is the one that runs
    already: a second one would write to memory of the first where an annotation of the job is open in both.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "et.json"
        self._observer = ExecutionTraceObserver()

    def start(self) -> None:
        """Begin; where the job has an observer of its own, which can be only one, nothing is seen."""
        self._observer.register_callback(str(self._path))
        self._observer.start()

    def stop(self) -> None:
        """End, and complete the file."""
        self._observer.stop()
        self._observer.unregister_callback()

    def save(self, path: Path) -> None:
        """Write the trace, gzipped, where there is one."""
        if self._path.exists():
            path.write_bytes(gzip.compress(self._path.read_bytes()))
        self.discard()

    def discard(self) -> None:
        """Remove what was seen."""
        self._folder.cleanup()
