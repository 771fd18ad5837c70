"""Train DLRM on several ranks: each keeps some of the tables whole, and all keep a copy of the MLPs.

    torchrun --nproc-per-node 2 examples/dlrm_distributed.py
    torchrun --nproc-per-node 8 examples/dlrm_distributed.py --preset mlperf --batch 2048

A rank reads its own part of the batch. It sends the ids to whoever keeps the tables (all_to_all), gets the looked-up
vectors back (all_to_all, and a third one for their gradients), and shares the MLPs' gradients (all_reduce, by DDP).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dlrm import PRESETS, Dense, row_ids, table
from training import DEVICE, Step, autocast, choose, options, process_group, train


class Exchange(torch.autograd.Function):
    """all_to_all of rows: rank r gets ``sent[r]`` of them; in backward their gradients go home."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sent, ctx.received = sent, received
        return exchange(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # The loss is the mean over all ranks' samples, each rank's own a mean over its part.
        return exchange(gradient.contiguous(), ctx.received, ctx.sent) / dist.get_world_size(), None, None


def exchange(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Send the first ``sent[0]`` rows to rank 0, the next ``sent[1]`` to rank 1 and so on; return what comes back."""
    out = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(out, rows, received, sent)
    return out


class ShardedTables(nn.Module):
    """Table t lives on rank t modulo the number of ranks; a lookup gives the vectors of this rank's own samples."""

    def __init__(self, rows: tuple[int, ...], dim: int, pooling: int) -> None:
        super().__init__()
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.dim, self.pooling = dim, pooling
        self.kept = [len(rows[rank :: self.world]) for rank in range(self.world)]
        self.mine = nn.ModuleList(table(count, dim) for count in rows[self.rank :: self.world])
        owners = sorted(range(len(rows)), key=lambda t: (t % self.world, t))
        self.by_owner, self.by_table = owners, [owners.index(t) for t in range(len(rows))]

    def forward(self, ids: list[Tensor]) -> list[Tensor]:
        each = len(ids[0])
        samples = each // self.pooling
        asked = exchange(
            torch.cat([ids[t] for t in self.by_owner]),
            [each * kept for kept in self.kept],
            [each * len(self.mine)] * self.world,
        )
        # From (rank, table, id) to (table, rank, id): each table then looks up the whole job's batch at once.
        per_table = asked.view(self.world, len(self.mine), each).transpose(0, 1).flatten(1)
        offsets = torch.arange(0, per_table.shape[1], self.pooling, device=per_table.device)
        found = torch.stack([bag(i, offsets) for bag, i in zip(self.mine, per_table)])
        by_rank = found.unflatten(1, (self.world, samples)).transpose(0, 1).flatten(0, 2)
        got = Exchange.apply(by_rank, [samples * len(self.mine)] * self.world, [samples * kept for kept in self.kept])
        return [got.view(-1, samples, self.dim)[place] for place in self.by_table]


def make_step(
    preset: str | None = None,
    batch: int | None = None,
    device: str = DEVICE,
    dtype: str = "fp32",
    skew: float = 0.0,
    max_rows: int = 4_000_000,
) -> Step:
    """This rank's part of the model and one random batch; returns what trains on it once."""
    shape = choose(PRESETS, preset, device).capped(max_rows)
    batch = batch or shape.batch
    with torch.device(device):
        tables = ShardedTables(shape.rows, shape.dim, shape.pooling)
        dense = DistributedDataParallel(Dense(shape))
        features, clicked = torch.randn(batch, shape.bottom[0]), torch.rand(batch, 1).round()
        ids = [row_ids(batch * shape.pooling, rows, skew) for rows in shape.rows]
    optim = torch.optim.SGD([*tables.parameters(), *dense.parameters()], lr=0.01)

    def step() -> Tensor:
        optim.zero_grad()
        with autocast(device, dtype):
            guess = dense(features, tables(ids))
        loss = nn.functional.binary_cross_entropy_with_logits(guess.float(), clicked)
        loss.backward()
        optim.step()
        return loss.detach()

    return step


def main() -> None:
    parser = options(__doc__, PRESETS)
    parser.add_argument("--skew", type=float, help="exponent of the power law of the rows asked for; 0 is uniform")
    parser.add_argument("--max-rows", type=int, help="cut larger tables to so many rows; 4 million if not given")
    args = vars(parser.parse_args())
    steps = args.pop("steps")
    with process_group(args.get("device", DEVICE)):
        torch.manual_seed(dist.get_rank())
        train(make_step(**args), steps)


if __name__ == "__main__":
    main()
