"""The recorder inside a training process: uses each step for what the schedule says, writes the rank, and detaches.

It is called at step boundaries and does its work there, between two steps of the job. A failure of its own never ends
the job: it warns, detaches, and the training goes on.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import time
import warnings
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from foretrace.record import folder as files
from foretrace.record.watch.compiled_programs import compilation
from foretrace.record.watch.context import settings
from foretrace.record.watch.indices import IndexWatch
from foretrace.record.watch.profile import (
    ExecutionTrace,
    LightProfile,
    something_is_compiled,
    watching_undoes_compilation,
)
from foretrace.record.watch.schedule import (
    BACK_TO_BACK,
    EXECUTION_TRACE,
    INDICES,
    PROFILE,
    STRUCTURE,
    SYNCED,
    WARM_UP,
    Schedule,
)
from foretrace.record.watch.step_boundaries import install_hooks
from foretrace.record.watch.watch import Watch

WATCHERS: dict[str, Any] = {
    PROFILE: LightProfile,
    EXECUTION_TRACE: ExecutionTrace,
    STRUCTURE: Watch,
    INDICES: IndexWatch,
}
"""The observer of each kind of step; warm-up and timed steps have none."""


class Recorder:
    """Records one rank into ``out/rank-N``.

    Call `step` at the end of each step of the job.
    """

    def __init__(self, out: Path, schedule: Schedule) -> None:
        self.out = out
        self.done = False
        self.failed = ""
        self.schedule = schedule
        self.taken = 0
        """How many steps of the job have ended since the last start."""
        self._plan = schedule.steps
        self._times: dict[str, list[float]] = {}
        self._watcher: AbstractContextManager[Any] | None = None
        self._last = 0.0
        self._work: Path | None = None
        self._groups: dict[str, tuple[int, ...]] = {}
        self._peak: int | None = None
        self._graphs = 0
        """How many graphs had been compiled when the first timed step began."""
        install_hooks()

    def step(self) -> None:
        """Handle a step boundary: a step of the job has ended, and the next one begins."""
        if self.done:
            return
        try:
            self._end_step()
            if self.taken < len(self._plan):
                self._begin_step()
            else:
                self._finish()
        except Exception as error:
            self.abandon(f"{type(error).__name__}: {error}")
            if os.environ.get("FORETRACE_DEBUG"):
                raise

    @property
    def missing_steps(self) -> int:
        """How many more steps of the job it would take to finish."""
        return 0 if self.done else len(self._plan) - self.taken

    def start_over(self) -> None:
        """Begin the schedule again: the steps counted so far were wrong."""
        self.release()
        self._plan, self.taken, self._times = self.schedule.steps, 0, {}

    def abandon(self, why: str) -> None:
        """Stop recording, and warn why."""
        self.done, self.failed = True, why
        self.release()
        with suppress(Warning):  # where warnings are errors
            warnings.warn(f"foretrace could not record this step, training goes on ({why})", stacklevel=3)

    def release(self) -> None:
        """Detach from the job, and remove what was written."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with suppress(Exception):  # its result is discarded
                watcher.__exit__(None, None, None)
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work = None

    def _end_step(self) -> None:
        kind = self._plan[self.taken]
        following = self._plan[self.taken + 1] if self.taken + 1 < len(self._plan) else ""
        if kind == INDICES and PROFILE in self._plan and something_is_compiled():
            self._plan.append(following := EXECUTION_TRACE)
        if kind == following == WARM_UP:
            self.taken += 1
            return
        if kind != BACK_TO_BACK or following != kind:
            _synchronize()
        self._times.setdefault(kind, []).append((time.perf_counter() - self._last) * 1e3)
        if isinstance(self._watcher, LightProfile):
            self._watcher.step_ended()
        if kind != following:
            self._last_of(kind)
        self.taken += 1

    def _last_of(self, kind: str) -> None:
        """The last step of its kind has ended."""
        if kind == WARM_UP:
            self._graphs = compilation().get("graphs", 0)
            if torch.cuda.is_initialized():
                torch.cuda.reset_peak_memory_stats()
        if kind == BACK_TO_BACK and torch.cuda.is_initialized():
            self._peak = torch.cuda.max_memory_allocated()
        if self._watcher is not None:
            watcher, self._watcher = self._watcher, None
            watcher.__exit__(None, None, None)
            self._save(watcher)

    def _begin_step(self) -> None:
        kind = self._plan[self.taken]
        if kind in (STRUCTURE, INDICES) and something_is_compiled() and watching_undoes_compilation():
            raise RuntimeError(f"torch {torch.__version__} can't be watched where something is compiled")
        if self._watcher is None and kind in WATCHERS:
            watcher = WATCHERS[kind]()
            watcher.__enter__()
            self._watcher = watcher
        if isinstance(self._watcher, LightProfile):
            self._watcher.step_begins()
        self._last = time.perf_counter()

    def _save(self, watcher: Any) -> None:
        """Write what a watcher saw into the rank's working folder."""
        if self._work is None:
            self._work = self.out / f".rank-{_rank()}.{os.getpid()}.partial"
            self._work.mkdir()
        if isinstance(watcher, LightProfile):
            watcher.save(self._work / files.PROFILE)
        elif isinstance(watcher, ExecutionTrace):
            watcher.save(self._work / files.EXECUTION_TRACE)
        elif isinstance(watcher, Watch):
            files.write_structure(self._work, watcher.ops, watcher.registry.storages)
            if programs := watcher.programs.lines():
                files.write_programs(self._work, programs)
            self._groups = watcher.communication.groups
        elif isinstance(watcher, IndexWatch):
            files.write_indices(self._work, watcher.seen)
            files.write_contents(self._work, watcher.held)

    def _finish(self) -> None:
        assert self._work is not None
        files.write_rank(self._work, self._facts())
        final = self.out / f"rank-{_rank()}"
        if final.exists():
            raise FileExistsError(f"{final} is there already")
        self._work.replace(final)
        self.done = True

    def _facts(self) -> dict[str, Any]:
        """Contents of ``rank.json``."""
        back_to_back = self._times.get(BACK_TO_BACK, [])
        plain = median(self._times.get(SYNCED) or [0.0])
        profiled = self._times.get(PROFILE, [])[1:]
        compiled = compilation()
        if compiled.get("graphs"):
            compiled["graphs_while_recorded"] = compiled["graphs"] - self._graphs
        return {
            "rank": _rank(),
            "world": _world(),
            "synced_ms": self._times.get(SYNCED, []),
            # Without syncs only the total is meaningful.
            "back_to_back_ms": [sum(back_to_back) / len(back_to_back)] if back_to_back else [],
            "profile_ms": profiled,
            "structure_ms": self._times[STRUCTURE],
            "slowdown": {
                "profile": median(profiled) / plain if plain and profiled else None,
                "structure": self._times[STRUCTURE][0] / plain if plain else None,
            },
            "groups": self._groups,
            # Of a job that runs on the CPU of a machine with a GPU, none.
            "device": torch.cuda.get_device_name() if torch.cuda.is_initialized() else "",
            "settings": settings(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "host": socket.gethostname(),
            "script": Path(sys.argv[0]).name,
            "peak_memory_bytes": self._peak,
            **({"compiled": compiled} if compiled.get("graphs") else {}),
        }


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch._C._cuda_synchronize()  # not the public function: a watch would record it as a call of the step


def _rank() -> int:
    return dist.get_rank() if _distributed() else int(os.environ.get("RANK", "0"))


def _world() -> int:
    return dist.get_world_size() if _distributed() else int(os.environ.get("WORLD_SIZE", "1"))


def _distributed() -> bool:
    return bool(dist.is_available() and dist.is_initialized())
