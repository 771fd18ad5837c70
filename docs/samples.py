"""Write what the samples of all pages print today: python docs/samples.py [TRACES…]

A sample is a command after a dollar sign and the beginning of what it prints; a line with nothing but … stands for what
is cut. Commands run in a folder that holds the examples, the fabric ``gloo`` that a page makes of one of them, and
whatever lies in the folders TRACES. Those that need something else, as a recording of yours, stay as they are.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
SAMPLE = re.compile(r"(?P<indent> *)\$ (?P<command>foretrace .*)")
FABRIC = "foretrace platform fabric --from examples/dlrm-4-ranks --out gloo"
CUT = "…"
WIDTH = 112
"""Of a terminal whose lines still fit into a page."""


def main(*traces: str) -> None:
    """Run all samples; what changes shows in the pages themselves."""
    with tempfile.TemporaryDirectory() as folder:
        for found in (ROOT / "examples", *(path for root in traces for path in Path(root).resolve().iterdir())):
            (Path(folder) / found.name).symlink_to(found)
        _printed(FABRIC, Path(folder))
        for page in PAGES:
            before = page.read_text()
            page.write_text("\n".join(_with_samples(before.splitlines(), Path(folder))) + "\n")
            print(f"{page.relative_to(ROOT)}: {'as it was' if page.read_text() == before else 'changed'}")


def _with_samples(lines: list[str], folder: Path) -> Iterator[str]:
    """The lines of a page, with what its samples print today."""
    at = 0
    while at < len(lines):
        yield lines[at]
        sample = SAMPLE.fullmatch(lines[at])
        at += 1
        if sample is None:
            continue
        command, indent = sample["command"], sample["indent"]
        while command.endswith("\\"):
            command = command[:-1] + lines[at]
            yield lines[at]
            at += 1
        end = next(place for place in range(at, len(lines)) if _ends(lines, place, indent))
        shown = [line.removeprefix(indent) for line in lines[at:end]]
        yield from ((indent + line).rstrip() for line in _shown_today(shown, _printed(command, folder)))
        at = end


def _ends(lines: list[str], place: int, indent: str) -> bool:
    """Whether a sample ends before a line: at its fence, or where the text is no longer indented as it is."""
    if not indent:
        return lines[place].startswith("```")
    following = next((line for line in lines[place:] if line), "")
    return not following.startswith(indent)


def _printed(command: str, folder: Path) -> list[str]:
    """What a command prints; nothing where it can't be run here."""
    words = shlex.split(command, comments=True)
    environment = {**os.environ, "COLUMNS": str(WIDTH)}
    program = [sys.executable, "-m", *words]
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"  left as it is: {command} ({done.stderr.strip()})")
    return [] if done.returncode else [line.rstrip() for line in done.stdout.splitlines()]


def _shown_today(shown: list[str], printed: list[str]) -> Iterator[str]:
    """The same pieces of what is printed now: each begins with the same words, and has as many lines as it had."""
    if not printed:
        yield from shown
        return
    at = 0
    while shown:
        words = re.split(r"\d", shown[0], maxsplit=1)[0]
        at = next((place for place in range(at, len(printed)) if printed[place].startswith(words)), at)
        if CUT not in shown:
            yield from printed[at:]
            return
        length = shown.index(CUT)
        yield from (*printed[at : at + length], CUT)
        at, shown = at + length, shown[length + 1 :]


if __name__ == "__main__":
    main(*sys.argv[1:])
