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

from foretrace.questions.changes import fuse
from foretrace.transforms.fusion.cuda_graph import cudagraph
from foretrace.transforms.fusion.ddp_buckets import buckets, overlap
from foretrace.transforms.numerics.autocast import autocast
from foretrace.transforms.numerics.dtype import dtype
from foretrace.transforms.parallel.fsdp_reshard import shards
from foretrace.transforms.resize.batch_sequence import batch, sequence
from foretrace.transforms.resize.tables import pooling, table_dim, table_rows
from foretrace.transforms.resize.width import heads, hidden, width
from foretrace.transforms.structure.attention import attention
from foretrace.transforms.structure.checkpointing import checkpointing
from foretrace.transforms.structure.depth import depth
from foretrace.transforms.structure.insert_remove import insert, without
from foretrace.transforms.structure.optimizer import optimizer

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
