"""TorchRec both ways: its modules' tables and constraints in, a ``ShardingPlan`` that it loads out.

tables = tables_of(model, constraints)
found = ft.shard(tables, on="h200", world=8)
model = DistributedModelParallel(model, plan=sharding_plan(model, found.plan, found.tables, found.ranks))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from foretrace.graph import ForetraceError
from foretrace.sharding.kinds import COLUMN, DATA, KINDS, ROW, TABLE, TABLE_ROW
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.ranks import Ranks
from foretrace.sharding.tables import Table

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
        As `foretrace.planning.shard` answers them.
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
