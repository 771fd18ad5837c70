"""Recording in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import foretrace as ft
from foretrace.graph import ForetraceError
from foretrace.record import folder as files
from foretrace.record.recording import load_recording
from foretrace.record.watch import recorder, session
from foretrace.record.watch.session import OutputFolder
from foretrace.record.watch.step_boundaries import _listeners
from tests.record.jobs import SHORT, SHORT_STEPS, small_step


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
    assert len(graph.plain.synced_ms) == 2 and len(graph.plain.back_to_back_ms) == 1
    assert min(graph.plain.synced_ms) > 0 and graph.slowdown > 0


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
    with pytest.warns(UserWarning, match="ended 3 steps too early"), ft.recording(tmp_path / "r", **SHORT):
        for _ in range(SHORT_STEPS - 3):
            step()
    assert left_in(tmp_path) == []


@pytest.mark.filterwarnings("error")
def test_a_loop_that_ends_in_the_middle_of_a_watched_step_leaves_no_hook(tmp_path: Path) -> None:
    for steps in range(SHORT_STEPS):
        step = small_step()
        with pytest.warns(UserWarning, match="too early"), ft.recording(tmp_path / "r", **SHORT):
            for _ in range(steps):
                step()
        assert left_in(tmp_path) == [] and _get_current_dispatch_mode_stack() == []


def test_a_loop_without_a_step_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="10 steps too early"), ft.recording(tmp_path / "r", **SHORT):
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
    "entering the profile": (recorder.LightProfile, "__enter__"),
    "leaving the profile": (recorder.LightProfile, "__exit__"),
    "entering the structure": (recorder.Watch, "__enter__"),
    "noting a call": (recorder.Watch, "note"),
    "leaving the structure": (recorder.Watch, "__exit__"),
    "entering the index step": (recorder.IndexWatch, "__enter__"),
    "writing the structure": (recorder.files, "write_structure"),
    "writing the rank": (recorder.files, "write_rank"),
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
    monkeypatch.setattr(recorder.files, "write_structure", lambda *_: 1 / 0)
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
