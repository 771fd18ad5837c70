"""Ranks that share one machine's processors, as many or as few as they are in another job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from foretrace.cost_models.collectives.contention import Contention, crowd_of
from foretrace.forecast.jobs.lateness import expected_last
from foretrace.forecast.jobs.rank import ALONE, KeptRank, PricedRank
from foretrace.platform.fabric import Beside, Fabric

SomeRank = TypeVar("SomeRank", KeptRank, PricedRank)
MEASURED = "measured with the fabric"


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
    known = fabric.crowd[-1].ranks
    apart = now.behind / expected_last(min(now.ranks, known)) if min(now.ranks, known) > 1 else 0.0
    changed = [replace(one, apart=apart, part=one.part.with_slower_host(slower)) for one in ranks]
    if fabric.beside:
        changed = [_exchanging(one, fabric.beside, more=now.ranks != before.ranks) for one in changed]
    if now.ranks == before.ranks:
        return changed, []
    than = f"{now.ranks} ranks at once take {slower:.2f} times as long as {before.ranks}"
    beyond = f", where {known} were measured at most: more are taken to be as slow" if now.ranks > known else ""
    return changed, [f"ranks share processors: {than} on fabric {fabric.name}{beyond}"]


def as_typical(ranks: Sequence[KeptRank], measured: Sequence[KeptRank]) -> tuple[list[KeptRank], list[str]]:
    """Ranks that stand for many, as fast as measured ones are on average; and what the reader should know of that.

    Which of these was the first, and how fast its processor just then, says nothing of other ranks. Ranks that have
    devices stay as they are.

    >>> from foretrace.graph import Graph, Op, OpTable
    >>> steps = [Graph(OpTable.of([Op("aten::mm", start_us=0.0, end_us=us)])) for us in (8.0, 10.0)]
    >>> both = [KeptRank.of(step, None) for step in steps]
    >>> (typical,), notes = as_typical(both[:1], both)
    >>> float(typical.part.program.duration[0]), notes
    (9.0, ['the host takes 1.12 times as long as that of rank 0 did: the mean of all 2 measured ranks'])
    """
    if not all(rank.on_host for rank in [*ranks, *measured]) or len(measured) < 2:
        return list(ranks), []
    times = float(np.mean([rank.host_us for rank in measured])) / measured[0].host_us
    said = f"the host takes {times:.2f} times as long as that of rank {measured[0].graph.rank} did"
    changed = [replace(one, part=one.part.with_slower_host(times)) for one in ranks]
    return changed, [f"{said}: the mean of all {len(measured)} measured ranks"]


def _exchanging(rank: SomeRank, seen: Beside, more: bool) -> SomeRank:
    """A rank whose work and exchanges slow each other.

    Measured work was slowed already: only what it exchanges longer than it did, in a larger job, slows it more.
    """
    law = Contention(seen.work, 0.0, MEASURED, seen.transfer, MEASURED, spins=False)
    if isinstance(rank, PricedRank):
        return replace(rank, slowing=law, beside=ALONE)
    if more:
        return replace(rank, slowing=law, beside=rank.exchanging)
    return replace(rank, slowing=replace(law, factor=1.0), beside=ALONE)
