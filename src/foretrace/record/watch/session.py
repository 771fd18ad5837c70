"""Recording in this process: from a step function, around a training loop, or attached to a script from outside.

Imports torch only once something is recorded, so that ``foretrace.step()`` costs nothing in a job nobody records.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.graph import ForetraceError
from foretrace.processes import Claim, Owner, folder_lock, is_abandoned, is_held, owner_of
from foretrace.record import folder as files
from foretrace.record.watch.attach import UNFINISHED
from foretrace.record.watch.compiled_calls import SIGNALS, on_signal, when_outside
from foretrace.record.watch.schedule import SHORTEST, Schedule

if TYPE_CHECKING:
    from foretrace.record.watch.recorder import Recorder

_running: Session | None = None


class Session:
    """One recording in progress in this process."""

    def __init__(self, out: Path, schedule: Schedule, when_done: Callable[[], None] = lambda: None) -> None:
        from foretrace.record.watch.recorder import Recorder
        from foretrace.record.watch.step_boundaries import on_step_end

        self.recorder: Recorder = Recorder(out, schedule)
        self._when_done = when_done
        self._told = False
        self._unhook = on_step_end(self.step, self.recorder.start_over)
        SIGNALS.optimizer = SIGNALS.step = SIGNALS.lost = False
        on_signal["step"] = self._step_told

    def told(self) -> None:
        """The job itself says that a step ended: from now on nothing is learnt from optimizers."""
        when_outside(self._step_told)

    def _step_told(self) -> None:
        if _running is not self:
            return
        if not self._told:
            self._told = True
            self._unhook()
            self.recorder.start_over()
        self.step()

    def step(self) -> None:
        """A step ended."""
        self.recorder.step()
        if self.recorder.done:
            self.close()
            self._when_done()

    def close(self) -> None:
        """Take every hook off the process."""
        global _running
        self._unhook()
        if _running is self:
            _running = None
            on_signal.pop("step", None)


def open_session(out: Path, schedule: Schedule, when_done: Callable[[], None] = lambda: None) -> Session:
    """Begin to record this process."""
    global _running
    _refuse_a_second()
    _running = Session(out, schedule, when_done)
    return _running


def _refuse_a_second() -> None:
    if _running is not None:
        raise ForetraceError("a recording is in progress in this process already", "Let it finish first.")


def step() -> None:
    """Say that a training step ends here. Does nothing where nobody records.

    Only needed where no ``torch.optim`` optimizer marks the end of a step.

    >>> step()
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        SIGNALS.step = True
    elif _running is not None:
        _running.told()


def record(step_fn: Callable[[], Any], out: str | Path, plain: int = 20, profile: int = 3, warmup: int = 5) -> Path:
    """Record a step function: call it as often as the recording needs.

    Parameters
    ----------
    step_fn
        Does one training step.
    out
        Folder of the recording; must not hold one already.
    plain, profile, warmup
        How many steps to time with nothing attached, to profile, and to run before.

    Returns
    -------
    The folder.

    >>> import torch, tempfile
    >>> weight = torch.ones(4, 4, requires_grad=True); optimizer = torch.optim.SGD([weight], lr=0.1)
    >>> def train():
    ...     weight.square().sum().backward(); optimizer.step(); optimizer.zero_grad()
    >>> folder = record(train, tempfile.mkdtemp() + "/r", plain=2, profile=1, warmup=1)
    >>> sorted(path.name for path in folder.iterdir())
    ['job.json', 'rank-0']
    """
    from foretrace.record.watch.recorder import Recorder

    _refuse_a_second()
    schedule = Schedule(warmup, plain, profile)
    place = prepare(out)
    recorder = Recorder(place.parts, schedule)
    try:
        while not recorder.done:
            step_fn()
            recorder.step()
        if recorder.failed:
            raise ForetraceError(f"nothing was recorded: {recorder.failed}", "Set FORETRACE_DEBUG=1 to see where.")
        folder = place.finish({"by": "ft.record"})
        if folder != place.out:
            warnings.warn(f"foretrace: recorded into {folder}: another recording came first", stacklevel=2)
        return folder
    finally:
        recorder.let_go()
        place.leave()


