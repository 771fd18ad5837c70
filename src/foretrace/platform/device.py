"""A device: what its maker says of it, the ceilings that times are held against, and what was measured of it once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.platform.files import Positive, PositiveInt, read_as

MACHINES = Path(__file__).parent / "machines"
KINDS = ("cuda", "cpu")


@dataclass(frozen=True)
class Measured:
    """What was measured of a device as a whole, by us or by who published it; where nothing is known, nothing holds
    its work up."""

    kernel_gap_us: float = 0.0
    """From the end of a kernel to the start of the next one, where that was queued behind it."""
    launch_latency_us: float = 0.0
    """From the end of a launch call to the start of its kernel, on a stream with nothing to do."""
    queue_depth: PositiveInt | None = None
    """Launched kernels that may be unfinished at once: the host waits before it launches another."""
    memory_gbps: Positive | None = None
    """The best rate a copy reached."""
    tflops: dict[str, Positive] = field(default_factory=dict)
    """The best rate of matrix products by dtype; ``tf32`` as in `Device.peak_tflops`."""
    provenance: str = ""


@dataclass(frozen=True)
class Device:
    """Processors, clocks, memory and peak rates of one device.

    >>> h200 = Device.named("h200")
    >>> h200.sms, h200.memory_gbps, h200.peak_tflops["bfloat16"]
    (132, 4800, 989)
    """

    name: str
    matches: str
    """What the driver calls it."""
    sms: PositiveInt
    """Streaming multiprocessors of a GPU; of a CPU, the threads that share an op."""
    clock_mhz: Positive
    memory_clock_mhz: Positive
    memory_gb: Positive
    memory_gbps: Positive
    l2_mb: Positive
    """The cache that all processors share."""
    peak_tflops: dict[str, Positive]
    """Dense rate by dtype; ``tf32`` is float32 on the matrix units."""
    provenance: str
    kind: str = "cuda"
    """``cuda``, or ``cpu`` where ops run on the host itself."""
    measured: Measured = field(default_factory=Measured)
    workspace_mib: float = 8.125
    """What PyTorch gives the matrix library to work in, for each thread and stream that multiplies; more on Hopper."""
    maker: str = "nvidia"
    power_w: Positive | None = None
    """What it may draw."""
    process_nm: Positive | None = None
    """What its maker calls the process it is made in."""

    def peak(self, rate: str) -> float:
        """Peak rate of a dtype in TFLOP/s; that of float32 where the maker says nothing of it.

        >>> Device.named("h200").peak("int8")
        67
        """
        return self.peak_tflops.get(rate) or self.peak_tflops["float32"]

    @property
    def lanes(self) -> int:
        """Products of float32 that a processor adds up in a clock.

        >>> Device.named("a100").lanes, Device.named("h100").lanes
        (64, 128)
        """
        return round(self.peak_tflops["float32"] * 1e6 / (2 * self.sms * self.clock_mhz))

    @classmethod
    def read(cls, path: Path) -> Device:
        """The device that a file describes; a damaged file says which field is wrong."""
        device = read_as(cls, path)
        if "float32" not in device.peak_tflops:
            raise ForetraceError(f"{path}: the field 'peak_tflops' has no rate of float32", "Add it.")
        if device.kind not in KINDS:
            raise ForetraceError(
                f"{path}: the field 'kind' holds {device.kind!r}", f"It should be {' or '.join(KINDS)}."
            )
        return device

    @classmethod
    def named(cls, name: str) -> Device:
        """A device whose maker's description comes with Foretrace."""
        path = MACHINES / f"{name}.json"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in MACHINES.glob("*.json")))
            raise ForetraceError(f"no device is called {name!r}", f"Known are: {known}.")
        return cls.read(path)

    @classmethod
    def matching(cls, driver_name: str) -> Device | None:
        """The device that the driver calls so, where its maker's description comes with Foretrace.

        >>> Device.matching("NVIDIA H200").name
        'h200'
        """
        return next((device for device in cls._known() if device.matches == driver_name), None)

    @classmethod
    def closest(cls, driver_name: str) -> Device | None:
        """The device that the driver calls so, or another of that model: a board with more memory, or other links.

        >>> Device.closest("Tesla V100-SXM2-16GB").name, Device.closest("NVIDIA A100-PG509-200").name
        ('v100', 'a100-40gb')
        """
        words = _words(driver_name)
        alike = [device for device in cls._known() if _words(device.name)[0] in words]
        return max(alike, key=lambda device: len({*_words(device.matches)} & {*words}), default=None)

    @classmethod
    def _known(cls) -> Iterator[Device]:
        return (cls.read(path) for path in sorted(MACHINES.glob("*.json")))


def _words(name: str) -> list[str]:
    return re.findall("[a-z0-9]+", name.lower())
