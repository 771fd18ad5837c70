"""The place of a recording: one job at a time, and nothing left of those that were killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrace.graph import ForetraceError
from foretrace.processes import OWNER, Claim, Owner
from foretrace.record import folder as files
from foretrace.record.recording import load_recording
from foretrace.record.watch.session import OutputFolder, claim_output
from tests.processes import PATIENCE_S, started
from tests.record.jobs import FORETRACE, SHORT, SHORT_STEPS, run_recorded, script

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
