"""Recording in this process: a step function, a training loop, or a script that was started by the launcher.

A recording goes to a working folder next to its final one until it is complete, and the working folder names its
process. A second recording into the same folder is refused before its job is started, unless both are parts of one job;
working folders of killed processes are removed.

Imports torch only once something is recorded, so that ``foretrace.step()`` costs nothing in a job that is not recorded.
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
from foretrace.record.watch.compiled_calls import SIGNALS, on_signal, run_outside
from foretrace.record.watch.schedule import SHORTEST, Schedule

if TYPE_CHECKING:
    from foretrace.record.watch.recorder import Recorder

ANOTHER = "Choose another --out, or remove it first."
NODES = ("nnodes", "num-machines")
"""Options of torchrun and accelerate that say on how many machines they are started."""

_running: Session | None = None


class Session:
    """One recording in progress in this process."""

    def __init__(self, out: Path, schedule: Schedule, when_done: Callable[[], None] = lambda: None) -> None:
        from foretrace.record.watch.recorder import Recorder
        from foretrace.record.watch.step_boundaries import on_step_end

        self.recorder: Recorder = Recorder(out, schedule)
        self._when_done = when_done
        self._explicit = False
        self._unhook = on_step_end(self.step, self.recorder.start_over)
        SIGNALS.optimizer = SIGNALS.step = SIGNALS.lost = False
        on_signal["step"] = self._on_explicit_step

    def explicit_step(self) -> None:
        """The job called ``foretrace.step()``: from now on optimizers no longer mark step boundaries."""
        run_outside(self._on_explicit_step)

    def _on_explicit_step(self) -> None:
        if _running is not self:
            return
        if not self._explicit:
            self._explicit = True
            self._unhook()
            self.recorder.start_over()
        self.step()

    def step(self) -> None:
        """Record a step boundary."""
        self.recorder.step()
        if self.recorder.done:
            self.close()
            self._when_done()

    def close(self) -> None:
        """Remove every hook from the process."""
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


EXPLICIT: list[Callable[[], None]] = []
"""Called where a job that is not recorded says with `step` that a step ends: of a sketch."""


def step() -> None:
    """Mark the end of a training step. Does nothing in a job that is neither recorded nor sketched.

    Only needed where no ``torch.optim`` optimizer marks the end of a step.

    >>> step()
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        SIGNALS.step = True
    elif _running is not None:
        _running.explicit_step()
    else:
        for listener in list(EXPLICIT):
            listener()


def record_step(
    step_fn: Callable[[], Any], out: str | Path, plain: int = 20, profile: int = 3, warmup: int = 5
) -> Path:
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
    >>> folder = record_step(train, tempfile.mkdtemp() + "/r", plain=2, profile=1, warmup=1)
    >>> sorted(path.name for path in folder.iterdir())
    ['job.json', 'rank-0']
    """
    from foretrace.record.watch.recorder import Recorder

    _refuse_a_second()
    schedule = Schedule(warmup, plain, profile)
    output = claim_output(out)
    recorder = Recorder(output.parts, schedule)
    try:
        while not recorder.done:
            step_fn()
            recorder.step()
        if recorder.failed:
            raise ForetraceError(f"nothing was recorded: {recorder.failed}", "Set FORETRACE_DEBUG=1 to see where.")
        folder = output.finish({"by": "ft.record"})
        if folder != output.out:
            warnings.warn(f"foretrace: recorded into {folder}: another recording came first", stacklevel=2)
        return folder
    finally:
        recorder.release()
        output.leave()


@contextmanager
def recording(out: str | Path, plain: int = 20, profile: int = 3, warmup: int = 5) -> Iterator[Path]:
    """Record the training loop inside: its optimizers, or ``foretrace.step()``, mark the step boundaries.

    Yields the folder. The loop may run longer than the recording needs; if it is shorter, a warning says by how much,
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
    output = claim_output(out)
    session = open_session(output.parts, schedule)
    try:
        yield output.out
        session.close()
        if session.recorder.failed:
            return  # a warning said so
        if why := why_unfinished(session.recorder):
            _warn(f"nothing was recorded: {why}. {advice_on(session.recorder)}")
            return
        try:
            folder = output.finish({"by": "ft.recording"})
        except OSError as error:
            _warn(f"nothing was recorded: {output.out} can't be written ({error.strerror})")
            return
        if folder != output.out:
            _warn(f"recorded into {folder}: another recording came first")
    finally:
        session.close()
        session.recorder.release()
        output.leave()


