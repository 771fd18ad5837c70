"""PyTorch profiler traces (Kineto): events to columns, columns to the tables of a graph."""

from foretrace.formats.kineto.read import read_kineto

__all__ = ["read_kineto"]
