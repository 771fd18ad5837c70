"""Lookup times of shards on a device: forward, and backward with the optimizer's update.

A shard is priced as the calls that PyTorch makes for it: ``_embedding_bag`` or ``embedding``, its gradient, and the
update of the accessed rows, each by the platform's fitted model of lookups, which takes the access histogram. How a
rank calls them for all its shards is a class of kernels: fused, one call per table, or FBGEMM's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Graph, Indices, Job, Op, OpTable, Tensor
from foretrace.graph.tables import Floats, Longs
from foretrace.platform.platform import Platform
from foretrace.sharding.linear_models import FusedModel, price_tbe
from foretrace.sharding.shards import DTYPES, OPTIMIZERS, LookupTimes, Shard, Shards, accesses, sum_by
from foretrace.sharding.tables import Table

FORWARD, BACKWARD = 0, 1
STORAGES_PER_SHARD = 10
"""Storage ids that the tensors of a shard take."""
SGD = OPTIMIZERS.index("sgd")
UPDATE_SPREAD = 0.15
"""Relative error of an update that is priced as a copy of the rows."""
MAX_COPIES = 64.0
"""A shard is priced as a part of a call that looks up at most this many like it."""
FEW_BAGS = 128.0
"""Bags up to which a call takes as long as one with none."""
TINY, TINY_CALLS = 16, 8
"""Rows, columns and bags of a lookup that takes the host longer than the device, and how many of them are predicted."""
PHASES = ("forward", "backward", "optimizer")


def price_lookups(shards: Shards, platform: Platform) -> LookupTimes:
    """Each shard in its own calls, with none of its rows in the device's caches.

    >>> from foretrace.sharding.options import SHARDING_TYPES, Ranks
    >>> of_type = SHARDING_TYPES["table_wise"]
    >>> made = [of_type.shard(Table("t", rows, 64, pooling=8), Ranks(2), 1) for rows in (1_000, 10_000_000)]
    >>> few, many = price_lookups(Shards.of(made), Platform.named("h200")).typical.sum(axis=1)
    >>> bool(few < many)
    True
    """
    if not len(shards):
        none = np.zeros((0, 2))
        return LookupTimes(none, none, none)
    from foretrace.cost_models.kernels.pricing import price_kernels

    graph, owner, phase = lookup_graph(shards)
    costs = price_kernels(graph, np.arange(len(owner), dtype=np.int32), platform)
    where = owner[costs.op] * 2 + phase[costs.op]
    gap = platform.device.measured.kernel_gap_us
    low, typical, high = (
        sum_by(where, us + gap, 2 * len(shards)).reshape(-1, 2) for us in (costs.low, costs.typical, costs.high)
    )
    moved = _update_us(shards, platform)
    for column, share in ((low, 1 / (1 + UPDATE_SPREAD)), (typical, 1.0), (high, 1 + UPDATE_SPREAD)):
        column[:, BACKWARD] += share * moved
    return LookupTimes(low, typical, high)


def lookup_graph(shards: Shards) -> tuple[Graph, Longs, Longs]:
    """The calls of all shards: all forwards, all backwards, then all updates; and of each call its shard and phase."""
    calls = [lookup_calls(shards, place) for place in range(len(shards))]
    ops = [op for column in range(3) for made in calls for op in made[column : column + 1]]
    owner = np.array([place for column in range(3) for place, made in enumerate(calls) if len(made) > column])
    phase = np.array([min(column, BACKWARD) for column in range(3) for made in calls if len(made) > column])
    indices = [_indices(shards, int(place), row) for row, place in enumerate(owner)]
    return Graph(OpTable.of(ops), indices=indices), owner, phase


def lookup_calls(shards: Shards, place: int) -> list[Op]:
    """The calls of a step for one shard; an update that has no call of its own is priced by its traffic."""
    dtype, dim = DTYPES[shards.dtype[place]], int(shards.dim[place])
    if dtype == "int8":
        dtype, dim = "bfloat16", max(1, dim // 2)  # rows of as many bytes
    rows, ids_count, bags = (max(1, round(column[place])) for column in (shards.rows, shards.ids, shards.bags))
    storage = iter(range(STORAGES_PER_SHARD * place, STORAGES_PER_SHARD * (place + 1)))

    def tensor(shape: tuple[int, ...], of: str = "int64", layout: str = "strided") -> Tensor:
        return Tensor(shape, of, "cuda:0", storage=next(storage), layout=layout)

    sparse = not shards.replicated[place]
    weight, ids, made = tensor((rows, dim), dtype), tensor((ids_count,)), tensor((bags, dim), dtype)
    gradient = tensor((rows, dim), dtype, "sparse_coo" if sparse else "strided")
    if shards.sequence[place]:
        calls = [Op("aten::embedding", (weight, ids, -1, False, sparse), outputs=(made,), overload="default")]
        if not sparse:  # a sparse gradient consists of tensors that exist already
            calls.append(Op("aten::embedding_dense_backward", (made, ids, rows, -1, False),
                            outputs=(gradient,), overload="default"))  # fmt: skip
    else:
        offsets, bag_of_id, sizes, maxima = tensor((bags,)), tensor((ids_count,)), tensor((bags,)), tensor((0,))
        calls = [
            Op("aten::_embedding_bag", (weight, ids, offsets, False, 0, sparse, None, False),
               outputs=(made, bag_of_id, sizes, maxima), overload="default"),
            Op("aten::_embedding_bag_backward",
               (tensor((bags, dim), dtype), ids, offsets, bag_of_id, sizes, maxima, rows, False, 0, sparse, None),
               outputs=(gradient,), overload="default"),
        ]  # fmt: skip
    if sparse and shards.optimizer[place] == SGD:
        calls.append(Op("aten::add_", (weight, gradient), {"alpha": -0.01}, outputs=(weight,), overload="Tensor"))
    elif sparse:
        calls.append(Op("aten::_coalesce", (gradient,), outputs=(gradient,), overload="default"))
    return calls


def _indices(shards: Shards, place: int, op: int) -> Indices:
    """The access statistics of a shard as those of a call."""
    reuse = np.trim_zeros(np.rint(shards.histogram[place]).astype(int), "b").tolist()
    ids, unique = round(shards.ids[place]), round(shards.unique[place])
    return Indices(op, round(shards.rows[place]), max(1, ids), max(1, unique), round(shards.bags[place]),
                   tuple(reuse))  # fmt: skip


def _update_us(shards: Shards, platform: Platform) -> Floats:
    """Microseconds in which an optimizer reads and writes rows and their state; SGD's call is priced by itself."""
    device = platform.device
    weights = shards.dim * shards.itemsize
    touched = np.where(shards.replicated, shards.rows, shards.unique)
    nbytes = touched * (2 * shards.state_row_bytes + 3 * weights)
    nbytes[~shards.replicated & (shards.optimizer == SGD)] = 0.0
    return np.asarray(nbytes / (device.measured.memory_gbps or device.memory_gbps) / 1e3)


