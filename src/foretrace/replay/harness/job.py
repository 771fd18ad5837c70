"""A benchmark of several ranks: its folders, its processes, and what they say as one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .comparison import shares

LONGEST_FAREWELL_S = 10.0
"""How long the other ranks may go on once one has failed."""
OF_A_RANK = ("step_ms", "kernel_ms", "launches", "peak_memory_bytes")


class Job:
    """What ``ranks.json`` says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = json.loads((folder / "ranks.json").read_text())

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
    """Start a Python program once for each rank, on this machine; the exit code of the first rank that failed, or 0."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    common = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = []
    for rank in range(world):
        variables = {name: str(value) for name, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
        quiet = None if rank == 0 else subprocess.DEVNULL
        ranks.append(
            subprocess.Popen([sys.executable, *program], env={**os.environ, **variables}, stdout=quiet, stderr=None)
        )
    return _first_failure(ranks)


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all; end the others some time after one has failed."""
    failed, since = 0, 0.0
    while any(rank.poll() is None for rank in ranks):
        codes = [rank.poll() for rank in ranks]
        if not failed:
            failed = next((code for code in codes if code), 0)
            since = time.monotonic()
        elif time.monotonic() - since > LONGEST_FAREWELL_S:
            for rank in ranks:
                rank.kill()
        time.sleep(0.02)
    return failed or next((rank.returncode for rank in ranks if rank.returncode), 0)


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks say, as one result: a step is as long as on the slowest rank, memory as much as on the fullest.

    ``ranks`` keeps the figures of each.
    """
    if len(results) == 1:
        (alone,) = results
        return {**alone, "coverage": shares([alone.pop("weights")])}
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
    whole["notes"] = list(dict.fromkeys(note for result in results for note in result["notes"]))
    whole["ranks"] = [
        {**{word: result[word] for word in OF_A_RANK}, "coverage": shares([result["weights"]])} for result in results
    ]
    del whole["weights"]
    return whole


def most(values: Sequence[float | None]) -> float | None:
    """The largest of what is known.

    >>> most([1.0, None, 3.0]), most([None])
    (3.0, None)
    """
    known = [value for value in values if value is not None]
    return max(known) if known else None
