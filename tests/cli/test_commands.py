"""Every command of the README and the docs: its options exist, and it runs, on the examples and on stand-ins.

A page says `run` for a recording of the reader's, `train.py` for a script of theirs: small ones stand in for them here.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from foretrace.cli.app import SUBCOMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
RECORDING = ROOT / "tests/data/h200/dlrm_default_b512"
"""Of an H200: what is predicted elsewhere, or changed."""
RUNS_HERE = ("benchmark", "diff", "export", "replay", "show")
"""Subcommands that take a recording of this machine: a small one, which is run again quickly."""
RECORDINGS = ("run", "my-recording", "after")
PLACEHOLDER = re.compile(r"[\[\]…]|(?<!,)\.\.\.|(?:^|[\s/])[A-Z]{1,2}[A-Z]*(?=[\s/.=,]|$)")
"""A synopsis, or a name in capitals that the reader fills in."""
ELSEWHERE = {
    r"foretrace calibrate|my-platform|my-machine|that-gpu|my-device|here8": "measures a machine, or needs that",
    r"^torchrun|run-on-2-ranks|-- torchrun": "needs several ranks",
    r"foretrace ui": "serves until it is stopped",
    r"all_reduce\.log|fleet\.json|runs/|trace\.json\.gz$": "needs files of the reader's",
    r"^(make|pip|\.) ": "sets up",
    r"^python (docs|-m benchmarks)": "is for who changes Foretrace",
    r"^python bench/run\.py": "is run by the tests of benchmarks",
}
"""Commands that are not run here, and why; their options are checked all the same."""


FLEET = ("add", "suite", "drift", "whatif", "stragglers", "hang")
"""Subcommands of `fleet`."""


class Command(NamedTuple):
    page: str
    line: str
    shown: str
    """What the page shows below it."""
    step: float | None
    """The step time that the page shows, of a sample with one."""

    @property
    def refused(self) -> bool:
        """Whether the page shows that it fails."""
        return self.shown.startswith("foretrace: ")


def commands(page: str) -> Iterator[Command]:
    """The commands in the code of a page, without comments."""
    lines = (ROOT / page).read_text().splitlines()
    fence: str | None = None
    for at, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            fence = line.strip()[3:] if fence is None else None
        code = fence in ("", "console", "bash") or (fence is None and line.startswith("    "))
        found = re.match(r"\s*(?:\$ )?((?:foretrace|torchrun|python|make|pip|\.) .*)", line) if code else None
        if found:
            words, after = found[1], at + 1
            while words.endswith("\\"):
                words, after = f"{words[:-1]} {lines[after].strip()}", after + 1
            shown = lines[after].strip() if after < len(lines) else ""
            step = step_in("\n".join(lines[after : after + HEADLINE])) if line.lstrip().startswith("$") else None
            yield Command(page, re.split(r"\s+#|\s{4,}", words)[0].strip(), shown, step)


def step_in(text: str) -> float | None:
    """The first step time of a headline, the one before where there are two; milliseconds or seconds."""
    found = re.search(r"^\s*step +([\d.]+)", text, re.MULTILINE)
    return float(found[1]) if found else None


HEADLINE = 5
"""Lines of a sample in which its step time stands."""
STALE = 0.005
"""A sample whose step time is off by more is to be made anew: python docs/samples.py."""

ALIKE = {
    r" --top \d+|  +": " ",
    r"^(foretrace record) --out \w+ -- python \S+\.py( --batch \d+)?$": r"\1 --out run -- python train.py",
}
"""What makes no difference that is worth another run: how many rows are shown, which script is recorded."""


def distinct(line: str) -> str:
    """A command without what makes no difference."""
    for pattern, text in ALIKE.items():
        line = re.sub(pattern, text, line)
    return line.strip()


ALL = [command for page in PAGES for command in commands(page)]
TO_RUN = {
    distinct(command.line): command
    for command in sorted(ALL, key=lambda command: command.step is not None)
    if not PLACEHOLDER.search(command.line) and not any(re.search(why, command.line) for why in ELSEWHERE)
}


def test_commands_are_found_and_most_of_them_are_run():
    assert len(ALL) > 80 and len(TO_RUN) > 40


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_every_option_that_a_page_uses_exists(foretrace, subcommand):
    known = set(re.findall(r"--[a-z][a-z-]+", foretrace(subcommand, "--help").out))
    groups = ("device", "host", "fabric", "fit", "cpu", "list", "show", "compare", *FLEET)
    for group in groups:
        if subcommand in ("calibrate", "fleet", "platform"):
            known |= set(re.findall(r"--[a-z][a-z-]+", foretrace(subcommand, group, "--help").out))
    for command in ALL:
        ours = re.match(rf"foretrace {subcommand} (.*)", command.line.partition(" -- ")[0].partition(" | ")[0])
        used = set(re.findall(r"(?<=\s)--[a-z][a-z-]+", f" {ours[1]}")) if ours else set()
        assert used <= known, command


@pytest.fixture(scope="session")
def recorded_here(made_once):
    """A recording of a tiny DLRM on this machine."""

    def make(out: Path) -> None:
        program = [
            sys.executable,
            "-m",
            "foretrace",
            "record",
            "--out",
            str(out),
            "--",
            sys.executable,
            "examples/dlrm.py",
        ]
        subprocess.run(program, cwd=ROOT, check=True, capture_output=True)

    return made_once("recorded-here", make)


@pytest.fixture
def sandbox(tmp_path, monkeypatch, request, recorded_here):
    """A folder with all that pages name."""
    line = request.node.callspec.params["line"]
    command = TO_RUN[line]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "tables.csv").symlink_to(ROOT / "examples/tables.csv")
    subcommand = command.line.split()[1]
    # Where it really runs, the smallest.
    shutil.copy(ROOT / ("examples/dlrm.py" if subcommand == "record" else "examples/gpt.py"), tmp_path / "train.py")
    shutil.copy(ROOT / "examples/training.py", tmp_path / "training.py")
    for name in RECORDINGS:
        if not line.startswith(f"foretrace record --out {name}"):
            (tmp_path / name).symlink_to(recorded_here if subcommand in RUNS_HERE else RECORDING)
    if subcommand == "fleet":
        make_fleet(tmp_path)
    monkeypatch.chdir(tmp_path)
    return command


def make_fleet(folder: Path) -> None:
    """A store of one recording, and what pages take it for."""
    from foretrace.fleet import Store, add_recordings, make_suite

    store = Store.open(folder / "mine", create=True)
    add_recordings(store, [str(RECORDING)], {"gpu_hours": "40"}, workers=1)
    if not (folder / "suite").exists():
        (folder / "suite").mkdir()
        text = json.dumps(make_suite(store, None, size=1).to_dict())
        (folder / "suite" / "suite.json").write_text(text)


@pytest.mark.parametrize("line", list(TO_RUN))
def test_a_command_of_the_docs_runs(sandbox, foretrace, line):
    words = shlex.split(line)
    if "--fabric gloo" in line:
        assert foretrace("platform", "fabric", "--from", "examples/dlrm-4-ranks", "--out", "gloo").code == 0
    if words[:2] == ["foretrace", "gate"] and "--update" not in words:
        assert foretrace(*words[1:], "--update").code == 0
    if words[0] == "foretrace" and "|" not in words and words[1] != "record":
        ran = foretrace(*words[1:])
        assert (ran.code != 0) == sandbox.refused, ran.err
        assert ran.out or ran.err
        if sandbox.step and "examples/" in line:
            assert step_in(ran.out) == pytest.approx(sandbox.step, rel=STALE), f"python docs/samples.py: {sandbox.page}"
        return
    program = re.sub(r"\bforetrace (?=record|export)", f"{shlex.quote(sys.executable)} -m foretrace ", line)
    program = re.sub(r"\bpython (?=\S+\.py)", f"{shlex.quote(sys.executable)} ", program)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
