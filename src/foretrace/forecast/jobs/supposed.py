"""What a user supposes of some ranks: a slower host, the host of another rank, a slower link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretrace.errors import check_by_rank
from foretrace.graph import ForetraceError

UNMEASURED = "nobody measured it"
MOST_TIMES = 1e6
"""How many times slower than it is a host or a link may be supposed to be."""


@dataclass(frozen=True)
class Supposed:
    """Ranks that are not as they are, or as all others are.

    >>> Supposed(slow_host={3: 1.2}).ranks
    {3}
    """

    slow_host: Mapping[int, float] = field(default_factory=dict)
    """How many times as long the host of a rank takes."""
    host_of: Mapping[int, int] = field(default_factory=dict)
    """The rank whose host times another one is given."""
    slow_link: Mapping[int, float] = field(default_factory=dict)
    """The part of its speed that a rank's link has."""

    @property
    def ranks(self) -> set[int]:
        """All that something is supposed of."""
        return {*self.slow_host, *self.host_of, *self.slow_link}

    def __post_init__(self) -> None:
        for what in ("slow_host", "host_of", "slow_link"):
            check_by_rank(getattr(self, what), what, whole=what == "host_of")
        for rank, factor in self.slow_host.items():
            if not 1 / MOST_TIMES <= factor <= MOST_TIMES:
                raise ForetraceError(f"the host of rank {rank} can't take {factor:g} times as long", "Say 1.2 or so.")
        for rank, other in self.host_of.items():
            if rank == other:
                raise ForetraceError(f"rank {rank} has its own host already", "Name the host of another rank.")
        for rank, part in self.slow_link.items():
            if not 1 / MOST_TIMES <= part <= 1:
                raise ForetraceError(
                    f"the link of rank {rank} can't have {part:g} times its speed",
                    "Give a part of it, as 0.5; 1 is all of it.",
                )

    def check(self, world: int) -> None:
        """Refuse ranks that the job does not have."""
        for rank in {*self.ranks, *self.host_of.values()}:
            if not 0 <= rank < world:
                raise ForetraceError(f"there is no rank {rank}: the job has {world}", f"Name one of 0 to {world - 1}.")

    def check_alike(self) -> None:
        """Refuse hosts of other ranks, where all ranks do what the first one does."""
        if self.host_of:
            raise ForetraceError(
                "in another world all ranks have the host of the first one", "Leave out --world, or say --slow-host."
            )

    def words(self) -> list[str]:
        """What is supposed, for the notes."""
        said = [f"rank {rank}'s host takes {factor:g} times as long" for rank, factor in self.slow_host.items()]
        said += [f"rank {rank} has the host times of rank {other}" for rank, other in self.host_of.items()]
        said += [f"rank {rank}'s link has {factor:g} times its speed" for rank, factor in self.slow_link.items()]
        return [f"supposed: {', '.join(said)}; {UNMEASURED}"] if said else []
