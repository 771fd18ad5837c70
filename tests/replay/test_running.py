"""Running a benchmark in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.replay.generate.choices import Choices
from foretrace.replay.generate.folder import write_benchmark
from foretrace.replay.running import How, is_benchmark, run_benchmark

pytestmark = pytest.mark.usefixtures("warmed")


def graph(rows: int = 4) -> Graph:
    given, made = (Tensor((rows,), "float32", "cpu", (1,), id=number, storage=number) for number in (0, 1))
    return Graph(OpTable.of([Op("aten::relu", (given,), outputs=(made,), overload="default")]))


def test_a_benchmark_tells_all_that_is_documented(tmp_path: Path) -> None:
    folder = write_benchmark(graph(), tmp_path / "bench", Choices())
    assert is_benchmark(folder)
    found = run_benchmark(folder, How(iterations=3, pace=False))
    assert found.iterations == 3 and not found.paced and found.coverage["calls"] == 1.0
    documented = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
    assert all(f"`{word}`" in documented for word in found.to_dict())


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = write_benchmark(graph(1 << 50), tmp_path / "bench", Choices())
    with pytest.raises(ForetraceError, match="at its peak"):
        run_benchmark(folder)


def test_what_is_wrong_with_a_file_is_passed_on(tmp_path: Path) -> None:
    folder = write_benchmark(graph(), tmp_path / "bench", Choices())
    (folder / "step.py").write_text("def step(t0): raise KeyError('edited')\n")
    with pytest.raises(ForetraceError, match=r"^bench/step\.py, line 1: KeyError: 'edited'; correct that line"):
        run_benchmark(folder)


def test_a_gpu_that_is_not_there_is_said(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    folder = write_benchmark(graph(), tmp_path / "bench", Choices())
    with pytest.raises(ForetraceError, match="no GPU here"):
        run_benchmark(folder, How(device="cuda"))


def test_a_step_of_meta_tensors_needs_no_memory(tmp_path: Path) -> None:
    folder = write_benchmark(graph(1 << 40), tmp_path / "bench", Choices())
    assert run_benchmark(folder, How(iterations=1, device="meta")).coverage["calls"] == 1.0
