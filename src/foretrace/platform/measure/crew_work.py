"""What a process of a crew does: plan when it is told to, and measure when it is its turn."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch

from foretrace.platform.cases import Case
from foretrace.platform.measure.calibrate import fill_batch, reference_case
from foretrace.platform.measure.call import Call
from foretrace.platform.measure.timed import REFUSALS, is_fatal, settings, timed
from foretrace.processes import end_with


def work(handle: int, parent: int) -> None:
    """Rounds, as `Crew` of process ``parent`` asks for them through the pipe of this handle, until it is closed."""
    end_with(parent)
    pipe = Connection(handle)
    torch.set_num_threads(1)
    try:
        device = pipe.recv()
        timed([reference_case(device)], device)
        pipe.send(True)
        while True:
            drawn, seconds, memory = pipe.recv()
            cases = plan(drawn, device, seconds, memory)
            pipe.send(len(cases))
            batch = pipe.recv()
            fill_batch(batch, cases, device)
            _release(device)
            pipe.send(batch)
    except (EOFError, BrokenPipeError):
        return  # nobody asks any more
    except RuntimeError as error:
        said = str(error).strip().split("\n")[0]
        print(f"foretrace: one of the processes that measure has failed, the others go on ({said})", file=sys.stderr)


def plan(drawn: Iterable[Case], device: Any, seconds: float, memory: float) -> list[Case]:
    """The cases that could be made once in so many seconds, one at least, with this share of the device's memory.

    What fails here fails again when it is measured, and is kept then.

    >>> from foretrace.platform.measure.calibrate import Drawn
    >>> len(plan(Drawn("fills", 0, 3, 4096, "cpu"), torch.device("cpu"), seconds=60.0, memory=0.1))
    3
    """
    _allow(device, memory)
    until = time.monotonic() + seconds
    cases: list[Case] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in drawn:
            if cases and time.monotonic() > until:
                break
            cases.append(case)
            try:
                with settings(case):
                    Call(case, device)()
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            except REFUSALS as error:
                if is_fatal(error):
                    raise
    _release(device)
    _allow(device, 1.0)
    return cases


def _allow(device: Any, share: float) -> None:
    """Let this process have so much of the device's memory."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)


def _release(device: Any) -> None:
    """Leave the device to the others."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
