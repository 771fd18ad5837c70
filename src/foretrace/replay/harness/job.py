"""A benchmark of several ranks: its folders, its processes, and what they say as one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .comparison import shares
from .files import read_json
from .parent import PARENT

LONGEST_FAREWELL_S = 10.0
"""How long the other ranks may go on once one has failed."""
OF_A_RANK = ("step_ms", "kernel_ms", "launches", "peak_memory_bytes")


class Job:
    """What ``ranks.json`` says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = read_json(folder / "ranks.json", ("ranks", "groups"))

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.facts["ranks"])

    def files(self, rank: int) -> dict[str, Path]:
        """Where the files of a rank are: alike ones are there once."""
        return {name: self.folder / place / name for name, place in self.facts["ranks"][rank].items()}


def job_of(folder: Path) -> Job | None:
    """The job in a folder; None where it holds a single rank."""
    return Job(folder) if (folder / "ranks.json").is_file() else None


def started() -> bool:
    """Whether this process is one of several that torchrun, or `launch`, has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(program: Sequence[str], world: int) -> int:
    """Start a Python program once for each rank, on this machine; the exit code of the first that failed, or 0.

    Only the complaints of that rank are passed on; where none failed, those of the first rank.
    """
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    common = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common[PARENT] = os.getpid()
    ranks: list[subprocess.Popen[bytes]] = []
    with ExitStack() as opened:
        words = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(world)]
        for rank in range(world):
            variables = {name: str(value) for name, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
            shown = None if rank == 0 else subprocess.DEVNULL
            command, variables = [sys.executable, *program], {**os.environ, **variables}
            ranks.append(subprocess.Popen(command, env=variables, stdout=shown, stderr=words[rank]))
        failed = _first_failure(ranks)
        words[failed or 0].seek(0)
        sys.stderr.write(words[failed or 0].read().decode(errors="replace"))
    if failed is None:
        return 0
    code = int(ranks[failed].returncode)
    if code < 0:  # it had no time to say anything itself
        sys.stderr.write(f"run.py: rank {failed} was ended by {signal.Signals(-code).name}\n")
    return max(code, 1)


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all; end the others some time after one has failed. The number of that one, or None."""
    failed, since = None, 0.0
    try:
        while any(rank.poll() is None for rank in ranks):
            if failed is None:
                failed, since = _failed(ranks), time.monotonic()
            elif time.monotonic() - since > LONGEST_FAREWELL_S:
                break
            time.sleep(0.02)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return _failed(ranks) if failed is None else failed


def _failed(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    return next((number for number, rank in enumerate(ranks) if rank.poll()), None)


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks say, as one result: a step is as long as on the slowest rank, memory as much as on the fullest.

    ``ranks`` keeps the figures of each.
    """
    if len(results) == 1:
        (alone,) = results
        told = {word: value for word, value in alone.items() if word != "weights"}
        return {**told, "coverage": shares([alone["weights"]]), "world": 1, "ranks": None}
    slowest = max(results, key=lambda result: result["step_ms"])
    whole = {**slowest, "world": len(results), "original": dict(slowest["original"])}
    for word in ("step_ms", "step_ms_back_to_back", "kernel_ms", "launches", "peak_memory_bytes"):
        whole[word] = most([result[word] for result in results])
        whole["original"][word] = most([result["original"].get(word) for result in results])
    whole["coverage"] = shares([result["weights"] for result in results])
    whole["ops"] = {}
    for result in results:
        for name, counts in result["ops"].items():
            whole["ops"][name] = [a + b for a, b in zip(whole["ops"].get(name, [0, 0]), counts)]
    for word in ("failures", "stand_ins"):
        whole[word] = [{**entry, "rank": rank} for rank, result in enumerate(results) for entry in result[word]]
    whole["notes"] = notes([result["notes"] for result in results])
    whole["ranks"] = [
        {**{word: result[word] for word in OF_A_RANK}, "coverage": shares([result["weights"]])} for result in results
    ]
    del whole["weights"]
    return whole


def notes(of_ranks: Sequence[Sequence[str]]) -> list[str]:
    """All that ranks note, each note once; one that not all of them make says whose it is.

    >>> notes([["slow", "no GPU"], ["no GPU", "late"], ["no GPU", "late"]])
    ['rank 0: slow', 'no GPU', 'ranks 1, 2: late']
    """
    whose: dict[str, list[int]] = {}
    for rank, said in enumerate(of_ranks):
        for note in dict.fromkeys(said):
            whose.setdefault(note, []).append(rank)
    return [
        note if len(ranks) == len(of_ranks) else f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {note}"
        for note, ranks in whose.items()
    ]


def most(values: Sequence[float | None]) -> float | None:
    """The largest of what is known.

    >>> most([1.0, None, 3.0]), most([None])
    (3.0, None)
    """
    known = [value for value in values if value is not None]
    return max(known) if known else None
