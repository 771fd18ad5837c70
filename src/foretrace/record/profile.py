"""A light profile of a few steps: kernel times as they are, host times with the profiler's weight on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function


class LightProfile:
    """PyTorch's profiler with neither shapes nor stacks; each step stands in it as ``ProfilerStep#N``."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile: Any = profile(activities=activities)
        self._step: Any = None
        self._count = 0

    def __enter__(self) -> LightProfile:
        self._profile.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.step_ended()
        self._profile.stop()

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

    def save(self, path: Path) -> None:
        """Write the trace, gzipped."""
        self._profile.export_chrome_trace(str(path))
