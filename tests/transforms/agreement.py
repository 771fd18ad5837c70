"""Steps to transform, and what a transformed step has to agree with."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch

from foretrace.analysis.memory import peak_memory
from foretrace.graph import Graph
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.resize.arguments import NORMS
from tests.narrowing import present


def sketched(
    model: ModuleType, dtype: torch.dtype = torch.float32, options: dict[str, Any] | None = None, **shape: Any
) -> Graph:
    """A tiny step of an example on a pretended GPU, with parts of its shape set. Made once: no edit changes it."""
    key = (model.__name__, dtype, tuple(sorted((options or {}).items())), tuple(sorted(shape.items())))
    if key not in SKETCHES:
        SKETCHES[key] = sketched_now(model, dtype, options, **shape)
    return SKETCHES[key]


SKETCHES: dict[Hashable, Graph] = {}


def sketched_now(
    model: ModuleType, dtype: torch.dtype = torch.float32, options: dict[str, Any] | None = None, **shape: Any
) -> Graph:
    """The same of a model that a test has changed."""

    def build() -> Callable[[], Any]:
        torch.set_default_dtype(dtype)
        try:
            return model.make_step(device="cuda", **{"preset": "tiny"} | (options or {}))
        finally:
            torch.set_default_dtype(torch.float32)

    with patch.dict(model.PRESETS, {"tiny": replace(model.PRESETS["tiny"], **shape)}):
        return sketch(build, device="cuda")


def calls(graph: Graph) -> list[tuple[Any, ...]]:
    """Every call with what it was given and what it made: shapes, strides, places in their storages, types.

    Of norms also the sizes that they go over: no shape tells them.
    """
    return [
        (
            op.name,
            op.overload,
            op.phase,
            *((t.shape, t.stride, t.offset, t.dtype) for t in (*op.tensors, *op.produced)),
            *(value for value in op.args if op.name in NORMS and isinstance(value, list)),
        )
        for op in graph.ops
    ]


def shapes(graph: Graph) -> list[tuple[Any, ...]]:
    """Every call with the shapes of what it was given and what it made."""
    return [(op.name, *(t.shape for t in (*op.tensors, *op.produced))) for op in graph.ops]


def assert_same(edited: Graph, truth: Graph, memory: float = 0.0) -> None:
    """The edited step is the one that was sketched so, to the last stride and byte but for a share of its peak."""
    for number, (ours, theirs) in enumerate(zip(calls(edited), calls(truth))):
        assert ours == theirs, f"call {number}"
    assert len(edited.ops) == len(truth.ops)
    assert present(peak_memory(edited)) == pytest.approx(present(peak_memory(truth)), rel=memory, abs=0)
