"""TorchRec: the tables of its modules, plans as its ``ShardingPlan``, and our models as an estimator for its planner.

tables = tables_of(model, constraints)
found = ft.shard(tables, on="h200", world=8)
model = DistributedModelParallel(model, plan=sharding_plan(model, found.plan, found.tables, found.ranks))

estimator = ForetraceEstimator(topology, constraints, on="h200")
enumerator = EmbeddingEnumerator(topology, batch_size, constraints, estimator=[estimator, storage_estimator])
planner = EmbeddingShardingPlanner(topology, enumerator=enumerator)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from torchrec.distributed.planner.types import Perf, ShardEstimator

from foretrace.errors import ForetraceError
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.prediction.fabric_choice import fabric_of
from foretrace.sharding.costing import Communication, Costing
from foretrace.sharding.lookups import Batched
from foretrace.sharding.options import (
    CROSS_NODE,
    NODE_SUMS,
    POOLED,
    REPLICAS,
    SHARDING_TYPES,
    Ranks,
    ShardingOption,
    communication_of,
)
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.shards import EMBEDDING_BYTES
from foretrace.sharding.tables import COLUMN_WISE, DATA_PARALLEL, ITEMSIZE, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE, Table

DTYPES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "INT8": "int8"}
"""Dtypes of tables by TorchRec's names."""
SPECIAL_CASES = {"table_column_wise": COLUMN_WISE, "grid_shard": TABLE_ROW_WISE}
"""Sharding types of TorchRec that are special cases of others, and allowed where those are."""


def tables_of(
    module: Any, constraints: Mapping[str, Any] | None = None, optimizer: str = "sgd", zipf: float = 0.0
) -> list[Table]:
    """The tables of a module, with the pooling factors and sharding types of its planner's constraints.

    Parameters
    ----------
    module
        A model with ``EmbeddingBagCollection`` or ``EmbeddingCollection`` in it.
    constraints
        ``ParameterConstraints`` by the name of a table, as TorchRec's planner takes them.
    optimizer
        The optimizer of the tables: TorchRec fuses it into their backward, so that modules do not have it.
    zipf
        Exponent of the power law of the ids, which TorchRec does not have.
    """
    found = []
    for collection in _collections(module).values():
        for config in configs_of(collection):
            constraint = (constraints or {}).get(config.name)
            types = [SPECIAL_CASES.get(kind, kind) for kind in (getattr(constraint, "sharding_types", None) or ())]
            pooling = fmean(getattr(constraint, "pooling_factors", None) or [1.0])
            found.append(
                Table(
                    config.name, config.num_embeddings, config.embedding_dim, pooling,
                    _dtype(config.name, config.data_type), optimizer,
                    zipf, kinds=tuple(dict.fromkeys(kind for kind in types if kind in SHARDING_TYPES)),
                    sequence=not hasattr(collection, "embedding_bag_configs"),
                    features=len(config.feature_names),
                )
            )  # fmt: skip
    if not found:
        raise ForetraceError(
            f"{type(module).__name__} has no embedding tables of TorchRec", "Give one with EmbeddingBagCollection."
        )
    return found


def sharding_plan(module: Any, plan: Plan, tables: Sequence[Table], ranks: Ranks, device: str = "cuda") -> Any:
    """A plan as TorchRec's ``ShardingPlan``, for ``DistributedModelParallel``.

    Parameters
    ----------
    module
        The model that the plan is for. Tables whose optimizer TorchRec's ``apply_optimizer_in_backward`` has set are
        looked up by FBGEMM's fused kernels; others by dense ones, whose gradients are as large as the tables.
    plan, tables, ranks
        Fields of the result of `foretrace.shard`.
    device
        The kind of device that it will run on.
    """
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan
    from torchrec.distributed.types import ShardingPlan

    by_name = {table.name: placement for table, placement in zip(tables, plan)}
    found: dict[str, Any] = {}
    for path, collection in _collections(module).items():
        names = [config.name for config in configs_of(collection)]
        absent = [name for name in names if name not in by_name]
        if absent:
            raise ForetraceError(f"the plan says nothing of table {absent[0]}", "It was made for another model.")
        each = {name: _parameter_sharding(by_name[name], ranks) for name in names}
        found[path] = construct_module_sharding_plan(
            collection, each, local_size=min(ranks.per_node, ranks.world), world_size=ranks.world, device_type=device
        )
    return ShardingPlan(found)


def plan_of(sharded: Any, tables: Sequence[Table]) -> Plan:
    """The placements of tables in a ``ShardingPlan``."""
    shardings = {name: how for parameters in sharded.plan.values() for name, how in parameters.items()}
    absent = [table.name for table in tables if table.name not in shardings]
    if absent:
        raise ForetraceError(f"TorchRec's plan says nothing of table {absent[0]}", "It was made for another model.")
    return tuple(_placement(table, shardings[table.name]) for table in tables)


