"""`shard`: the fastest sharding plan found for embedding tables on the ranks of a platform."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from foretrace._progress import OnProgress, Progress
from foretrace.cost_models.collectives.pricing import assumptions
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.platform.registry import CPU, find_fabric, load_platform
from foretrace.prediction.fabric_choice import choose_fabric
from foretrace.sharding.costing import Communication, Costing
from foretrace.sharding.lookups import KERNELS, Batched
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import Sharding, StepTime
from foretrace.sharding.search import SearchResult, search
from foretrace.sharding.tables import Table, check_table, format_bytes, is_table_list, read_tables

DEFAULT_BATCH = 4096
"""Samples of a rank, if neither the caller nor a step gives them."""
DEFAULT_SECONDS = 30.0
MAX_SIMULATED_CALLS = 200_000
"""Calls of all ranks up to which a plan is simulated as a whole job: that takes half a minute."""
MEMORY_RESERVE = 0.1
"""Share of a device's memory that tables leave to the allocator, the libraries and other tensors."""
MAX_EXACT_TABLES, MAX_EXACT_RANKS = 12, 4
"""Up to these, the optimal plan is computed as well; for more that takes long."""
NO_FABRIC = Fabric("no fabric", (), "one rank sends nothing")
NO_MODEL = "no model was given: the step is lookups and communication, without a dense part to overlap with"
SIMULATED = (
    "the step is simulated with all its ranks, in steady state; alternatives are longer by the difference of sums"
)
COALESCED = (
    "except for SGD, PyTorch adds up the gradients of each row before an update, one after the other: frequently "
    "accessed rows hold it up; FBGEMM (--kernels tbe) does not"
)
CUT_SHORT = "the time ran out before the search was over: more --seconds may find a faster plan"
SUMMED = "the step is the sum of lookups, communication and dense part"


@runtime_checkable
class Module(Protocol):
    """A PyTorch module, whether torch is installed or not."""

    def named_modules(self) -> Any:
        """Itself and all its submodules, by name."""


