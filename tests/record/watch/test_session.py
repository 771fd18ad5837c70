"""Recording in this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import foretrace as ft
from foretrace.graph import ForetraceError
from foretrace.processes import OWNER, Claim, Owner
from foretrace.record import folder as files
from foretrace.record.recording import load_recording
from foretrace.record.watch import recorder, session
from foretrace.record.watch.indices import IndexWatch
from foretrace.record.watch.profile import LightProfile
from foretrace.record.watch.session import OutputFolder, claim_output
from foretrace.record.watch.step_boundaries import _listeners
from foretrace.record.watch.watch import Watch
from tests.processes import PATIENCE_S, started
from tests.record.jobs import FORETRACE, SHORT, SHORT_STEPS, run_recorded, script, small_step


@pytest.fixture(autouse=True)
def nothing_stays_attached() -> Iterator[None]:
    yield
    assert session._running is None
    assert _listeners == []
    assert _get_current_dispatch_mode_stack() == []
    assert not torch.autograd._profiler_enabled()


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_step_function_is_called_as_often_as_it_takes(tmp_path: Path) -> None:
    step = small_step()
    assert ft.record_step(step, tmp_path / "r", **SHORT) == tmp_path / "r"
    assert step.calls == SHORT_STEPS  # type: ignore[attr-defined]
    assert left_in(tmp_path) == ["r"] and left_in(tmp_path / "r") == ["job.json", "rank-0"]


def test_what_is_recorded_is_the_step(tmp_path: Path) -> None:
    (graph,) = ft.load(ft.record_step(small_step(), tmp_path / "r", **SHORT)).graphs
    assert {op.phase for op in graph.ops} == {"forward", "backward", "optimizer"}
    assert [op.name for op in graph.ops].count("aten::addmm") == 1
    assert len(graph.unprofiled.synced_ms) == 2 and len(graph.unprofiled.back_to_back_ms) == 1
    assert min(graph.unprofiled.synced_ms) > 0 and graph.profiling_overhead > 0


def test_how_it_was_made_stands_in_the_recording(tmp_path: Path) -> None:
    ft.record_step(small_step(), tmp_path / "r", **SHORT)
    job = json.loads((tmp_path / "r" / "job.json").read_text())
    rank = json.loads((tmp_path / "r" / "rank-0" / "rank.json").read_text())
    assert (job["format"], job["by"], job["world"], job["foretrace"]) == (
        "foretrace recording", "ft.record", 1, ft.__version__,
    )  # fmt: skip
    assert rank["torch"] == torch.__version__ and rank["slowdown"].keys() == {"profile", "structure"}
    assert len(rank["synced_ms"]) == 2 and len(rank["profile_ms"]) == 1 and len(rank["structure_ms"]) == 1


def test_a_loop_is_recorded_from_inside(tmp_path: Path) -> None:
    step = small_step()
    with ft.recording(tmp_path / "r", **SHORT):
        for _ in range(SHORT_STEPS + 5):
            step()
    assert len(load_recording(tmp_path / "r").graphs[0].ops) > 5
    assert step.calls == SHORT_STEPS + 5  # type: ignore[attr-defined]
    assert left_in(tmp_path) == ["r"]


def test_a_loop_of_exactly_as_many_steps_is_long_enough(tmp_path: Path) -> None:
    step = small_step()
    with ft.recording(tmp_path / "r", **SHORT):
        for _ in range(SHORT_STEPS):
            step()
    assert left_in(tmp_path) == ["r"]


def test_a_loop_that_is_too_short_says_by_how_much_and_leaves_nothing(tmp_path: Path) -> None:
    step = small_step()
    with (
        pytest.warns(UserWarning, match="ended 3 steps before the recording was complete"),
        ft.recording(tmp_path / "r", **SHORT),
    ):
        for _ in range(SHORT_STEPS - 3):
            step()
    assert left_in(tmp_path) == []


@pytest.mark.filterwarnings("error")
def test_a_loop_that_ends_in_the_middle_of_a_watched_step_leaves_no_hook(tmp_path: Path) -> None:
    for steps in range(SHORT_STEPS):
        step = small_step()
        with (
            pytest.warns(UserWarning, match="before the recording was complete"),
            ft.recording(tmp_path / "r", **SHORT),
        ):
            for _ in range(steps):
                step()
        assert left_in(tmp_path) == [] and _get_current_dispatch_mode_stack() == []


def test_a_loop_without_a_step_says_so(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="10 steps before the recording was complete"),
        ft.recording(tmp_path / "r", **SHORT),
    ):
        pass


def test_a_job_without_an_optimizer_says_itself_where_its_steps_end(tmp_path: Path) -> None:
    weight = torch.ones(4, requires_grad=True)
    with ft.recording(tmp_path / "r", **SHORT):
        for _ in range(SHORT_STEPS):
            weight.square().sum().backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None
            ft.step()
    names = [op.name for op in load_recording(tmp_path / "r").graphs[0].ops]
    assert names.count("aten::sub_") == 1


def test_what_a_job_says_counts_more_than_its_optimizers(tmp_path: Path) -> None:
    step = small_step()
    with ft.recording(tmp_path / "r", **SHORT):
        for _ in range(SHORT_STEPS):
            step()
            step()
            ft.step()
    names = [op.name for op in load_recording(tmp_path / "r").graphs[0].ops]
    assert names.count("aten::addmm") == 2


def test_saying_it_costs_nothing_where_nobody_records() -> None:
    ft.step()


def test_several_optimizers_make_one_step(tmp_path: Path) -> None:
    critic, generator = small_step(), small_step()
    with ft.recording(tmp_path / "r", **SHORT):
        for _ in range(SHORT_STEPS + 1):
            for _ in range(5):
                critic()
            generator()
    names = [op.name for op in load_recording(tmp_path / "r").graphs[0].ops]
    assert names.count("aten::addmm") == 6


@pytest.mark.parametrize("what", ["folder", "file", "recording"])
def test_something_that_is_there_already_is_refused_and_unharmed(tmp_path: Path, what: str) -> None:
    out = tmp_path / "r"
    if what == "recording":
        ft.record_step(small_step(), out, **SHORT)
    elif what == "folder":
        out.mkdir()
        (out / "mine").write_text("precious")
    else:
        out.write_text("precious")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    step = small_step()
    with pytest.raises(ForetraceError, match="is there already"):
        ft.record_step(step, out, **SHORT)
    with pytest.raises(ForetraceError, match="is there already"), ft.recording(out, **SHORT):
        step()
    assert step.calls == 0  # type: ignore[attr-defined]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    ft.record_step(small_step(), tmp_path / "r", **SHORT)
    assert left_in(tmp_path / "r") == ["job.json", "rank-0"]


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    step = small_step()
    with pytest.raises(ForetraceError, match="can't be written"):
        ft.record_step(step, tmp_path / "file" / "r", **SHORT)
    assert step.calls == 0  # type: ignore[attr-defined]


def test_two_recordings_at_once_are_refused(tmp_path: Path) -> None:
    step = small_step()
    with ft.recording(tmp_path / "r", **SHORT):
        with pytest.raises(ForetraceError, match="in progress"), ft.recording(tmp_path / "second", **SHORT):
            pass
        with pytest.raises(ForetraceError, match="in progress"):
            ft.record_step(step, tmp_path / "third", **SHORT)
        for _ in range(SHORT_STEPS):
            step()
    assert left_in(tmp_path) == ["r"], "the first one goes on as if nothing had been asked"


FAILURES = {
    "entering the profile": (LightProfile, "__enter__"),
    "leaving the profile": (LightProfile, "__exit__"),
    "entering the structure": (Watch, "__enter__"),
    "noting a call": (Watch, "note"),
    "leaving the structure": (Watch, "__exit__"),
    "entering the index step": (IndexWatch, "__enter__"),
    "writing the structure": (files, "write_structure"),
    "writing the rank": (files, "write_rank"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_recorder_that_fails_lets_the_training_go_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute = FAILURES[name]
    original = getattr(owner, attribute)

    def fail(*args: Any, **kwargs: Any) -> Any:
        if attribute == "__exit__":
            original(*args, **kwargs)
        raise OSError("no space left")

    monkeypatch.setattr(owner, attribute, fail)
    step = small_step()
    with pytest.warns(UserWarning, match="training goes on .*no space left"), ft.recording(tmp_path / "r", **SHORT):
        for _ in range(SHORT_STEPS + 5):
            step()
    assert step.calls == SHORT_STEPS + 5  # type: ignore[attr-defined]
    assert left_in(tmp_path) == []


@pytest.mark.filterwarnings("error")
def test_a_recorder_that_fails_does_not_end_a_job_whose_warnings_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "write_structure", lambda *_: 1 / 0)
    step = small_step()
    with pytest.warns(UserWarning, match="ZeroDivisionError"), ft.recording(tmp_path / "r", **SHORT):
        for _ in range(SHORT_STEPS):
            step()
    assert step.calls == SHORT_STEPS  # type: ignore[attr-defined]


def test_a_step_on_tensors_that_nobody_can_describe_goes_on(tmp_path: Path) -> None:
    """A nested tensor of the old kind has no shape."""
    step, reached = small_step(), []

    def nested() -> None:
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).mul(2)
        step()
        reached.append(True)

    with pytest.warns(UserWarning), pytest.raises(ForetraceError, match="nothing was recorded"):
        ft.record_step(nested, tmp_path / "r", **SHORT)
    assert len(reached) == SHORT_STEPS - 1, "up to the end of the structure step"


@pytest.mark.parametrize("at", range(1, SHORT_STEPS + 1))
def test_a_step_that_fails_is_told_as_it_is_and_leaves_nothing(tmp_path: Path, at: int) -> None:
    step = small_step()

    def failing() -> None:
        step()
        if step.calls == at:  # type: ignore[attr-defined]
            raise KeyError("of the job's own")

    with pytest.raises(KeyError, match="of the job's own"):
        ft.record_step(failing, tmp_path / "r", **SHORT)
    assert left_in(tmp_path) == []


def test_a_jobs_own_profiler_is_left_alone(tmp_path: Path) -> None:
    step = small_step()
    with profile(activities=[ProfilerActivity.CPU]) as own:
        with pytest.warns(UserWarning, match="profiler of its own"), pytest.raises(ForetraceError):
            ft.record_step(step, tmp_path / "r", **SHORT)
        step()
    assert [event.name for event in own.events()].count("aten::addmm") == step.calls  # type: ignore[attr-defined]


def test_a_job_that_begins_to_profile_itself_gets_its_profile(tmp_path: Path) -> None:
    step = small_step()
    with (
        pytest.warns(UserWarning, match="started a profiler of its own"),
        ft.recording(tmp_path / "r", **SHORT),
    ):
        for number in range(SHORT_STEPS):
            if number == 6:
                own = profile(activities=[ProfilerActivity.CPU])
                own.start()
            step()
    own.stop()
    assert [event.name for event in own.events()].count("aten::addmm") == SHORT_STEPS - 6


def test_two_steps_lie_between_the_profilers_of_a_compiled_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is annotated under the first and ends under the second would write to memory of the first."""
    events: list[str] = []
    step = small_step()

    def noting(kind: Any) -> Any:
        class Noting(kind):
            def __enter__(self) -> Any:
                events.append(f"{kind.__name__} begins")
                return super().__enter__()

            def __exit__(self, *failure: object) -> None:
                super().__exit__(*failure)
                events.append(f"{kind.__name__} ends")

        return Noting

    def noted() -> None:
        step()
        events.append("step")

    monkeypatch.setattr(recorder, "something_is_compiled", lambda: True)
    watchers = {kind: noting(watcher) for kind, watcher in recorder.WATCHERS.items()}
    monkeypatch.setattr(recorder, "WATCHERS", watchers)
    ft.record_step(noted, tmp_path / "r", **SHORT)
    first, second = events.index("LightProfile ends"), events.index("ExecutionTrace begins")
    assert events[first:second].count("step") == 2
    assert (tmp_path / "r" / "rank-0" / "et.json.gz").stat().st_size > 0
    assert step.calls == SHORT_STEPS + 1  # type: ignore[attr-defined]


