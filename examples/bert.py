"""Train a BERT to fill in masked words of random text.

A tiny one trains in seconds on a CPU; the other presets are for a GPU.

    python examples/bert.py
    python examples/bert.py --preset base --dtype bf16 --seq 128
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from training import DEVICE, Step, autocast, choose, options, train


@dataclass(frozen=True)
class Shape:
    """Size of a BERT and of the text it is trained on."""

    layers: int
    heads: int
    dim: int
    vocabulary: int
    seq: int
    batch: int


PRESETS = {
    "tiny": Shape(2, 4, 64, 512, 32, 8),
    "base": Shape(12, 12, 768, 30522, 512, 64),
    "large": Shape(24, 16, 1024, 30522, 512, 32),
}
NOT_ASKED = -100
"""What cross_entropy passes over."""


class BERT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.dim)
        self.places = nn.Embedding(shape.seq, shape.dim)
        self.norm = nn.LayerNorm(shape.dim)
        self.dropout = nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(
            shape.dim, shape.heads, 4 * shape.dim, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers)
        self.head = nn.Sequential(
            nn.Linear(shape.dim, shape.dim), nn.GELU(), nn.LayerNorm(shape.dim), nn.Linear(shape.dim, shape.vocabulary)
        )
        self.head[-1].weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        places = self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.encoder(self.dropout(self.norm(self.words(text) + places))))


def make_step(
    preset: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    device: str = DEVICE,
    dtype: str = "fp32",
) -> Step:
    """Model, optimizer and one random batch; returns what trains on it once."""
    shape = choose(PRESETS, preset, device)
    batch, seq = batch or shape.batch, seq or shape.seq
    with torch.device(device):
        model = BERT(shape)
        text = torch.randint(1, shape.vocabulary, (batch, seq))
        masked = torch.rand(batch, seq) < 0.15
        shown, wanted = text.masked_fill(masked, 0), text.masked_fill(~masked, NOT_ASKED)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> Tensor:
        optim.zero_grad()
        with autocast(device, dtype):
            guess = model(shown)
            loss = functional.cross_entropy(guess.flatten(0, 1), wanted.flatten(), ignore_index=NOT_ASKED)
        loss.backward()
        optim.step()
        return loss.detach()

    return step


def main() -> None:
    parser = options(__doc__, PRESETS)
    parser.add_argument("--seq", type=int, help="words a sample, at most as many as the preset has")
    args = vars(parser.parse_args())
    torch.manual_seed(0)
    steps = args.pop("steps")
    train(make_step(**args), steps)


if __name__ == "__main__":
    main()
