"""Sizes of Llama 3 and 3.1, for the programs beside this file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Size of a Llama."""

    layers: int
    dim: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int = 128256


SHAPES = {
    "tiny": Shape(2, 64, 4, 2, 128, 512),
    "8b": Shape(32, 4096, 32, 8, 14336),
    "70b": Shape(80, 8192, 64, 8, 28672),
    "405b": Shape(126, 16384, 128, 8, 53248),
}
