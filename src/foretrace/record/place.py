"""Where a recording goes: one job at a time writes there, into a working folder beside it until it is complete.

The working folder names its process. A second recording into the same place is refused before its job is started,
unless both are parts of one job; working folders of processes that were killed are removed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from foretrace.graph import ForetraceError
from foretrace.processes import Claim, Owner, folder_lock, is_abandoned, is_held, owner_of
from foretrace.record import folder as files

ANOTHER = "Choose another --out, or remove it first."
NODES = ("nnodes", "num-machines")
"""Options of torchrun and accelerate that say on how many machines they are started."""


@dataclass
class Place:
    """The folder of a recording to be, and the working folder beside it that ranks write into."""

    out: Path
    parts: Path
    claim: Claim | None = None

    def finish(self, facts: dict[str, Any]) -> Path:
        """Put the ranks that were recorded in their place, all at once, and say where that is.

        Ranks of a job, and launchers on several nodes, may share a place: whoever comes later adds its ranks to what
        is there. Who that is shows only in moving: they may all come at the same moment. Where another recording of
        the same rank came first, this one goes to a folder of its own beside it.
        """
        ranks = sorted(self.parts.glob("rank-*"))
        for other in set(self.parts.iterdir()) - set(ranks):
            shutil.rmtree(other) if other.is_dir() else other.unlink()
        files.write_job(self.parts, {"world": max(files.read_rank(path).world for path in ranks), **facts})
        for out in self._places():
            try:
                self.parts.replace(out)
                return out
            except OSError:
                if not out.is_dir():
                    raise
            if not any((out / rank.name).exists() for rank in ranks):
                for part in [*ranks, self.parts / files.JOB]:
                    part.replace(out / part.name)
                return out
        raise AssertionError("there is always another name")

    def _places(self) -> Iterator[Path]:
        """The folder that was asked for, then others beside it."""
        yield self.out
        yield from (self.out.with_name(f"{self.out.name}-{number}") for number in count(2))

    def leave(self) -> None:
        """Remove the working folder, where it is still there."""
        if self.claim is not None:
            self.claim.release()
        shutil.rmtree(self.parts, ignore_errors=True)


def prepare(out: str | Path, command: Sequence[str] = ()) -> Place:
    """Claim the place of a recording; refuse one that is taken.

    Parameters
    ----------
    out
        The folder to be.
    command
        What is recorded, where that is a command: one that is started on several nodes shares its place.
    """
    out = Path(out)
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ForetraceError(f"{out} is there already", ANOTHER)
    except OSError as error:
        raise ForetraceError(f"{out} can't be looked at ({error.strerror})", "Choose another --out.") from None
    around, me = out.absolute().parent, Owner.here(*_job(command))
    try:
        around.mkdir(parents=True, exist_ok=True)
        with folder_lock(around):
            _refuse_a_second(out, around, me)
            return _claimed(out, around, me)
    except OSError as error:
        raise ForetraceError(f"{out} can't be written ({error.strerror})", "Choose another --out.") from None


def _claimed(out: Path, around: Path, me: Owner) -> Place:
    """The place with a working folder of this process: in other containers processes may have the same number."""
    numbers = chain([f"{os.getpid()}"], (f"{os.getpid()}-{n}" for n in count(2)))
    parts = next(path for path in (around / f".{out.name}.{number}.partial" for number in numbers) if not path.exists())
    parts.mkdir()
    try:
        return Place(out, parts, Claim(parts, me))
    except OSError:
        shutil.rmtree(parts, ignore_errors=True)
        raise


def _refuse_a_second(out: Path, around: Path, me: Owner) -> None:
    """Refuse a place that another job of this machine records into, and remove what killed ones left there.

    A job on several machines is started on each of them: of those this one knows nothing.
    """
    ours = re.compile(re.escape(f".{out.name}.") + r"\d+(-\d+)?\.partial")
    for folder in [path for path in around.iterdir() if ours.fullmatch(path.name)]:
        other = owner_of(folder)
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
        elif other and other.host == me.host and is_held(folder) and not me.shares_with(other):
            raise ForetraceError(
                f"another recording into {out} is in progress (process {other.pid})",
                "Choose another --out, or wait until it is done.",
            )


def _job(command: Sequence[str] = ()) -> tuple[str, str]:
    """The job that this process is a part of, and which part; empty where it is alone."""
    told = os.environ
    if told.get("WORLD_SIZE", "1") != "1" and "RANK" in told:
        parts = [told.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        return f"torch {':'.join(parts)}", told["RANK"]
    if "SLURM_PROCID" in told and "SLURM_JOB_ID" in told:
        return f"slurm {told['SLURM_JOB_ID']}.{told.get('SLURM_STEP_ID', '')}", told["SLURM_PROCID"]
    if "OMPI_COMM_WORLD_RANK" in told:
        return f"mpi {told.get('PMIX_NAMESPACE', os.getppid())}", told["OMPI_COMM_WORLD_RANK"]
    processes = sys.modules.get("multiprocessing")
    if processes is not None and processes.parent_process() is not None:  # ranks that a script starts itself
        return f"processes of {os.getppid()}", str(os.getpid())
    return ("nodes", str(os.getpid())) if _on_several_nodes(command) else ("", "")


def _on_several_nodes(command: Sequence[str]) -> bool:
    """Whether a command is started once on each of several machines.

    >>> _on_several_nodes(["torchrun", "--nnodes=2", "train.py"]), _on_several_nodes(["torchrun", "--nnodes", "1"])
    (True, False)
    """
    for argument, following in zip(command, [*command[1:], ""]):
        name, _, value = argument.lstrip("-").replace("_", "-").partition("=")
        if argument.startswith("-") and name in NODES and (value or following) != "1":
            return True
    return False
