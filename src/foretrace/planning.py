"""Sharding whatever tables a user has at hand, on a platform by whatever it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from foretrace.costs.collectives import assumptions
from foretrace.costs.families import family_of
from foretrace.forecast.flat import flat
from foretrace.forecast.predict import predict
from foretrace.graph import ForetraceError, Graph, Job, OpTable
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.platforms import joined_by, platform
from foretrace.predicting import at_hand
from foretrace.sharding.answer import Sharding
from foretrace.sharding.costing import Costing
from foretrace.sharding.exact import gap
from foretrace.sharding.exchange import Exchange
from foretrace.sharding.kernels import KERNELS, Batched
from foretrace.sharding.memory import KEPT_FREE
from foretrace.sharding.ranks import Ranks, check_ranks
from foretrace.sharding.reading import is_tables, read_tables
from foretrace.sharding.recorded import batch_of_graph, tables_of_graph
from foretrace.sharding.search import Found, Told, search
from foretrace.sharding.tables import Table, check

BATCH = 4096
"""Samples of a rank, where nobody says."""
SECONDS = 30.0


@runtime_checkable
class Module(Protocol):
    """A PyTorch module, whether torch is installed or not."""

    def named_modules(self) -> Any:
        """Itself and all modules in it, by name."""


class AtHand(NamedTuple):
    """Tables, and what came with them."""

    tables: Sequence[Table]
    source: str
    batch: int = BATCH
    step: Graph | None = None
    """The step that looks them up, where it is known."""


def shard(
    tables: Sequence[Table] | Graph | Job | Module | str | Path,
    world: int,
    on: Platform | str | Path = "h200",
    fabric: Fabric | Platform | str | Path | None = None,
    batch: int | None = None,
    memory_gb: float | None = None,
    kernels: str = "fused",
    sent_as: str = "fp32",
    ranks_per_node: int | None = None,
    seconds: float = SECONDS,
    seed: int = 0,
    told: Told | None = None,
) -> Sharding:
    """The fastest plan for embedding tables on so many ranks, as far as it was found.

    Parameters
    ----------
    tables
        Tables; a step that looks them up; a TorchRec model (of constraints for its planner, `torchrec_plan.tables_of`
        makes tables too); or the path of a YAML or CSV file that lists tables, of a recording, of a trace, or of a
        script, whose step is sketched.
    world
        Ranks.
    on, fabric
        The platform; and the fabric, where it has none or another is asked for. The shipped one that comes closest
        where neither is known.
    batch
        Samples of each rank: those of the step, or 4,096, where left out.
    memory_gb
        What each rank has for tables; nine tenths of the device's memory where left out.
    kernels
        ``fused`` looks up all tables with rows as long by one call, ``single`` each by its own, ``tbe`` by FBGEMM.
    sent_as
        What embeddings and gradients are exchanged in: fp32, fp16, bf16, fp8, int8.
    ranks_per_node
        As many as the fabric's nodes have, where left out.
    seconds, seed
        How long to search at most, and what decides chances: the same seed gives the same plan.
    told
        Told how far the search is.

    >>> found = shard([Table("users", 1_000_000, 64), Table("items", 100_000, 64, pooling=20)], world=2)
    >>> len(found.plan), found.estimate.low < found.estimate.step
    (2, True)
    """
    if not seconds > 0:
        raise ForetraceError(f"a search can't take {seconds} seconds", "Give more than none.")
    where = platform(on)
    given = _at_hand(tables, where.device.kind)
    joined, notes = joined_by(fabric, where.fabric, where.device.matches, world, ranks_per_node)
    ranks = Ranks(world, ranks_per_node or joined.gpus_per_node, batch or given.batch, sent_as)
    check_ranks(ranks)
    _check_nodes(ranks, joined)
    notes += assumptions(joined, world, ranks.per_node) if world > 1 else []
    if kernels not in KERNELS:
        raise ForetraceError(f"nothing looks up tables {kernels!r}", f"Known are: {', '.join(KERNELS)}.")
    dense_us = _dense_us(given.step, where) if given.step else 0.0
    costing = Costing(given.tables, ranks, KERNELS[kernels](where), Exchange(joined, ranks), dense_us)
    room = _room(where, memory_gb)
    found = search(costing, room, seconds, seed, told)
    return Sharding(
        source=given.source, platform=where.name, fabric=joined.name, kernels=kernels, tables=given.tables, ranks=ranks,
        room=room, plan=found.plan, estimate=found.estimate, others=found.others, dense_ms=dense_us / 1e3,
        seconds=found.seconds, gap=gap(costing, room, found.plan),
        notes=[*notes, *_assumed(given, costing), *_ended(found)],
    )  # fmt: skip


def _ended(found: Found) -> list[str]:
    return ["the time ran out before the search was over: more --seconds may find a faster plan"] * found.cut_short


def _at_hand(what: Sequence[Table] | Graph | Job | Module | str | Path, device: str) -> AtHand:
    if isinstance(what, (str, Path)) and is_tables(Path(what)):
        return AtHand(read_tables(Path(what)), str(what))
    if isinstance(what, (Graph, Job, str, Path)):
        job = at_hand(what, device)
        step = job.graphs[0]
        return AtHand(tables_of_graph(step), job.source, batch_of_graph(step), step)
    if isinstance(what, Module):
        from foretrace.sharding.torchrec_plan import tables_of

        return AtHand(tables_of(what), type(what).__name__)
    for table in what:
        check(table)
    if not what:
        raise ForetraceError("there are no tables to shard", "Give one at least.")
    return AtHand(what, f"{len(what)} tables")


def _check_nodes(ranks: Ranks, fabric: Fabric) -> None:
    """Refuse more ranks in a node than it has GPUs."""
    if fabric.links and min(ranks.world, ranks.per_node) > fabric.gpus_per_node:
        raise ForetraceError(
            f"a node of fabric {fabric.name} has {fabric.gpus_per_node} GPUs, not {ranks.per_node}",
            f"Give {fabric.gpus_per_node} ranks of a node at most (--per-node), or another fabric (--fabric).",
        )


def _room(where: Platform, memory_gb: float | None) -> float:
    if memory_gb is not None and not memory_gb > 0:
        raise ForetraceError(f"a rank can't have {memory_gb} GB for tables", "Give more than none.")
    return memory_gb * 1e9 if memory_gb is not None else (1 - KEPT_FREE) * where.device.memory_gb * 1e9


def _dense_us(step: Graph, where: Platform) -> float:
    """What a step takes without its lookups, their gradients and updates."""
    others = [
        op
        for op in flat(step).calls.ops
        if (family := family_of(op)) is None or family.name != "lookups"
    ]  # fmt: skip
    if not others:
        return 0.0
    rest = Graph(OpTable.of(others), settings=step.settings)
    return predict(Job([rest], step.source), where, "model").step_ms * 1e3


def _assumed(given: AtHand, costing: Costing) -> list[str]:
    """What the answer rests on, in words."""
    notes = []
    if not any(table.reuse or table.zipf for table in given.tables):
        notes.append("nothing is known of how often rows are hit: ids are taken to be spread evenly (zipf, reuse)")
    if isinstance(costing.kernels, Batched):
        notes.append("FBGEMM's kernels are carried over from one H100 by the rate of the memory")
    if given.step is None:
        notes.append(
            "no model was given: the step is lookups and their exchange, with nothing to hide the latter behind"
        )
    else:
        notes.append("ids travel behind the dense part, and its gradients are added up behind its own backward")
    if any(table.dtype == "int8" for table in given.tables):
        notes.append("int8 rows are priced as 16-bit rows of as many bytes")
    return notes
