"""Calls made alone, with small tensors: the host's time of what no small step happens to call."""

from __future__ import annotations

import random
import time
import warnings
from typing import Any

import torch

from foretrace.cost_models.kernels.families import DRAWN, case_number
from foretrace.graph import ForetraceError, Op
from foretrace.platform.cases import Case
from foretrace.platform.host_measurements import Calls
from foretrace.platform.measure.call import Call
from foretrace.platform.measure.host_profile import launches_of
from foretrace.platform.measure.host_watch import FORWARD, longest_list

LISTS = ("aten::_foreach_", "aten::_fused_")
"""Calls on whole lists of tensors: made as optimizers make them, since the general way unpacks lists slowly."""
MOST = 2**14
"""Elements of the largest tensors: the device must never be what the host waits for."""
DRAWN_CASES = 150
"""Cases looked at in each family."""
OF_A_NAME = 3
"""Cases of one overload that are kept; of calls on lists, whose length matters, four times as many."""


class SingleCalls:
    """One case or a few of every overload that the kernel families draw.

    >>> single = SingleCalls(torch.device("cpu"), ["fills"])
    >>> len(single.timed()) == len(single.calls) > 0
    True
    """

    def __init__(self, device: Any, families: list[str] | None = None) -> None:
        self._device = device
        self._ready: list[Call] = []
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what PyTorch thinks of random shapes is no news
            for case in _cases(device, families or list(DRAWN)):
                self._add(case)
        names = [call.case.op.name for call in self._ready]
        lengths = [longest_list((*call.args, *call.kwargs.values())) for call in self._ready]
        self.calls = Calls(names, [FORWARD] * len(names), [0] * len(names), lengths)

    def _add(self, case: Case) -> None:
        try:
            call = Call(case, self._device)
            if case.op.name.startswith(LISTS):
                call.function = getattr(torch, case.op.name.removeprefix("aten::"), call.function)
            call()
        except (RuntimeError, ValueError, TypeError, IndexError, ForetraceError):
            return  # not on this device, or not in this PyTorch
        self._ready.append(call)

    def launches(self) -> list[int]:
        """How many launches each makes."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return launches_of(self._ready)

    def timed(self) -> list[float]:
        """Make each once, in random order; how long the host took, in the order of `calls`.

        Some wait for the device, and the wait is not the host's: it is drained before each.
        """
        taken = [0.0] * len(self._ready)
        order = random.sample(range(len(self._ready)), len(self._ready))
        clock = time.perf_counter_ns
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for place in order:
                call = self._ready[place]
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                started = clock()
                result = call()
                taken[place] = (clock() - started) / 1e3
                del result
        return taken


def _cases(device: Any, families: list[str]) -> list[Case]:
    kept: list[Case] = []
    seen: dict[tuple[str, str], int] = {}
    for family in families:
        for number in range(DRAWN_CASES):
            case = case_number(family, number, MOST, device.type)
            op: Op = case.op
            most = 4 * OF_A_NAME if op.name.startswith(LISTS) else OF_A_NAME
            count = seen.get((op.name, op.overload), 0)
            if count < most:
                seen[op.name, op.overload] = count + 1
                kept.append(case)
    return kept