def test_a_job_that_profiles_itself_is_recorded_without_our_profile(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]):
        ft.record_step(small_step(), tmp_path / "r", plain=1, profile=0, warmup=1)
    (graph,) = load_recording(tmp_path / "r").graphs
    assert len(graph.ops) > 5 and not graph.steps


def test_ranks_that_finish_at_the_same_moment_end_up_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, parts, move = tmp_path / "r", tmp_path / ".r.partial", Path.replace

    def comes_second(self: Path, target: Path) -> Path:
        if self == parts:
            (out / "rank-1").mkdir(parents=True)  # another one, after anybody could look
        return move(self, target)

    (parts / "rank-0").mkdir(parents=True)
    facts = {"rank": 0, "world": 2, "device": "", "synced_ms": [], "back_to_back_ms": [], "groups": {}}
    files.write_rank(parts / "rank-0", {**facts, "slowdown": {"profile": 1.0}})
    monkeypatch.setattr(Path, "replace", comes_second)
    assert OutputFolder(out, parts).finish({"by": "ft.record"}) == out
    assert left_in(out) == ["job.json", "rank-0", "rank-1"]


PAUSED = """
import pathlib, time
here = pathlib.Path(__file__).parent
for count in range(40):
    step()
    if count == 2:
        (here / "paused").touch()
        while not (here / "go").exists():
            time.sleep(0.05)
"""


