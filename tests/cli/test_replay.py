from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from foretrace.record.session import record


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    weight = torch.ones(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)

    def step():
        optimizer.zero_grad()
        (weight @ weight).relu().mean().backward()
        optimizer.step()

    return record(step, tmp_path_factory.mktemp("replay") / "run", plain=3, profile=1, warmup=2)


def test_a_replay_says_how_it_compares(foretrace, recording):
    ran = foretrace("replay", recording, "--json", "--iterations", 3)
    words = json.loads(ran.out)
    assert ran.code == 0 and words["coverage"]["calls"] == 1.0 and words["iterations"] == 3
    assert words["step_ms"] > 0 and words["original"]["step_ms"] > 0
    assert words["peak_memory_bytes"] == words["original"]["peak_memory_bytes"]


def test_a_replay_is_readable(foretrace, recording):
    ran = foretrace("replay", recording, "--iterations", 2, "--no-pace")
    assert ran.code == 0 and "not paced" in ran.out and "of the calls" in ran.out


def test_a_benchmark_runs_alone_and_can_be_replayed(foretrace, recording, tmp_path):
    assert foretrace("benchmark", recording, "--out", tmp_path / "bench").code == 0
    alone = (
        "import runpy, sys; sys.modules['foretrace'] = None; sys.path[0] = sys.argv[1]; "
        "sys.argv = ['run.py', '--iterations', '2']; runpy.run_path(f'{sys.path[0]}/run.py', run_name='__main__')"
    )
    command = [sys.executable, "-c", alone, str(tmp_path / "bench")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "100.0% of the calls" in done.stdout, done.stderr
    assert foretrace("replay", tmp_path / "bench", "--iterations", 2).code == 0


def test_a_part_of_a_step_replays(foretrace, recording):
    words = json.loads(foretrace("replay", recording, "--phase", "backward", "--iterations", 2, "--json").out)
    assert words["coverage"]["calls"] == 1.0 and words["original"]["step_ms"] is None


def test_an_unknown_op_is_said(foretrace, recording):
    ran = foretrace("replay", recording, "--from", "nothing")
    assert ran.code == 2 and "no call 'nothing'" in ran.err


def test_a_folder_that_is_there_is_not_overwritten(foretrace, recording, tmp_path):
    ran = foretrace("benchmark", recording, "--out", tmp_path)
    assert ran.code == 2 and "is there already" in ran.err


def test_several_recordings_are_a_suite(foretrace, recording, tmp_path):
    ran = foretrace("replay", recording, tmp_path / "nothing", "--weights", "3,1", "--iterations", 2, "--json")
    words = json.loads(ran.out)
    assert ran.code == 0 and words["coverage"]["calls"] == 0.75
    assert words["suite"][0]["step_ms"] > 0 and "nothing" in words["suite"][1]["error"]


def test_a_suite_is_one_table(foretrace, recording, tmp_path):
    file = tmp_path / "suite.json"
    file.write_text(json.dumps({"suite": [{"what": str(recording), "weight": 2}]}))
    ran = foretrace("replay", file, "--iterations", 2)
    assert ran.code == 0 and "Replays" in ran.out and "ratio" in ran.out


def test_a_step_replays_in_another_type(foretrace, recording, tmp_path):
    ran = foretrace("replay", recording, "--dtype", "bf16", "--iterations", 2, "--json", "--keep", tmp_path / "kept")
    assert ran.code == 0 and "torch.bfloat16" in (tmp_path / "kept" / "inputs.py").read_text()
    assert foretrace("replay", recording, "--dtype", "int4").code == 2


def test_a_cpu_has_no_counters(foretrace, recording):
    words = json.loads(foretrace("replay", recording, "--counters", "--iterations", 2, "--json").out)
    assert words["system"] is None and words["translated"] == {}


def test_packages_that_are_no_names_are_refused(foretrace, recording, tmp_path):
    ran = foretrace("benchmark", recording, "--out", tmp_path / "bench", "--ops", "a=b; import os")
    assert ran.code == 2 and "names no operators" in ran.err and not (tmp_path / "bench").exists()
