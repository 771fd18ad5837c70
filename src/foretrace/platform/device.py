"""A device: its maker's description with peak rates, and what was measured of it as a whole."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from foretrace.errors import ForetraceError
from foretrace.platform.typed_json import Positive, PositiveInt, read_as

DEVICES = Path(__file__).parent / "data" / "devices"
"""Shipped descriptions, a file each: adding a device is adding a file."""
CUDA_GRAPH = Path(__file__).parent / "data" / "cuda_graph.json"
KINDS = ("cuda", "cpu")
ATTENTION = ("cudnn", "flash", "efficient")


@dataclass(frozen=True)
class Measured:
    """Measured properties of a device as a whole, by a calibration or by others; 0 or None where unknown."""

    kernel_gap_us: float = 0.0
    """From the end of a kernel to the start of the next one in the queue."""
    launch_latency_us: float = 0.0
    """From the end of a launch call to the start of its kernel, on an idle stream."""
    queue_depth: PositiveInt | None = None
    """Launched kernels that may be unfinished at once: the host waits before it launches another."""
    memory_gbps: Positive | None = None
    """The best rate of a copy."""
    tflops: dict[str, Positive] = field(default_factory=dict)
    """The best rate of GEMMs by dtype; ``tf32`` as in `Device.peak_tflops`."""
    provenance: str = ""
    start: Positive | None = None
    """How many times as long kernels take to start and end as on the H200, where others' traces show it."""


@dataclass(frozen=True)
class Device:
    """Processors, clocks, memory and peak rates of one device.

    >>> h200 = Device.named("h200")
    >>> h200.sms, h200.memory_gbps, h200.peak_tflops["bfloat16"]
    (132, 4800, 989)
    """

    name: str
    matches: str
    """The driver's name for it."""
    sms: PositiveInt
    """Streaming multiprocessors of a GPU; of a CPU, the threads that share an op."""
    clock_mhz: Positive
    memory_clock_mhz: Positive
    memory_gb: Positive
    memory_gbps: Positive
    l2_mb: Positive
    """The cache that all processors share."""
    peak_tflops: dict[str, Positive]
    """Dense rate by dtype; ``tf32`` is float32 on Tensor Cores."""
    provenance: str
    kind: str = "cuda"
    """``cuda``, or ``cpu``: see `runs_on_host`."""
    measured: Measured = field(default_factory=Measured)
    workspace_mib: float = 8.125
    """Workspace that PyTorch gives the GEMM library, for each thread and stream that uses it; more on Hopper."""
    attention: str = "cudnn"
    """What PyTorch's attention is on it, by default: cuDNN's from Hopper on, flash on Ampere and Ada, or efficient."""
    maker: str = "nvidia"
    power_w: Positive | None = None
    """Power limit."""
    power_limit_w: Positive | None = None
    """A lower limit that it is set to; its own where None."""
    cache_gbps: Positive | None = None
    """Bandwidth of the cache that all processors share, where published; else it goes by their number and clock."""
    host_gbps: Positive | None = None
    """Bandwidth of the link to the host, in one direction."""
    process_nm: Positive | None = None
    """The maker's name for the process node."""
    driver_gib: Positive | None = None
    """Memory that the driver reports to processes; makers' gigabytes may be either of 10^9 or of 2^30 bytes."""
    alloc_conf: str = ""
    """``PYTORCH_CUDA_ALLOC_CONF`` of the processes that run on it."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that processes can use, as the driver reports them; the maker's figure where that is unknown.

        >>> Device.named("h100").memory_bytes >> 20, Device.named("p4").memory_bytes
        (81008, 8000000000)
        """
        return round(self.driver_gib * 2**30 if self.driver_gib else self.memory_gb * 1e9)

    @property
    def runs_on_host(self) -> bool:
        """Whether ops run on the host's own threads, as on a CPU: a call does its work itself, and launches nothing."""
        return self.kind == "cpu"

    def peak(self, rate: str) -> float:
        """Peak rate of a dtype in TFLOP/s; that of float32 where the description has none.

        >>> Device.named("h200").peak("int8")
        67
        """
        return self.peak_tflops.get(rate) or self.peak_tflops["float32"]

    @property
    def lanes(self) -> int:
        """FP32 lanes of an SM: multiply-adds of float32 that it does in a clock.

        >>> Device.named("a100").lanes, Device.named("h100").lanes
        (64, 128)
        """
        return round(self.peak_tflops["float32"] * 1e6 / (2 * self.sms * self.clock_mhz))

    @classmethod
    def read(cls, path: Path) -> Device:
        """Read a device's file; an error names the field that is wrong."""
        device = read_as(cls, path, "docs/platform.md lists the fields of a device.")
        if "float32" not in device.peak_tflops:
            raise ForetraceError(f"{path}: the field 'peak_tflops' has no rate of float32", "Add it.")
        for name, known in (("kind", KINDS), ("attention", ATTENTION)):
            if (value := getattr(device, name)) not in known:
                raise ForetraceError(
                    f"{path}: the field {name!r} holds {value!r}", f"It should be {' or '.join(known)}."
                )
        return device

    @classmethod
    def named(cls, name: str) -> Device:
        """A device whose description is shipped."""
        path = DEVICES / f"{name}.json"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in DEVICES.glob("*.json")))
            raise ForetraceError(f"no device is called {name!r}", f"Known are: {known}.")
        return cls.read(path)

    @classmethod
    def matching(cls, driver_name: str) -> Device | None:
        """The shipped device with this driver name.

        >>> Device.matching("NVIDIA H200").name
        'h200'
        """
        named = driver_name.encode()
        mentioned = (cls.read(path) for path in sorted(DEVICES.glob("*.json")) if named in path.read_bytes())
        return next((device for device in mentioned if device.matches == driver_name), None)

    @classmethod
    def closest(cls, driver_name: str) -> Device | None:
        """The shipped device with this driver name, or another of that model: with more memory, or other links.

        >>> Device.closest("AMD Instinct MI300X VF").name, Device.closest("NVIDIA A100-PG509-200").name
        ('mi300x', 'a100-40gb')
        >>> Device.closest("NVIDIA H200").name, Device.closest("NVIDIA H200 NVL").name
        ('h200', 'h200-nvl')
        """
        tokens = {*_tokens(driver_name)}
        alike = [device for device in map(cls.read, sorted(DEVICES.glob("*.json"))) if device.may_be(driver_name)]

        def likeness(device: Device) -> tuple[int, int]:
            own = {*_tokens(device.matches)}
            return len(own & tokens), -len(own - tokens)

        return max(alike, key=likeness, default=None)

    def may_be(self, driver_name: str) -> bool:
        """Whether a driver's name can be this device's: the same model, with any memory and links; of a name without
        model, as many processors and as much memory.

        >>> Device.named("v100").may_be("Tesla V100-SXM2-16GB"), Device.named("v100").may_be("Tesla T4")
        (True, False)
        >>> Device.named("mi300x").may_be("GPU of 304 processors and 192 GiB")
        True
        """
        if size := _SIZE.search(driver_name):
            gib = self.memory_bytes / 2**30
            return int(size[1]) == self.sms and abs(int(size[2]) - gib) < SAME_MEMORY * gib
        return self.matches == driver_name or _model(self.name) <= {*_tokens(driver_name)}

    def is_named(self, driver_name: str) -> bool:
        """Whether a driver calls it so; or names no model, and tells of a device of its size.

        >>> Device.named("v100").is_named("Tesla V100-SXM2-16GB"), Device.named("v100").is_named("Tesla V100-SXM2-32GB")
        (False, True)
        """
        return self.matches == driver_name or (bool(_SIZE.search(driver_name)) and self.may_be(driver_name))


