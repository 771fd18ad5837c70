from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest

from tests.cli.samples import step_of_two_ops


def test_a_trace_is_shown_with_its_ops_and_step(foretrace, trace):
    ran = foretrace("show", trace)
    assert ran.code == 0, ran.err
    assert "ProfilerStep#1" in ran.out
    assert "aten::mm" in ran.out and "aten::relu" in ran.out


def test_json_has_the_documented_fields(foretrace, trace):
    words = json.loads(foretrace("show", trace, "--json").out)
    assert words["step_ms"] == {"0": 0.2}
    assert words["device_active_ms"] == {"0": 0.05}
    assert words["device_span_ms"] == 0.06
    assert words["attributed"] == 1.0
    assert [row["name"] for row in words["by_op"]] == ["aten::mm", "aten::relu"]


def test_every_word_of_the_json_is_documented(foretrace, trace, request):
    page = (request.config.rootpath / "docs" / "show.md").read_text()
    words = json.loads(foretrace("show", trace, "--json").out)
    assert [word for word in words if f"`{word}`" not in page] == []


def test_the_same_trace_gives_the_same_json(foretrace, trace):
    assert foretrace("show", trace, "--json").out == foretrace("show", trace, "--json").out


def test_the_traces_of_several_ranks_make_one_job(foretrace, tmp_path):
    paths = []
    for rank in range(2):
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(step_of_two_ops()))
    assert list(json.loads(foretrace("show", *paths, "--json").out)["step_ms"]) == ["0", "1"]
    assert list(json.loads(foretrace("show", tmp_path, "--ranks", "1", "--json").out)["step_ms"]) == ["1"]


def test_a_rank_that_is_not_there_is_named(foretrace, tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(step_of_two_ops()))
    ran = foretrace("show", tmp_path, "--ranks", "0-3")
    assert ran.code == 2 and "no rank 2, 3" in ran.err


def test_ranks_that_make_no_sense_are_a_usage_error(foretrace, trace):
    ran = foretrace("show", trace, "--ranks", "a-b")
    assert ran.code == 2 and "write them like 0-2,4" in ran.err


def test_a_step_that_is_not_there_is_named_with_those_that_are(foretrace, trace):
    ran = foretrace("show", trace, "--step", "ProfilerStep#9")
    assert ran.code == 2 and ran.err.count("\n") == 1
    assert "ProfilerStep#9" in ran.err and "ProfilerStep#1" in ran.err


@pytest.mark.parametrize("name", ["[/]", "[red]", "<script>", "../../x", "a\x1b[2J"])
def test_a_hostile_op_name_is_only_a_name(foretrace, tmp_path, name):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(step_of_two_ops(name=f"aten::{name}")))
    ran = foretrace("show", path)
    assert ran.code == 0, ran.err
    assert f"aten::{name}".replace("\x1b", "\\x1b") in ran.out


