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

from foretrace.graph.edits.attention import attention
from foretrace.graph.edits.batch import batch
from foretrace.graph.edits.buckets import buckets
from foretrace.graph.edits.checkpointing import checkpointing
from foretrace.graph.edits.cudagraph import cudagraph
from foretrace.graph.edits.depth import depth
from foretrace.graph.edits.heads import heads
from foretrace.graph.edits.hidden import hidden
from foretrace.graph.edits.overlap import overlap
from foretrace.graph.edits.precision import dtype
from foretrace.graph.edits.sequence import sequence
from foretrace.graph.edits.shards import shards
from foretrace.graph.edits.tables import pooling, table_dim, table_rows
from foretrace.graph.edits.width import width
from foretrace.graph.edits.without import without
from foretrace.questions.autocasting import autocast
from foretrace.questions.changes import fuse
from foretrace.questions.inserting import insert
from foretrace.questions.optimizers import optimizer

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
