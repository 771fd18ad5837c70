"""The hybrid DLRM jobs of `benchmarks.claims.sharding.sharding_gloo`: their tables, candidate plans, and what a rank
does in a step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

WORLDS, EACH = (4, 8), 6
BATCH = 256
PHASES = ("ids", "lookups", "embeddings", "dense and gradients", "dense gradients", "updates")


class Spec(NamedTuple):
    """A table of a job."""

    name: str
    rows: int
    dim: int
    pooling: int
    zipf: float


def jobs() -> list[tuple[str, int, list[Spec]]]:
    """Tables of each job, drawn: a few heavy ones among many light."""
    made = []
    for world in WORLDS:
        for number in range(EACH):
            draw = np.random.default_rng([world, number])
            count = int(draw.integers(3 * world, 5 * world + 1))
            tables = [
                Spec(
                    f"t{place}",
                    int(np.exp(draw.uniform(np.log(1e3), np.log(4e5)))),
                    int(draw.choice([16, 32, 64, 128])),
                    int(np.exp(draw.uniform(0, np.log(60)))),
                    float(draw.choice([0.0, 0.8, 1.1])),
                )
                for place in range(count)
            ]
            made.append((f"g{world}-{number}", world, tables))
    return made


def owners(tables: Sequence[Spec], world: int) -> dict[str, list[int]]:
    """Candidate plans: for each, the rank of each table."""

    def greedy(size: Any) -> list[int]:
        weights = [float(size(table)) for table in tables]
        so_far, found = [0.0] * world, [0] * len(tables)
        for place in sorted(range(len(tables)), key=lambda p: -weights[p]):
            found[place] = so_far.index(min(so_far))
            so_far[found[place]] += weights[place]
        return found

    draw = np.random.default_rng(len(tables))
    return {
        "size-greedy": greedy(lambda t: t.rows * t.dim),
        "dim-greedy": greedy(lambda t: t.dim),
        "lookup-greedy": greedy(lambda t: t.dim * t.pooling),
        "pooling-greedy": greedy(lambda t: t.pooling),
        "size-lookup-greedy": greedy(lambda t: t.dim * t.pooling * np.log10(t.rows)),
        "in turn": [place % world for place in range(len(tables))],
        "at random 1": draw.integers(world, size=len(tables)).tolist(),
        "at random 2": draw.integers(world, size=len(tables)).tolist(),
    }


class Exchanged(torch.autograd.Function):
    """Embeddings to the ranks of their samples; gradients back."""

    @staticmethod
    def forward(ctx: Any, sent: torch.Tensor, give: list[int], take: list[int]) -> torch.Tensor:
        ctx.give, ctx.take = give, take
        got = sent.new_empty(sum(take))
        dist.all_to_all_single(got, sent, take, give)
        return got

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        back = gradients[0].new_empty(sum(ctx.give))
        dist.all_to_all_single(back, gradients[0].contiguous(), ctx.give, ctx.take)
        return back, None, None


class Job:
    """One rank of a hybrid DLRM: some tables whole, the dense layers copied."""

    def __init__(self, tables: Sequence[Spec], owner: Sequence[int], rank: int, world: int) -> None:
        torch.manual_seed(1)
        self.world = world
        mine = [table for table, where in zip(tables, owner) if where == rank]
        self.mine = mine
        self.bags = nn.ModuleList(nn.EmbeddingBag(t.rows, t.dim, mode="sum", sparse=True) for t in mine)
        width = sum(table.dim for table in tables)
        self.dense = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
        self.updates = [
            torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.bags, self.dense) if list(part.parameters())
        ]
        # Ids of this rank's samples for all tables, those of one owner after the other.
        order = [place for q in range(world) for place in range(len(tables)) if owner[place] == q]
        self.ids = torch.cat([drawn(tables[place], BATCH) for place in order])
        per_owner = [sum(t.pooling for t, o in zip(tables, owner) if o == q) * BATCH for q in range(world)]
        self.give_ids, self.take_ids = per_owner, [per_owner[rank]] * world
        dims = [sum(t.dim for t, o in zip(tables, owner) if o == q) * BATCH for q in range(world)]
        self.give, self.take = [dims[rank]] * world, dims
        self.offsets = [torch.arange(0, BATCH * world * t.pooling, t.pooling) for t in mine]

    def step(self) -> list[float]:
        """Forward, backward, updates; seconds at which each of `PHASES` began, and at which the last one ended."""
        marks = [time.perf_counter()]
        got = self.ids.new_empty(sum(self.take_ids))
        dist.all_to_all_single(got, self.ids, self.take_ids, self.give_ids)
        marks.append(time.perf_counter())
        by_rank = got.view(self.world, -1)
        pooled, at = [], 0
        for table, bag, offsets in zip(self.mine, self.bags, self.offsets):
            ids = by_rank[:, at : at + BATCH * table.pooling].reshape(-1)
            at += BATCH * table.pooling
            pooled.append(bag(ids, offsets).view(self.world, BATCH * table.dim))
        sent = torch.cat(pooled, dim=1).view(-1) if pooled else torch.zeros(0, requires_grad=True)
        marks.append(time.perf_counter())
        looked_up = Exchanged.apply(sent, self.give, self.take)
        marks.append(time.perf_counter())
        out = self.dense(looked_up.view(-1).reshape(BATCH, -1))
        out.square().mean().backward()
        marks.append(time.perf_counter())
        flat = torch.cat([p.grad.view(-1) for p in self.dense.parameters() if p.grad is not None])
        dist.all_reduce(flat)
        marks.append(time.perf_counter())
        for update in self.updates:
            update.step()
            update.zero_grad()
        return [*marks, time.perf_counter()]


def drawn(table: Spec, batch: int) -> torch.Tensor:
    """Ids of a batch."""
    uniform = torch.rand(batch * table.pooling, dtype=torch.float64)
    if not table.zipf:
        return (uniform * table.rows).long()
    flat = 1 - table.zipf
    ranks = (uniform * (table.rows**flat - 1) + 1) ** (1 / flat) - 1
    return ranks.clamp(0, table.rows - 1).long() * 2654435761 % table.rows
