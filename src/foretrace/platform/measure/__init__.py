"""Timing calls on the machine at hand: torch, numpy and the standard library are all it needs."""
