"""Edits of graphs as plain functions: each takes a graph and gives another; none changes the one that it was given.

>>> from foretrace import edits
>>> from foretrace.graph import Graph, Op, OpTable, Tensor
>>> x, y = (Tensor((8, 4), "float32", "cpu", (4, 1), id=number, storage=number) for number in (0, 1))
>>> step = Graph(OpTable.of([Op("aten::relu", (x,), outputs=(y,), overload="default", phase="forward")]))
>>> larger = edits.batch(step, 32)
>>> [tensor.shape for tensor in edits.dtype(larger, "bf16").ops[0].produced], step.ops[0].outputs[0].shape
([(32, 4)], (8, 4))
"""

from __future__ import annotations

from foretrace.questions.autocasting import autocast
from foretrace.questions.changes import fuse
from foretrace.questions.inserting import insert
from foretrace.questions.optimizers import optimizer
from foretrace.transforms.attention import attention
from foretrace.transforms.batch import batch
from foretrace.transforms.buckets import buckets
from foretrace.transforms.checkpointing import checkpointing
from foretrace.transforms.cudagraph import cudagraph
from foretrace.transforms.depth import depth
from foretrace.transforms.heads import heads
from foretrace.transforms.hidden import hidden
from foretrace.transforms.overlap import overlap
from foretrace.transforms.precision import dtype
from foretrace.transforms.sequence import sequence
from foretrace.transforms.shards import shards
from foretrace.transforms.tables import pooling, table_dim, table_rows
from foretrace.transforms.width import width
from foretrace.transforms.without import without

__all__ = [
    "attention",
    "autocast",
    "batch",
    "buckets",
    "checkpointing",
    "cudagraph",
    "depth",
    "dtype",
    "fuse",
    "heads",
    "hidden",
    "insert",
    "optimizer",
    "overlap",
    "pooling",
    "sequence",
    "shards",
    "table_dim",
    "table_rows",
    "width",
    "without",
]
