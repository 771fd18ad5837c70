"""How ranks are to share a step, checked before there is a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.graph import MOST_RANKS, ForetraceError
from foretrace.graph.given import check_count
from foretrace.transforms.parallel import schedules
from foretrace.transforms.parallel.data import USUAL_MB

COUNTS = ("data", "tensor", "pipeline", "microbatches", "experts", "chunks")


@dataclass(frozen=True)
class Ways:
    """What `foretrace.parallelize` is asked for; what contradicts itself is refused.

    >>> Ways(data=4, tensor=2).world
    8
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    overlap: bool = False
    sequence: bool = False
    sharded: bool | Sequence[str] = False
    mixed: bool = False
    experts: int = 1
    tables: bool = False
    microbatches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    bucket_mb: float = USUAL_MB

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_shards()
        self._check_experts()
        self._check_tables()
        schedules.check(self.schedule, self.pipeline, self.microbatches, self.chunks)
        if (self.overlap or self.sequence) and self.tensor == 1:
            asked = "overlap" if self.overlap else "sequence"
            raise ForetraceError(
                f"{asked} is about tensor parallel ranks, and there is one", "Give tensor, or leave it out."
            )
        if not isinstance(self.bucket_mb, (int, float)) or not self.bucket_mb > 0:
            raise ForetraceError(
                f"bucket_mb can't be {self.bucket_mb!r}", "Give a size in MB, or infinity for one bucket."
            )

    @property
    def world(self) -> int:
        """How many ranks that takes."""
        return self.data * self.tensor * self.pipeline

    def _check_counts(self) -> None:
        for name in COUNTS:
            check_count(getattr(self, name), name, MOST_RANKS)
        if self.world > MOST_RANKS:
            raise ForetraceError(f"a job can't have {self.world:,} ranks", f"At most {MOST_RANKS:,} are simulated.")

    def _check_shards(self) -> None:
        if self.mixed and not self.sharded:
            raise ForetraceError(
                "mixed says how shards are kept, and there are none", "Give sharded too, or leave it out."
            )
        if self.sharded and self.data == 1:
            raise ForetraceError(
                "weights can't be in shards on one rank", "Give data, the number of ranks to share them."
            )

    def _check_experts(self) -> None:
        if self.experts == 1:
            return
        if self.data % self.experts:
            raise ForetraceError(
                f"{self.experts} ranks that share experts can't be made of {self.data} data parallel ones",
                "Give a data they divide.",
            )

    def _check_tables(self) -> None:
        if not self.tables:
            return
        if self.data == 1:
            raise ForetraceError("tables need several ranks to lie on", "Give data, the number of ranks.")
        if self.sharded or max(self.tensor, self.pipeline, self.microbatches, self.experts) > 1:
            raise ForetraceError(
                "tables on ranks of their own go together with data parallel only", "Leave out everything but data."
            )
