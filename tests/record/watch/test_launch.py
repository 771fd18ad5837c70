"""Recording a script from outside, as a user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from foretrace.graph import ForetraceError
from foretrace.record.recording import load_recording
from foretrace.record.watch.launch import launch
from tests.processes import PATIENCE_S, started
from tests.record.jobs import FORETRACE, SHORT, SHORT_STEPS, foretrace, run_recorded, script

PYTHON = sys.executable


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".py")


def wait_for(path: Path) -> None:
    patience = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < patience, f"{path} never came"
        time.sleep(0.05)


def test_a_plain_script_is_recorded_unchanged_and_trains_to_its_end(tmp_path: Path) -> None:
    train = script(tmp_path, f"for _ in range({SHORT_STEPS + 10}): step()\nprint('trained', __name__, __file__)\n")
    done = run_recorded(tmp_path / "r", PYTHON, train)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"trained __main__ {train}\n"
    assert f"foretrace show {tmp_path / 'r'}" in done.stderr
    (graph,) = load_recording(tmp_path / "r").graphs
    assert [op.name for op in graph.ops].count("aten::addmm") == 1
    assert json.loads((tmp_path / "r/job.json").read_text())["command"] == [PYTHON, str(train)]
    assert left_in(tmp_path) == ["r"]
    shown = foretrace("show", tmp_path / "r", "--json")
    assert json.loads(shown.stdout)["step_ms"]["0"] > 0


def test_a_script_that_ends_early_says_by_how_much(tmp_path: Path) -> None:
    done = run_recorded(tmp_path / "r", PYTHON, script(tmp_path, "for _ in range(7): step()\nprint('trained')\n"))
    assert done.returncode == 0 and done.stdout == "trained\n", "the job's own"
    assert (
        f"ended {SHORT_STEPS - 7} steps before the recording was complete" in done.stderr
        and "the job itself succeeded" in done.stderr
    )
    assert "take fewer steps: --warmup 1 --plain 1 --profile 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert left_in(tmp_path) == []


def test_the_steps_that_are_advised_fit_the_job(tmp_path: Path) -> None:
    train = script(tmp_path, "for _ in range(8): step()\n")
    done = foretrace("record", "--out", tmp_path / "r", "--", PYTHON, train)
    advised = done.stderr.partition("take fewer steps: ")[2].split(".")[0].split()
    assert foretrace("record", "--out", tmp_path / "r", *advised, "--", PYTHON, train).returncode == 0
    assert load_recording(tmp_path / "r").graphs


def test_a_job_with_a_profiler_of_its_own_ends_as_it_would(tmp_path: Path) -> None:
    own = "from torch.profiler import profile\nwith profile() as own:\n    for _ in range(20): step()\nexit(3)\n"
    done = run_recorded(tmp_path / "r", PYTHON, script(tmp_path, own))
    assert done.returncode == 3
    done = run_recorded(tmp_path / "r", PYTHON, script(tmp_path, own.replace("exit(3)", "")))
    assert done.returncode == 0
    assert "profiler of its own: turn it off, or record with --profile 0" in done.stderr
    assert "take fewer steps" not in done.stderr


def test_a_recording_that_cannot_be_put_in_its_place_leaves_the_job_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    train = script(tmp_path, f"for _ in range({SHORT_STEPS}): step()\nexit(5)\n")
    monkeypatch.setattr(Path, "replace", full)
    assert launch([PYTHON, str(train)], tmp_path / "r", **SHORT) == 5
    assert "can't be written (No space left on device)" in capsys.readouterr().err
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-c", "import torch; print('hello')"], "no training step was seen"),
        (["-c", "print('hello')"], "no process imported torch"),
        (["-E", "-c", "print('hello')"], "reached no Python process"),
    ],
)
def test_a_script_without_training_is_told_how_far_the_recorder_got(
    tmp_path: Path, arguments: list[str], why: str
) -> None:
    done = run_recorded(tmp_path / "r", PYTHON, *arguments)
    assert done.returncode == 0 and done.stdout == "hello\n"
    assert why in done.stderr
    assert left_in(tmp_path) == []


def test_a_rank_that_was_not_recorded_is_said(tmp_path: Path) -> None:
    train = script(
        tmp_path,
        f"import os\nfor _ in range({SHORT_STEPS} if os.environ['RANK'] == '0' else 3): step()\n",
    )
    both = f"RANK=1 WORLD_SIZE=2 {PYTHON} {train}; RANK=0 WORLD_SIZE=2 {PYTHON} {train}"
    done = run_recorded(tmp_path / "r", "sh", "-c", both)
    assert done.returncode == 0
    assert "not every process was recorded" in done.stderr and "before the recording was complete" in done.stderr
    job = load_recording(tmp_path / "r")
    assert job.missing == [1] and "1 of the 2 ranks was not recorded" in job.notes


def test_ending_the_recorder_ends_the_job(tmp_path: Path) -> None:
    train = script(tmp_path, "import time\nprint('began', flush=True)\ntime.sleep(60)\n")
    command = [PYTHON, "-m", "foretrace.record", "--out", str(tmp_path / "r"), "--", PYTHON, str(train)]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as recorder:
        assert recorder.stdout is not None and recorder.stdout.readline() == "began\n"
        recorder.terminate()
        _, said = recorder.communicate(timeout=PATIENCE_S)
    assert recorder.returncode == 143 and "exit code 143" in said
    assert left_in(tmp_path) == []


def test_a_script_that_crashes_after_it_was_recorded_leaves_its_recording(tmp_path: Path) -> None:
    done = run_recorded(tmp_path / "r", PYTHON, script(tmp_path, f"for _ in range({SHORT_STEPS}): step()\nexit(7)\n"))
    assert done.returncode == 7, "the job's own"
    assert load_recording(tmp_path / "r").graphs


def test_a_script_that_crashes_before_leaves_nothing(tmp_path: Path) -> None:
    done = run_recorded(tmp_path / "r", PYTHON, script(tmp_path, "for _ in range(8): step()\nraise KeyError('mine')\n"))
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr and "ended with exit code 1" in done.stderr
    assert f"ended {SHORT_STEPS - 8} steps before the recording was complete" in done.stderr
    assert left_in(tmp_path) == []


def test_a_job_that_is_killed_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    train = script(tmp_path, "import os\nfor _ in range(8): step()\nos.kill(os.getpid(), 9)\n")
    done = run_recorded(tmp_path / "r", PYTHON, train)
    assert done.returncode == 137 and "exit code 137" in done.stderr
    assert left_in(tmp_path) == []


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForetraceError, match="no-such-command can't be run"):
        launch(["no-such-command"], tmp_path / "r")
    with pytest.raises(ForetraceError, match="no command"):
        launch([], tmp_path / "r")
    assert left_in(tmp_path) == []


def test_a_recording_that_is_there_stops_the_job_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "job.json").write_text("precious")
    done = run_recorded(tmp_path / "r", PYTHON, script(tmp_path, "print('trained')\n"))
    assert done.returncode == 2 and done.stdout == ""
    assert "is there already" in done.stderr
    assert (tmp_path / "r" / "job.json").read_text() == "precious"


def test_stop_ends_the_job_once_it_is_recorded(tmp_path: Path) -> None:
    endless = "import itertools\nfor count in itertools.count(1): print(count, flush=True); step()\n"
    done = run_recorded(tmp_path / "r", PYTHON, script(tmp_path, endless), options=("--stop",))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(SHORT_STEPS)
    assert load_recording(tmp_path / "r").graphs


def test_a_job_that_says_itself_where_its_steps_end_is_believed(tmp_path: Path) -> None:
    train = script(tmp_path, f"import foretrace\nfor _ in range({SHORT_STEPS}): step(); step(); foretrace.step()\n")
    assert run_recorded(tmp_path / "r", PYTHON, train).returncode == 0
    (graph,) = load_recording(tmp_path / "r").graphs
    assert [op.name for op in graph.ops].count("aten::addmm") == 2


def test_recording_works_without_the_command_line_s_packages(tmp_path: Path) -> None:
    """A training image holds torch and numpy: nothing else may be needed there."""
    hidden = "import sys\nfor name in ('typer', 'rich', 'msgspec', 'isal', 'google'): sys.modules[name] = None\n"
    train = script(tmp_path, f"for _ in range({SHORT_STEPS}): step()\n")
    sitecustomize = tmp_path / "site" / "sitecustomize.py"
    sitecustomize.parent.mkdir()
    sitecustomize.write_text(hidden)
    schedule = [text for name, count in SHORT.items() for text in (f"--{name}", str(count))]
    done = subprocess.run(
        [PYTHON, "-m", "foretrace.record", "--out", tmp_path / "r", *schedule, "--", PYTHON, train],
        env={**os.environ, "PYTHONPATH": str(sitecustomize.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert load_recording(tmp_path / "r").graphs


def recording(out: Path, train: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    schedule = [text for name, count in SHORT.items() for text in (f"--{name}", str(count))]
    command = [*FORETRACE, "record", "--out", str(out), *schedule, "--", PYTHON, str(train)]
    return started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


SIGNALLED = """
import pathlib, time
here = pathlib.Path(__file__).parent
for count in range(40):
    step()
    if count == {pause}:
        (here / "paused").touch()
        while not (here / "go").exists():
            time.sleep(0.05)
