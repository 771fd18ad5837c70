"""Steps recorded as they are and edited, held against recordings of the steps that they should become."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

import bert
import dlrm
import foretrace as ft
import gpt
import resnet
from foretrace.graph import Graph
from foretrace.record.watch.session import record_step
from foretrace.transforms.step import flatten
from foretrace.whatif.changes import edit_step

MODELS = {"dlrm": dlrm, "bert": bert, "gpt": gpt, "resnet": resnet}
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("dlrm", "batch=32", {"batch": 32}),
    ("dlrm", "rows=500", {"rows": (500,) * 4}),
    ("dlrm", "dim=24", {"dim": 24, "bottom": (13, 32, 24)}),
    ("dlrm", "autocast=bf16", {"dtype": "bf16"}),
    ("bert", "seq=64", {"seq": 64}),
    ("bert", "hidden=96", {"dim": 96}),
    ("gpt", "depth=3", {"layers": 3}),
    ("gpt", "optimizer=fused", {"optimizer": "fused"}),
    ("gpt", "checkpoint=*", {"recompute": True}),
    ("resnet", "batch=3", {"batch": 3}),
    ("gpt", "autocast=bf16", {"dtype": "bf16"}),
]
"""Model, edit, and what it should come to."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Graph]:
    """Each model as it is."""
    folder = tmp_path_factory.mktemp("before")
    return {name: recorded(model, folder / name) for name, model in MODELS.items()}


def recorded(model: ModuleType, folder: Path, **parts: Any) -> Graph:
    """A tiny step of an example, really run on the CPU, with parts of its shape or options set."""
    tiny = model.PRESETS["tiny"]
    shape = {field.name: parts.pop(field.name) for field in fields(tiny) if field.name in parts}
    with patch.dict(model.PRESETS, {"tiny": replace(tiny, **shape)}):
        step = model.make_step(preset="tiny", device="cpu", **parts)
    return ft.load(record_step(step, folder, plain=1, profile=0, warmup=1)).graphs[0]


def calls(graph: Graph) -> list[tuple[Any, ...]]:
    return [(op.name, *((t.shape, t.dtype) for t in (*op.tensors, *op.produced))) for op in flatten(graph).ops]


@pytest.mark.parametrize(("model", "change", "parts"), CHANGES, ids=[f"{name} {text}" for name, text, _ in CHANGES])
def test_an_edited_recording_is_the_recording_of_the_edited(
    model: str, change: str, parts: dict[str, Any], before: dict[str, Graph], tmp_path: Path
) -> None:
    assert calls(edit_step(before[model], [change])) == calls(recorded(MODELS[model], tmp_path / "after", **parts))
