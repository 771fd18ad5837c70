"""Benchmarks written and loaded in this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretrace.graph import Graph
from foretrace.replay.generate.choices import Choices
from foretrace.replay.generate.folder import write_benchmark


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes the benchmark of a graph and gives it ready to run, with the harness it brings along."""

    def load(graph: Graph, choices: Choices | None = None, **options: Any) -> Any:
        folder = write_benchmark(graph, tmp_path / f"benchmark-{len(list(tmp_path.iterdir()))}", choices or Choices())
        forget()
        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module("harness.benchmark").Benchmark(folder, **options)

    yield load
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
        del sys.modules[name]