@dataclass(frozen=True)
class LookupKernels:
    """The lookup time of all shards of a rank, and about what each shard adds to it."""

    platform: Platform

    def marginal(self, shards: Shards, ids: float) -> Floats:
        """Microseconds that each shard adds, forward and backward, to a rank whose calls look up about so many ids."""
        return self.separate(shards).typical

    def per_call(self, shards: Shards) -> Floats:
        """Microseconds that the first shard of its `call_key` adds to a rank besides; rows as of `marginal`."""
        return np.zeros((len(shards), 2))

    def of_ranks(self, shards: Shards, marginal: Floats, rank: Longs, world: int) -> LookupTimes:
        """The time of each rank for the shards it holds, given what each adds."""
        return self.of_devices(shards, marginal, rank, world)

    def of_devices(self, shards: Shards, marginal: Floats, rank: Longs, world: int) -> LookupTimes:
        """The part of that on the device."""
        return LookupTimes(*(_by_rank(us, rank, world) for us in self.separate(shards)))

    def calls(self, shards: Shards) -> Shards:
        """The calls of one rank: shards of one `call_key` share a call."""
        keys, group = np.unique(shards.call_key, return_inverse=True)
        return shards.fused(group.ravel(), len(keys))

    def separate(self, shards: Shards) -> LookupTimes:
        """Each shard in its own call."""
        return price_lookups(shards, self.platform)


class Batched(LookupKernels):
    """FBGEMM: all shards of a rank in one kernel."""

    def separate(self, shards: Shards) -> LookupTimes:
        """Each shard's part of that kernel."""
        return price_tbe(shards, self.platform.device)