(here / "counted").write_text(str(count + 1))
(here / "counted").rename(here / "trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("pause", [8, 20])
def test_a_killed_recorder_harms_neither_the_job_nor_earlier_recordings(tmp_path: Path, pause: int) -> None:
    runs = tmp_path / "runs"
    (runs / "earlier").mkdir(parents=True)
    (runs / "earlier" / "job.json").write_text("precious")
    with recording(runs / "r", script(tmp_path, SIGNALLED.format(pause=pause))) as process:
        wait_for(tmp_path / "paused")
        process.send_signal(signal.SIGKILL)
        process.wait()
        (tmp_path / "go").touch()
        wait_for(tmp_path / "trained")
    assert (tmp_path / "trained").read_text() == "40"
    assert (runs / "earlier" / "job.json").read_text() == "precious"
    assert not (runs / "r").exists(), "nothing stands under the final name"


def test_an_interrupt_leaves_the_job_time_to_save(tmp_path: Path) -> None:
    """A terminal sends it to both; the recorder must not kill a job that is writing its checkpoint."""
    saving = """
import pathlib, time
here = pathlib.Path(__file__).parent
try:
    step()
    (here / "paused").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    (here / "saved").touch()
"""
    with recording(tmp_path / "r", script(tmp_path, saving)) as process:
        wait_for(tmp_path / "paused")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "r").exists()
