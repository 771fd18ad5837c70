from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

from foretrace.api import benchmark as write
from foretrace.record.watch.session import record_step

pytestmark = pytest.mark.usefixtures("warmed")


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    weight = torch.ones(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)

    def step():
        optimizer.zero_grad()
        (weight @ weight).relu().mean().backward()
        optimizer.step()

    return record_step(step, tmp_path_factory.mktemp("replay") / "run", plain=3, profile=1, warmup=2)


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
    assert done.returncode == 0 and "100.0 % of the calls" in done.stdout, done.stderr
    assert foretrace("replay", tmp_path / "bench", "--iterations", 2).code == 0


def test_a_part_of_a_step_replays(foretrace, recording):
    words = json.loads(foretrace("replay", recording, "--phase", "backward", "--iterations", 2, "--json").out)
    assert words["coverage"]["calls"] == 1.0 and words["original"]["step_ms"] is None


def test_an_unknown_op_is_named(foretrace, recording):
    ran = foretrace("replay", recording, "--from", "nothing")
    assert ran.code == 2 and "no call 'nothing'" in ran.err


def test_a_folder_that_is_there_is_not_overwritten(foretrace, recording, tmp_path):
    ran = foretrace("benchmark", recording, "--out", tmp_path)
    assert ran.code == 2 and "is there already" in ran.err


def test_several_recordings_are_a_suite(foretrace, recording, tmp_path):
    ran = foretrace("replay", recording, tmp_path / "nothing", "--weights", "3,1", "--iterations", 2, "--json")
    words = json.loads(ran.out)
    assert ran.code == 2 and "nothing could not be replayed" in ran.err and "does not exist" in ran.err
    assert words["coverage"]["calls"] == 0.75 and words["step_ms"] is None
    assert words["suite"][0]["step_ms"] > 0 and "nothing" in words["suite"][1]["error"]


def test_a_suite_that_lacks_a_member_has_no_total_and_says_so(foretrace, recording, tmp_path):
    ran = foretrace("replay", recording, tmp_path / "nothing", "--iterations", 2)
    assert ran.code == 2 and "no total: 1 of 2 could not be replayed" in ran.out
    assert "Not replayed" in ran.out and "does not exist" in ran.err


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


@pytest.fixture(scope="module")
def bench(recording, tmp_path_factory):
    return write(recording, tmp_path_factory.mktemp("benchmark") / "bench")


@pytest.mark.parametrize(
    "options",
    [("--phase", "forward"), ("--dtype", "bf16", "--batch", "64"), ("--obfuscate",), ("--ranks", "1"), ("--ops", "a")],
)
def test_the_parts_of_a_benchmark_are_chosen_when_it_is_written(foretrace, bench, options):
    ran = foretrace("replay", bench, *options)
    assert ran.code == 2 and "was chosen when it was written" in ran.err and "foretrace benchmark" in ran.err


def test_a_benchmark_is_there_already(foretrace, bench, tmp_path):
    for words in (("benchmark", bench, "--out", tmp_path / "new"), ("replay", bench, "--keep", tmp_path / "new")):
        ran = foretrace(*words)
        assert ran.code == 2 and "is a benchmark already" in ran.err and not (tmp_path / "new").exists()


def test_a_damaged_benchmark_is_named(foretrace, bench, tmp_path):
    broken = shutil.copytree(bench, tmp_path / "broken")
    (broken / "calls.json").write_text("{")
    ran = foretrace("replay", broken, "--delayed")
    assert ran.code == 2 and "calls.json does not hold what it should" in ran.err


def test_a_profiler_s_trace_alone_has_no_arguments(foretrace, recording):
    ran = foretrace("replay", recording / "rank-0" / "profile.json.gz")
    assert ran.code == 2 and "a profiler trace alone never does" in ran.err
    assert "also has the execution trace" in ran.err and "?." not in ran.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "mm#99"), "no call 'mm#99'. Of mm it has 3 calls, mm#0 to mm#2."),
        (("--to", "mm#x"), "no call 'mm#x'. Of mm it has 3 calls"),
        (("--without", "reluu"), "no call 'reluu'. Did you mean aten::relu"),
        (("--delayed",), "is of one rank: it has no collectives to delay"),
        (("--ranks", 0), "0 ranks can't be replayed"),
        (("--ranks", 2), "has one rank, not 2"),
        (("--device", "tpu"), "can't run on 'tpu'. It runs on cpu, cuda, meta."),
        (("--batch", "64/7"), "creates its data within the step: no input holds a batch"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(foretrace, recording, monkeypatch, options, said):
    monkeypatch.setattr("foretrace.replay.running.run_benchmark", lambda *_: pytest.fail("it ran"))
    ran = foretrace("replay", recording, *options)
    assert ran.code == 2 and said in ran.err


def test_a_missing_device_ends_a_suite_at_once(foretrace, recording):
    ran = foretrace("replay", recording, recording, "--device", "tpu")
    assert ran.code == 2 and "can't run on 'tpu'" in ran.err and not ran.out


def test_a_benchmark_of_one_rank_has_nothing_to_delay(foretrace, bench):
    ran = foretrace("replay", bench, "--delayed")
    assert ran.code == 2 and "Leave out --delayed" in ran.err


def test_a_folder_to_keep_it_in_must_be_new(foretrace, recording, tmp_path):
    ran = foretrace("replay", recording, "--keep", tmp_path)
    assert ran.code == 2 and "Choose another folder" in ran.err and "--out" not in ran.err


def test_custom_ops_that_the_step_does_not_have_are_noted(foretrace, recording):
    words = json.loads(foretrace("replay", recording, "--ops", "foo=nopackage", "--iterations", 2, "--json").out)
    assert "--ops foo: the step has no such op" in words["notes"]


def test_a_suite_that_was_cut_short_is_named(foretrace, tmp_path):
    file = tmp_path / "fleet.json"
    file.write_text('{"suite": [{"what": "ru')
    ran = foretrace("replay", file)
    assert ran.code == 2 and "fleet.json is no suite" in ran.err


@pytest.mark.parametrize("place", ["job.json", "rank-0/ops.jsonl.gz", "rank-0/rank.json"])
def test_what_a_recording_lacks_is_named(foretrace, recording, tmp_path, place):
    broken = shutil.copytree(recording, tmp_path / "run")
    (broken / place).unlink()
    ran = foretrace("replay", broken)
    assert ran.code == 2 and place in ran.err and "record the job again" in ran.err


def test_every_option_is_in_its_page(foretrace, request):
    page = (request.config.rootpath / "docs" / "replay.md").read_text()
    options = set(re.findall(r"--[a-z-]+", foretrace("replay", "--help").out)) - {"--help", "--pace"}
    assert options and [option for option in sorted(options) if option not in page] == []
    assert "`other`" in page and "other" in foretrace("replay", "--help").out
