"""The least recomputation with which a step fits: ``--set checkpoint=auto``, or ``checkpoint=40GiB``.

Blocks of a model may be checkpointed, or not, or with some results kept. Going from the fewest bytes to the least time,
each further choice is the one that spares most time for a byte; how far memory allows that is found by bisection, with
each candidate made and put through the simulated allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.errors import ForetraceError
from foretrace.graph import PHASES, Graph
from foretrace.platform.platform import Platform
from foretrace.prediction.memory import TOO_LARGE
from foretrace.transforms.step import flatten
from foretrace.transforms.structure.kept_results import BETWEEN, KeptResults, kept_results
from foretrace.whatif.changes import EditedJob
from foretrace.whatif.fitting import fullest_need
from foretrace.whatif.grammar import AUTO, BUDGET, JOB_CHANGES, Change

UNITS = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


NOTHING_RECOMPUTED = "the step fits without recomputation: no block is checkpointed"


class _Step(NamedTuple):
    """From one choice for a block to the next one, which keeps more."""

    spared: float
    """Time for each byte."""
    block: int
    """Its place, negative: the last blocks come first, since they hold what they keep for the shortest time."""
    choice: int


def is_budget(change: Change) -> bool:
    """Whether a change asks for the least recomputation that fits.

    >>> is_budget(Change("checkpoint", "40GiB")), is_budget(Change("checkpoint", "1/2"))
    (True, False)
    """
    return change.name == "checkpoint" and BUDGET.fullmatch(change.value) is not None


def with_least_recomputation(edited: EditedJob, changes: Sequence[Change], platform: Platform) -> list[Change]:
    """The changes with the checkpointing that fits in the place of ``checkpoint=auto`` or of a budget."""
    place = next(n for n, one in enumerate(changes) if is_budget(one))
    before, after = list(changes[:place]), list(changes[place + 1 :])
    budget = budget_bytes(changes[place].value)

    def fits(texts: Sequence[str]) -> bool:
        job = edited.by([*before, *(Change("checkpoint", text) for text in texts), *after])
        need = fullest_need(job, platform.device)
        if need is None:
            raise ForetraceError("the step says nothing about memory", "Record or sketch it: traces may not have it.")
        if budget is None:
            return need.verdict != TOO_LARGE
        least.append(need.reserved or need.allocated)
        return least[-1] <= budget

    least: list[int] = []
    step = edited.by([change for change in before if change.name not in JOB_CHANGES]).graphs[0]
    found = least_recomputation(step, platform, fits)
    if found is None:
        needs = f": it reserves {min(least) / 2**30:.2f} GiB" if least else ""
        raise ForetraceError(
            f"the step does not fit even if all blocks are recomputed{needs}",
            "Take a smaller batch (batch=max finds the largest), or share the step between ranks.",
        )
    return [*before, *(Change("checkpoint", text) for text in found), *after]


def budget_bytes(text: str) -> int | None:
    """The bytes of a budget; None for ``auto``, the device's memory.

    >>> budget_bytes("1.5GiB"), budget_bytes("auto")
    (1610612736, None)
    """
    if text == AUTO:
        return None
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return round(float(text.removesuffix(unit)) * UNITS[unit])


def least_recomputation(graph: Graph, platform: Platform, fits: Callable[[Sequence[str]], bool]) -> list[str] | None:
    """Values of ``checkpoint`` with which a step fits and takes least time: none where nothing need be recomputed.

    None instead of a list where it fits with none.
    """
    choices = kept_results(flatten(graph), forward_us(graph, platform))
    if not choices:
        raise ForetraceError(f"{graph.title} has no repeated blocks", "Record it, or sketch it.")
    steps = sorted(
        (
            _Step((one.us - other.us) / max(other.nbytes - one.nbytes, 1), -place, number)
            for place, found in enumerate(choices.values())
            for number, (one, other) in enumerate(pairwise(found), start=1)
        ),
        key=lambda step: (-step.spared, step.block, step.choice),
    )

    def texts(count: int) -> list[str]:
        chosen = [0] * len(choices)
        for step in steps[:count]:
            chosen[-step.block] = step.choice
        return list(_texts([found[number] for number, found in zip(chosen, choices.values())]))

    low, high = 0, len(steps) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(texts(middle)) else (low, middle)
    return texts(low) if low or fits(texts(0)) else None


def forward_us(graph: Graph, platform: Platform) -> list[float]:
    """Device time of each of a step's calls in its forward; 0 for others."""
    flat = flatten(graph)
    rows = np.flatnonzero(flat.ops.phase == PHASES.index("forward")).astype(np.int32)
    costs = price_kernels(flat, rows, platform)
    return list(np.bincount(costs.op, costs.typical, len(flat.ops)).tolist())


def _texts(chosen: Sequence[KeptResults]) -> Iterator[str]:
    """Values of ``checkpoint`` that say what is kept of each block."""
    numbered = enumerate(chosen)
    for names, run in groupby(numbered, key=lambda one: one[1].names):
        numbers = [number for number, _ in run]
        if names is not None:
            yield f"{numbers[0]}-{numbers[-1]}" + (f":{BETWEEN.join(names)}" if names else "")
