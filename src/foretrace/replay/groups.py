"""Process groups of the ranks that are replayed, which may be fewer than there were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from foretrace.replay.plan import Plan


def among(ranks: Sequence[int], kept: Sequence[int]) -> dict[str, Any]:
    """What is left of a process group: new numbers of the ranks that are kept, their places in it, and its old size.

    >>> among([0, 2, 4, 6], kept=[0, 1, 2])
    {'ranks': [0, 2], 'places': [0, 1], 'of': 4}
    """
    new = {rank: number for number, rank in enumerate(kept)}
    places = [place for place, rank in enumerate(ranks) if rank in new]
    return {"ranks": [new[ranks[place]] for place in places], "places": places, "of": len(ranks)}


def groups_of(plan: Plan) -> dict[str, dict[str, Any]]:
    """The groups of one rank's plan, by name."""
    kept = plan.kept or range(plan.world)
    return {name: among(ranks, kept) for name, ranks in plan.groups.items()}


def all_groups(plans: Iterable[dict[str, dict[str, Any]]]) -> list[tuple[str, tuple[int, ...]]]:
    """Every process group of a job, each once, in an order that is the same for all ranks.

    >>> both, own = {"ranks": [0, 1]}, [{"ranks": [rank]} for rank in (0, 1)]
    >>> all_groups([{"all": both, "tp": own[0]}, {"all": both, "tp": own[1]}])
    [('all', (0, 1)), ('tp', (0,)), ('tp', (1,))]
    """
    return sorted({(name, tuple(entry["ranks"])) for groups in plans for name, entry in groups.items()})