class _Model(NamedTuple):
    """Tables, and the step that looks them up."""

    tables: Sequence[Table]
    source: str
    batch: int = DEFAULT_BATCH
    step: Graph | None = None
    """None if only the tables are known."""
    notes: tuple[str, ...] = ()
    """How the step was recorded or sketched."""


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
    seconds: float = DEFAULT_SECONDS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Sharding:
    """The fastest plan found for embedding tables on so many ranks.

    Parameters
    ----------
    tables
        Tables; a step that looks them up; a TorchRec model (`foretrace.sharding.torchrec.tables_of` makes tables of the
        constraints of its planner, too); or the path of a YAML or CSV file that lists tables, of a recording, of a
        trace, or of a script, whose step is sketched.
    world
        Ranks.
    on, fabric
        The platform; and a fabric, if the platform has none or another is wanted. By default the shipped fabric that
        comes closest.
    batch
        Samples of each rank: by default those of the step, or 4,096.
    memory_gb
        Memory of each rank for tables. By default 90 % of the device's memory, less what the rest of the step holds
        if that is known.
    kernels
        ``fused`` looks up all tables of one dim by one call, ``single`` each by its own, ``tbe`` by FBGEMM.
    sent_as
        Dtype in which embeddings and gradients are sent: fp32, fp16, bf16, fp8, int8.
    ranks_per_node
        By default as many as the fabric's nodes have.
    seconds, seed
        Time limit of the search, and the seed of its random choices: the same seed gives the same plan.
    on_progress
        Called with each stage of the search.

    >>> found = shard([Table("users", 1_000_000, 64), Table("items", 100_000, 64, pooling=20)], world=2)
    >>> len(found.plan), found.estimate.low < found.estimate.step
    (2, True)
    """
    if not seconds > 0:
        raise ForetraceError(f"a search can't take {seconds} seconds", "Give a positive number.")
    named = _named_fabric(on, fabric, world)
    where = load_platform(on)
    model, batch_notes = _at_batch(_model(tables, where.device.kind), batch)
    chosen, notes = choose_fabric(named, where.fabric, where.device.matches, world, ranks_per_node)
    ranks = Ranks(world, ranks_per_node or chosen.gpus_per_node, model.batch, sent_as)
    ranks.check()
    if chosen.links and min(world, ranks.per_node) > chosen.gpus_per_node:
        raise ForetraceError(
            f"a node of fabric {chosen.name} has {chosen.gpus_per_node} GPUs, not {ranks.per_node}",
            f"Give {chosen.gpus_per_node} ranks of a node at most (--gpus-per-node), or another fabric (--fabric).",
        )
    notes += assumptions(chosen, world, ranks.per_node) if world > 1 else []
    if kernels not in KERNELS:
        raise ForetraceError(f"there are no lookup kernels {kernels!r}", f"Known are: {', '.join(KERNELS)}.")
    dense = 0.0
    if model.step is not None:
        from foretrace.sharding.training_step import dense_us

        dense = dense_us(model.step, where)
    costing = Costing(model.tables, ranks, KERNELS[kernels](where), Communication(chosen, ranks), dense)
    budget, budget_notes = _hbm_budget(where, memory_gb, model.step)
    found = search(costing, budget, seconds, seed, on_progress)
    simulated, step_notes = _simulated(model.step, costing, found, on_progress) if model.step else (None, [NO_MODEL])
    notes += [*model.notes, *batch_notes, *budget_notes, *_assumptions(model, costing), *step_notes]
    notes += [CUT_SHORT] * found.cut_short
    return Sharding(
        source=model.source, platform=where.name, fabric=chosen.name, kernels=kernels, tables=model.tables, ranks=ranks,
        hbm_budget=budget, plan=found.plan, estimate=found.estimate, heuristics=found.heuristics, dense_ms=dense / 1e3,
        seconds=found.seconds, gap=_gap(costing, budget, found), simulated=simulated,
        shard_us=costing.marginal([(t, p.option) for t, p in enumerate(found.plan)]).sum(axis=1).tolist(), notes=notes,
    )  # fmt: skip


def _model(what: Sequence[Table] | Graph | Job | Module | str | Path, device: str) -> _Model:
    from foretrace.api import as_job, script_of

    if isinstance(what, (str, Path)) and is_table_list(Path(what)) and not script_of(what):
        return _Model(read_tables(Path(what)), str(what))
    if isinstance(what, (Graph, Job, str, Path)):
        from foretrace.prediction.notes import recorded_notes
        from foretrace.sharding.training_step import batch_of_graph, tables_of_graph

        if isinstance(what, (str, Path)):
            _check_kind(Path(what))
        job = as_job(what, device)
        step = job.graphs[0]
        return _Model(tables_of_graph(step), job.source, batch_of_graph(step), step, tuple(recorded_notes(job)))
    if isinstance(what, Module):
        from foretrace.sharding.torchrec import tables_of

        return _Model(tables_of(what), type(what).__name__)
    for table in what:
        check_table(table)
    if not what:
        raise ForetraceError("there are no tables to shard", "Give at least one.")
    return _Model(what, f"{len(what)} tables")


def _check_kind(path: Path) -> None:
    """Refuse a file that is neither a list of tables, by its name, nor a trace or a script."""
    from foretrace.formats.load import format_of

    if path.is_file() and path.suffix != ".py" and format_of(path) is None:
        raise ForetraceError(
            f"{path} is neither a list of tables nor a step",
            "Lists of tables end in .csv, .yaml or .yml. Or give a recording, a trace or a script.",
        )