def wait_for(path: Path) -> None:
    patience = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < patience, f"{path} never came"
        time.sleep(0.05)


def command(out: Path, train: Path) -> list[str]:
    schedule = [text for name, count in SHORT.items() for text in (f"--{name}", str(count))]
    return [*FORETRACE, "record", "--out", str(out), *schedule, "--", sys.executable, str(train)]


def rank(parts: Path, number: int) -> Path:
    """A rank that was recorded, as far as a place looks at it."""
    folder = parts / f"rank-{number}"
    folder.mkdir(parents=True)
    facts: dict[str, Any] = {"rank": number, "world": 2, "device": "", "synced_ms": [], "back_to_back_ms": []}
    files.write_rank(folder, {**facts, "groups": {}, "slowdown": {"profile": 1.0}})
    return folder


def test_a_second_recording_into_one_place_is_refused_before_its_job_starts(tmp_path: Path) -> None:
    out = tmp_path / "r"
    with started(command(out, script(tmp_path, PAUSED)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as first:
        wait_for(tmp_path / "paused")
        second = run_recorded(out, sys.executable, "-c", "print('trained')")
        assert second.returncode == 2 and second.stdout == ""
        assert f"another recording into {out} is in progress (process {first.pid})" in second.stderr
        (tmp_path / "go").touch()
        assert first.wait(PATIENCE_S) == 0, first.stderr
    assert load_recording(out).graphs
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "r"))) == ["r"]


