"""The training step around the tables: the tables it looks up, its dense part, and a plan simulated as a whole job.

The search adds costs up. A simulated job has all ranks with the dense part of the model: each rank's host and device do
one thing after the other, collectives start when their last rank arrives, and what may overlap does. Lookups take as
long as the search says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.analysis.memory import peak_memory
from foretrace.cost_models.kernels.families import family_of
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Indices, Job, Op, OpTable
from foretrace.graph.operators import EMBEDDING_BAGS, LOOKUPS
from foretrace.graph.tables import Floats, percentiles
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.prediction.job import back_to_back_ms, simulate_job
from foretrace.prediction.predict import predict_on_platform
from foretrace.prediction.priced_tasks import priced_tasks, with_cold_host_penalty
from foretrace.prediction.rank_models import PricedRank, with_arrivals
from foretrace.prediction.report import sample_step_ms
from foretrace.prediction.uncertainty import PERCENTILES
from foretrace.sharding.costing import Costing
from foretrace.sharding.lookups import lookup_graph
from foretrace.sharding.options import CROSS_NODE, IDS, NODE_SUMS, POOLED, REPLICAS, SUMS, Ranks
from foretrace.sharding.plan import Plan, StepTime
from foretrace.sharding.shards import LookupTimes, zipf_exponent
from foretrace.sharding.tables import ITEMSIZE, Table
from foretrace.transforms.draft import ProcessGroup
from foretrace.transforms.parallel.hybrid import RankStep, TableShare, Transfer, sharded_steps
from foretrace.transforms.weights import propagate_owners, restrict_update

OPTIMIZERS = {
    (0, 0): "sgd", (0, 1): "rowwise_adagrad", (1, 0): "adagrad", (1, 1): "partial_rowwise_adam",
    (2, 0): "adam", (2, 1): "adam",
}  # fmt: skip
"""The optimizer by the numbers that its state has for each element, and for each row."""
FORWARD = ((POOLED, "all_to_all"), (SUMS, "reduce_scatter"), (NODE_SUMS, "reduce_scatter"), (CROSS_NODE, "all_to_all"))
"""The collectives that bring embeddings to the ranks of their samples, in order."""
BACKWARD = ((POOLED, "all_to_all"), (SUMS, "all_gather"), (CROSS_NODE, "all_to_all"), (NODE_SUMS, "all_gather"))
"""The collectives that bring gradients of embeddings back, in order."""
NARROW = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8_e4m3fn"}
"""The dtype that embeddings are converted into before they are sent."""


def tables_of_graph(graph: Graph) -> list[Table]:
    """The tables that a step looks up.

    >>> from foretrace.graph import OpTable, Tensor
    >>> table, ids, offsets = (Tensor(s, t, storage=n) for n, (s, t) in enumerate(
    ...     [((1000, 16), "float32"), ((80,), "int64"), ((20,), "int64")]))
    >>> found = tables_of_graph(Graph(OpTable.of([Op("aten::_embedding_bag", (table, ids, offsets))])))
    >>> [(t.rows, t.dim, t.pooling) for t in found]
    [(1000, 16, 4.0)]
    """
    batch = batch_of_graph(graph)
    known = {indices.op: indices for indices in graph.indices}
    found: dict[object, Table] = {}
    for row, op in enumerate(graph.ops):
        if op.name not in LOOKUPS or len(op.tensors) < 2 or len(op.tensors[0].shape) != 2:
            continue
        weight = op.tensors[0]
        key = weight.storage if weight.storage >= 0 else (op.module, weight.shape, len(found))
        if weight.dtype not in ITEMSIZE:
            continue
        if key not in found:
            found[key] = _table(op, len(found), batch, known.get(row))
        elif op.phase != "backward":  # lookups in backward are recomputed ones
            table, more = found[key], _table(op, 0, batch, None)
            features = table.features + more.features
            found[key] = replace(table, features=features, pooling=(table.ids + more.ids) / features)
    optimizers = optimizers_of(graph, {weight: table for weight, table in found.items() if isinstance(weight, int)})
    found = {key: replace(table, optimizer=optimizers.get(key, table.optimizer)) for key, table in found.items()}
    if not found:
        raise ForetraceError(
            f"{graph.title} looks up no embedding tables",
            "Give a step with nn.EmbeddingBag or nn.Embedding in it, or a list of tables.",
        )
    return _named(list(found.values()))


def optimizers_of(graph: Graph, tables: Mapping[int, Table]) -> dict[object, str]:
    """The optimizer with as much state of a table as the step's has, whatever its name; all by the table's storage."""
    updates = [op for op in graph.ops if op.phase == "optimizer"]
    owner = {storage: storage for storage in tables}
    propagate_owners(updates, owner)
    seen = {t.storage: t for op in updates for t in (*op.tensors, *op.produced) if t.layout == "strided"}
    counts = {storage: [0, 0] for storage in tables}
    for storage, tensor in seen.items():
        table = tables.get(owner.get(storage, -1))
        before = storage in graph.storages and graph.storages[storage].birth < 0
        if table is not None and storage not in tables and before:
            counts[owner[storage]][0] += tensor.numel == table.rows * table.dim
            counts[owner[storage]][1] += tensor.numel == table.rows
    return {storage: OPTIMIZERS[min(each, 2), min(row, 1)] for storage, (each, row) in counts.items()}


def batch_of_graph(graph: Graph) -> int:
    """Samples of the step: the bags that most lookups have, or without bags, the first dimension of the ids."""
    found = [op for op in graph.ops if op.name in LOOKUPS and len(op.tensors) > 1]
    samples = [op.tensors[2].numel for op in found if op.name in EMBEDDING_BAGS and len(op.tensors) > 2]
    samples = samples or [(*op.tensors[1].shape, 1)[0] for op in found]
    return max(1, max(sorted(set(samples)), key=samples.count, default=1))


def _table(op: Op, number: int, batch: int, seen: Indices | None) -> Table:
    weight, ids = op.tensors[:2]
    rows, dim = weight.shape
    pooled = op.name in EMBEDDING_BAGS and len(op.tensors) > 2
    bags = max(1, op.tensors[2].numel if pooled else batch)
    zipf = zipf_exponent(rows, seen.count, seen.unique) if seen and seen.count else 0.0
    name = op.module or f"table {number}"
    return Table(name, rows, dim, ids.numel / bags, weight.dtype, zipf=zipf, sequence=not pooled,
                 features=max(1, round(bags / batch)))  # fmt: skip


def _named(tables: list[Table]) -> list[Table]:
    """The tables with distinct names."""
    seen: dict[str, int] = {}
    named = []
    for table in tables:
        times = seen[table.name] = seen.get(table.name, 0) + 1
        named.append(table if times == 1 else replace(table, name=f"{table.name}.{times - 1}"))
    return named


def dense_us(step: Graph, where: Platform) -> float:
    """Microseconds of a step without its lookups, their gradients and updates."""
    calls = dispatched_calls(step).calls.ops
    trained = {op.tensors[0].storage: False for op in calls if op.name in LOOKUPS}
    propagate_owners([op for op in calls if op.phase == "optimizer"], trained)
    rest_of = (restrict_update(op, trained) if op.phase == "optimizer" else op for op in calls if not _looks_up(op))
    others = [op for op in rest_of if op is not None]
    if not others:
        return 0.0
    rest = Graph(OpTable.of(others), settings=step.settings)
    return predict_on_platform(Job([rest], step.source), where, "model").step_ms * 1e3


def dense_bytes(step: Graph) -> int | None:
    """Peak memory of a step without tables, their gradients and optimizer states; None if it is not known.

    Embeddings of a rank's own samples count: it receives them wherever the tables lie.

    >>> from foretrace.graph import Storage, Tensor
    >>> table, ids = Tensor((1000, 64), "float32", storage=0), Tensor((64,), "int64", storage=1)
    >>> sizes = {0: 256_000, 1: 512, 2: 16_384}
    >>> storages = {n: Storage(n, nbytes, "cuda:0") for n, nbytes in sizes.items()}
    >>> dense_bytes(Graph(OpTable.of([Op("aten::embedding", (table, ids))]), storages=storages))
    16896
    """
    of_tables: dict[int, bool] = {}
    for op in step.ops:
        sparse = any(tensor.layout == "sparse_coo" for tensor in op.tensors)
        if op.name in LOOKUPS:
            of_tables |= {tensor.storage: True for tensor in op.tensors[:1]}
        elif op.phase == "backward" and (sparse or _looks_up(op)):
            of_tables |= {tensor.storage: True for tensor in op.produced}
    propagate_owners([op for op in step.ops if op.phase == "optimizer"], of_tables)
    rest = {number: storage for number, storage in step.storages.items() if number not in of_tables}
    return peak_memory(Graph(OpTable.of([]), storages=rest))


def _looks_up(op: Op) -> bool:
    family = family_of(op)
    return family is not None and family.name == "lookups"


def simulate_plan(step: Graph, costing: Costing, plan: Plan) -> StepTime:
    """Simulate the step of all ranks under a plan, in steady state; ``step`` is that of one rank with all tables."""
    fabric = costing.communication.fabric
    where = costing.kernels.platform.having(fabric=fabric)
    lookups = _lookup_times(costing, plan)
    ranks = [
        _with_lookups(PricedRank.of(one.graph, None, where, "model"), one, lookups, number, where.device)
        for number, one in enumerate(steps_of_ranks(step, costing, plan))
    ]
    job = Job([rank.graph for rank in ranks], step.source)
    done = simulate_job(job, ranks, fabric, gpus_per_node=costing.ranks.per_node)
    step_ms, samples = done.timeline.span / 1e3, sample_step_ms(done)
    low, high = percentiles(samples, PERCENTILES)
    steady = back_to_back_ms(ranks, done.matches, done.transfers.typical, where.device) or step_ms
    return StepTime(steady, steady * (min(low, step_ms) / step_ms), steady * (max(high, step_ms) / step_ms))


def steps_of_ranks(step: Graph, costing: Costing, plan: Plan) -> list[RankStep]:
    """The step of each rank under a plan; ``step`` is that of one rank with all tables."""
    shards, rank = costing.shards_of(plan)
    nbytes, _ = costing.bytes_sent(plan, shards, rank)
    shares = []
    for number in range(costing.ranks.world):
        graph, _, phase = lookup_graph(costing.kernels.calls(shards.select(rank == number)))
        shares.append(_share(graph, phase.astype(bool).tolist(), costing.ranks, number, nbytes))
    return sharded_steps(step, shares)


def _share(
    lookups: Graph, backward: Sequence[bool], ranks: Ranks, rank: int, nbytes: Mapping[str, Floats]
) -> TableShare:
    """What a rank looks up and sends; transfers in which no rank of the group sends anything are left out."""

    def transfer(what: str, kind: str) -> Transfer | None:
        group = _group(ranks, rank, what)
        if group.size < 2 or not max(nbytes[what][member] for member in group.ranks):
            return None
        return Transfer(kind, group, round(nbytes[what][rank]))

    def transfers(calls: Sequence[tuple[str, str]]) -> list[Transfer]:
        *every, inner, outer = (transfer(*call) for call in calls)
        if inner and outer:
            outer = outer._replace(forwards=True)
        return [one for one in (*every, inner, outer) if one is not None]

    sent_as = NARROW.get(ranks.sent_as, "")
    elements = round(sum(nbytes[what][rank] for what in (POOLED, SUMS, NODE_SUMS)) / ranks.sent_bytes)
    return TableShare(
        lookups, backward, transfer(IDS, "all_to_all"), transfers(FORWARD), transfers(BACKWARD),
        transfer(REPLICAS, "all_reduce"), sent_as, elements,
    )  # fmt: skip


def _group(ranks: Ranks, rank: int, what: str) -> ProcessGroup:
    node, place = divmod(rank, ranks.per_node)
    if what == NODE_SUMS:
        return ProcessGroup(f"node {node}", tuple(ranks.of_node(node)))
    if what == CROSS_NODE:
        return ProcessGroup(f"across nodes {place}", tuple(range(place, ranks.world, ranks.per_node)))
    # Ids overlap with everything else: they have a group, and so a stream, of their own.
    return ProcessGroup(IDS if what == IDS else "tables", tuple(range(ranks.world)))


def _lookup_times(costing: Costing, plan: Plan) -> LookupTimes:
    """Lookup times on each rank's device, scaled so that the slowest has the expected time with hot rows."""
    shards, rank = costing.shards_of(plan)
    priced = costing.kernels.of_devices(shards, costing.marginal_of(plan), rank, costing.ranks.world)
    estimate = costing.estimate(plan)
    skew = estimate.slowest / max(float(estimate.lookups.max()), 1e-9)
    return LookupTimes(*(us * skew for us in priced))


def _with_lookups(rank: PricedRank, step: RankStep, lookups: LookupTimes, number: int, device: Device) -> PricedRank:
    """A rank whose lookups take as long as the search says, in the proportions of their own prices."""
    work = rank.step.work
    low, typical, high = work.low.copy(), work.typical.copy(), work.high.copy()
    for phase, rows in enumerate(step.lookups):
        of_lookups = np.isin(rank.dispatched.rows[work.call], rows)
        priced_us = max(float(work.typical[of_lookups].sum()), 1e-9)
        for times, us in zip((low, typical, high), lookups):
            times[of_lookups] = work.typical[of_lookups] * (us[number, phase] / priced_us)
    priced = replace(rank.step, work=replace(work, low=low, typical=typical, high=high))
    tasks = with_cold_host_penalty(priced, priced_tasks(priced, device))
    kernels = np.array([one.kernel for one in rank.graph.collectives], np.int64)
    return replace(rank, step=priced, tasks=with_arrivals(tasks, kernels))
