"""What a device says of itself, kept beside the measurements of its kernels, and the description made from both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.platform.device import Device, Measured
from foretrace.platform.files import Positive, PositiveInt, read_as, write
from foretrace.platform.measurements import Measurement
from foretrace.platform.rates import best_gbps, best_tflops

DEVICE_FILE = "device.json"


@dataclass(frozen=True)
class DeviceFacts:
    """The device as its driver or system describes it, and how work passes through its streams."""

    kind: str
    matches: str
    sms: PositiveInt
    clock_mhz: Positive
    memory_clock_mhz: Positive
    memory_gb: Positive
    l2_mb: Positive
    machine: dict[str, str] = field(default_factory=dict)
    """Versions and the date, as `foretrace.platform.measure.machine.facts` gives them."""
    kernel_gap_us: float = 0.0
    launch_latency_us: float = 0.0
    queue_depth: PositiveInt | None = None
    provenance: str = ""
    """How the three figures before were found."""

    @classmethod
    def read(cls, raw: Path) -> DeviceFacts:
        """The facts in a folder of measurements."""
        return read_as(cls, raw / DEVICE_FILE, "Measure the device again, with the same --out.")

    def write(self, raw: Path) -> None:
        """Keep them in a folder of measurements.

        >>> import tempfile; raw = Path(tempfile.mkdtemp())
        >>> facts = DeviceFacts("cpu", "x86_64 CPU", 2, 2000.0, 2000.0, 16.0, 32.0)
        >>> facts.write(raw); DeviceFacts.read(raw) == facts
        True
        """
        write(raw / DEVICE_FILE, asdict(self))


def describe(facts: DeviceFacts, found: Iterable[Measurement], name: str) -> Device:
    """The description of a device, with its maker's figures where they are known, else with the best it was seen to do.

    Parameters
    ----------
    facts
        What it says of itself.
    found
        Measurements of products and copies, `foretrace.platform.measure.ceilings` among them.
    name
        What to call it where it has no name yet.
    """
    found = list(found)
    tflops, gbps = best_tflops(found), best_gbps(found)
    if facts.kind == "cpu":
        tflops.pop("tf32", None)  # there it is float32 like any other
    rates = f"rates: the best of the products and copies measured up to {facts.machine.get('made', '?')[:10]}"
    measured = Measured(
        kernel_gap_us=facts.kernel_gap_us,
        launch_latency_us=facts.launch_latency_us,
        queue_depth=facts.queue_depth,
        memory_gbps=gbps,
        tflops=tflops,
        provenance="; ".join(filter(None, (rates, facts.provenance))),
    )
    known = Device.matching(facts.matches)
    if known:
        return replace(known, measured=measured)
    if "float32" not in tflops or gbps is None:
        raise ForetraceError(
            f"the measurements hold no product of float32 or no large copy on {facts.matches}, which nobody described",
            "Measure its ceilings: `foretrace calibrate device` with the same --out.",
        )
    return Device(
        name=name,
        matches=facts.matches,
        sms=facts.sms,
        clock_mhz=facts.clock_mhz,
        memory_clock_mhz=facts.memory_clock_mhz,
        memory_gb=round(facts.memory_gb, 3),
        memory_gbps=gbps,
        l2_mb=facts.l2_mb,
        peak_tflops=tflops,
        provenance="as the system describes it; the rates are the best that were measured",
        kind=facts.kind,
        measured=measured,
    )
