"""Steps to parallelize, and how two graphs of one step are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

import gpt
from foretrace.graph import Graph
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.parallelize import parallelize

LOOKS = (
    "aten::view",
    "aten::_unsafe_view",
    "aten::t",
    "aten::detach",
    "aten::as_strided",
    "aten::transpose",
    "aten::select",
)
"""Calls that compute nothing."""


@cache
def gpt_step(world: int = 1, batch: int = 8, **options: Any) -> Graph:
    """A tiny GPT, sketched on a GPU."""
    return sketch(lambda: gpt.make_step("tiny", device="cuda", batch=batch, **options), device="cuda", world=world)


def trained(
    build: Callable[[], tuple[nn.Module, torch.Tensor]], device: str = "cuda"
) -> Callable[[], Callable[[], None]]:
    """What builds a step of a module."""

    def made() -> Callable[[], None]:
        with torch.device(device):
            model, given = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()

        return step

    return made


def data_parallel(graph: Graph, ranks: int, bucket_mb: float = 25.0) -> Graph:
    """The step of one of several ranks under DDP."""
    return parallelize(graph, data=ranks, bucket_mb=bucket_mb).graphs[0]


def fully_sharded_data_parallel(graph: Graph, ranks: int, units: Sequence[str] = (), mixed: bool = False) -> Graph:
    """The step of one of several ranks under FSDP2."""
    return parallelize(graph, data=ranks, sharded=units or True, mixed=mixed).graphs[0]


def tensor_parallel(graph: Graph, ranks: int, overlap: bool = False, sequence: bool = False) -> Graph:
    """The step of one of several ranks that split the blocks' layers."""
    return parallelize(graph, tensor=ranks, overlap=overlap, sequence=sequence).graphs[0]


def told(graph: Graph, *passed_over: str) -> list[tuple[str, list[tuple[int, ...]]]]:
    """What forward and backward compute and exchange, in order, with the shapes of it."""
    return [
        (op.name, [t.shape for t in (*op.tensors, *op.produced)])
        for op in graph.ops
        if op.phase in ("forward", "backward") and not op.is_side_call and op.name not in (*LOOKS, *passed_over)
    ]


def precise(graph: Graph) -> list[tuple[str, list[tuple[tuple[int, ...], str]]]]:
    """What forward and backward compute and exchange, in order, with shapes and types."""
    return [
        (op.name, [(t.shape, t.dtype) for t in (*op.tensors, *op.produced)])
        for op in graph.ops
        if op.phase in ("forward", "backward") and not op.is_side_call and op.name not in LOOKS
    ]


def exchanged(graph: Graph) -> list[tuple[str, int, str]]:
    """Kind, bytes and dtype of the collectives."""
    return [(c.kind, c.nbytes, c.dtype) for c in graph.collectives]


def neighbours(graph: Graph) -> list[tuple[str, str]]:
    """For each collective, the calls before and behind it that compute something; optimizers may walk as they like."""
    rows = {c.op for c in graph.collectives}
    skipped = (*LOOKS, "_c10d_functional::wait_tensor", "aten::empty")
    calls = [
        (row, op.name if op.phase != "optimizer" else op.phase)
        for row, op in enumerate(graph.ops)
        if row not in rows and not op.is_side_call and op.name not in skipped
    ]
    before = [max((c for c in calls if c[0] < row), default=(0, ""))[1] for row in sorted(rows)]
    behind = [min((c for c in calls if c[0] > row), default=(0, ""))[1] for row in sorted(rows)]
    return list(zip(before, behind))
