"""From measurements to a platform's files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace._progress import Progress
from foretrace.calibration.device_facts import DeviceFacts
from foretrace.calibration.fitting import fit
from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import Measurement
from tests.cost_models.made_up import write

FACTS = DeviceFacts("cuda", "NVIDIA H200", 132, 1980.0, 3201.0, 141.0, 60.0, {"made": "2026-11-15"})


@pytest.fixture
def raw(tmp_path):
    """Measurements of a device that Foretrace has a description of, in a platform's folder."""
    square = Tensor((1000, 1000), "bfloat16")
    product = Measurement(Case(Op("aten::mm", (square, square))), cold=[[("gemm", 12.0)]], warm=[[("gemm", 10.0)]])
    write(tmp_path / "mine" / "raw", "ceilings", [product])
    FACTS.write(tmp_path / "mine" / "raw")
    return tmp_path / "mine" / "raw"


@pytest.fixture
def asked(monkeypatch):
    """The earlier models that each fit was given; a fit writes one model, and reports progress halfway."""
    seen = []

    def fit_models(raw, device, out, on_progress, before, *_):
        seen.append(before)
        (out / "fills.npz").write_bytes(bytes([len(seen)]))
        on_progress(Progress("half of it"))
        return {"fills": {"gmae": 0.1}}

    monkeypatch.setattr("foretrace.cost_models.kernels.fitting.fit_models", fit_models)
    return seen


def test_a_fit_that_is_stopped_leaves_the_models_as_they_were(raw, asked):
    def stop(progress: Progress) -> None:
        if progress.text == "half of it":
            raise KeyboardInterrupt

    folder = raw.parent
    fit(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(KeyboardInterrupt):
        fit(folder, on_progress=stop)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    fit(folder)
    assert (folder / "models" / "fills.npz").read_bytes() == b"\3"


def test_a_fit_leaves_no_model_of_before(raw, asked):
    (raw.parent / "models").mkdir()
    (raw.parent / "models" / "pooling.npz").write_bytes(b"of another version")
    fit(raw.parent)
    assert sorted(path.name for path in (raw.parent / "models").iterdir()) == ["fills.npz", "index.json"]


def test_models_of_before_are_looked_at_where_they_are_of_the_same_device_and_nobody_wants_all_anew(raw, asked):
    folder = raw.parent
    fit(folder, anew=False)
    fit(folder, anew=False)
    replace(FACTS, kernel_gap_us=1.5).write(raw)  # it is measured each time, and models know nothing of it
    fit(folder, anew=False)
    fit(folder)
    replace(FACTS, matches="NVIDIA H100 80GB HBM3").write(raw)
    fit(folder, anew=False)
    assert asked == [None, folder / "models", folder / "models", None, None]
    assert Device.read(folder / "device.json").name == "h100"


def test_measurements_are_found_in_the_platform_that_keeps_them(raw, asked, tmp_path):
    fit(tmp_path / "other", raw.parent)
    assert Device.read(tmp_path / "other" / "device.json").name == "h200"


def test_nothing_measured_is_nothing_to_fit(tmp_path):
    with pytest.raises(ForetraceError, match="raw holds no measurements"):
        fit(tmp_path)
