"""A benchmark as a folder."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.replay.generate.choices import Choices
from foretrace.replay.generate.folder import readme, write_benchmark
from foretrace.replay.generate.plan import Plan, PlanCall, footprint
from foretrace.replay.generate.planning import plan_of
from foretrace.transforms.numerics import parse_dtype
from foretrace.transforms.resize.batch_sequence import batch
from tests.record.reexecution import watched
from tests.replay.steps import STEPS, Step, layers
from tests.replay.test_replays import graph_of


@pytest.fixture(scope="module")
def graph() -> Graph:
    made, _, _ = graph_of(STEPS["adamw, foreach"]())
    return made


def test_a_folder_runs_without_foretrace(graph: Graph, tmp_path: Path) -> None:
    folder = write_benchmark(graph, tmp_path / "bench", Choices())
    program = f"""
import runpy, sys
sys.argv = ["run.py", "--json", "--iterations", "2"]
sys.path.insert(0, {str(folder)!r})
try:
    runpy.run_path({str(folder / "run.py")!r}, run_name="__main__")
except SystemExit as end:
    assert not end.code
assert not any(name.partition(".")[0] == "foretrace" for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    result = json.loads(done.stdout)
    assert result["coverage"]["calls"] == 1.0 and result["iterations"] == 2
    assert {"step_ms", "kernel_ms", "peak_memory_bytes", "coverage", "original"} <= set(result)


def test_a_folder_that_is_there_is_left_alone(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ForetraceError, match="is there already"):
        write_benchmark(graph, tmp_path, Choices())


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["pathlib.Path.write_text", "shutil.copytree", "pathlib.Path.rename"])
def test_on_a_full_disk_no_half_folder_is_left(
    graph: Graph, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(place, full)
        with pytest.raises(ForetraceError, match=r"kept can't be written \(No space left on device\)\. Free some"):
            write_benchmark(graph, tmp_path / "new" / "kept", Choices())
    assert not list(tmp_path.iterdir())


def test_what_can_t_be_written_is_said_without_a_question(tmp_path: Path) -> None:
    given = Tensor((4,), "nothing", "cpu", (1,), id=0, storage=0)
    graph = Graph(OpTable.of([Op("aten::relu", (given,), overload="default")]), source="run")
    with pytest.raises(ForetraceError, match="It may be damaged") as told:
        write_benchmark(graph, tmp_path / "bench", Choices())
    assert "?" not in str(told.value) and not (tmp_path / "bench").exists()


def test_obfuscated_nothing_but_ops_has_a_name(tmp_path: Path) -> None:
    given, made = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in (0, 1))
    op = Op("aten::relu", (given,), outputs=(made,), overload="default", module="Secret.layer")
    graph = Graph(OpTable.of([op]), source="/home/secret/run", notes=["secret note"], device="Secret GPU")
    folder = write_benchmark(graph, tmp_path / "bench", Choices(obfuscate=True))
    written = [path.read_text() for path in folder.iterdir() if path.is_file()]
    assert not any("ecret" in text for text in written)
    assert "aten.relu" in (folder / "step.py").read_text()


def test_a_readable_one_says_where_it_comes_from(graph: Graph, tmp_path: Path) -> None:
    text = (write_benchmark(graph, tmp_path / "bench", Choices()) / "README.md").read_text()
    assert "python run.py" in text and "No model code and no data" in text


def test_it_says_what_it_was_made_from_and_what_is_missing() -> None:
    text = readme(Plan([], [], [PlanCall(0, "aten::mm")], notes=["rows of <b>"]), 3, "runs/dlrm")
    assert "from runs/dlrm: 1 calls of the step in their order" in text and "3 calls can't be made" in text
    assert "- rows of ?b?" in text and "## Ranks" not in text and "`step.py`" in text


def test_of_several_ranks_it_says_whose_figures_they_are() -> None:
    text = readme(Plan([], [], [], rank=0), 0, "", ranks=8)
    assert "on rank 0 of 8. No model code" in text and "torchrun --nproc-per-node 8 run.py" in text
    assert "`rank-N/step.py`" in text and " from " not in text.splitlines()[2]


def graph_of_step(step: Step) -> Graph:
    step()
    watch, ops = watched(step)
    return Graph(OpTable.of(ops), storages=watch.registry.storages)


def test_a_step_of_another_batch_runs(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(graph_of_step(gpt.make_step(batch=6)), Choices(batch="12"))
    assert benchmark.source.failures == [] and benchmark.source.stand_ins == []
    assert benchmark.original["step_ms"] is None and any("batch: 12 instead of 6" in note for note in benchmark.notes)


def test_a_recorded_batch_that_the_inputs_do_not_have_is_noted(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(graph_of_step(gpt.make_step(batch=6)), Choices(batch="4/2"))
    assert any("look like a batch of 6, not of 2" in note for note in benchmark.notes)


def test_memory_follows_the_batch() -> None:
    small, large = (graph_of_step(gpt.make_step(batch=size)) for size in (6, 12))
    assert footprint(plan_of(batch(small, 12))).peak == pytest.approx(footprint(plan_of(large)).peak, rel=0.02)


@pytest.mark.parametrize("text", ["0", "x", "8/", "8/0", "-1"])
def test_a_batch_is_a_number_or_two(text: str, loaded: Callable[..., Any]) -> None:
    with pytest.raises(ForetraceError, match="batch can't be"):
        loaded(graph_of_step(layers(torch.optim.SGD)), Choices(batch=text))


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
