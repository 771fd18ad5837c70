from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretrace as ft
from foretrace.cli.app import SUBCOMMANDS, keep_freed_memory
from foretrace.cli.main import exit_fast, main
from foretrace.graph import ForetraceError

RECORDING = Path(__file__).parents[1] / "data" / "h200" / "dlrm_default_b512"


def failing(error):
    def load(*paths, **options):
        raise error

    return load


def test_help_lists_every_subcommand(foretrace):
    ran = foretrace("--help")
    assert ran.code == 0
    for subcommand in ("record", "show", "diff", "export", "calibrate"):
        assert f"\n  {subcommand} " in ran.out


@pytest.mark.parametrize(
    "subcommand", [(), *((subcommand,) for subcommand in SUBCOMMANDS), ("platform", "show"), ("platform", "fabric")]
)
def test_every_subcommand_answers_h_as_it_does_help(foretrace, subcommand):
    short, long, word = foretrace(*subcommand, "-h"), foretrace(*subcommand, "--help"), foretrace("help", *subcommand)
    assert short.code == 0 and short.out.startswith(" ".join(("Usage: foretrace", *subcommand))) and not short.err
    assert short == long == word


def test_a_recorded_job_keeps_its_own_h(foretrace, monkeypatch):
    seen: list[object] = []
    monkeypatch.setattr("foretrace.record.watch.launch.launch", lambda command, *_, **__: seen.append(command) or 0)
    assert foretrace("record", "--out", "x", "--", "python", "train.py", "-h").code == 0
    assert seen == [["python", "train.py", "-h"]]


def test_help_for_what_is_no_subcommand_says_so(foretrace):
    assert foretrace("help", "frob").err.startswith("foretrace: no such command 'frob'.")


def test_version_is_the_package_s_own(foretrace):
    assert foretrace("--version").out == f"foretrace {ft.__version__}\n"


