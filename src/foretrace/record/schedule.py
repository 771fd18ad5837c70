"""Which of a job's steps are taken for what."""

from __future__ import annotations

from dataclasses import dataclass

WARM_UP, SYNCED, BACK_TO_BACK, PROFILE, EXECUTION_TRACE, STRUCTURE, INDICES = (
    "warm-up", "synced", "back-to-back", "profile", "execution trace", "structure", "indices",
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """How many steps go to what: warm-up, plain ones (synced, then as many back to back), profiled ones, structure.

    One profiled step more than asked for is run: the first one pays for the profiler's start and is thrown away.

    >>> Schedule(warmup=1, plain=1, profile=1).steps
    ['warm-up', 'synced', 'back-to-back', 'profile', 'profile', 'structure', 'indices']
    """

    warmup: int = 5
    plain: int = 20
    profile: int = 3

    @property
    def steps(self) -> list[str]:
        """What each step of the job is for, in order."""
        return [
            *[WARM_UP] * max(self.warmup, 1),
            *[SYNCED] * self.plain,
            *[BACK_TO_BACK] * self.plain,
            *[PROFILE] * (self.profile + 1 if self.profile else 0),
            STRUCTURE,
            INDICES,
        ]
