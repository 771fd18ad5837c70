"""What a CUDA graph costs: its launch on the host, and the gaps between the kernels in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foretrace.platform.files import Positive, read_as

CONSTANTS = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Capture:
    """Microseconds that a captured step costs, on any NVIDIA GPU.

    >>> Capture.shipped().launch(kernels=1000) > Capture.shipped().launch(kernels=10)
    True
    """

    launch_us: Positive
    """On the host: from the call until it returns."""
    kernel_us: Positive
    """More of the same for each kernel in the graph."""
    gap_us: Positive
    """From the end of a kernel to the start of the one behind it."""
    provenance: str

    def launch(self, kernels: int) -> float:
        """Host time of the launch of so many kernels."""
        return self.launch_us + self.kernel_us * kernels

    @classmethod
    @cache
    def shipped(cls) -> Capture:
        """The constants that come with Foretrace."""
        return read_as(cls, CONSTANTS)
