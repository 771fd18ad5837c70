"""The additive cost of sharding options, and a plan while it is searched for.

The cost of a rank is no sum: a call that looks up ten tables takes less than ten calls. `OptionCosts` says about what
each shard adds, so that a search can update sums; a plan that looks good is priced by `Costing.estimate`, and the sums
are corrected by the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foretrace.graph.tables import Floats, Longs
from foretrace.sharding.costing import LENGTH_BYTES, Costing, LinearTime
from foretrace.sharding.options import (
    CROSS_NODE,
    IDS,
    NODE_SUMS,
    POOLED,
    REPLICAS,
    SHARDING_TYPES,
    SUMS,
    Ranks,
    ShardingOption,
    communication_of,
    sharding_options,
)
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.shards import EMBEDDING_BYTES, ID_BYTES, Shards, shard_bytes
from foretrace.sharding.tables import DATA_PARALLEL

MIN_SHARE_TO_SPLIT = 0.2
"""A table below this share of a rank's mean load, and of its memory, stays whole: there are enough to fill gaps."""
MAX_REPLICATED_BYTES = 1 << 28
"""The largest table that is replicated."""
MAX_SPLIT_TABLES = 400
"""Tables, those with the largest loads first, whose other options are considered."""
LOAD, SENT, RECEIVED, MEMORY = range(4)
"""Columns of what a shard adds to its rank: microseconds, bytes of embeddings sent, bytes of ids received, memory."""
OVERFLOW_US = 1.0
"""Microseconds for each byte above the memory budget: a plan that does not fit is worse than any that does."""
TIE_WEIGHT, TIE_POWER = 1e-2, 8
"""Weight of the load of all ranks relative to the busiest, and the power of the mean that busier ranks dominate."""


class TableOption(NamedTuple):
    """One option of one table."""

    table: int
    option: ShardingOption


class LinearTimes(NamedTuple):
    """Communication times as linear functions of bytes."""

    sent: LinearTime
    received: LinearTime
    sums: LinearTime
    node_sums: LinearTime
    cross_node: LinearTime
    replicas: LinearTime


@dataclass
class OptionCosts:
    """The costs that each option adds to ranks and to the step, a row per option."""

    options: list[TableOption]
    added: Floats
    """What a shard adds to its rank: columns LOAD, SENT, RECEIVED, MEMORY."""
    shared: Floats
    """Microseconds that it adds to the communication of all ranks."""
    group: Longs
    """Shards of one group on a rank are looked up by one call."""
    call_us: Floats
    """By group: microseconds that the call takes besides."""
    communication: list[str]
    """What ranks communicate."""
    times: LinearTimes
    of_table: list[list[int]]
    """The options of each table; table-wise first, if it is allowed."""

    @classmethod
    def of(cls, costing: Costing, hbm_budget: float, every: bool = False) -> OptionCosts:
        """The options of all tables that are worth considering, or every one."""
        tables = range(len(costing.tables))
        first = [TableOption(t, sharding_options(costing.tables[t], costing.ranks)[0]) for t in tables]
        added_first = _added(costing, first)
        split = list(tables) if every else _worth_splitting(costing, first, added_first, hbm_budget)
        more = [
            TableOption(number, option)
            for number in split
            for option in sharding_options(costing.tables[number], costing.ranks)
            if option != first[number].option
            and (option.sharding_type != DATA_PARALLEL or costing.tables[number].nbytes <= MAX_REPLICATED_BYTES)
        ]
        options = first + more
        shards = Shards.of([costing.shard(*option) for option in options])
        added = np.concatenate([added_first, _added(costing, more)])
        _, one_of_group, group = np.unique(shards.call_key, return_index=True, return_inverse=True)
        of_table: list[list[int]] = [[t] for t in tables]
        for place, option in enumerate(more, len(first)):
            of_table[option.table].append(place)
        times = _linear_times(costing, added_first)
        shared = np.array([_shared_us(costing, option, times) for option in options])
        call_us = costing.kernels.per_call(shards.select(one_of_group)).sum(axis=1)
        communication = [_communication(costing, option) for option in options]
        return cls(options, added, shared, group.ravel(), call_us, communication, times, of_table)

    def first_us(self, communication: str) -> float:
        """Microseconds that the first table with a communication adds: those of collectives that were not there."""
        times = self.times
        fixed = {POOLED: times.sent.fixed, SUMS: times.sums.fixed, REPLICAS: times.replicas.fixed,
                 NODE_SUMS: times.node_sums.fixed + times.cross_node.fixed}  # fmt: skip
        return fixed[communication]


