"""Times and memory of a step."""

from __future__ import annotations

import gc
import time

import torch

from foretrace.replay.harness import host, measure


def test_each_step_is_timed_with_the_garbage_collector_off() -> None:
    seen: list[bool] = []

    def step() -> None:
        seen.append(gc.isenabled())
        time.sleep(0.002)

    times = measure.synced_ms(step, 3)
    assert len(times) == 3 and min(times) >= 2.0
    assert len(seen) == 4 and not any(seen) and gc.isenabled()  # one to warm up


def test_steps_in_a_row_are_timed_together() -> None:
    assert measure.back_to_back_ms(lambda: time.sleep(0.002), 3) >= 2.0


def test_memory_is_that_of_storages_while_they_live() -> None:
    given = [torch.zeros(256)]

    def step() -> None:
        made = given[0] + 1
        view = made.view(2, 128)
        del made, view
        torch.zeros(512)

    assert measure.peak_memory(step, given) == 256 * 4 + 512 * 4


def test_memory_of_a_storage_is_as_much_as_it_has_at_the_time() -> None:
    given = [torch.zeros(256)]

    def step() -> None:
        host.resize(given[0], 0)
        torch.zeros(128)
        host.resize(given[0], 1024)

    assert measure.peak_memory(step, given) == 1024