_SIZE = re.compile(r"\b(\d{1,4}) processors and (\d{1,4}) GiB")
SAME_MEMORY = 0.15
"""Memory that is counted in 10^9 or 2^30 bytes, of which the driver keeps some, differs by as much."""


def _tokens(name: str) -> list[str]:
    return re.findall("[a-z0-9]+", name.lower())


def _model(name: str) -> set[str]:
    """The words of a shipped name up to the model's number, without memory and links.

    >>> sorted(_model("rtx-pro-6000")), _model("a100-pcie-40gb")
    (['6000', 'pro', 'rtx'], {'a100'})
    """
    words = _tokens(name)
    number = next((at for at, word in enumerate(words) if re.search(r"\d", word)), len(words))
    return {*words[: number + 1]}


@dataclass(frozen=True)
class CudaGraphCosts:
    """Microseconds of a captured step on any NVIDIA GPU: its launch on the host, and the gaps between its kernels.

    >>> CudaGraphCosts.shipped().launch(kernels=1000) > CudaGraphCosts.shipped().launch(kernels=10)
    True
    """

    launch_us: Positive
    """Host time of the launch call."""
    kernel_us: Positive
    """More host time for each kernel in the graph."""
    gap_us: Positive
    """From the end of a kernel to the start of the next one."""
    provenance: str

    def launch(self, kernels: int) -> float:
        """Host time of launching a graph of so many kernels."""
        return self.launch_us + self.kernel_us * kernels

    @classmethod
    @cache
    def shipped(cls) -> CudaGraphCosts:
        """The constants that come with Foretrace."""
        return read_as(cls, CUDA_GRAPH)
