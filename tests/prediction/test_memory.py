"""Whether a predicted step fits on its device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretrace.analysis.report import StepReport
from foretrace.errors import ForetraceError
from foretrace.graph import Collective, Graph, Op, OpTable, Storage
from foretrace.platform.device import Device
from foretrace.prediction.memory import (
    COMMUNICATORS,
    CONTEXT,
    FITS,
    TIGHT,
    TOO_LARGE,
    MemoryNeed,
    memory_events,
    rank_memory,
)

GIB = 2**30


def device(gib: float, **more: Any) -> Device:
    return replace(Device.named("h200"), driver_gib=gib, **more)


def step(*storages: Storage, **more: Any) -> Graph:
    ops = [Op("aten::relu", phase="forward") for _ in range(4)]
    return Graph(OpTable.of(ops), storages={one.id: one for one in storages}, **more)


def need(gib: float, *storages: Storage, **more: Any) -> MemoryNeed:
    found = rank_memory(step(*storages, **more), None, device(gib))
    assert found is not None
    return found


WEIGHTS = Storage(0, 8 * GIB, "cuda:0", held=True)


def test_a_step_fits_is_tight_or_does_not_fit() -> None:
    assert [need(gib, WEIGHTS).verdict for gib in (16, 9, 8)] == [FITS, TIGHT, TOO_LARGE]
    missing = need(8, WEIGHTS).margin
    assert missing is not None and missing < 0


def test_what_a_process_takes_is_named_to_the_last_byte() -> None:
    found = need(16, WEIGHTS)
    assert found.reserved is not None and found.margin is not None
    assert sum(found.by_kind.values()) == found.reserved + found.by_kind[CONTEXT] == 16 * GIB - found.margin


def test_each_communicator_has_buffers() -> None:
    talks = [Collective("all_reduce", group, 8, -1, 0, (0, 1)) for group in ("tp", "dp", "dp")]
    found = need(16, WEIGHTS, collectives=talks)
    assert found.by_kind[COMMUNICATORS] == 2 * need(16, WEIGHTS, collectives=talks[:1]).by_kind[COMMUNICATORS]
    assert COMMUNICATORS not in need(16, WEIGHTS).by_kind


def test_what_only_fits_when_cached_memory_is_released_is_tight() -> None:
    grows = [Storage(n + 1, (1 + n) * GIB, "cuda:0", birth=n, death=n + 1) for n in range(4)]
    found = need(14, WEIGHTS, *grows)
    assert found.reserved == 18 * GIB and found.verdict == TIGHT
    assert need(12, WEIGHTS, *grows).verdict == TOO_LARGE


def test_settings_of_the_allocator_decide_what_is_reserved() -> None:
    grows = [Storage(n + 1, (1 + n) * GIB, "cuda:0", birth=n, death=n + 1) for n in range(4)]
    expandable = rank_memory(step(WEIGHTS, *grows), None, device(64, alloc_conf="expandable_segments:True"))
    assert expandable is not None and expandable.reserved is not None
    assert expandable.reserved < 12.1 * GIB < (need(64, WEIGHTS, *grows).reserved or 0)


def test_a_cpu_reserves_nothing_beyond_what_is_allocated() -> None:
    found = rank_memory(step(replace(WEIGHTS, device="cpu")), None, device(16, kind="cpu"))
    assert found is not None and found.reserved is None and found.verdict == FITS


def test_allocations_of_a_step_without_storages_are_refused() -> None:
    with pytest.raises(ForetraceError, match="says nothing about its allocations"):
        memory_events(StepReport())
