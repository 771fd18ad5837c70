"""Foretrace: watch one training step; predict, replay and explain it anywhere."""

__version__ = "0.1.0"
