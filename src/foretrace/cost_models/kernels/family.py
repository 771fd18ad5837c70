"""What all families share: which calls a family answers for, and what it looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from foretrace.cost_models.kernels.features import tensors_of
from foretrace.cost_models.kernels.kernel_names import Kernel
from foretrace.graph import Indices, Op
from foretrace.platform.device import Device


@dataclass(frozen=True, slots=True)
class Facts:
    """What a call's arguments do not say and its time depends on."""

    device: Device
    indices: Indices | None = None
    """How the call's ids are spread, where it reads or writes rows by id."""
    tf32: bool = False
    """Whether float32 products may run on the matrix units."""
    pinned: bool = False
    """Whether memory of the host is pinned."""


LATENCY_US = 0.6
"""What a trip to memory takes before anything arrives, about the same on all GPUs of these years."""


class Work(NamedTuple):
    """Arithmetic, the fewest bytes that must move, and trips that must wait: what a roofline is made of.

    >>> Work(flops=2e9, bytes=4e6).us(Device.named("h200")) > 0
    True
    """

    flops: float = 0.0
    bytes: float = 0.0
    rate: str = "float32"
    """Whose peak rate applies: a dtype, or ``tf32``."""
    trips: float = 0.0
    """Trips to memory of the longest chain in which each waits for the one before."""

    def us(self, device: Device) -> float:
        """Microseconds that hardly any kernel on the device can beat."""
        return max(
            self.flops / (device.peak(self.rate) * 1e6),
            self.bytes / (device.memory_gbps * 1e3),
            self.trips * LATENCY_US,
        )


class Described(NamedTuple):
    """A call in numbers: one feature per column of its family, and its roofline."""

    features: Sequence[float]
    work: Work


class Family:
    """Calls whose times follow the same rules.

    A subclass names the ops it answers for and turns a call into numbers. Fitting, ranges and fallbacks are the same
    for all and live elsewhere.
    """

    name: ClassVar[str]
    ops: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[str, ...]]
    """Names of the features, in order."""
    sides: ClassVar[tuple[str, ...]] = ()
    """Those that say how large a call is as a matrix product, in the order of `SIDES`; nothing where it is none."""
    fewest: ClassVar[int] = 40
    """Measured calls that it takes to be fitted at all."""
    one_kernel: ClassVar[bool] = False
    """Whether a call is a kernel itself, and called so."""

    def answers(self, op: Op) -> bool:
        """Whether a call is one for this family."""
        return op.name in self.ops and self.takes(op)

    def takes(self, op: Op) -> bool:
        """Whether a call of one of its ops is one for this family: by default, where any of its tensors is known."""
        return bool(tensors_of(op))

    def describe(self, op: Op, facts: Facts) -> Described:
        """What the time of a call depends on."""
        raise NotImplementedError

    def guesses(self, op: Op) -> bool:
        """Whether its answer for a call is a guess, however much of the family was measured."""
        return False

    def stand_in(self, op: Op) -> Op | None:
        """A call of another family that takes about as long, for devices on which this one was not measured."""
        return None

    def latents(self, kernels: Sequence[str]) -> tuple[float, ...]:
        """Facts that the names of a measured call's kernels give away, each worth a guess for calls not measured."""
        return ()

    def kernel(self, kernels: Sequence[str]) -> Kernel | None:
        """The kernel that did a measured call's work, by the names of all that ran; None where they don't matter."""
        return None