def _at_batch(model: _Model, batch: int | None) -> tuple[_Model, list[str]]:
    """The model with another batch of a rank, if one is given; and notes."""
    if batch is None or batch == model.batch:
        return model, []
    other = model._replace(batch=batch)
    if model.step is None or batch < 1:
        return other, []
    from foretrace.transforms.resize.batch_sequence import batch as with_batch

    try:
        return other._replace(step=with_batch(model.step, batch, model.batch)), []
    except ForetraceError as error:
        rest = f"the rest of the step stays at {model.batch:,}: {error.what}"
        return other, [f"lookups have a batch of {batch:,}, {rest}"]


def _named_fabric(on: Platform | str | Path, named: Fabric | Platform | str | Path | None, world: int) -> Fabric | None:
    """The fabric, if one is named or none is needed; else None. No shipped fabric fits a CPU: it needs its own."""
    if named is not None:
        return find_fabric(named)
    if world == 1:
        return NO_FABRIC
    here = not isinstance(on, Platform) and str(on).partition(":")[0] == CPU
    return find_fabric(CPU) if here else None


def _hbm_budget(where: Platform, memory_gb: float | None, step: Graph | None) -> tuple[float, list[str]]:
    """Bytes that a rank has for tables, and notes."""
    if memory_gb is not None:
        if not memory_gb > 0:
            raise ForetraceError(f"a rank can't have {memory_gb} GB for tables", "Give a positive number.")
        return memory_gb * 1e9, []
    usable = (1 - MEMORY_RESERVE) * where.device.memory_gb * 1e9
    if step is None:
        return usable, []
    from foretrace.sharding.training_step import dense_bytes

    dense = dense_bytes(step)
    if dense is None:
        return usable, ["the memory of the dense part is not known: tables may take 90 % of a device's memory"]
    if dense >= usable:
        raise ForetraceError(
            f"the dense part holds {format_bytes(dense)} of the {format_bytes(usable)} of a rank: nothing is left for "
            "tables",
            "Give a smaller --batch; or --memory, what each rank has for tables.",
        )
    held = f"{format_bytes(dense)} that the dense part holds"
    return usable - dense, [f"a rank has {format_bytes(usable - dense)} for tables: 90 % of its memory, less {held}"]


def _simulated(
    step: Graph, costing: Costing, found: SearchResult, on_progress: OnProgress | None
) -> tuple[StepTime | None, list[str]]:
    """The step of the plan as a whole job, and notes."""
    calls = costing.ranks.world * len(step.ops)
    if calls > MAX_SIMULATED_CALLS:
        return None, [f"{SUMMED}: {calls:,} calls of all ranks are too many to simulate together"]
    if on_progress:
        on_progress(Progress("simulating all ranks", found.seconds, found.seconds))
    from foretrace.sharding.training_step import simulate_plan

    try:
        return simulate_plan(step, costing, found.plan), [SIMULATED]
    except ForetraceError as error:
        return None, [f"{SUMMED}, since it can't be simulated as a job: {error.what}"]


def _gap(costing: Costing, hbm_budget: float, found: SearchResult) -> float | None:
    """How much longer the plan is than the optimum, by the sums of the search; None if that is not known."""
    if len(costing.tables) > MAX_EXACT_TABLES or not 1 < costing.ranks.world <= MAX_EXACT_RANKS:
        return None
    from foretrace.sharding.search.exact import optimality_gap

    return optimality_gap(costing, hbm_budget, found.plan)


def _assumptions(model: _Model, costing: Costing) -> list[str]:
    """Notes on what the answer assumes."""
    notes = []
    skewed = [table for table in model.tables if table.reuse or table.zipf]
    if not skewed:
        notes.append("how often rows are accessed is not known: ids are taken to be uniform (zipf, reuse)")
    if isinstance(costing.kernels, Batched):
        notes.append("FBGEMM's kernels are scaled from measurements of one H100 by the memory bandwidth")
    elif any(table.optimizer != "sgd" for table in skewed):
        notes.append(COALESCED)
    if any(table.dtype == "int8" for table in model.tables):
        notes.append("int8 rows are priced as 16-bit rows of as many bytes")
    return notes
