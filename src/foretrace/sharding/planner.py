"""Sharding whatever tables a user has at hand, on a platform by whatever it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from foretrace.cost_models.collectives.pricing import assumptions
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.platform.fabric import Fabric
from foretrace.platform.folder import HERE
from foretrace.platform.platform import Platform
from foretrace.platforms import fabric_named, joined_by, platform
from foretrace.predicting import at_hand
from foretrace.sharding.costing import Costing, Exchange
from foretrace.sharding.lookups import KERNELS, Batched
from foretrace.sharding.options import Ranks, check_ranks
from foretrace.sharding.plan import Sharding
from foretrace.sharding.search.exact import gap
from foretrace.sharding.search.iterated_local_search import Found, Told, search
from foretrace.sharding.shards import KEPT_FREE
from foretrace.sharding.tables import Table, check, gigabytes, is_tables, read_tables
from foretrace.sharding.training_step import (
    Simulated,
    batch_of_graph,
    dense_bytes,
    dense_us,
    simulate_plan,
    tables_of_graph,
)
from foretrace.transforms.resize.batch_sequence import batch as with_batch

BATCH = 4096
"""Samples of a rank, where nobody says."""
SECONDS = 30.0
MOST_CALLS = 200_000
"""Of all ranks together, up to which a plan is simulated as a whole job: that takes half a minute."""
ALONE = Fabric("no fabric", (), "one rank exchanges nothing")
NO_MODEL = "no model was given: the step is lookups and their exchange, with nothing to hide the latter behind"
SIMULATED = (
    "the step is simulated with all its ranks, one step after the other; what heuristics take longer is added up"
)
COALESCED = (
    "but for SGD, PyTorch adds up the gradients of each row before an update, one after the other: a row that is hit "
    "often holds it up; FBGEMM (--kernels tbe) does not"
)
ADDED_UP = "the step is lookups, exchange and dense part added up"


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
        What each rank has for tables. Where left out, nine tenths of the device's memory, less what the rest of the
        step holds where that is known.
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
    named = _fabric_first(on, fabric, world)
    where = platform(on)
    given, resized = _at_batch(_at_hand(tables, where.device.kind), batch)
    joined, notes = joined_by(named, where.fabric, where.device.matches, world, ranks_per_node)
    ranks = Ranks(world, ranks_per_node or joined.gpus_per_node, given.batch, sent_as)
    check_ranks(ranks)
    _check_nodes(ranks, joined)
    notes += assumptions(joined, world, ranks.per_node) if world > 1 else []
    if kernels not in KERNELS:
        raise ForetraceError(f"nothing looks up tables {kernels!r}", f"Known are: {', '.join(KERNELS)}.")
    dense = dense_us(given.step, where) if given.step else 0.0
    costing = Costing(given.tables, ranks, KERNELS[kernels](where), Exchange(joined, ranks), dense)
    room, of_room = _room(where, memory_gb, given.step)
    found = search(costing, room, seconds, seed, told)
    whole, said = _simulated(given.step, costing, found, told) if given.step else (None, [NO_MODEL])
    return Sharding(
        source=given.source, platform=where.name, fabric=joined.name, kernels=kernels, tables=given.tables, ranks=ranks,
        room=room, plan=found.plan, estimate=found.estimate, others=found.others, dense_ms=dense / 1e3,
        seconds=found.seconds, gap=gap(costing, room, found.plan), simulated=whole,
        notes=[*notes, *resized, *of_room, *_assumed(given, costing), *said, *_ended(found)],
    )  # fmt: skip


def _simulated(step: Graph, costing: Costing, found: Found, told: Told | None) -> tuple[Simulated | None, list[str]]:
    """The plan as a whole job, and what to say of that."""
    calls = costing.ranks.world * len(step.ops)
    if calls > MOST_CALLS:
        return None, [f"{ADDED_UP}: {calls:,} calls of all ranks are too many to simulate together"]
    if told:
        told("simulating all ranks", found.seconds, found.seconds)
    try:
        return simulate_plan(step, costing, found.plan), [SIMULATED]
    except ForetraceError as error:
        return None, [f"{ADDED_UP}, for as a job it can't be simulated: {error.what}"]


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
        from foretrace.sharding.torchrec import tables_of

        return AtHand(tables_of(what), type(what).__name__)
    for table in what:
        check(table)
    if not what:
        raise ForetraceError("there are no tables to shard", "Give one at least.")
    return AtHand(what, f"{len(what)} tables")


def _at_batch(given: AtHand, batch: int | None) -> tuple[AtHand, list[str]]:
    """The same with so many samples of a rank, where they are asked for; and what to say of that."""
    if batch is None or batch == given.batch:
        return given, []
    other = given._replace(batch=batch)
    if given.step is None or batch < 1:
        return other, []
    try:
        return other._replace(step=with_batch(given.step, batch, given.batch)), []
    except ForetraceError as error:
        return other, [
            f"lookups have a batch of {batch:,}, the rest of the step stays at {given.batch:,}: {error.what}"
        ]


def _fabric_first(on: Platform | str | Path, said: Fabric | Platform | str | Path | None, world: int) -> Fabric | None:
    """The fabric, where one is named or none is needed; else None.

    It is asked first of all, so that a machine without a fabric is refused before minutes are spent to measure it.
    """
    if said is not None:
        return fabric_named(said)
    if world == 1:
        return ALONE
    here = not isinstance(on, Platform) and str(on).partition(":")[0] == HERE
    return fabric_named(HERE) if here else None


def _check_nodes(ranks: Ranks, fabric: Fabric) -> None:
    """Refuse more ranks in a node than it has GPUs."""
    if fabric.links and min(ranks.world, ranks.per_node) > fabric.gpus_per_node:
        raise ForetraceError(
            f"a node of fabric {fabric.name} has {fabric.gpus_per_node} GPUs, not {ranks.per_node}",
            f"Give {fabric.gpus_per_node} ranks of a node at most (--per-node), or another fabric (--fabric).",
        )


def _room(where: Platform, memory_gb: float | None, step: Graph | None) -> tuple[float, list[str]]:
    """Bytes that a rank has for tables, and what to say of that."""
    if memory_gb is not None:
        if not memory_gb > 0:
            raise ForetraceError(f"a rank can't have {memory_gb} GB for tables", "Give more than none.")
        return memory_gb * 1e9, []
    usable = (1 - KEPT_FREE) * where.device.memory_gb * 1e9
    if step is None:
        return usable, []
    dense = dense_bytes(step)
    if dense is None:
        return usable, ["nothing is known of the memory of the dense part: tables may take nine tenths of a device's"]
    if dense >= usable:
        raise ForetraceError(
            f"the dense part holds {gigabytes(dense)} of the {gigabytes(usable)} of a rank: nothing is left for tables",
            "Give a smaller --batch; or --memory, what each rank has for tables.",
        )
    kept = f"{gigabytes(dense)} that the dense part holds"
    return usable - dense, [
        f"a rank has {gigabytes(usable - dense)} for tables: nine tenths of its memory, less {kept}"
    ]


def _assumed(given: AtHand, costing: Costing) -> list[str]:
    """What the answer rests on, in words."""
    notes = []
    if not any(table.reuse or table.zipf for table in given.tables):
        notes.append("nothing is known of how often rows are hit: ids are taken to be spread evenly (zipf, reuse)")
    if isinstance(costing.kernels, Batched):
        notes.append("FBGEMM's kernels are carried over from one H100 by the rate of the memory")
    elif any(table.optimizer != "sgd" and (table.reuse or table.zipf) for table in given.tables):
        notes.append(COALESCED)
    if any(table.dtype == "int8" for table in given.tables):
        notes.append("int8 rows are priced as 16-bit rows of as many bytes")
    return notes
