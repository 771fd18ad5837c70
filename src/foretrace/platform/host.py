"""A host: what its processor takes for each call of a step, apart from what the device does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

from foretrace.platform.files import Positive, read_as, write


@dataclass(frozen=True)
class CallCost:
    """Microseconds that the host spends inside a call of one name."""

    to_launch: float
    """T2: from its start to its first launch; all of a call that launches nothing."""
    launch: float
    """T4: in a launch."""
    between: float
    """T5: from one launch to the next."""
    after: float
    """T3: from its last launch to its end."""
    tensor: float
    """On top of T2, for each tensor of a list it is given."""
    spread: float
    """Standard deviation of the logarithm of a call's time."""


@dataclass(frozen=True)
class Before:
    """T1, microseconds between calls: what is added for each thing of a kind that a step has.

    Forward is Python, backward is autograd's C++, the optimizer is Python again; a call that launches nothing has, in
    forward, less C++ of its own than Python around it.
    """

    clearing: float
    """Once: entering the step, and beginning to clear gradients."""
    cleared: float
    """A parameter's gradient let go."""
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
    """A parameter's gradient put in its place."""
    optimizer: float
    """Once."""
    optimizer_call: float
    optimizer_parameter: float
    """A parameter put on the optimizer's lists."""
    released: float
    """A call of backward: what it went through is let go when the step ends."""
    recomputed_forward: float
    """A block that is computed again in backward: remembering how, in forward. Its calls there are as in forward."""
    recomputed_backward: float
    """The same: setting it up again, in backward."""
    new_name: float
    """A call of a name that its phase has not made before: its code is not at hand."""


TERMS = tuple(field.name for field in fields(Before))
"""The kinds of things T1 is explained by, in the order of the fields of `Before`."""


@dataclass(frozen=True)
class Rested:
    """Microseconds that each part of a step takes longer after a wait for the device.

    For each doubling of a millisecond that the host waited: others then had its caches.
    """

    clearing: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0


@dataclass(frozen=True)
class Sharded:
    """Microseconds on top, where parameters are shards (FSDP's): Python around calls that are the same as ever."""

    call: float = 0.0
    """A call of the optimizer."""
    planned: float = 0.0
    """The same with a number that changes with each step, for each shape that it is made with."""
    gather: float = 0.0
    """A group of parameters that is gathered, used and let go."""
    gathered: float = 0.0
    """For each of its parameters."""


@dataclass(frozen=True)
class Host:
    """The five overheads of a host: inside calls by their names, between calls by what they are.

    >>> cost = CallCost(to_launch=6.0, launch=4.0, between=3.0, after=1.0, tensor=0.0, spread=0.1)
    >>> host = Host("mine", {"aten::mm": cost}, cost, cost, Before(*[1.0] * 17), common=0.1, provenance="made up")
    >>> host.cost("aten::mm", launches=2) is host.cost("aten::unheard_of", launches=1)
    True
    """

    name: str
    calls: dict[str, CallCost]
    launching: CallCost
    """A call of a name that was never measured, if it launches something."""
    view: CallCost
    """The same, if it launches nothing."""
    before: Before
    common: Positive
    """Standard deviation of the logarithm of a factor that all calls of a step share: how much steps differ that do the
    same, and how far whole steps were off that the costs were fitted on."""
    provenance: str
    first: float = 1.0
    """How many times as long T2 is in the first call of a name in a phase as in later ones."""
    rested: Rested = Rested()
    sharded: Sharded = Sharded()

    def cost(self, name: str, launches: int) -> CallCost:
        """What a call of this name costs; where the name was never measured, what such calls cost."""
        return self.calls.get(name) or (self.launching if launches else self.view)

    @classmethod
    def read(cls, path: Path) -> Host:
        """The host that a file describes; a damaged file says which field is wrong."""
        return read_as(cls, path)

    def write(self, path: Path) -> None:
        """Write it to a file.

        >>> import tempfile; path = Path(tempfile.mkdtemp()) / "host.json"
        >>> cost = CallCost(6.0, 4.0, 3.0, 1.0, 0.0, 0.1)
        >>> host = Host("mine", {"aten::mm": cost}, cost, cost, Before(*[1.0] * 17), 0.1, "made up")
        >>> host.write(path); Host.read(path) == host
        True
        """
        write(path, asdict(self))