@contextmanager
def recording(out: str | Path, plain: int = 20, profile: int = 3, warmup: int = 5) -> Iterator[Path]:
    """Record the training loop inside: its optimizers, or ``foretrace.step()``, say where steps end.

    Gives the folder. The loop may run longer than the recording needs; if it is shorter, a warning says by how much,
    and the job goes on.

    >>> import torch, tempfile
    >>> weight = torch.ones(4, 4, requires_grad=True); optimizer = torch.optim.SGD([weight], lr=0.1)
    >>> with recording(tempfile.mkdtemp() + "/r", plain=2, profile=1, warmup=1) as folder:
    ...     for _ in range(12):
    ...         weight.square().sum().backward(); optimizer.step(); optimizer.zero_grad()
    >>> (folder / "job.json").exists()
    True
    """
    _refuse_a_second()
    schedule = Schedule(warmup, plain, profile)
    place = prepare(out)
    session = open_session(place.parts, schedule)
    try:
        yield place.out
        session.close()
        if session.recorder.failed:
            return  # it has said so
        if why := why_unfinished(session.recorder):
            _warn(f"nothing was recorded: {why}. {advice_on(session.recorder)}")
            return
        try:
            folder = place.finish({"by": "ft.recording"})
        except OSError as error:
            _warn(f"nothing was recorded: {place.out} can't be written ({error.strerror})")
            return
        if folder != place.out:
            _warn(f"recorded into {folder}: another recording came first")
    finally:
        session.close()
        session.recorder.let_go()
        place.leave()


def _warn(text: str) -> None:
    """Warn the caller of `recording`; its training must not fail by that where warnings are errors."""
    with suppress(Warning):
        warnings.warn(f"foretrace: {text}", stacklevel=5)


def _was_compiled_before() -> bool:
    """Whether steps ended in calls that were compiled before the recorder came."""
    return SIGNALS.lost or SIGNALS.optimizer


def why_unfinished(recorder: Recorder) -> str:
    """Why a recorder has nothing to show; empty where it has."""
    if recorder.failed or recorder.done:
        return recorder.failed
    if _was_compiled_before() and not recorder.taken:
        return "the optimizer's step was compiled before the recording began"
    return f"the job ended {recorder.missing_steps} steps too early"


def advice_on(recorder: Recorder) -> str:
    """What to do so that a job like this one is recorded."""
    from foretrace.record.watch.profile import something_is_compiled

    if recorder.failed:
        return ""
    if _was_compiled_before() and not recorder.taken:
        return "Begin the recording before torch.compile is called, or call foretrace.step() after each step."
    fewer = recorder.schedule.fitting(recorder.taken, something_is_compiled())
    if fewer is not None:
        return f"Train longer, or take fewer steps: {fewer.options}"
    return f"Train longer: {SHORTEST.options} takes {len(SHORTEST.steps) + something_is_compiled()} steps"


@dataclass(frozen=True)
class Unfinished:
    """Why ranks are missing, as the processes that should have recorded them say, and what to do about it."""

    why: str
    advice: str


def note_of(recorder: Recorder) -> str:
    """What a process leaves behind for `unfinished` to read."""
    return json.dumps([why_unfinished(recorder), advice_on(recorder)])


def unfinished(parts: Path) -> Unfinished | None:
    """Why ranks are missing; None where no process says that its recording is not whole."""
    notes: set[tuple[str, str]] = set()
    for note in parts.glob(f"*{UNFINISHED}"):
        with suppress(OSError, ValueError):  # of a process that was killed while it wrote
            why, advice = json.loads(note.read_text())
            notes.add((why, advice))
    advice = next((advice for _, advice in sorted(notes) if advice), "")
    return Unfinished("; ".join(sorted(why for why, _ in notes)), advice) if notes else None


# --- was record.place: Where a recording goes: one job at a time writes there, into a working folder beside it until it is complete.

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
            _refuse_second_job(out, around, me)
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


def _refuse_second_job(out: Path, around: Path, me: Owner) -> None:
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
