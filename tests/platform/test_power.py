"""What a GPU draws, and what its power limit does to a step."""

from __future__ import annotations

import json

import pytest

import foretrace as ft
from foretrace.cost_models.kernels.ratios import linear
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.platform.power import PowerModel, with_power_limit
from tests.cli.conftest import foretrace  # noqa: F401 (a fixture)
from tests.narrowing import present

GEMMS = Graph(OpTable.of([linear(16384, 8192, 8192)] * 8))


def test_a_loop_of_large_gemms_falls_to_what_the_limit_allows():
    report = ft.predict(GEMMS, on="h200")
    assert present(report.power_w) == pytest.approx(690, rel=0.03)
    slower = present(report.sustained_ms) / report.period_ms
    assert slower == pytest.approx(805 / 680, rel=0.08), "as measured"
    watts = present(report.energy_j) / (present(report.sustained_ms) / 1e3)
    assert watts == pytest.approx(present(report.power_w))
    assert present(report.energy_low_j) < present(report.energy_j) < present(report.energy_high_j)


def test_a_step_of_little_arithmetic_keeps_its_clock():
    numbers = Tensor((2**26,), "float32", "cuda:0")
    report = ft.predict(Graph(OpTable.of([Op("aten::add", (numbers, numbers), outputs=(numbers,))] * 20)), on="h200")
    assert report.sustained_ms == report.period_ms and 200 < present(report.power_w) < 600


def test_a_lower_limit_is_a_lower_clock():
    free, limited = ft.predict(GEMMS, on="h100"), ft.predict(GEMMS, on="h100", power_limit=500)
    assert 1.2 * free.step_ms < limited.step_ms < 2 * free.step_ms
    assert present(limited.power_w) < 505 and limited.sustained_ms == limited.period_ms
    assert any("keeps the GPU within 500 W" in note for note in limited.notes)
    assert present(limited.mfu) < present(free.mfu)


@pytest.mark.parametrize("watts", [0, 50, 900, float("nan")])
def test_a_limit_that_is_none_is_refused(watts):
    with pytest.raises(ForetraceError, match="is no power limit of h200"):
        with_power_limit(Platform.named("h200"), watts)


def test_gpus_of_unknown_draw_take_shares_of_their_limit():
    l40s = present(PowerModel.of(Device.named("l40s")))
    assert 50 < l40s.draw.rest_w < 120 and l40s.watts(1.0, 1.0) < 350
    assert PowerModel.of(Device.named("h200")) != PowerModel.of(Device.named("h100"))


def test_the_price_of_a_step_is_that_of_its_time(foretrace, tmp_path):  # noqa: F811
    path = tmp_path / "step.py"
    path.write_text(
        "import torch\n\n\ndef make_step():\n    a = torch.randn(4096, 4096, device='cuda', dtype=torch.bfloat16)\n"
        "    return lambda: a @ a\n"
    )
    ran = foretrace("predict", path, "--on", "h100", "--price", 3600, "--power-limit", 600, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["price_of_1000"] == pytest.approx(found["sustained_ms"], rel=0.01)
    assert "for 1,000 steps" in foretrace("predict", path, "--on", "h100", "--price", 3.6).out
    assert "is no price of a GPU hour" in foretrace("predict", path, "--price", -1).err
    assert "--price is of one prediction" in foretrace("predict", path, "--world", "1,2", "--price", 1).err


def test_bytes_from_the_cache_and_idle_sms_draw_less():
    b200 = present(PowerModel.of(Device.named("b200")))
    assert b200.watts(0.0, 0.0, busy=0.0) < b200.watts(0.0, 0.0) < b200.watts(0.2, 0.5)
    h200 = present(PowerModel.of(Device.named("h200")))
    assert h200.watts(0.1, 0.0, cached=0.4) < h200.watts(0.1, 0.4)


def test_arithmetic_at_half_the_rate_draws_less_than_half():
    draw = present(PowerModel.of(Device.named("h200"))).draw
    assert draw.above_rest(0.4, 0.1, 0.0, 1.0) < draw.above_rest(0.8, 0.2, 0.0, 1.0) / 2


def test_a_device_that_is_set_to_a_lower_limit_is_predicted_within_it():
    free, limited = ft.predict(GEMMS, on="h100"), ft.predict(GEMMS, on="h100-hbm2e")
    assert 1.2 * free.step_ms < limited.step_ms < 2 * free.step_ms
    assert any(note.startswith("the clock falls to ") and note.endswith("within 500 W") for note in limited.notes)


def test_a_gpu_draws_its_power_for_what_the_one_most_like_it_does():
    def model(name: str) -> PowerModel:
        return present(PowerModel.of(Device.named(name)))

    assert model("h100").draw == model("h200").draw, "the same chip, and the same limit"
    assert model("b300").watts(0.1, 0.9) / 1100 == pytest.approx(model("b200").watts(0.1, 0.9) / 1000, rel=0.01)
    assert model("mi300x").draw.rest_w > 100, "like none of them: as they do on average"