def _parameter_sharding(placement: Placement, ranks: Ranks) -> Any:
    """TorchRec's generator of a placement."""
    from torchrec.distributed import sharding_plan as generators

    first = placement.ranks[0]
    made = {
        TABLE_WISE: lambda: generators.table_wise(rank=first),
        COLUMN_WISE: lambda: generators.column_wise(ranks=list(placement.ranks)),
        ROW_WISE: generators.row_wise,
        TABLE_ROW_WISE: lambda: generators.table_row_wise(host_index=first // ranks.per_node),
        DATA_PARALLEL: generators.data_parallel,
    }
    return made[placement.kind]()


def _placement(table: Table, sharding: Any) -> Placement:
    kind = SPECIAL_CASES.get(sharding.sharding_type, sharding.sharding_type)
    if kind not in SHARDING_TYPES:
        raise ForetraceError(f"table {table.name} is sharded {kind}", f"Known are: {', '.join(SHARDING_TYPES)}.")
    return Placement(kind, tuple(sharding.ranks))


def _collections(module: Any) -> dict[str, Any]:
    """The submodules that hold pooled tables or sequences."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    kinds = (EmbeddingBagCollection, EmbeddingCollection)
    return {path: child for path, child in module.named_modules() if isinstance(child, kinds)}


def configs_of(collection: Any) -> Sequence[Any]:
    """The configurations of the tables of such a module; none of another."""
    for name in ("embedding_bag_configs", "embedding_configs"):
        if hasattr(collection, name):
            found: Sequence[Any] = getattr(collection, name)()
            return found
    return ()


def _dtype(table: str, data_type: Any) -> str:
    name = getattr(data_type, "name", str(data_type))
    if name not in DTYPES:
        raise ForetraceError(f"table {table} is of dtype {name}", f"Known are: {', '.join(DTYPES)}.")
    return DTYPES[name]


class ForetraceEstimator(ShardEstimator):  # type: ignore[misc]
    """Estimates shards for TorchRec's planner by the models of a platform: FBGEMM's lookups, collectives of a fabric.

    Parameters
    ----------
    topology
        Of TorchRec's planner.
    constraints
        Those of the planner, as its own estimators take them; the options contain what is needed of them.
    on, fabric
        The platform and its fabric: by default the platform's own, or the closest shipped one.
    """

    def __init__(
        self,
        topology: Any,
        constraints: Mapping[str, Any] | None = None,
        on: Platform | str = "h200",
        fabric: Fabric | str | None = None,
    ) -> None:
        self._world, self._per_node = topology.world_size, topology.local_world_size
        self._platform = on if isinstance(on, Platform) else Platform.named(on)
        if fabric is None:
            fabric = self._platform.fabric or fabric_of(self._platform.device.matches, self._world, self._per_node)
        self._fabric = fabric if isinstance(fabric, Fabric) else Fabric.named(fabric)

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any = None) -> None:
        """Set the estimated milliseconds of each shard of each option."""
        tables: dict[str, Table] = {}
        for option in sharding_options:
            tables.setdefault(option.name, _table(option))
        numbers = {name: number for number, name in enumerate(tables)}
        batch = max((option.batch_size for option in sharding_options), default=1)
        ranks = Ranks(self._world, self._per_node, batch)
        communication = Communication(self._fabric, ranks)
        costing = Costing(list(tables.values()), ranks, Batched(self._platform), communication)
        options = []
        for option in sharding_options:
            kind = SPECIAL_CASES.get(option.sharding_type, option.sharding_type)
            known = ShardingOption(kind if kind in SHARDING_TYPES else TABLE_WISE, max(1, len(option.shards)))
            options.append((numbers[option.name], known))
        for planned, (number, option), lookup in zip(sharding_options, options, costing.marginal(options).tolist()):
            forward, backward = lookup
            out, back = _communication_us(costing.tables[number], option, communication)
            for shard in planned.shards:
                shard.perf = Perf(forward / 1e3, out / 1e3, backward / 1e3, back / 1e3)


def _table(option: Any) -> Table:
    rows, dim = option.tensor.shape
    dtype = str(option.tensor.dtype).removeprefix("torch.")
    # The planner counts as many features as it has pooling factors for.
    features = (len(config.feature_names) for config in configs_of(option.module[1]) if config.name == option.name)
    return Table(option.name, rows, dim, fmean(option.input_lengths), dtype if dtype in ITEMSIZE else "float32",
                 sequence=not option.is_pooled, features=next(features, len(option.input_lengths)))  # fmt: skip


def _communication_us(table: Table, option: ShardingOption, communication: Communication) -> tuple[float, float]:
    """Microseconds that one shard adds to the communication after the forward, and before the backward."""
    ranks, linear = communication.ranks, communication.linear
    pooled = table.dim * table.embeddings(ranks.global_batch) * ranks.sent_bytes
    if option.sharding_type == DATA_PARALLEL:
        gradient = float(table.rows * table.dim * EMBEDDING_BYTES)
        return 0.0, linear(REPLICAS, gradient).per_byte * gradient
    what = communication_of(table, option.sharding_type)
    sent = pooled / (option.shards if what == POOLED else 1)
    both = linear(what, sent).per_byte * sent
    if what == NODE_SUMS:
        across = sent / ranks.per_node
        both += linear(CROSS_NODE, across).per_byte * across
    return both / 2, both / 2
