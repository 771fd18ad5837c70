from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from foretrace.cost_models.kernels.fitting import quick_errors
from foretrace.platform.device import Device

H200 = Path(__file__).resolve().parents[2] / "measurements" / "h200"


def test_a_glance_tells_an_easy_family_from_a_hard_one(tmp_path):
    pytest.importorskip("lightgbm")
    for family in ("fills", "attention"):
        (measured,) = H200.glob(f"{family}.jsonl.*")
        shutil.copy(measured, tmp_path)
    errors = quick_errors(tmp_path, Device.named("h200"))
    assert set(errors) == {"fills", "attention"}
    assert 0 < errors["fills"] < errors["attention"] < 1
