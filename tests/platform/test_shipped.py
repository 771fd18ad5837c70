"""The measurements that come with the project."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from foretrace.cost_models.kernels.families import DRAWN
from foretrace.cost_models.kernels.families.compiled import COMPILED
from foretrace.platform.device import Device
from foretrace.platform.measurements.kernels import SUFFIX, read_batches

H200 = Path(__file__).resolve().parents[2] / "measurements" / "h200"
UNMEASURED: dict[str, str] = {}
"""Families not measured on an H200 yet, each with the reason; their calls are priced by the roofline there."""


def families(folder: Path) -> set[str]:
    """The families that a folder has measurements of, packed or not."""
    return {path.name.partition(".")[0] for path in folder.glob("*.jsonl.*")}


def test_every_family_was_measured_on_the_h200_or_says_why_not():
    assert families(H200) >= set(DRAWN) - UNMEASURED.keys()
    assert not families(H200) & UNMEASURED.keys() and all(UNMEASURED.values())


@pytest.mark.parametrize("family", ["attention", "losses", "fills"])
def test_they_are_of_that_device_complete_and_repeat_well(family):
    batches = read_batches(H200 / f"{family}{SUFFIX}")
    found = [measurement for batch in batches for measurement in batch.measurements]
    assert {batch.machine["device"] for batch in batches} == {Device.named("h200").matches}
    assert len(found) >= 2000 and not any(measurement.error for measurement in found)
    assert all(repeat for measurement in found for repeat in measurement.cold + measurement.warm)
    long = [measurement.spread("warm") for measurement in found if measurement.us("warm") > 20]
    assert statistics.median(long) < 0.02


def test_what_models_are_scored_on_is_kept_apart_and_shares_no_case_with_what_they_are_fitted_to():
    held = H200 / "heldout"
    assert families(held) == {*DRAWN, COMPILED} - UNMEASURED.keys()
    fitted, scored = (
        {str(m.case.op) for batch in read_batches(folder / f"attention{SUFFIX}") for m in batch.measurements}
        for folder in (H200, held)
    )
    assert len(scored) > 500 and not fitted & scored


def test_the_measurements_stay_small_enough_for_the_repository():
    assert sum(path.stat().st_size for path in H200.rglob("*.jsonl.*")) < 20e6
