"""The measurements that come with the project."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from foretrace.platform.cases import FAMILIES
from foretrace.platform.device import Device
from foretrace.platform.measurements import SUFFIX, read_batches

H200 = Path(__file__).resolve().parents[2] / "measurements" / "h200"


def test_every_family_was_measured_on_the_h200():
    assert {path.name.removesuffix(SUFFIX) for path in H200.glob(f"*{SUFFIX}")} == set(FAMILIES)


@pytest.mark.parametrize("family", ["attention", "losses", "fills"])
def test_they_are_of_that_device_complete_and_repeat_well(family):
    batches = read_batches(H200 / f"{family}{SUFFIX}")
    found = [measurement for batch in batches for measurement in batch.measurements]
    assert {batch.machine["device"] for batch in batches} == {Device.named("h200").matches}
    assert len(found) >= 900 and not any(measurement.error for measurement in found)
    assert all(repeat for measurement in found for repeat in measurement.cold + measurement.warm)
    long = [measurement.spread("warm") for measurement in found if measurement.us("warm") > 20]
    assert statistics.median(long) < 0.02
