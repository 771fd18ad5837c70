"""Suites: several replays as one benchmark, each recording with its weight in the fleet."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace.graph import ForetraceError
from foretrace.replay.running import Replay

MAX_FILE_BYTES = 1 << 20
BEGINNING = re.compile(r'\s*\{\s*"suite"')
HOW = 'Write it like {"suite": [{"what": "runs/bert", "weight": 3}, …]}.'


@dataclass(frozen=True)
class Member:
    """One recording, benchmark or trace of a suite."""

    what: Path
    weight: float = 1.0

    @property
    def name(self) -> str:
        """Its name in the table.

        >>> Member(Path("runs/bert")).name
        'bert'
        """
        return self.what.name or str(self.what)


@dataclass(frozen=True)
class Suite:
    """Results of the members of a suite; an error for one that could not be replayed."""

    members: tuple[Member, ...]
    results: tuple[Replay | ForetraceError, ...]

    @property
    def replayed(self) -> list[tuple[float, Replay]]:
        """Weights and results of the members that ran."""
        return [(m.weight, r) for m, r in zip(self.members, self.results) if isinstance(r, Replay)]

    def mean(self, field: str, of_original: bool = False) -> float | None:
        """The weighted mean of a figure; None where it is unknown for a member."""
        figures = [(w, r.original.get(field) if of_original else getattr(r, field)) for w, r in self.replayed]
        known: list[tuple[float, float]] = [(weight, figure) for weight, figure in figures if figure is not None]
        if len(known) < len(self.members):
            return None
        return sum(weight * figure for weight, figure in known) / sum(weight for weight, _ in known)

    @property
    def ratio(self) -> float | None:
        """Weighted geometric mean of the step time relative to the original, over members whose original is known."""
        known = [(w, r.step_ms / was) for w, r in self.replayed if r.step_ms and (was := r.original.get("step_ms"))]
        whole = sum(weight for weight, _ in known)
        return math.exp(sum(w * math.log(ratio) for w, ratio in known) / whole) if whole else None

    @property
    def coverage(self) -> float:
        """Weighted share of calls that were made; 0 for a member that did not run."""
        called = sum(weight * (result.coverage["calls"] or 0.0) for weight, result in self.replayed)
        return called / sum(member.weight for member in self.members)

    def to_dict(self) -> dict[str, Any]:
        """Its fields, as documented in docs/replay.md."""
        return {
            "step_ms": self.mean("step_ms"),
            "original": {"step_ms": self.mean("step_ms", of_original=True)},
            "ratio": self.ratio,
            "coverage": {"calls": self.coverage},
            "suite": [
                {"name": m.name, "what": str(m.what), "weight": m.weight}
                | (r.to_dict() if isinstance(r, Replay) else {"error": str(r)})
                for m, r in zip(self.members, self.results)
            ],
        }


def members_of(paths: Sequence[Path], weights: str | None) -> list[Member]:
    """The members from paths and weights, or from a suite file that is the only path.

    >>> [member.weight for member in members_of([Path("a"), Path("b")], "3,1")]
    [3.0, 1.0]
    """
    if len(paths) == 1 and (listed := _listed(paths[0])) is not None:
        if weights is not None:
            raise ForetraceError(f"{paths[0]} has weights of its own", "Leave out --weights, or change the file.")
        return listed
    given = [1.0] * len(paths) if weights is None else [_weight(text, "--weights") for text in weights.split(",")]
    if len(given) != len(paths):
        raise ForetraceError(f"there are {len(paths)} recordings and {len(given)} weights", "Give one for each.")
    return [Member(path, weight) for path, weight in zip(paths, given)]


def _listed(path: Path) -> list[Member] | None:
    """The members of a suite file; None for another path."""
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        return None
    text = ""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        if BEGINNING.match(text):
            raise ForetraceError(f"{path} is no suite: it can't be read as JSON ({error})", HOW) from None
        return None  # perhaps a trace, whose reader reports what is wrong
    if not isinstance(content, dict) or "suite" not in content:
        return None
    entries = content["suite"]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ForetraceError(f"{path} lists no recordings", HOW)
    members = []
    for entry in entries:
        if not isinstance(entry.get("what"), str) or not set(entry) <= {"what", "weight"}:
            raise ForetraceError(f"{path} has an entry that names no recording: {str(entry)[:80]}", HOW)
        members.append(Member(path.parent / entry["what"], _weight(entry.get("weight", 1), str(path))))
    return members


def _weight(value: Any, where: str) -> float:
    try:
        weight = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ForetraceError(f"{where}: {str(value)[:40]!r} is no weight", "A weight is a number above 0.")
    return weight