@pytest.mark.parametrize("code", ["import foretrace", "import foretrace.cli.app"])
def test_starting_up_imports_nothing_heavy(code):
    look = f"{code}; import sys; print(sorted({{'numpy', 'torch', 'numba', 'pandas', 'rich'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_prediction_of_one_rank_loads_nothing_that_it_can_do_without():
    """What takes long to load: the compiler, what draws tables, masked arrays, what only jobs or other GPUs need."""
    unneeded = {
        "numba", "rich", "torch", "jinja2", "scipy", "numpy.ma", "threadpoolctl",
        "foretrace.platform.hypothetical", "foretrace.transforms", "foretrace.cli.show",
    }  # fmt: skip
    words = ["predict", str(RECORDING), "--on", "h200", "--kernels", "model", "--json"]
    code = f"""
import atexit, sys
atexit.register(lambda: print(sorted({unneeded!r} & set(sys.modules)), file=sys.stderr))
sys.argv = ["foretrace", *{words!r}]
from foretrace.cli.main import main
main()
"""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(("subcommand", "most"), [("show", 48), ("shard", 80)])
def test_a_subcommand_loads_few_of_our_modules(subcommand, most, trace, tmp_path):
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim,pooling\nusers,100000,64,10\nitems,2000,64,1\n")
    options = [str(trace)] if subcommand == "show" else [str(tables), "--world", "2", "--seconds", "0.1"]
    code = f"""
import atexit, sys
atexit.register(lambda: print(*(name for name in sys.modules if name.startswith("foretrace")), file=sys.stderr))
sys.argv = ["foretrace", {subcommand!r}, *{options!r}]
from foretrace.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stderr.splitlines()[-1].split()
    assert "foretrace.cli.main" in loaded and len(loaded) <= most, f"{len(loaded)}: {', '.join(loaded)}"


def test_a_mistyped_subcommand_gets_a_suggestion(foretrace):
    assert "Did you mean 'predict'?" in foretrace("prdict", "x").err


def test_a_bad_input_ends_in_one_line_and_exit_code_2(foretrace, monkeypatch):
    monkeypatch.setattr("foretrace.api.load", failing(ForetraceError("rank-3.json is cut", "Record it again.")))
    assert foretrace("show", "x") == (2, "", "foretrace: rank-3.json is cut. Record it again.\n")


def test_for_a_reader_the_error_is_folded_with_the_advice_below(foretrace, monkeypatch):
    error = ForetraceError("rank-3/kineto.json.gz ends in the middle of an event (byte 1,204,224)", "Record it " * 12)
    monkeypatch.setattr("foretrace.api.load", failing(error))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    lines = foretrace("show", "x").err.splitlines()
    assert lines[0] == "foretrace: rank-3/kineto.json.gz ends in the middle of an event (byte"
    assert lines[2].startswith("           Record it Record it")
    assert max(map(len, lines)) <= 80


def test_a_file_name_cannot_steer_the_terminal(foretrace, monkeypatch):
    monkeypatch.setattr("foretrace.api.load", failing(ForetraceError("a\x1b[2J\nb.json is empty")))
    assert foretrace("show", "x").err == "foretrace: a\\x1b[2J\\nb.json is empty.\n"


def test_an_unexpected_error_is_called_a_bug_and_leads_to_its_traceback(foretrace, monkeypatch):
    monkeypatch.delenv("FORETRACE_DEBUG", raising=False)
    monkeypatch.setattr("foretrace.api.load", failing(ZeroDivisionError("by zero")))
    ran = foretrace("show", "x")
    assert ran.code == 70
    assert ran.err.count("\n") == 1
    assert "bug" in ran.err and "ZeroDivisionError: by zero" in ran.err and "FORETRACE_DEBUG=1" in ran.err


def test_with_debug_set_the_traceback_is_there(foretrace, monkeypatch):
    monkeypatch.setenv("FORETRACE_DEBUG", "1")
    monkeypatch.setattr("foretrace.api.load", failing(ZeroDivisionError("by zero")))
    with pytest.raises(ZeroDivisionError):
        foretrace("show", "x")


def test_an_interrupt_ends_as_shells_expect(foretrace, monkeypatch):
    monkeypatch.setattr("foretrace.api.load", failing(KeyboardInterrupt()))
    assert foretrace("show", "x").code == 130


def test_so_does_one_while_it_starts(monkeypatch):
    left: list[int] = []
    monkeypatch.setattr("foretrace.cli.app.run", failing(KeyboardInterrupt()))
    monkeypatch.setattr("foretrace.cli.main.exit_fast", left.append)
    monkeypatch.setattr("gc.disable", lambda: None)
    main()
    assert left == [130]


def test_an_unknown_option_is_a_usage_error(foretrace):
    assert foretrace("show", "x", "--no-such-thing").code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict"], "foretrace: missing argument 'WHAT'. `foretrace predict --help` shows what it takes.\n"),
        (["frob"], "foretrace: no such command 'frob'. `foretrace --help` shows what it takes.\n"),
        (["show", "--ranks", "all", "x"], "foretrace: invalid value for --ranks: 'all' names no ranks"),
        (["whatif", "x", "--set"], "foretrace: option '--set' requires an argument. `foretrace whatif --help`"),
        (["platform", "frob"], "foretrace: no such command 'frob'. `foretrace platform --help`"),
    ],
)
def test_wrong_arguments_are_reported_like_any_other_error(foretrace, words, said):
    ran = foretrace(*words)
    assert ran.code == 2 and not ran.out and ran.err.startswith(said) and ran.err.count("\n") == 1


def test_without_a_subcommand_the_help_is_printed(foretrace):
    ran = foretrace()
    assert ran.code == 2 and "Usage: foretrace" in ran.out + ran.err and "\n  predict " in ran.out + ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["show", ""], ["diff", "", ""], ["export", "", "--perfetto", "x"], ["check", ""], ["predict", ""],
        ["benchmark", "", "--out", "x"], ["whatif", "", "--set", "batch=8"], ["sweep", "", "--set", "batch=8"],
        ["replay", ""],
    ],
)  # fmt: skip
def test_an_empty_name_is_not_the_folder_one_is_in(foretrace, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert foretrace(*words) == (2, "", "foretrace: the name of what to read is empty. Give a recording or a trace.\n")


def test_the_process_ends_at_once_but_flushes_its_output():
    code = """
import atexit
from foretrace.cli.main import exit_fast
atexit.register(print, "last")
print("first")
exit_fast(3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "first\nlast\n", "")


def test_under_a_profiler_the_process_ends_as_usual(monkeypatch):
    monkeypatch.setattr(sys, "getprofile", lambda: print)
    with pytest.raises(SystemExit) as left:
        exit_fast(3)
    assert left.value.code == 3


def in_a_shell(line: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("foretrace", f"{sys.executable} -m foretrace").replace("RUN", str(RECORDING))
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True)


@pytest.mark.parametrize("words", ["show RUN --json", "show RUN", "platform list", "--help", "help show"])
def test_a_full_disk_behind_standard_output_is_one_line(words):
    done = in_a_shell(f"foretrace {words} > /dev/full")
    said = "foretrace: nothing more can be written (No space left on device). Free some space where the output goes.\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_where_nothing_can_be_written_the_exit_code_tells():
    assert in_a_shell("foretrace show RUN > /dev/full 2> /dev/full").returncode == 2


@pytest.mark.parametrize(
    "words", ["show RUN --json", "show RUN --top 500", "--help", "export RUN --perfetto /dev/stdout"]
)
def test_a_closed_pipe_ends_it_quietly(words):
    done = in_a_shell(f"foretrace {words} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


def test_standard_output_may_be_closed():
    done = in_a_shell("foretrace show RUN --json >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_causes_no_message():
    code = """
import os, sys
from foretrace.cli.main import exit_fast
reading, writing = os.pipe()
os.close(reading)
sys.stdout = os.fdopen(writing, "w")
print("nobody")
exit_fast(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def foretrace_without_torch(tmp_path):
    """Run `foretrace` where PyTorch is not installed."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    path = os.pathsep.join([str(tmp_path), str(Path(ft.__file__).parents[1])])

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": path, "XDG_DATA_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "foretrace", *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "examples/dlrm.py"),
        ("predict", "--", "python", "examples/dlrm.py"),
        ("whatif", RECORDING, "--set", "batch=1024"),
        ("sweep", RECORDING, "--set", "batch=256,512"),
        ("replay", RECORDING),
        ("calibrate", "device", "--out", "nowhere"),
    ],
)
def test_without_torch_what_needs_it_says_in_one_line_how_to_get_it(foretrace_without_torch, arguments):
    ran = foretrace_without_torch(*arguments)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
    assert "pip install torch" in ran.stderr