def _communication(costing: Costing, option: TableOption) -> str:
    return communication_of(costing.tables[option.table], option.option.sharding_type)


def _worth_splitting(costing: Costing, first: list[TableOption], added: Floats, hbm_budget: float) -> list[int]:
    """Tables that take long, send much or are large; the most demanding where those are many."""
    world = costing.ranks.world
    if world < 2:
        return []
    counts = np.array([option.option.shards for option in first])
    mean = (added[:, :MEMORY] * counts[:, None]).sum(axis=0) / world
    share = (added[:, :MEMORY] / np.maximum(mean, 1e-9)).max(axis=1)
    large = added[:, MEMORY] / hbm_budget
    worth = np.flatnonzero(
        (share >= MIN_SHARE_TO_SPLIT) | (large >= MIN_SHARE_TO_SPLIT) | (share.max() < MIN_SHARE_TO_SPLIT)
    )
    order = np.argsort(-np.maximum(share, large)[worth], kind="stable")
    must = set(np.flatnonzero(large > 1).tolist())
    return sorted({*worth[order][:MAX_SPLIT_TABLES].tolist(), *must})


def _added(costing: Costing, options: list[TableOption]) -> Floats:
    if not options:
        return np.zeros((0, 4))
    shards = Shards.of([costing.shard(*option) for option in options])
    communication = np.array([_communication(costing, option) for option in options])
    load = costing.marginal(options).sum(axis=1)
    sent = np.where(communication == POOLED, shards.bags * shards.dim * costing.ranks.sent_bytes, 0.0)
    lengths = costing.ranks.global_batch * LENGTH_BYTES * np.array([costing.tables[o.table].features for o in options])
    received = np.where(communication == REPLICAS, 0.0, shards.ids * ID_BYTES + lengths)
    return np.stack([load, sent, received, shard_bytes(shards, costing.sparse_gradients)], axis=1)


def _linear_times(costing: Costing, added: Floats) -> LinearTimes:
    """Times near what a rank sends and receives if all have as much."""
    _, sent, received, _ = added.sum(axis=0) / costing.ranks.world
    linear = costing.communication.linear
    some = costing.ranks.global_batch * costing.ranks.sent_bytes * 128.0
    ids = linear(IDS, received) if not costing.dense_us else LinearTime(0.0, 0.0)  # overlaps with the dense part
    return LinearTimes(linear(POOLED, sent), ids, linear(SUMS, some), linear(NODE_SUMS, some),
                       linear(CROSS_NODE, some / costing.ranks.per_node), linear(REPLICAS, 2.0**24))  # fmt: skip


def _shared_us(costing: Costing, option: TableOption, times: LinearTimes) -> float:
    """What an option adds to the communication of all ranks, except for the first table with that communication."""
    table, ranks = costing.tables[option.table], costing.ranks
    pooled = table.dim * table.features * ranks.global_batch * ranks.sent_bytes
    communication = _communication(costing, option)
    if communication == SUMS:
        return times.sums.per_byte * pooled
    if communication == NODE_SUMS:
        # Nodes communicate at the same time: a table adds its part where they have as many.
        return (times.node_sums.per_byte * pooled + times.cross_node.per_byte * pooled / ranks.per_node) / ranks.nodes
    if communication == REPLICAS:
        return times.replicas.per_byte * table.rows * table.dim * EMBEDDING_BYTES
    return 0.0


