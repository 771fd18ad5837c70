"""Train DLRM, the recommendation model of Naumov et al. (2019), on random clicks.

A tiny one trains in seconds on a CPU; the other presets are the shapes of the literature, for a GPU.

    python examples/dlrm.py
    python examples/dlrm.py --preset mlperf --batch 2048
    python examples/dlrm.py --preset default --skew 1.05
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from training import DEVICE, Step, autocast, choose, options, train

CRITEO_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4, 976, 14,
    39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Tables and layers of a DLRM: ``bottom`` goes from the dense features to ``dim``, ``top`` ends in one click."""

    rows: tuple[int, ...]
    dim: int
    pooling: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch: int

    def capped(self, most: int) -> Shape:
        """The same with no table of more rows than that."""
        return replace(self, rows=tuple(min(rows, most) for rows in self.rows))


PRESETS = {
    "tiny": Shape((10_000,) * 4, 16, 4, (13, 32, 16), (32, 16, 1), 128),
    "default": Shape((1_000_000,) * 8, 64, 100, (512, 512, 64), (1024, 1024, 1024, 1), 2048),
    "mlperf": Shape(CRITEO_ROWS, 128, 1, (13, 512, 256, 128), (1024, 1024, 512, 256, 1), 2048),
    "ddp": Shape((80_000,) * 8, 128, 100, (128, 128, 128, 128), (512, 512, 512, 256, 1), 2048),
}


class DLRM(nn.Module):
    """Bottom MLP and table lookups, the dot product of every two of their vectors, top MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tables = nn.ModuleList(table(rows, shape.dim) for rows in shape.rows)
        self.dense = Dense(shape)

    def forward(self, features: Tensor, ids: Sequence[Tensor], offsets: Tensor) -> Tensor:
        return self.dense(features, [table(i, offsets) for table, i in zip(self.tables, ids)])


class Dense(nn.Module):
    """All of a DLRM but its tables."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        vectors = len(shape.rows) + 1
        pairs = vectors * (vectors - 1) // 2
        self.bottom = nn.Sequential(*layers(shape.bottom), nn.ReLU())
        self.top = nn.Sequential(*layers((shape.dim + pairs, *shape.top)))
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)

    def forward(self, features: Tensor, looked_up: Sequence[Tensor]) -> Tensor:
        x = self.bottom(features)
        vectors = torch.stack([x, *looked_up], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, products], dim=1))


def table(rows: int, dim: int) -> nn.EmbeddingBag:
    """A table whose gradient holds only the rows that were asked for."""
    bag = nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
    nn.init.uniform_(bag.weight, -(rows**-0.5), rows**-0.5)
    return bag


def layers(sizes: Sequence[int]) -> list[nn.Module]:
    """Linear layers of these sizes with a ReLU between each two."""
    made: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        made += [nn.Linear(inputs, outputs), nn.ReLU()]
    return made[:-1]


def row_ids(count: int, rows: int, skew: float) -> Tensor:
    """Random rows of a table by a power law, as 1 / x^skew falls from x = 1 to the number of rows; 0 is uniform."""
    if skew == 0:
        return torch.randint(rows, (count,))
    u = torch.rand(count, dtype=torch.float64)
    rank = rows**u if skew == 1 else (1 + u * (rows ** (1 - skew) - 1)) ** (1 / (1 - skew))
    # A prime stride scatters the favourites over the table, as they lie in real ones.
    return (rank.long() - 1).clamp(0, rows - 1) * 2654435761 % rows


def make_step(
    preset: str | None = None,
    batch: int | None = None,
    device: str = DEVICE,
    dtype: str = "fp32",
    optimizer: str = "sgd",
    skew: float = 0.0,
    max_rows: int = 4_000_000,
) -> Step:
    """Model, optimizer and one random batch; returns what trains on it once."""
    shape = choose(PRESETS, preset, device).capped(max_rows)
    batch = batch or shape.batch
    lookups = batch * shape.pooling
    with torch.device(device):
        model = DLRM(shape)
        features, clicked = torch.randn(batch, shape.bottom[0]), torch.rand(batch, 1).round()
        ids = [row_ids(lookups, rows, skew) for rows in shape.rows]
        offsets = torch.arange(0, lookups, shape.pooling)
    optim = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[optimizer](model.parameters(), lr=0.01)

    def step() -> Tensor:
        optim.zero_grad()
        with autocast(device, dtype):
            guess = model(features, ids, offsets)
        loss = nn.functional.binary_cross_entropy_with_logits(guess.float(), clicked)
        loss.backward()
        optim.step()
        return loss.detach()

    return step


def main() -> None:
    parser = options(__doc__, PRESETS)
    parser.add_argument("--optimizer", choices=["sgd", "adagrad"], help="both take sparse gradients")
    parser.add_argument("--skew", type=float, help="exponent of the power law of the rows asked for; 0 is uniform")
    parser.add_argument("--max-rows", type=int, help="cut larger tables to so many rows; 4 million if not given")
    args = vars(parser.parse_args())
    torch.manual_seed(0)
    steps = args.pop("steps")
    train(make_step(**args), steps)


if __name__ == "__main__":
    main()