@pytest.mark.parametrize(
    "arguments", [("show", RECORDING), ("predict", RECORDING, "--on", "a100"), ("check", RECORDING)]
)
def test_without_torch_what_reads_files_works(foretrace_without_torch, arguments):
    ran = foretrace_without_torch(*arguments)
    assert ran.returncode == 0 and "step" in ran.stdout, ran.stderr


@pytest.mark.parametrize("group", [(), ("platform",), ("fleet",)])
def test_help_cuts_no_sentence(foretrace, group):
    assert "..." not in foretrace(*group, "--help").out.replace("[ARGS]...", "")


def test_quiet_says_nothing_but_the_result_and_errors(foretrace, tmp_path):
    ran = foretrace("benchmark", RECORDING, "--out", tmp_path / "made", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "") and (tmp_path / "made" / "run.py").exists()
    assert foretrace("show", RECORDING, "-q").out == foretrace("show", RECORDING).out
    refused = foretrace("show", tmp_path / "nothing", "-q")
    assert refused.code == 2 and refused.err.startswith("foretrace: ")


def test_tables_are_printed_as_csv_with_the_figures_of_the_json(foretrace):
    whole = json.loads(foretrace("predict", RECORDING, "--on", "h200", "--json").out)
    text = foretrace("predict", RECORDING, "--on", "h200", "--csv").out
    sections = dict(part.split("\n", 1) for part in text.replace("\r", "").split("# ") if part)
    rows = list(csv.DictReader(sections["by_phase"].splitlines()))
    assert [row["name"] for row in rows] == [row["name"] for row in whole["by_phase"]]
    assert [float(row["device_ms"]) for row in rows] == [row["device_ms"] for row in whole["by_phase"]]
    (summary,) = csv.DictReader(sections["summary"].splitlines())
    assert text.startswith("# summary") and float(summary["step_ms"]) == whole["step_ms"]
    assert foretrace("predict", RECORDING, "--csv", "--json").code == 2
    assert "; ".join(whole["notes"]) == summary["notes"] and "; ".join(whole["cautions"]) == summary["cautions"]
    overheads = {row["name"]: float(row["ms"]) for row in csv.DictReader(sections["overheads"].splitlines())}
    assert overheads == {name: row["ms"] for name, row in whole["overheads"].items()}


def test_csv_has_the_step_of_both_sides_in_columns_of_their_own(foretrace):
    whole = json.loads(foretrace("diff", RECORDING, RECORDING, "--json").out)
    text = foretrace("diff", RECORDING, RECORDING, "--csv").out.replace("\r", "")
    (summary,) = csv.DictReader(text.split("\n\n")[0].splitlines()[1:])
    assert [float(summary[f"step_ms.{side}"]) for side in (0, 1)] == whole["step_ms"]


def test_names_of_platforms_may_be_written_in_capitals(foretrace):
    small, large = (foretrace("predict", RECORDING, "--on", name, "--json") for name in ("a100", "A100"))
    assert small.code == 0 and small == large


def test_a_shell_completes_subcommands_and_platforms(foretrace_without_torch, monkeypatch):
    monkeypatch.setenv("_FORETRACE_COMPLETE", "complete_bash")
    for words, expected in (("foretrace pred", "predict"), ("foretrace predict run --on mi355", "mi355x")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert foretrace_without_torch().stdout.split() == [expected]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(("predict", "x.py", "--gpu", "h100"), "--on"), (("sweep", "run", "--gpus", "8"), "--world"),
     (("shard", "t.csv", "-o", "plan.json"), "--out")],
)  # fmt: skip
def test_an_option_by_the_name_that_other_tools_give_it_is_answered_with_ours(foretrace, arguments, meant):
    ran = foretrace(*arguments)
    assert ran.code == 2 and f"Did you mean {meant}?" in ran.err


@pytest.mark.parametrize("words", [["show", "a" * 5000], ["predict", "b" * 300], ["platform", "show", "c" * 300]])
def test_names_that_no_file_can_have_are_one_line(foretrace, words):
    ran = foretrace(*words)
    assert ran.code == 2 and "bug" not in ran.err and len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("problem", [AttributeError, OSError, TypeError])
def test_a_c_library_without_mallopt_is_left_as_it_is(monkeypatch, problem):
    monkeypatch.setattr("ctypes.CDLL", failing(problem))
    keep_freed_memory()
