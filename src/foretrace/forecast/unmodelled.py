"""Kernels that no model knows, as they were recorded: carried over by what both devices are made of.

A trace does not tell the tensors of all that launches: an autograd function's own kernels, a library's, some that were
compiled. And what others' ops do with their tensors nobody knows: a lookup is given a whole table. What was recorded
says more.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.device import FALLBACK, models
from foretrace.cost_models.families.compiled import PYTORCHS
from foretrace.cost_models.percentiles import TENTH
from foretrace.forecast.families import family
from foretrace.forecast.flat import Flat
from foretrace.forecast.work import Work, launched, measured_work
from foretrace.graph import Graph
from foretrace.graph.numbers import distinct
from foretrace.graph.tables import COLLECTIVE, COMPUTE
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform

PRODUCTS = ("matrix product", "convolution", "attention")
"""Families that go by arithmetic; any other goes by memory."""
WORTH_SAYING = 0.15
"""The share of what kernels took from which on it is said that they are left out."""
NAMED = 3
"""How many kernels a note names."""


def guessed_calls(step: Flat, work: Work) -> NDArray[np.int32]:
    """Calls of others' ops that are priced by their tensors alone, and whose kernels were recorded."""
    calls = step.calls
    others = ~calls.ops.names.matching(lambda name: name.startswith(PYTORCHS))[calls.ops.name]
    guessed = np.array(distinct(work.call[work.source == FALLBACK]), np.int32)
    return guessed[others[guessed] & np.isin(guessed, calls.kernels.op[launched(calls) & ~step.loose])]


def unmodelled(step: Flat, work: Work) -> NDArray[np.bool_]:
    """For each recorded kernel, whether no model stands for it: its call has no price, or it was launched in none."""
    kernels = step.calls.kernels
    own = launched(step.calls) & (kernels.kind != COLLECTIVE)
    own[[c.kernel for c in step.calls.collectives if c.kernel >= 0]] = False
    return np.asarray(own & (step.loose | ~np.isin(kernels.op, work.call)), np.bool_)


def carried_over(calls: Graph, which: NDArray[np.bool_], platform: Platform) -> tuple[Work, str]:
    """Recorded kernels on a platform, and what the reader should know of them.

    What it takes to start one stays. The rest changes as the rate of memory does, or that of arithmetic where the
    kernel's name tells of a product; where it is not known which device they ran on, it stays too.
    """
    work, here = measured_work(calls, which), platform.device
    there, fallback = Device.closest(calls.device), models(platform.models).fallback
    slower = np.array([_slower(name, there, here) if there else 1.0 for name in work.name])
    start = np.minimum(work.typical, fallback.start_us)
    us = start + (work.typical - start) * slower
    low, high = us * fallback.low, us * fallback.high
    if there:
        from foretrace.cost_models.carried import doubt  # most steps have nothing to carry over
        from foretrace.platform.carry import Carry

        off = np.exp(TENTH * doubt(slower, Carry.over(there, here)))
        low, high = us / off, us * off
    carried = replace(work, low=low, typical=us, high=high, source=np.full(len(work), FALLBACK, np.int8))
    at = f", at the rates of {platform.name}" if there else ""
    recorded = f"{us.sum() / 1e3:.2f} ms are kernels as they were recorded on {calls.device or 'another device'}{at}"
    return carried, f"{recorded}: no model knows what launched them ({_longest(calls, which)})"


def left_out(calls: Graph, which: NDArray[np.bool_]) -> list[str]:
    """What to say of kernels that nobody prices, where they are worth it."""
    us = calls.kernels.end - calls.kernels.start
    compute = launched(calls) & (calls.kernels.kind == COMPUTE)
    share = us[which & compute].sum() / max(us[compute].sum(), 1e-9)
    if share < WORTH_SAYING:
        return []
    return [
        f"some {100 * round(share, 1):.0f} % of what kernels took where they were recorded is left out: no model knows "
        f"what launched them ({_longest(calls, which)})"
    ]


def _slower(kernel: str, there: Device, here: Device) -> float:
    """How many times as long the work of a kernel takes on one device as on another.

    >>> a100, h200 = Device.named("a100"), Device.named("h200")
    >>> round(_slower("cuApplyLayerNorm", a100, h200), 2), round(_slower("ampere_sgemm_128x64_tn", a100, h200), 2)
    (0.42, 0.29)
    """
    if family(kernel) not in PRODUCTS:
        return there.memory_gbps / here.memory_gbps
    rate = "float32" if "sgemm" in kernel else "float16"
    return there.peak(rate) / here.peak(rate)


def _longest(calls: Graph, which: NDArray[np.bool_]) -> str:
    """Those that took longest, by name."""
    kernels = calls.kernels
    by_code = np.bincount(kernels.name[which], (kernels.end - kernels.start)[which])
    codes = [code for code in np.argsort(-by_code).tolist() if by_code[code]]
    named = dict.fromkeys(_bare(kernels.names[code]) for code in codes)
    more = ", …" if len(named) > NAMED else ""
    return ", ".join(sorted(list(named)[:NAMED])) + more


def _bare(kernel: str) -> str:
    """A kernel's name without what it returns, takes and is made for.

    >>> _bare("void (anonymous namespace)::softmax_warp<c10::Half, 11>(int)")
    'softmax_warp'
    """
    return re.split("[<(]", kernel.replace("(anonymous namespace)::", ""))[0].split()[-1]
