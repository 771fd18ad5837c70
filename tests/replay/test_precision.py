"""A step in another floating type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretrace.graph import ForetraceError
from foretrace.replay.folder import Choices
from foretrace.transforms.numerics.dtype import parse_dtype
from tests.replay.steps import STEPS
from tests.replay.test_replays import graph_of


@pytest.mark.parametrize("name", ["adamw, fused", "adamw, foreach", "dlrm with sparse gradients", "resnet"])
def test_a_step_runs_in_bf16(name: str, loaded: Callable[..., Any]) -> None:
    graph, _, _ = graph_of(STEPS[name]())
    benchmark = loaded(graph, Choices(dtype="bf16"))
    assert benchmark.source.failures == []
    kinds = {tensor.dtype for tensor in benchmark.inputs if tensor.dim() and tensor.is_floating_point()}
    assert kinds == {torch.bfloat16}
    assert any("bfloat16" in note for note in benchmark.notes)


def test_a_step_in_a_smaller_type_holds_less_memory(loaded: Callable[..., Any]) -> None:
    graph, _, _ = graph_of(STEPS["adamw, foreach"]())
    half, whole = (loaded(graph, Choices(dtype=dtype)).facts["memory"]["peak"] for dtype in ("bf16", None))
    assert 0.45 * whole < half < 0.6 * whole


def test_an_autocast_step_runs_in_fp32(loaded: Callable[..., Any]) -> None:
    graph, _, _ = graph_of(STEPS["gpt with bf16 autocast"]())
    benchmark = loaded(graph, Choices(dtype="fp32"))
    assert benchmark.source.failures == []
    assert "bfloat16" not in (benchmark.folder / "step.py").read_text()


def test_a_type_that_is_none_is_said() -> None:
    with pytest.raises(ForetraceError, match="can't run in 'int8'"):
        parse_dtype("int8")
