"""Megatron-LM's GPT of 2022 in half precision, as vTrain's tables have it: scores of attention whole, no flash kernels.

foretrace predict --on a100 --parallel tensor=8,microbatches=2 -- python benchmarks/models/megatron_gpt.py --layers 24
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.megatron import GPT, VOCABULARY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("layers", 2), ("width", 64), ("heads", 4), ("seq", 32), ("batch", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = GPT(args.layers, args.width, args.heads, args.seq).half()
        text = torch.randint(VOCABULARY, (args.batch, args.seq + 1))
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    for _ in range(3):
        optimizer.zero_grad()
        scores = model(text[:, :-1]).float()
        functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
