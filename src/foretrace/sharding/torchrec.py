"""TorchRec both ways: its modules' tables and constraints in, a ``ShardingPlan`` that it loads out.

tables = tables_of(model, constraints)
found = ft.shard(tables, on="h200", world=8)
model = DistributedModelParallel(model, plan=sharding_plan(model, found.plan, found.tables, found.ranks))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from torchrec.distributed.planner.types import Perf, ShardEstimator

from foretrace.forecast.fabric_of import fabric_of
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.sharding.costing import Costing, Exchange
from foretrace.sharding.lookups import Batched
from foretrace.sharding.options import (
    ACROSS,
    COLUMN,
    COPIES,
    DATA,
    KINDS,
    NODE_SUMS,
    POOLED,
    ROW,
    TABLE,
    TABLE_ROW,
    Ranks,
    Way,
    exchange_of,
)
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.shards import OUTPUT
from foretrace.sharding.tables import ITEMSIZE, Table

DTYPES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "INT8": "int8"}
"""TorchRec's names of the dtypes that tables have."""
ALSO = {"table_column_wise": COLUMN, "grid_shard": TABLE_ROW}
"""Ways of TorchRec that are others with less freedom: allowed where those are."""


def tables_of(
    module: Any, constraints: Mapping[str, Any] | None = None, optimizer: str = "sgd", zipf: float = 0.0
) -> list[Table]:
    """The tables of a module, with what its planner's constraints say of pooling and of allowed ways.

    Parameters
    ----------
    module
        A model with ``EmbeddingBagCollection`` or ``EmbeddingCollection`` in it.
    constraints
        ``ParameterConstraints`` by the name of a table, as TorchRec's planner takes them.
    optimizer
        What updates the tables: TorchRec fuses it into their backward, so that no module tells.
    zipf
        How ids are spread: TorchRec does not say.
    """
    found = []
    for collection in _collections(module).values():
        for config in configs_of(collection):
            told = (constraints or {}).get(config.name)
            allowed = [ALSO.get(kind, kind) for kind in (getattr(told, "sharding_types", None) or ())]
            pooling = fmean(getattr(told, "pooling_factors", None) or [1.0])
            found.append(
                Table(
                    config.name, config.num_embeddings, config.embedding_dim, pooling,
                    _dtype(config.name, config.data_type), optimizer,
                    zipf, kinds=tuple(dict.fromkeys(kind for kind in allowed if kind in KINDS)),
                    sequence=not hasattr(collection, "embedding_bag_configs"),
                    features=len(config.feature_names),
                )
            )  # fmt: skip
    if not found:
        raise ForetraceError(
            f"{type(module).__name__} has no embedding tables of TorchRec",
            "Give one with EmbeddingBagCollection.",
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
        As `foretrace.sharding.planner.shard` answers them.
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
        each = {name: _parameter(by_name[name], ranks) for name in names}
        found[path] = construct_module_sharding_plan(
            collection, each, local_size=min(ranks.per_node, ranks.world), world_size=ranks.world, device_type=device
        )
    return ShardingPlan(found)


def plan_of(sharded: Any, tables: Sequence[Table]) -> Plan:
    """What a ``ShardingPlan`` says of tables, as a plan of ours."""
    told = {name: how for parameters in sharded.plan.values() for name, how in parameters.items()}
    absent = [table.name for table in tables if table.name not in told]
    if absent:
        raise ForetraceError(f"TorchRec's plan says nothing of table {absent[0]}", "It was made for another model.")
    return tuple(_placement(table, told[table.name]) for table in tables)


def _parameter(placement: Placement, ranks: Ranks) -> Any:
    """TorchRec's generator of the same placement."""
    from torchrec.distributed import sharding_plan as theirs

    first = placement.ranks[0]
    made = {
        TABLE: lambda: theirs.table_wise(rank=first),
        COLUMN: lambda: theirs.column_wise(ranks=list(placement.ranks)),
        ROW: theirs.row_wise,
        TABLE_ROW: lambda: theirs.table_row_wise(host_index=first // ranks.per_node),
        DATA: theirs.data_parallel,
    }
    return made[placement.kind]()


def _placement(table: Table, told: Any) -> Placement:
    kind = ALSO.get(told.sharding_type, told.sharding_type)
    if kind not in KINDS:
        raise ForetraceError(f"table {table.name} is sharded {kind}", f"Known are: {', '.join(KINDS)}.")
    return Placement(kind, tuple(told.ranks))


def _collections(module: Any) -> dict[str, Any]:
    """The modules in it that hold tables: those of sums, and those of sequences."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    kinds = (EmbeddingBagCollection, EmbeddingCollection)
    return {path: child for path, child in module.named_modules() if isinstance(child, kinds)}


def configs_of(collection: Any) -> Sequence[Any]:
    """Of the tables of such a module; none of another."""
    for name in ("embedding_bag_configs", "embedding_configs"):
        if hasattr(collection, name):
            found: Sequence[Any] = getattr(collection, name)()
            return found
    return ()


def _dtype(table: str, told: Any) -> str:
    name = getattr(told, "name", str(told))
    if name not in DTYPES:
        raise ForetraceError(f"table {table} is of dtype {name}", f"Known are: {', '.join(DTYPES)}.")
    return DTYPES[name]


# --- was sharding.torchrec_estimator: A performance estimator for TorchRec's own planner: its search, with our models instead of its constants.


class ForetraceEstimator(ShardEstimator):  # type: ignore[misc]
    """Says what shards take, in milliseconds, by the models of a platform: lookups by FBGEMM, exchange by a fabric.

    Parameters
    ----------
    topology
        Of TorchRec's planner.
    constraints
        Those of the planner, as its own estimators take them; what they say arrives in the options, too.
    on, fabric
        The platform, and what joins its ranks: the platform's own or the closest shipped one, where left out.
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
        """Write what each shard of each option takes into it."""
        tables: dict[str, Table] = {}
        for option in sharding_options:
            tables.setdefault(option.name, _table(option))
        numbers = {name: number for number, name in enumerate(tables)}
        batch = max((option.batch_size for option in sharding_options), default=1)
        ranks = Ranks(self._world, self._per_node, batch)
        exchange = Exchange(self._fabric, ranks)
        costing = Costing(list(tables.values()), ranks, Batched(self._platform), exchange)
        parts = [(numbers[option.name], _way(option)) for option in sharding_options]
        for option, (number, way), (forward, backward) in zip(sharding_options, parts, costing.adds(parts).tolist()):
            out, back = _exchanged(costing.tables[number], way, exchange)
            for shard in option.shards:
                shard.perf = Perf(forward / 1e3, out / 1e3, backward / 1e3, back / 1e3)


def _table(option: Any) -> Table:
    rows, dim = option.tensor.shape
    dtype = str(option.tensor.dtype).removeprefix("torch.")
    return Table(option.name, rows, dim, fmean(option.input_lengths), dtype if dtype in ITEMSIZE else "float32",
                 sequence=not option.is_pooled, features=_features(option))  # fmt: skip


def _features(option: Any) -> int:
    """As the module says: the planner counts as many as it was told pooling factors of."""
    found = (len(config.feature_names) for config in configs_of(option.module[1]) if config.name == option.name)
    return next(found, len(option.input_lengths))


def _way(option: Any) -> Way:
    kind = ALSO.get(option.sharding_type, option.sharding_type)
    return Way(kind if kind in KINDS else TABLE, max(1, len(option.shards)))


def _exchanged(table: Table, way: Way, exchange: Exchange) -> tuple[float, float]:
    """What one shard adds to the exchange after the forward, and to that before the backward: microseconds."""
    pooled = table.dim * table.made_for(exchange.ranks.global_batch) * exchange.ranks.sent_bytes
    if way.kind == DATA:
        copied = float(table.rows * table.dim * OUTPUT)
        return 0.0, exchange.line(COPIES, copied).per_byte * copied
    what = exchange_of(table, way.kind)
    part = pooled / (way.parts if what == POOLED else 1)
    both = exchange.line(what, part).per_byte * part
    if what == NODE_SUMS:
        across = part / exchange.ranks.per_node
        both += exchange.line(ACROSS, across).per_byte * across
    return both / 2, both / 2
