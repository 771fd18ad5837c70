"""Recording in this process: from a step function, around a training loop, or attached to a script from outside.

Imports torch only once something is recorded, so that ``foretrace.step()`` costs nothing in a job nobody records.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.graph import ForetraceError
from foretrace.record.attach import UNFINISHED
from foretrace.record.outside import SIGNALS, on_signal, when_outside
from foretrace.record.place import prepare
from foretrace.record.schedule import SHORTEST, Schedule

if TYPE_CHECKING:
    from foretrace.record.recorder import Recorder

_running: Session | None = None


class Session:
    """One recording in progress in this process."""

    def __init__(self, out: Path, schedule: Schedule, when_done: Callable[[], None] = lambda: None) -> None:
        from foretrace.record.boundaries import on_step_end
        from foretrace.record.recorder import Recorder

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
    from foretrace.record.recorder import Recorder

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
    from foretrace.record.compiled import something_is_compiled

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