BAD = {
    "no such file": None,
    "nothing in it": b"",
    "half a trace": json.dumps(step_of_two_ops()).encode()[:400],
    "no JSON": b"\x00\x01\x02" * 100,
    "another tool's JSON": b'{"hello": [1, 2, 3]}',
    "a trace without events": b'{"traceEvents": []}',
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_bad_file_is_named_in_one_line(foretrace, tmp_path, what, suffix):
    path = tmp_path / f"bad{suffix}"
    content = BAD[what]
    if content is not None:
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    ran = foretrace("show", path)
    assert ran.code == 2
    assert ran.err.startswith("foretrace: ") and ran.err.count("\n") == 1 and path.name in ran.err


def test_a_cut_gz_is_named_in_one_line(foretrace, tmp_path):
    path = tmp_path / "cut.json.gz"
    whole = gzip.compress(json.dumps(step_of_two_ops()).encode())
    path.write_bytes(whole[: len(whole) // 2])
    ran = foretrace("show", path)
    assert ran.code == 2 and ran.err.count("\n") == 1 and "cut.json.gz" in ran.err


def test_a_folder_without_traces_is_named(foretrace, tmp_path):
    ran = foretrace("show", tmp_path)
    assert ran.code == 2 and str(tmp_path) in ran.err


@pytest.mark.parametrize("folder", ["megatron_tp8_8xA100", "megatron_tp2_2xV100", "dlrm_8xV100"])
def test_published_jobs_are_shown(foretrace, shared, folder):
    ran = foretrace("show", shared / "public" / folder)
    assert ran.code == 0, ran.err
    assert "Critical path" in ran.out and "Communication" in ran.out


def test_what_stragglers_cost_a_published_job_over_its_steps(foretrace, shared, tmp_path):
    one = foretrace("show", shared / "public" / "megatron_tp8_8xA100", "--steps", "--json")
    found = json.loads(one.out)["stragglers"]
    assert [row["rank"] for row in found["by_worker"][:2]] == [0, 6] and 1.02 < found["slowdown"] < 1.1
    page = tmp_path / "steps.html"
    several = foretrace("show", shared / "public" / "wild" / "torchrec_4xV100", "--steps", "--html", page)
    assert "4 workers, 3 steps" in several.out and '"kind":"heat"' in page.read_text()


def test_a_page_of_steps_needs_several_ranks(foretrace, trace, tmp_path):
    done = foretrace("show", trace, "--steps", "--html", tmp_path / "steps.html")
    assert done.code == 2 and "where there are several ranks" in done.err
    assert json.loads(foretrace("show", trace, "--steps", "--json").out)["stragglers"] is None


def test_the_slow_hosts_of_the_megatron_job_are_named(foretrace, shared):
    assert "ranks 0 and 6 hold the others back" in foretrace("show", shared / "public" / "megatron_tp8_8xA100").out


def test_a_terminal_without_unicode_gets_its_report_too(trace):
    command = [sys.executable, "-m", "foretrace", "show", str(trace)]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True)
    assert b"aten::mm" in done.stdout and done.stdout.isascii()


def in_a_shell(line: str, trace: object) -> subprocess.CompletedProcess[str]:
    command = line.replace("foretrace", f"{sys.executable} -m foretrace").replace("TRACE", str(trace))
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "line",
    [
        "foretrace show <(cat TRACE)",
        "foretrace show <(gzip -c TRACE)",
        "cat TRACE | foretrace show -",
        "gzip -c TRACE | foretrace show /dev/stdin",
        "foretrace show - < TRACE",
        "foretrace diff <(cat TRACE) <(cat TRACE)",
        "foretrace export <(cat TRACE) --chakra TRACE.chakra && foretrace show TRACE.chakra",
    ],
)
def test_what_another_process_writes_is_read(trace, line):
    done = in_a_shell(line, trace)
    assert done.returncode == 0, done.stderr
    assert "0.200 ms" in done.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mkfifo TRACE.fifo; foretrace show TRACE.fifo", "trace.json.fifo is a pipe: reading it may never end"),
        ("foretrace show /dev/zero", "/dev/zero is a device: reading it may never end. Give a file"),
        ("foretrace show -", "/dev/stdin is a device"),
        ("foretrace show <(true)", "is empty (0 bytes)"),
    ],
)
def test_what_may_never_end_is_refused_in_one_line(trace, line, said):
    done = in_a_shell(line, trace)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_pipes_among_traces_are_refused_or_passed_over(foretrace, trace, tmp_path):
    os.mkfifo(tmp_path / "rank1.json")
    assert "is a pipe" in foretrace("show", tmp_path / "*.json").err
    assert foretrace("show", tmp_path).code == 0


def test_all_steps_are_listed_where_they_are_asked_for(foretrace, trace):
    text = foretrace("show", trace, "--steps").out
    assert "median" in text and "ProfilerStep#" in text
    assert json.loads(foretrace("show", trace, "--steps", "--json").out)["steps"][0]["step"].startswith("ProfilerStep#")
    assert foretrace("show", trace, "--steps", "--step", "ProfilerStep#1").code == 2


def test_a_pipe_gets_lines_of_their_own_length_without_blanks_at_their_ends(foretrace, trace, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = foretrace("show", trace).out.splitlines()
    assert lines and all(line == line.rstrip() for line in lines)


def test_what_makes_a_slow_step_longer_adds_up_to_it(foretrace, shared):
    text = foretrace("show", shared / "public" / "wild" / "torchrec_4xV100", "--steps").out
    rows = text.split("which adds up from")[1].split("\n\n")[0].splitlines()[2:]
    parts = [float(line.split()[0]) for line in rows if line.strip()]
    assert sum(parts) == pytest.approx(252, abs=1)
