"""The recording schedule: what each step of a job is used for."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.graph import ForetraceError

WARM_UP, SYNCED, BACK_TO_BACK, PROFILE, EXECUTION_TRACE, STRUCTURE, INDICES = (
    "warm-up", "synced", "back-to-back", "profile", "execution trace", "structure", "indices",
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """Numbers of warm-up steps, of unprofiled timed steps (synced, then as many back to back), and of profiled steps.

    One more profiled step is run: the first one includes the profiler's start and is dropped.

    >>> Schedule(warmup=1, plain=1, profile=1).steps
    ['warm-up', 'synced', 'back-to-back', 'profile', 'profile', 'structure', 'indices']
    """

    warmup: int = 5
    plain: int = 20
    profile: int = 3

    def __post_init__(self) -> None:
        if self.warmup < 1 or self.plain < 1 or self.profile < 0:
            raise ForetraceError(
                f"there can't be {self.warmup} warm-up, {self.plain} plain and {self.profile} profiled steps",
                "Take at least 1 warm-up step, 1 plain one, and 0 profiled ones.",
            )

    @property
    def steps(self) -> list[str]:
        """The use of each step of the job, in order."""
        return [
            *[WARM_UP] * self.warmup,
            *[SYNCED] * self.plain,
            *[BACK_TO_BACK] * self.plain,
            *[PROFILE] * (self.profile + 1 if self.profile else 0),
            STRUCTURE,
            INDICES,
        ]

    def fitting(self, steps: int, compiled: bool = False) -> Schedule | None:
        """A shorter schedule for a job of so many steps, with a profile if possible; None if too few.

        >>> Schedule().fitting(30)
        Schedule(warmup=5, plain=10, profile=1)
        >>> Schedule(warmup=1, plain=1, profile=1).fitting(6)
        Schedule(warmup=1, plain=1, profile=0)
        """
        for profile in sorted({min(self.profile, 1), 0}, reverse=True):
            timed = steps - len(Schedule(1, 1, profile).steps) + 3 - (compiled and profile > 0)
            warmup = min(self.warmup, max(1, timed // 4))
            plain = min(self.plain, (timed - warmup) // 2)
            if plain >= 1:
                return Schedule(warmup, plain, profile)
        return None

    @property
    def options(self) -> str:
        """As options of the command line.

        >>> Schedule().options
        '--warmup 5 --plain 20 --profile 3'
        """
        return f"--warmup {self.warmup} --plain {self.plain} --profile {self.profile}"


SHORTEST = Schedule(warmup=1, plain=1, profile=1)
