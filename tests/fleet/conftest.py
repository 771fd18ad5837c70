"""A few small traces, and a store of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretrace.fleet.adding import add_recordings
from foretrace.fleet.store import Store
from tests.cli.samples import step_of_two_ops

Made = Callable[..., Path]


@pytest.fixture
def traces(tmp_path: Path) -> Made:
    """Writes profiler traces into a folder each: by name, the microseconds that the first kernel takes."""

    def make(**kernel_us: float) -> Path:
        for name, took in kernel_us.items():
            folder = tmp_path / "runs" / name
            folder.mkdir(parents=True, exist_ok=True)
            op = "aten::addmm" if name.startswith("dense") else "aten::mm"
            trace: Any = step_of_two_ops(op, took)
            trace["traceEvents"][0]["dur"] = 100 + took
            (folder / "trace.json").write_text(json.dumps(trace))
        return tmp_path / "runs"

    return make


@pytest.fixture
def fleet(tmp_path: Path, traces: Made) -> Store:
    """A store of three jobs."""
    store = Store.open(tmp_path / "fleet", create=True)
    folder = traces(small=20.0, middle=40.0, large=80.0)
    hours = {"small": {"gpu_hours": "10", "team": "ads"}, "large": {"gpu_hours": "100", "team": "feed"}}
    add_recordings(store, [str(folder)], by_recording=hours, workers=1)
    return store