class Single(LookupKernels):
    """One ``nn.EmbeddingBag`` per shard: launching the calls may take the host longer than the device needs.

    A CPU is both, and does one after the other.
    """

    def marginal(self, shards: Shards, ids: float) -> Floats:
        """The longer of the two."""
        return self._with_host(self.separate(shards).typical, np.ones((len(shards), 1)))

    def of_ranks(self, shards: Shards, marginal: Floats, rank: Longs, world: int) -> LookupTimes:
        """The longer of the two, on each rank."""
        device = self.of_devices(shards, marginal, rank, world)
        held = np.bincount(rank, minlength=world)[:, None].astype(np.float64)
        return LookupTimes(*(self._with_host(us, held) for us in device))

    def calls(self, shards: Shards) -> Shards:
        """Each shard by itself."""
        return shards

    def _with_host(self, us: Floats, held: Floats) -> Floats:
        host = held * self._host_us
        return np.asarray(us + host if self.platform.device.runs_on_host else np.maximum(us, host))

    @cached_property
    def _host_us(self) -> Floats:
        """Host time of the calls of a shard, forward and backward, by a prediction of tiny ones that are host-bound."""
        table = Table("tiny", rows=TINY, dim=TINY)
        tiny = Shards.of([Shard(table, TINY, TINY, TINY, *accesses(table, TINY))])
        by_phase = zip(*(lookup_calls(tiny, 0) for _ in range(TINY_CALLS)))
        from foretrace.prediction.predict import predict_on_platform

        us = []
        for ops, phase in zip(by_phase, PHASES):
            job = Job([Graph(OpTable.of([replace(op, phase=phase) for op in ops]))])
            us.append(predict_on_platform(job, self.platform, "model").step_ms * 1e3)
        return np.array([us[0], us[1] + us[2]]) / TINY_CALLS


class Fused(LookupKernels):
    """Shards of one dim, dtype and optimizer lie in one tensor and are looked up by one call.

    Priced by the device's linear model where there is one that applies. Otherwise by the geometric mean of two
    estimates: the price of the call itself, and the sum of what each shard adds to calls of many like it. Their errors
    seldom have the same sign.
    """

    @cached_property
    def _model(self) -> FusedModel | None:
        # On a hypothetical device, with another memory or clock, only the platform's own models say what changes.
        return None if self.platform.cross_device else FusedModel.of(self.platform.device)

    def marginal(self, shards: Shards, ids: float) -> Floats:
        """Its part of a call that looks up as many like it as a rank may have."""
        linear, result = self._is_linear(shards), np.zeros((len(shards), 2))
        if self._model and linear.any():
            result[linear] = self._model.us(shards.select(linear)) - self._model.call_us()
        others = shards.select(~linear)
        if len(others):
            copies = np.clip(np.round(ids / np.maximum(others.ids, 1)), 1, MAX_COPIES)
            many = price_lookups(others.repeated(copies), self.platform).typical
            result[~linear] = np.maximum((many - self.per_call(others)) / copies[:, None], 0.0)
        return result

    def per_call(self, shards: Shards) -> Floats:
        """The time of a call that looks up next to nothing."""
        linear, result = self._is_linear(shards), np.zeros((len(shards), 2))
        if self._model:
            result[linear] = self._model.call_us()
        others = shards.select(~linear)
        if len(others):
            _, first, group = np.unique(others.call_key, return_index=True, return_inverse=True)
            some = others.select(first)
            few = price_lookups(some.repeated(np.minimum(1.0, FEW_BAGS / some.bags)), self.platform).typical
            result[~linear] = few[group.ravel()]
        return result

    def of_devices(self, shards: Shards, marginal: Floats, rank: Longs, world: int) -> LookupTimes:
        """The calls of each rank, one after the other."""
        if not len(shards):
            return LookupTimes(*(np.zeros((world, 2)) for _ in range(3)))
        groups, group = np.unique(np.stack([rank, shards.call_key], axis=1), axis=0, return_inverse=True)
        calls = shards.fused(group.ravel(), len(groups))
        linear, priced = self._is_linear(calls), np.zeros((3, len(calls), 2))
        if self._model and linear.any():
            us, spread = self._model.us(calls.select(linear)), 1 + self._model.spread
            priced[:, linear] = us / spread, us, us * spread
        if not linear.all():
            added = _by_rank(marginal, group.ravel(), len(groups))[~linear]
            itself = price_lookups(calls.select(~linear), self.platform)
            share = np.sqrt((self.per_call(calls.select(~linear)) + added) / np.maximum(itself.typical, 1e-9))
            priced[:, ~linear] = [us * share for us in itself]
        return LookupTimes(*(_by_rank(us, groups[:, 0], world) for us in priced))

    def _is_linear(self, shards: Shards) -> NDArray[np.bool_]:
        return FusedModel.applies(shards) if self._model else np.zeros(len(shards), np.bool_)


KERNELS: dict[str, type[LookupKernels]] = {"fused": Fused, "single": Single, "tbe": Batched}
"""By their name in `foretrace shard --kernels`."""


def _by_rank(us: Floats, rank: Longs, world: int) -> Floats:
    return np.stack([sum_by(rank, column, world) for column in us.T], axis=1)