@dataclass
class PlanState:
    """A plan as arrays that follow each change: the option of each table, its ranks, and the totals of every rank."""

    costs: OptionCosts
    ranks: Ranks
    hbm_budget: float
    """Bytes that a rank has for tables."""
    load: Floats
    """By option: microseconds that a shard adds, corrected by the estimates of earlier plans."""
    choice: Longs
    """By table: its option; -1 while it is not placed."""
    places: list[tuple[int, ...]]
    """By table: the ranks of its shards."""
    totals: Floats
    """By rank: LOAD, SENT, RECEIVED, MEMORY."""
    calls: Longs
    """By rank and group: the number of shards."""

    @classmethod
    def empty(cls, costs: OptionCosts, ranks: Ranks, hbm_budget: float) -> PlanState:
        """A state without placed tables."""
        tables = len(costs.of_table)
        return cls(costs, ranks, hbm_budget, costs.added[:, LOAD].copy(), np.full(tables, -1), [()] * tables,
                   np.zeros((ranks.world, 4)), np.zeros((ranks.world, len(costs.call_us)), np.int64))  # fmt: skip

    def copy(self) -> PlanState:
        """An independent copy."""
        return PlanState(self.costs, self.ranks, self.hbm_budget, self.load, self.choice.copy(), list(self.places),
                         self.totals.copy(), self.calls.copy())  # fmt: skip

    def added(self, option: int) -> Floats:
        """What a shard of an option adds to its rank, without its call."""
        found = self.costs.added[option].copy()
        found[LOAD] = self.load[option]
        return np.asarray(found)

    def put(self, table: int, option: int, ranks: tuple[int, ...]) -> None:
        """Place a table that is not placed."""
        group, there = self.costs.group[option], list(ranks)
        self.totals[there] += self.added(option)
        self.totals[there, LOAD] += self.costs.call_us[group] * (self.calls[there, group] == 0)
        self.calls[there, group] += 1
        self.choice[table], self.places[table] = option, ranks

    def remove(self, table: int) -> None:
        """Undo the placement of a table."""
        option = int(self.choice[table])
        group, there = self.costs.group[option], list(self.places[table])
        self.calls[there, group] -= 1
        self.totals[there] -= self.added(option)
        self.totals[there, LOAD] -= self.costs.call_us[group] * (self.calls[there, group] == 0)
        self.choice[table], self.places[table] = -1, ()

    def set_load(self, load: Floats) -> None:
        """Replace the loads of shards."""
        for table, ranks in enumerate(self.places):
            self.totals[list(ranks), LOAD] += load[self.choice[table]] - self.load[self.choice[table]]
        self.load = load

    def value(self) -> float:
        """Microseconds of the step by the sums; a penalty above any step where memory does not suffice."""
        most = self.totals.max(axis=0)
        overflow = float(self.overflow_us(self.totals).sum())
        return float(self.rank_us(most[LOAD], most[SENT], most[RECEIVED])) + self.shared() + overflow

    def score(self) -> float:
        """The value, and a small part of the load of other ranks that are nearly as busy as the busiest."""
        load = self.totals[:, LOAD]
        most = max(float(load.max()), 1e-9)
        return self.value() + TIE_WEIGHT * most * float(((load / most) ** TIE_POWER).sum() ** (1 / TIE_POWER))

    def rank_us(self, load: Floats, sent: Floats, received: Floats) -> Floats:
        """Microseconds of a rank with these totals."""
        times = self.costs.times
        return np.asarray(load + times.sent.per_byte * sent + times.received.per_byte * received)

    def shared(self) -> float:
        """What the chosen options add to the communication of all ranks."""
        placed = self.choice[self.choice >= 0]
        needed = set(map(self.costs.communication.__getitem__, placed.tolist()))
        first = sum(self.costs.first_us(communication) for communication in sorted(needed))  # sums depend on the order
        return float(self.costs.shared[placed].sum() + first)

    def overflow_us(self, totals: Floats) -> Floats:
        """The penalty of each rank for memory above the budget: far more than a step takes."""
        return np.asarray(OVERFLOW_US * np.maximum(totals[..., MEMORY] - self.hbm_budget, 0.0))

    def rank_groups(self, option: int) -> list[tuple[int, ...]]:
        """The groups of ranks that may hold an option's shards."""
        return SHARDING_TYPES[self.costs.options[option].option.sharding_type].rank_groups(self.ranks)

    def best_ranks(self, option: int) -> tuple[int, ...]:
        """The ranks that would be least busy with an option's shards."""
        then = self.totals + self.added(option)
        busy = self.rank_us(then[:, LOAD], then[:, SENT], then[:, RECEIVED]) + self.overflow_us(then)
        chosen = self.costs.options[option].option
        if SHARDING_TYPES[chosen.sharding_type].on_any_rank:
            return tuple(sorted(np.argsort(busy, kind="stable")[: chosen.shards].tolist()))
        return min(self.rank_groups(option), key=lambda group: float(busy[list(group)].max()))

    def plan(self) -> Plan:
        """The plan."""
        chosen = [self.costs.options[option].option for option in self.choice]
        return tuple(Placement(option.sharding_type, tuple(ranks)) for option, ranks in zip(chosen, self.places))
