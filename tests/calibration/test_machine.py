"""Calibrating for real, on the CPU, for seconds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import foretrace as ft
from foretrace._progress import Progress
from foretrace.calibration import machine as calibrating
from foretrace.calibration.host import steps as host_steps
from foretrace.calibration.machine import calibrate, exclusive, shares_by_error
from foretrace.calibration.timing import kernels as measuring
from foretrace.calibration.timing.kernels import MeasuredFamily
from foretrace.calibration.timing.timer import HostTimer
from foretrace.cost_models.kernels.families import DRAWN
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.platform.device import Device
from foretrace.platform.measurements.kernels import read_batches
from foretrace.platform.platform import Platform, read_about
from foretrace.platform.summary import Summary
from tests.machines import host

FILLS: dict[str, Any] = {"parts": ("device",), "on": "cpu", "families": ["fills"]}


@pytest.fixture
def small(monkeypatch):
    """Small batches of small cases, no wait for the cache, and no fit."""
    fitted = []

    def fit_models(raw, device, out, *_):
        out.mkdir(exist_ok=True)
        fitted.append(device)
        return {family: {"gmae": 0.05} for family in DRAWN}

    monkeypatch.setattr(measuring, "BATCH", 4)
    monkeypatch.setattr(calibrating, "SPOILT", math.inf)  # these machines are busy
    monkeypatch.setattr(measuring, "MAX_ELEMENTS", {"cpu": 2**12})
    monkeypatch.setattr(HostTimer, "flush_cache", lambda clock: None)
    monkeypatch.setattr("foretrace.cost_models.kernels.fitting.fit_models", fit_models)
    return fitted


def test_a_device_is_measured_described_and_fitted(tmp_path, small):
    stages: list[Progress] = []
    outcome = calibrate(tmp_path / "mine", minutes=0.01, on_progress=stages.append, **FILLS)
    assert [(done.family, done.cases > 0) for done in outcome.families] == [("fills", True)]
    assert read_batches(tmp_path / "mine" / "raw" / "fills.jsonl.gz")
    assert read_about(tmp_path / "mine").name == "mine"
    assert Device.read(tmp_path / "mine" / "device.json") == small[0]
    assert stages[0].text == "warming up" and stages[-1].text == "fitting the device"
    assert any(stage.text.startswith("fills: ") and stage.of > 0 for stage in stages)


def test_a_cpu_has_no_prior_and_no_platform_before_it_is_measured(tmp_path, small):
    calibrate(tmp_path / "mine", minutes=0.01, prior="auto", **FILLS)
    assert len(small) == 1, "fitted once, when all was measured"
    assert not (tmp_path / "mine" / "host.json").exists()


def test_begun_again_it_goes_on(tmp_path, small):
    for _ in range(2):
        calibrate(tmp_path, minutes=0.005, **FILLS)
    batches = read_batches(tmp_path / "raw" / "fills.jsonl.gz")
    assert [batch.first for batch in batches] == [4 * n for n in range(len(batches))] and len(batches) > 1


def test_after_a_round_the_time_goes_where_the_errors_are(tmp_path, small, monkeypatch):
    seen = []

    def measure(raw, device, minutes, families, on_progress, shares, workers):
        assert not workers.ready, "on a CPU nothing is planned"
        seen.append((round(60 * minutes), shares))
        return [MeasuredFamily("matrix", cases=3, references=[1.0])]

    monkeypatch.setattr(measuring, "measure_families", measure)
    monkeypatch.setattr(calibrating, "ROUND_SECONDS", 4.0)
    monkeypatch.setattr(calibrating, "held_out_errors", lambda *_: {"matrix": 0.09, "fills": 0.01})
    outcome = calibrate(tmp_path, ("device",), minutes=0.2, on="cpu")
    assert [seconds for seconds, _ in seen] == [4, 6, 12], "a round that did not use its time leaves it to the next"
    assert seen[0][1] == calibrating.FIRST_SHARES
    assert seen[1][1] == seen[2][1] == shares_by_error({"matrix": 0.09, "fills": 0.01})
    assert [(done.family, done.cases) for done in outcome.families] == [("matrix", 9)]


@pytest.fixture
def gpu(small, monkeypatch):
    """A GPU with Triton, as far as sharing the time goes: what would be measured, and for how many seconds."""
    asked: list[tuple[object, int]] = []

    def measure_compiled(raw, device, minutes, on_progress):
        asked.append(("compiled", round(60 * minutes)))
        return MeasuredFamily("compiled")

    def measure(raw, device, minutes, families, on_progress, shares, workers):
        asked.append((len(families), round(60 * minutes)))
        return []

    monkeypatch.setattr("foretrace.calibration.timing.compiled_kernels.can_compile", lambda device: True)
    monkeypatch.setattr("foretrace.calibration.timing.compiled_kernels.measure_compiled", measure_compiled)
    monkeypatch.setattr(measuring, "measure_families", measure)
    monkeypatch.setattr(calibrating, "can_fit", lambda: False)
    return asked


@pytest.mark.parametrize(
    ("minutes", "families", "expected"),
    [
        (100, (), [(len(DRAWN), 5700), ("compiled", 300)]),
        (10, (), [(len(DRAWN), 600)]),
        (10, ("fills",), [(1, 600)]),
        (1, ("fills", "compiled"), [(1, 57), ("compiled", 3)]),
        (1, ("compiled",), [("compiled", 60)]),
    ],
)
def test_compiled_kernels_get_a_small_part_of_a_long_time(tmp_path, gpu, minutes, families, expected):
    calibrate(tmp_path, ("device",), minutes, on="cpu", families=families)
    assert gpu == expected


def test_compiled_kernels_need_a_gpu(tmp_path, small):
    with pytest.raises(ForetraceError, match="compiled kernels are measured on a GPU"):
        calibrate(tmp_path, ("device",), 0.01, on="cpu", families=["compiled"])


def test_processes_are_started_for_families_that_are_planned_and_for_their_part_of_the_time(
    tmp_path, small, monkeypatch
):
    seconds = []
    monkeypatch.setattr(
        "foretrace.calibration.timing.workers.workers_for", lambda device, part: seconds.append(part) or 0
    )
    for family in ("convolutions", "fills"):
        calibrate(tmp_path / family, ("device",), 0.005, on="cpu", families=[family])
    assert seconds == [pytest.approx(0.3), 0.0]


def test_families_with_larger_errors_get_more_and_those_that_could_not_be_fitted_most():
    errors = {name: 0.1 if name == "sorting" else 0.02 for name in DRAWN if name != "pooling"}
    shares = shares_by_error(errors)
    parts = {name: share / DRAWN[name].share for name, share in shares.items()}
    assert parts["sorting"] == pytest.approx(5 * parts["matrix"])
    assert parts["pooling"] > 2 * parts["matrix"]
    assert set(shares_by_error({})) == set(DRAWN)


def test_exactly_the_calls_of_a_step_are_measured(tmp_path, small):
    x = Tensor((16, 16), "float32", "cpu")
    ops = [Op(name, (x,), overload="default") for name in ("aten::relu", "aten::tanh", "aten::relu")]
    outcome = calibrate(tmp_path, ("device",), 0.05, on="cpu", like=Graph(OpTable.of(ops)))
    assert [(done.family, done.cases) for done in outcome.families] == [("exact", 2)]
    (batch,) = read_batches(tmp_path / "raw" / "exact.jsonl.gz")
    assert [found.case.op.name for found in batch.measurements] == ["aten::relu", "aten::tanh"]


def test_calls_that_can_t_be_made_are_counted_and_the_first_is_named(tmp_path, small):
    ops = [Op("aten::cat", ([Tensor((2,), "")] * 2, 0)), Op("aten::relu", (Tensor((8,), "float32"),))]
    outcome = calibrate(tmp_path, ("device",), 0.01, "cpu", like=Graph(OpTable.of(ops)))
    said = next(note for note in outcome.notes if "can't be made" in note)
    assert said.startswith("calls that can't be made here: 1, as aten::cat: a tensor of no known dtype")


def test_a_step_that_does_not_fit_into_memory_is_measured_as_far_as_it_does(tmp_path, small):
    made = [Tensor((numel,), "float32", "cpu", id=numel, storage=numel) for numel in (10**14, 8)]
    ops = [Op("aten::ones", ([tensor.numel],), {}, (tensor,), "default") for tensor in made]
    outcome = calibrate(tmp_path, ("device",), 0.02, "cpu", like=Graph(OpTable.of(ops)))
    assert "calls are timed one by one: out of memory" in outcome.notes
    assert "calls that can't be made here: 1, as aten::ones: out of memory" in outcome.notes
    assert [(done.family, done.cases) for done in outcome.families] == [("exact", 1)]


def test_without_lightgbm_it_measures_and_says_how_to_fit_later(tmp_path, small, monkeypatch):
    monkeypatch.setattr("foretrace.calibration.fitting.can_fit", lambda: False)
    outcome = calibrate(tmp_path, minutes=0.005, **FILLS)
    assert "pip install 'foretrace[fit]'" in outcome.notes[-1]
    assert f"`foretrace calibrate fit --out {tmp_path}`" in outcome.notes[-1]
    assert not small and Device.read(tmp_path / "device.json").kind == "cpu"


def test_families_that_had_no_turn_are_named(tmp_path, small, monkeypatch):
    some = [
        MeasuredFamily("matrix", cases=3),
        MeasuredFamily("fills"),
        MeasuredFamily("joins"),
    ]
    monkeypatch.setattr(measuring, "measure_families", lambda *_, **__: some)
    outcome = calibrate(tmp_path, ("device",), 0.01, on="cpu")
    assert "there was no time for fills, joins: measure longer" in outcome.notes


def test_a_device_that_slows_down_is_said_so(tmp_path, small, monkeypatch):
    slow = [MeasuredFamily("matrix", cases=2, references=[100.0, 150.0])]
    monkeypatch.setattr(measuring, "measure_families", lambda *_, **__: slow)
    outcome = calibrate(tmp_path, ("device",), 0.01, on="cpu")
    assert "busy or throttled: the reference GEMM took up to 1.5 times as long" in outcome.notes[0]


def test_what_other_load_has_spoilt_is_not_kept(tmp_path, small, monkeypatch):
    calibrate(tmp_path / "mine", minutes=0.005, **FILLS)
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    monkeypatch.setattr(calibrating, "SPOILT", -1.0)
    monkeypatch.setattr(measuring, "typical_drift", lambda families: 225.0)
    for folder in (tmp_path / "mine", tmp_path / "new"):
        with pytest.raises(ForetraceError, match=r"busy or throttled: .* is kept\. Run the same command"):
            calibrate(folder, minutes=0.005, **FILLS)
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == before
    assert not any(path.is_file() for path in (tmp_path / "new").rglob("*"))


def test_a_step_whose_calls_take_longer_at_one_time_than_at_another_is_said_so(tmp_path, small, monkeypatch):
    x = Tensor((16, 16), "float32", "cpu")
    monkeypatch.setattr(calibrating, "NOISY_REPEATS", -1.0)
    relu = Graph(OpTable.of([Op("aten::relu", (x,), overload="default")]))
    notes = calibrate(tmp_path, ("device",), 0.02, on="cpu", like=relu).notes
    assert any(
        "busy or throttled: repeats of a call lie" in note and note.endswith("or give another --out") for note in notes
    )


def test_a_gpu_that_is_busy_is_said_so(tmp_path, small, monkeypatch):
    monkeypatch.setattr("foretrace.calibration.timing.device.health_problems", lambda device: ["the device is busy"])
    assert calibrate(tmp_path, minutes=0.005, **FILLS).notes[0] == "the device is busy"


def test_a_family_with_too_few_measurements_is_named(tmp_path, small, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.setattr("foretrace.cost_models.kernels.fitting.fit_models", lambda *_: {})
    assert (
        calibrate(tmp_path, minutes=0.005, **FILLS).notes[-1] == "too little was measured to fit fills: measure longer"
    )


def test_the_host_at_hand_is_measured_for_real(monkeypatch):
    steps = dict(list(host_steps.STEPS.items())[:2])
    monkeypatch.setattr("foretrace.calibration.host.measure.STEPS", steps)
    here = ft.calibrate_host(seconds=0, on="cpu")
    assert here.name == "this host" and here.calls["aten::addmm"].to_launch > 0


@pytest.mark.parametrize("name", ["nonsense", "mps:0"])
def test_a_device_that_is_not_there_is_said_so(tmp_path, name):
    with pytest.raises(ForetraceError, match=name):
        calibrate(tmp_path, ("device",), on=name)


def test_what_is_measured_for_seconds_is_fitted_for_real(tmp_path, monkeypatch):
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(measuring, "MAX_ELEMENTS", {"cpu": 2**12})
    monkeypatch.setattr(HostTimer, "flush_cache", lambda clock: None)
    outcome = calibrate(tmp_path / "mine", ("device",), minutes=0.03, on="cpu", families=["fills"])
    assert outcome.families[0].cases > 40 and not any("too little" in note for note in outcome.notes)
    host().write(tmp_path / "mine" / "host.json")
    platform = Platform.read(tmp_path / "mine")
    assert platform.device.kind == "cpu" and (platform.models / "fills.npz").exists()
    assert Summary.named(tmp_path / "mine").to_dict()["families"]["fills"]["gmae"] > 0


def test_a_call_that_does_nothing_is_not_measured_but_tells_what_ids_a_later_one_is_given(tmp_path: Path) -> None:
    ids, rows = Tensor((1, 64), "int64", "cpu", id=0, storage=0), Tensor((64, 8), "float32", "cpu", id=1, storage=1)
    table = Tensor((1000, 8), "float32", "cpu", id=2, storage=2)
    gradient = Tensor((1000, 8), "float32", "cpu", id=3, storage=-1, layout="sparse_coo")
    ops = [
        Op("aten::_sparse_coo_tensor_unsafe", (ids, rows, [1000, 8]), outputs=(gradient,), overload="default"),
        Op("aten::add_", (table, gradient), {"alpha": -0.1}, (table,), "Tensor", phase="optimizer"),
    ]
    outcome = calibrating.Outcome()
    calibrating.measure_step_calls(tmp_path, "cpu", 1.0, Graph(OpTable.of(ops)), outcome, lambda stage: None)
    (batch,) = read_batches(tmp_path / "exact.jsonl.gz")
    (found,) = batch.measurements
    assert (found.case.op.name, found.error) == ("aten::add_", "")
    assert found.case.ids is not None and found.case.ids.count == 64


def test_a_second_calibration_in_the_same_folder_is_refused_and_another_folder_is_not(tmp_path):
    with exclusive(tmp_path / "mine"), exclusive(tmp_path / "other"):
        with pytest.raises(ForetraceError, match="another calibration is at work in"):
            calibrate(tmp_path / "mine", ("device",), 0.0, "cpu")
        assert not list((tmp_path / "mine").iterdir())
    with exclusive(tmp_path / "mine"):
        pass
