"""A performance estimator for TorchRec's own planner: its search, with our models instead of its constants.

estimator = ForetraceEstimator(topology, constraints, on="h200")
enumerator = EmbeddingEnumerator(topology, batch_size, constraints, estimator=[estimator, storage_estimator])
planner = EmbeddingShardingPlanner(topology, enumerator=enumerator)
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from torchrec.distributed.planner.types import Perf, ShardEstimator

from foretrace.forecast.fabric_of import fabric_of
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.sharding.costing import Costing
from foretrace.sharding.exchange import Exchange
from foretrace.sharding.kernels import Batched
from foretrace.sharding.kinds import ACROSS, COPIES, DATA, KINDS, NODE_SUMS, POOLED, TABLE, Way, exchange_of
from foretrace.sharding.memory import OUTPUT
from foretrace.sharding.ranks import Ranks
from foretrace.sharding.tables import ITEMSIZE, Table
from foretrace.sharding.torchrec_plan import ALSO, configs_of


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
