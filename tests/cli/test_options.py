"""What subcommands write never replaces what they read, nor what somebody else wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace.cli.options import check_outputs
from foretrace.graph import ForetraceError

RECORDING = Path(__file__).parents[1] / "data" / "h200" / "dlrm_default_b512"
SCRIPT = "def make_step():\n    raise SystemExit('this was run')\n"
TABLES = "name,rows,dim\nusers,1000,64\n"


@pytest.fixture
def here(tmp_path, monkeypatch, trace):
    """A folder with one of each input: train.py, tables.csv, trace.json, run/."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("tables.csv").write_text(TABLES)
    shutil.copytree(RECORDING, "run")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CALLS = [
    ["predict", "train.py", "--html", "OUT"],
    ["predict", "train.py:make_step", "--trace", "OUT"],
    ["predict", "train.py", "--world", "1,2", "--html", "OUT"],
    ["whatif", "train.py", "--set", "batch=8", "--html", "OUT"],
    ["sweep", "train.py", "--set", "batch=8", "--html", "OUT"],
    ["sweep", "train.py", "--set", "batch=8", "--out", "OUT"],
    ["shard", "train.py", "--world", "2", "--out", "OUT"],
    ["shard", "train.py", "--world", "2", "--html", "OUT"],
    ["show", "train.py", "--html", "OUT"],
    ["export", "train.py", "--perfetto", "OUT"],
]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
@pytest.mark.parametrize("spelling", ["train.py", "./run/../train.py", "link.py", "hard.py", "absolute"])
def test_no_output_is_the_input_however_it_is_spelt(foretrace, here, call, spelling):
    Path("link.py").symlink_to("train.py")
    os.link("train.py", "hard.py")
    name = str(here / "train.py") if spelling == "absolute" else spelling
    before = contents(here)
    ran = foretrace(*(name if word == "OUT" else word for word in call))
    assert ran.code == 2 and ran.err.count("\n") == 1 and not ran.out
    assert "would replace train.py, which is read. Name another file." in ran.err
    assert contents(here) == before and Path("link.py").is_symlink()


@pytest.mark.parametrize(
    "call",
    [
        ["shard", "tables.csv", "--world", "2", "--out", "tables.csv"],
        ["export", "trace.json", "--perfetto", "trace.json"],
        ["export", "tr*.json", "--perfetto", "trace.json"],
        ["show", "run", "trace.json", "--html", "trace.json"],
        ["predict", "run", "--fabric", "trace.json", "--html", "trace.json"],
    ],
    ids=" ".join,
)
def test_nor_is_it_one_of_several_inputs(foretrace, here, call):
    before = contents(here)
    ran = foretrace(*call)
    assert ran.code == 2 and "which is read" in ran.err and ran.err.count("\n") == 1
    assert contents(here) == before


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--perfetto", "run/rank-0/profile.json.gz"), ("--perfetto", "run/job.json"),
        ("--perfetto", "run/rank-0/et.json.gz"), ("--chakra", "run/rank-0/new/../../../chakra"),
    ],
)  # fmt: skip
def test_no_file_of_a_recording_is_replaced_and_none_joins_it(foretrace, here, option, name):
    before = contents(here)
    ran = foretrace("export", "run", option, name)
    if option == "--chakra":  # which leads out of it
        assert ran.code == 0
    else:
        assert ran.code == 2 and f"{name} would be one of the files that run is read from" in ran.err
        assert contents(here) == before


def test_what_a_recording_is_not_read_from_may_lie_in_it(foretrace, here):
    for _ in range(2):
        assert foretrace("show", "run", "--html", "run/page.html").code == 0
        assert foretrace("export", "run", "--perfetto", "run/timeline.json").code == 0


def test_no_timeline_joins_the_traces_that_it_is_made_of(foretrace, here):
    Path("traces").mkdir()
    Path("trace.json").rename("traces/trace.json")
    ran = foretrace("export", "traces", "--perfetto", "traces/timeline.json")
    assert ran.code == 2 and "would be one of the files that traces is read from" in ran.err


def test_chakra_traces_are_not_written_over_those_that_are_read(foretrace, here):
    assert foretrace("export", "run", "--chakra", "chakra").code == 0
    for what in ("chakra", "chakra/chakra.0.et"):
        assert foretrace("export", what, "--chakra", "chakra").code == 2
    assert foretrace("export", "run", "--chakra", "chakra").code == 0  # its own of before