def test_what_a_killed_recorder_left_is_removed_by_the_next_into_the_same_place(tmp_path: Path) -> None:
    train = script(tmp_path, PAUSED)
    with started(command(tmp_path / "r", train), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_for(tmp_path / "paused")
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert len(list(tmp_path.glob(".r.*.partial"))) == 1
        (tmp_path / "go").touch()
        done = run_recorded(tmp_path / "r", sys.executable, train)
        assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob(".r.*.partial"))
    assert load_recording(tmp_path / "r").graphs


def test_ranks_of_one_job_record_into_one_place_at_once(tmp_path: Path) -> None:
    text = f"""
import os, pathlib, time
import foretrace as ft
here = pathlib.Path(__file__).parent
with ft.recording(here / "r", **{SHORT!r}):
    (here / os.environ["RANK"]).touch()
    while not ((here / "0").exists() and (here / "1").exists()):
        time.sleep(0.05)
    for _ in range({SHORT_STEPS} + 5): step()
"""
    train = script(tmp_path, text)
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    with (
        started([sys.executable, str(train)], env={**common, "RANK": "0"}) as first,
        started([sys.executable, str(train)], env={**common, "RANK": "1"}) as second,
    ):
        assert first.wait(PATIENCE_S) == second.wait(PATIENCE_S) == 0
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["job.json", "rank-0", "rank-1"]
    assert len(load_recording(tmp_path / "r").graphs) == 2


def test_two_processes_that_are_the_same_rank_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    first = claim_output(tmp_path / "r")
    with pytest.raises(ForetraceError, match="another recording into"):
        claim_output(tmp_path / "r")
    monkeypatch.setenv("RANK", "0")
    second = claim_output(tmp_path / "r")
    assert first.parts != second.parts
    for place in (first, second):
        place.leave()
    assert not list(tmp_path.iterdir())


def test_launchers_of_a_job_on_several_nodes_share_a_place(tmp_path: Path) -> None:
    torchrun = ["torchrun", "--nnodes=2", "train.py"]
    other = tmp_path / ".r.1.partial"
    other.mkdir()
    with Claim(other, Owner.here("nodes", "1")):
        claim_output(tmp_path / "r", torchrun).leave()
        with pytest.raises(ForetraceError, match="in progress"):
            claim_output(tmp_path / "r", ["torchrun", "--nnodes=1", "train.py"])


def test_a_recorder_on_another_machine_is_let_be(tmp_path: Path) -> None:
    other = tmp_path / ".r.1.partial"
    other.mkdir()
    (other / OWNER).write_text(json.dumps(replace(Owner.here(), host="elsewhere", started=-1).__dict__))
    place = claim_output(tmp_path / "r")
    assert other.is_dir()
    place.leave()


def test_names_that_only_look_alike_are_let_be(tmp_path: Path) -> None:
    for name in (".r.notes.partial", ".r.1.partial.txt", ".rr.1.partial", "r.1.partial"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    claim_output(tmp_path / "r").leave()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_recording_whose_place_was_taken_meanwhile_gets_one_beside_it(tmp_path: Path) -> None:
    rank(tmp_path / "r", 0)
    rank(tmp_path / ".r.1.partial", 0)
    assert OutputFolder(tmp_path / "r", tmp_path / ".r.1.partial").finish({}) == tmp_path / "r-2"
    rank(tmp_path / ".r.2.partial", 0)
    assert OutputFolder(tmp_path / "r", tmp_path / ".r.2.partial").finish({}) == tmp_path / "r-3"
    rank(tmp_path / ".r.3.partial", 1)
    place = OutputFolder(tmp_path / "r", tmp_path / ".r.3.partial")
    assert place.finish({}) == tmp_path / "r"
    place.leave()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["r", "r-2", "r-3"]


def test_two_recordings_in_one_process_one_after_the_other_leave_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        place = claim_output(tmp_path / name)
        rank(place.parts, 0)
        assert place.finish({}) == tmp_path / name
        place.leave()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name == OWNER) == []
