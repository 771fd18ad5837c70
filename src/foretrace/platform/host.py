"""A host: the host time T1 to T5 of each call of a step, apart from what the device does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

from foretrace.platform.typed_json import Positive, read_as, write


@dataclass(frozen=True)
class CallCost:
    """Host time inside a call of one name, in microseconds."""

    to_launch: float
    """T2: from its start to its first launch; all of a call that launches nothing."""
    launch: float
    """T4, launch overhead: in a launch."""
    between: float
    """T5: from one launch to the next."""
    after: float
    """T3: from its last launch to its end."""
    tensor: float
    """On top of T2, for each tensor of a list that it is given."""
    spread: float
    """Standard deviation of the logarithm of a call's time."""


@dataclass(frozen=True)
class BetweenCalls:
    """T1, host time between calls in microseconds: what each thing of a kind adds that a step has.

    Forward is Python, backward is autograd's C++, the optimizer is Python again; a call that launches nothing has, in
    forward, less C++ of its own than Python around it.
    """

    clearing: float
    """Once: entering the step, and beginning to clear gradients."""
    cleared: float
    """A parameter's gradient that is cleared."""
    forward: float
    """Once: entering the model."""
    forward_call: float
    forward_view: float
    """A call that launches nothing."""
    forward_cast: float
    """A cast, which autocast makes inside another call."""
    backward: float
    """Once: waking autograd's thread and coming back."""
    backward_call: float
    backward_view: float
    backward_parameter: float
    """A parameter's gradient that is accumulated."""
    optimizer: float
    """Once: entering the optimizer's step."""
    optimizer_call: float
    optimizer_parameter: float
    """A parameter that is put on the optimizer's lists."""
    released: float
    """A call of backward: its part of the autograd graph is released when the step ends."""
    recomputed_forward: float
    """A checkpointed block: saving its inputs, in forward. Its recomputed calls cost the same as in forward."""
    recomputed_backward: float
    """A checkpointed block: setting it up again, in backward."""
    new_name: float
    """The first call of a name in a phase: its code is not in the caches."""


TERMS = tuple(field.name for field in fields(BetweenCalls))
"""The terms that T1 is explained by, in the order of the fields of `BetweenCalls`."""


@dataclass(frozen=True)
class ColdHost:
    """Extra host time of each part of a step after a wait for the device, in microseconds.

    For each doubling of a millisecond that the host waited: its caches have gone cold meanwhile.
    """

    clearing: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0


@dataclass(frozen=True)
class Sharded:
    """Extra host time where parameters are shards (FSDP), in microseconds: Python around calls that stay the same."""

    call: float = 0.0
    """A call of the optimizer."""
    planned: float = 0.0
    """A call of the optimizer with a number that changes every step, for each shape: DTensor plans it again."""
    gather: float = 0.0
    """A group of parameters that is gathered, used and freed."""
    gathered: float = 0.0
    """Each of its parameters."""


@dataclass(frozen=True)
class CompiledPrograms:
    """Host time of programs that torch.compile generated, in microseconds.

    Where nothing was measured: half of what an H200's host takes, whose processors others share.
    """

    entry: float = 120.0
    """To enter one: guards, AOTAutograd's wrappers and autograd's node."""
    argument: float = 3.5
    """For each of its arguments."""
    kernel: float = 12.0
    """A generated kernel, with its launch and the allocation before it."""
    call: float = 4.5
    """Around a call of PyTorch in it."""
    backward: float = 100.0
    """To enter a backward: autograd calls it, and checks no guards."""
    measured: bool = False
    """Whether a calibration measured them."""


@dataclass(frozen=True)
class Host:
    """The five overheads of a host: inside calls by name (T2 to T5), between calls by term (T1).

    >>> cost = CallCost(to_launch=6.0, launch=4.0, between=3.0, after=1.0, tensor=0.0, spread=0.1)
    >>> host = Host("mine", {"aten::mm": cost}, cost, cost, BetweenCalls(*[1.0] * 17), common=0.1, provenance="made up")
    >>> host.cost("aten::mm", launches=2) is host.cost("aten::unheard_of", launches=1)
    True
    """

    name: str
    calls: dict[str, CallCost]
    launching: CallCost
    """A call of a name that was never measured, if it launches something."""
    view: CallCost
    """A call of a name that was never measured, if it launches nothing."""
    before: BetweenCalls
    common: Positive
    """Standard deviation of the logarithm of a factor that all calls of a step share: how much equal steps differ, and
    how far off whole steps were in the fit."""
    provenance: str
    first: float = 1.0
    """T2 of the first call of a name in a phase, over that of later ones."""
    rested: ColdHost = ColdHost()
    sharded: Sharded = Sharded()
    compiled: CompiledPrograms = CompiledPrograms()
    """Estimates for a current server CPU where they were not calibrated."""
    inference: Positive = 1.0
    """Host time of a forward without gradients, over that of the same forward with them."""
    faster: float = 0.0
    """As `common`, towards shorter times and for steps of any kind, where that is more: a host may have two speeds, and
    the fit is near one of them."""
    slower: float = 0.0
    """The same towards longer times."""
    large_step: Positive = 1.1
    """How many times as long as one by one the eager calls of a large model take, forward and backward. A calibration's
    steps are small models. On an H200's machine large steps took 1.2 to 1.3 times as long in two calls (72 steps of the
    zoo, and 19), and no longer in two others (19 steps each) and on both days of the shipped host: the middle, where
    nothing is known of a host. A model that does not fit in the processor's caches would explain it; that was not
    measured."""

    def cost(self, name: str, launches: int) -> CallCost:
        """Cost of a call of this name; of such calls in general where the name was never measured."""
        return self.calls.get(name) or (self.launching if launches else self.view)

    @classmethod
    def read(cls, path: Path) -> Host:
        """Read a host's file; an error names the field that is wrong."""
        return read_as(cls, path)

    def write(self, path: Path) -> None:
        """Write it to a file."""
        write(path, asdict(self))