@pytest.mark.parametrize(
    "call",
    [
        ["show", "run", "--html", "train.py"], ["show", "run", "--html", "tables.csv"],
        ["predict", "run", "--on", "h200", "--trace", "trace.json"], ["export", "run", "--perfetto", "tables.csv"],
        ["shard", "tables.csv", "--world", "2", "--out", "train.py"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_files_of_other_programs_are_not_replaced(foretrace, here, call):
    before = contents(here)
    ran = foretrace(*call)
    assert ran.code == 2 and f"{call[-1]} is there already, and is not a" in ran.err and "Name another file" in ran.err
    assert contents(here) == before


@pytest.mark.parametrize("name", [".", "/", "", "..", "run"])
@pytest.mark.parametrize("call", [call for call in CALLS if "sweep" not in call[0]], ids=" ".join)
def test_a_folder_is_refused_before_the_work(foretrace, here, call, name):
    ran = foretrace(*(name if word == "OUT" else word for word in call))
    assert ran.code == 2 and not ran.out and ran.err.count("\n") == 1
    assert "is a folder, and a" in ran.err and "Name one: " in ran.err


def test_one_file_can_not_be_two_outputs(foretrace, here):
    ran = foretrace("predict", "run", "--html", "x", "--trace", "./x")
    assert (ran.code, ran.err) == (2, "foretrace: --html and --trace are both x. Name a file for each.\n")
    check_outputs(["run"], html=Path("/dev/null"), trace=Path("/dev/null"))


def test_a_sweep_keeps_its_points_in_a_plain_file(foretrace, here):
    os.mkfifo("fifo")
    for name, what in (("fifo", "no plain file"), (".", "a folder"), ("/dev/null", "no plain file")):
        ran = foretrace("sweep", "run", "--set", "batch=8", "--out", name)
        assert ran.code == 2 and f"--out {name} is {what}" in ran.err and ran.err.count("\n") == 1


def test_where_nothing_can_be_made_nothing_is_begun(foretrace, here):
    for option, name in (("--html", "train.py/page.html"), ("--html", "train.py/new/page.html")):
        ran = foretrace("predict", "train.py", option, name)
        assert ran.code == 2 and "can't be written" in ran.err and ran.err.count("\n") == 1
    ran = foretrace("benchmark", "run", "--out", "train.py/folder")
    assert ran.code == 2 and "can't be written" in ran.err
    assert foretrace("export", "run", "--chakra", "train.py").err.startswith(
        "foretrace: --chakra train.py is no folder"
    )


@pytest.mark.parametrize("call", [["benchmark", "run", "--out"], ["replay", "run", "--keep"]], ids=" ".join)
@pytest.mark.parametrize("name", ["run", "train.py", ".", "", "/"])
def test_a_benchmark_is_a_new_folder(foretrace, here, call, name):
    before = contents(here)
    ran = foretrace(*call, name)
    assert ran.code == 2 and "is there already" in ran.err and ran.err.count("\n") == 1
    assert contents(here) == before


@pytest.mark.parametrize("call", [["calibrate", "host", "--out"], ["platform", "fabric", "--from", "log", "--out"]])
def test_a_platform_is_a_folder(foretrace, here, call):
    before = contents(here)
    for name, said in (("train.py", "is no folder"), ("train.py/x", "is no folder"), ("run", "holds something else")):
        ran = foretrace(*call, name)
        assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1
    assert contents(here) == before


def test_a_page_takes_standard_output_for_itself(here):
    command = [sys.executable, "-m", "foretrace", "show", "run", "--html", "/dev/stdout"]
    with Path("page.html").open("wb") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True)
    page = Path("page.html").read_text()
    assert done.returncode == 0 and "host-bound" in done.stderr
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n" if page.endswith("\n") else "</html>")
    piped = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert piped.stdout == page


def test_names_that_are_no_paths_are_no_inputs(here):
    check_outputs([None, "", "h200", "h200:hbm=2"], html=here / "page.html")
    with pytest.raises(ForetraceError, match="which is read"):
        check_outputs(["h200", f"{here}/train.py:step"], html=here / "train.py")
