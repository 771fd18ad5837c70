"""The folder of a benchmark."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.replay.folder import Choices, write_benchmark
from tests.replay.steps import STEPS
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
        with pytest.raises(ForetraceError, match=r"kept can't be written \(No space left on device\)\. Make room"):
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
