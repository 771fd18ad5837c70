"""Ranks that share one machine's processors, as many or as few as they are in another job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from foretrace.costs.crowd import crowd_of
from foretrace.forecast.jobs.lateness import expected_last
from foretrace.forecast.jobs.rank import KeptRank, PricedRank
from foretrace.platform.fabric import Fabric

SomeRank = TypeVar("SomeRank", KeptRank, PricedRank)


def crowded(
    ranks: Sequence[SomeRank], fabric: Fabric, world: int, was: int, per_node: int | None
) -> tuple[list[SomeRank], list[str]]:
    """The ranks as far apart and as slow as so many at once are, and what the reader should know of that.

    Ranks that have devices, or that nobody measured a crowd of, stay as they are.

    Parameters
    ----------
    ranks
        Of a job.
    fabric
        Where they are.
    world
        How many ranks the job has.
    was
        How many worked at once when their times were measured.
    per_node
        Ranks that share a machine; as many as the fabric's, where left out.

    >>> from foretrace.graph import Graph, Op, OpTable
    >>> from foretrace.platform.fabric import Crowd
    >>> fabric = Fabric("gloo", (), "made up", crowd=(Crowd(1, 1.0, 0.0), Crowd(8, 1.2, 0.1)))
    >>> one = KeptRank.of(Graph(OpTable.of([Op("aten::mm", start_us=0.0, end_us=8.0)])), None)
    >>> (slower,), notes = crowded([one], fabric, world=8, was=1, per_node=8)
    >>> float(slower.part.program.duration[0]), notes
    (9.6, ['ranks share processors: 8 ranks at once take 1.20 times as long as 1 on fabric gloo'])
    """
    most = per_node or fabric.gpus_per_node
    now, before = (crowd_of(fabric, min(count, most)) for count in (world, was))
    if now is None or before is None or not all(rank.on_host for rank in ranks):
        return list(ranks), []
    slower = now.slower / before.slower
    apart = now.behind / expected_last(now.ranks) if now.ranks > 1 else 0.0
    changed = [replace(one, apart=apart, part=one.part.with_slower_host(slower)) for one in ranks]
    if now.ranks == before.ranks:
        return changed, []
    than = f"{now.ranks} ranks at once take {slower:.2f} times as long as {before.ranks}"
    return changed, [f"ranks share processors: {than} on fabric {fabric.name}"]