def _warn(text: str) -> None:
    """Warn the caller of `recording`; its training must not fail by that where warnings are errors."""
    with suppress(Warning):
        warnings.warn(f"foretrace: {text}", stacklevel=5)


def _was_compiled_before() -> bool:
    """Whether steps ended in calls that were compiled before the recorder came."""
    return SIGNALS.lost or SIGNALS.optimizer


def why_unfinished(recorder: Recorder) -> str:
    """Why a recorder has not finished; empty where it has."""
    if recorder.failed or recorder.done:
        return recorder.failed
    if _was_compiled_before() and not recorder.taken:
        return "the optimizer's step was compiled before the recording began"
    return f"the job ended {recorder.missing_steps} steps before the recording was complete"


def advice_on(recorder: Recorder) -> str:
    """How to get a complete recording of such a job."""
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
    """Why ranks are missing, as reported by their processes, and what to do about it."""

    why: str
    advice: str


def note_of(recorder: Recorder) -> str:
    """The note of a process without a complete recording, which `unfinished` reads."""
    return json.dumps([why_unfinished(recorder), advice_on(recorder)])


def unfinished(parts: Path) -> Unfinished | None:
    """Why ranks are missing; None where no process reports an incomplete recording."""
    notes: set[tuple[str, str]] = set()
    for note in parts.glob(f"*{UNFINISHED}"):
        with suppress(OSError, ValueError):  # of a process that was killed while it wrote
            why, advice = json.loads(note.read_text())
            notes.add((why, advice))
    advice = next((advice for _, advice in sorted(notes) if advice), "")
    return Unfinished("; ".join(sorted(why for why, _ in notes)), advice) if notes else None


@dataclass
class OutputFolder:
    """The folder of a recording, and the working folder next to it that ranks write into."""

    out: Path
    parts: Path
    claim: Claim | None = None

    def finish(self, facts: dict[str, Any]) -> Path:
        """Move the recorded ranks to the final folder, all at once, and return it.

        Ranks of a job, and launchers on several nodes, may share a folder: later ones add their ranks to it. Which one
        is first shows only in renaming, since all may finish at the same moment. Where another recording of the same
        rank came first, this one goes to another folder next to it.
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
        raise AssertionError("there is always another folder name")

    def _places(self) -> Iterator[Path]:
        """The requested folder, then alternatives next to it."""
        yield self.out
        yield from (self.out.with_name(f"{self.out.name}-{number}") for number in count(2))

    def leave(self) -> None:
        """Release the claim, and remove the working folder if it still exists."""
        if self.claim is not None:
            self.claim.release()
        shutil.rmtree(self.parts, ignore_errors=True)


def claim_output(out: str | Path, command: Sequence[str] = ()) -> OutputFolder:
    """Claim the folder of a recording; refuse one that is in use.

    Parameters
    ----------
    out
        Folder of the recording.
    command
        The command that is recorded, if any: one that is started on several nodes shares its folder.
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


def _claimed(out: Path, around: Path, me: Owner) -> OutputFolder:
    """Create and claim a working folder; processes in other containers may have the same process id."""
    numbers = chain([f"{os.getpid()}"], (f"{os.getpid()}-{n}" for n in count(2)))
    parts = next(path for path in (around / f".{out.name}.{number}.partial" for number in numbers) if not path.exists())
    parts.mkdir()
    try:
        return OutputFolder(out, parts, Claim(parts, me))
    except OSError:
        shutil.rmtree(parts, ignore_errors=True)
        raise


def _refuse_second_job(out: Path, around: Path, me: Owner) -> None:
    """Refuse a folder that another job of this machine records into; remove what killed jobs left there.

    Claims of other machines are ignored: a job on several machines is started on each of them.
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
    """The job that this process belongs to, and its rank there; empty for a single process."""
    environ = os.environ
    if environ.get("WORLD_SIZE", "1") != "1" and "RANK" in environ:
        parts = [environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        return f"torch {':'.join(parts)}", environ["RANK"]
    if "SLURM_PROCID" in environ and "SLURM_JOB_ID" in environ:
        return f"slurm {environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}", environ["SLURM_PROCID"]
    if "OMPI_COMM_WORLD_RANK" in environ:
        return f"mpi {environ.get('PMIX_NAMESPACE', os.getppid())}", environ["OMPI_COMM_WORLD_RANK"]
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
