"""What makes a step fit on its device."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretrace as ft
import gpt
from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.platform.device import Device
from foretrace.prediction.memory import CONTEXT_BYTES, TOO_LARGE
from foretrace.whatif.fitting import changes_that_fit, fullest_need, largest_batch
from tests.transforms.agreement import sketched


def device_of(nbytes: int) -> Device:
    return replace(Device.named("h200"), driver_gib=(nbytes + CONTEXT_BYTES) / 2**30)


def reserved(batch: int) -> int:
    need = fullest_need(Job([sketched(gpt, batch=batch)]), Device.named("h200"))
    assert need is not None and need.reserved is not None
    return need.reserved


def test_the_largest_batch_is_found_whatever_it_is() -> None:
    for limit in (1, 2, 15, 16, 17, 1000):
        assert largest_batch(lambda batch, limit=limit: batch <= limit, 16) == limit  # type: ignore[misc]
    with pytest.raises(ForetraceError, match="not even a batch of one"):
        largest_batch(lambda batch: False, 16)
    with pytest.raises(ForetraceError, match="does not depend on its batch"):
        largest_batch(lambda batch: True, 16)


def test_the_largest_batch_of_a_step_fits_and_the_next_one_does_not() -> None:
    platform = replace(ft.load_platform("h200"), device=device_of(reserved(64)))
    found = ft.what_if(sketched(gpt, batch=8), on=platform, changes=["batch=max"])
    (change,) = found.changes
    batch = int(change.removeprefix("batch="))
    assert 64 <= batch < 80 and found.after.fits
    assert not ft.what_if(sketched(gpt, batch=8), on=platform, batch=batch + 1).after.fits


def test_changes_that_make_a_step_fit_are_named() -> None:
    step = Job([sketched(gpt, batch=64)])
    device = device_of(reserved(64) * 3 // 4)
    need = fullest_need(step, device)
    assert need is not None and need.verdict == TOO_LARGE
    found = changes_that_fit(step, device)
    assert any(text.startswith("--set batch=") and text.endswith("instead of 64") for text in found)
