"""Calibrations that start from the platform of another GPU."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

from foretrace._progress import Progress
from foretrace.cost_models.kernels import fitting as fit
from foretrace.cost_models.kernels.estimators.dataset import dataset_of
from foretrace.cost_models.kernels.families import FAMILIES
from foretrace.cost_models.kernels.fitting import fit_models
from foretrace.cost_models.kernels.model import device_models
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.prior import PriorModels
from foretrace.cost_models.kernels.roofline import EXTRAPOLATED, MODEL
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.platform.prior import Prior, prior_platform
from foretrace.platform.summary import Summary
from foretrace.platform.typed_json import write as dump
from tests.cost_models.made_up import relu, relus, write
from tests.narrowing import present

H200 = Device.named("h200")
SLOWER = 1.25
"""How many times as long each relu takes here as the prior says."""


def _slower(count: int):
    measured = relus(count)
    prior = dataset_of(FAMILIES["elementwise"], measured, H200, PriorModels.of(Prior.of(Platform.named("a100"), H200)))
    assert prior.prior is not None
    for one, (cold, warm, _) in zip(measured, prior.prior):
        one.cold, one.warm = [[("relu", SLOWER * cold)]], [[("relu", SLOWER * warm)]]
    return measured


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A platform whose relus alone were measured, started from the shipped A100."""
    folder = tmp_path_factory.mktemp("mine")
    write(folder / "raw", "elementwise", _slower(80))
    (folder / "models").mkdir()
    prior = Prior.of(Platform.named("a100"), H200)
    index = fit_models(folder / "raw", H200, folder / "models", until=time.monotonic(), prior=prior)
    dump(folder / "models" / "index.json", index)
    h200 = Platform.named("h200")
    return Platform("mine", H200, h200.host, None, folder, h200.about), index


def _priced(platform, *ops):
    return price_kernels(Graph(OpTable.of(ops)), np.arange(len(ops), dtype=np.int32), platform)


def test_what_a_family_misses_is_learned_as_a_difference_to_the_prior(calibrated):
    platform, index = calibrated
    assert index["elementwise"]["kind"] == "difference"
    assert index["elementwise"]["others"]["prior"] == pytest.approx(1 - 1 / SLOWER, rel=0.05)
    sizes = (200_000, 3_000_000)
    prior = PriorModels.of(Prior.of(Platform.named("a100"), H200))
    for size in sizes:
        alone = _priced(
            replace(platform, folder=prior.prior.models.parent, cross_device=prior.prior.scaling), relu(size)
        )
        assert _priced(platform, relu(size)).typical.sum() == pytest.approx(SLOWER * alone.typical.sum(), rel=0.05)


def test_a_family_that_was_not_measured_is_that_of_the_prior_with_its_wider_range(calibrated):
    platform, index = calibrated
    square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    gemm = Op("aten::mm", (square, square), overload="default")
    assert "matrix" not in index
    costs, own = _priced(platform, gemm), _priced(Platform.named("h200"), gemm)
    assert costs.typical.sum() == pytest.approx(own.typical.sum(), rel=0.3)
    assert costs.high.sum() / costs.low.sum() > own.high.sum() / own.low.sum()
    assert set(costs.source.tolist()) == {MODEL}


def test_calls_unlike_the_measured_ones_are_known_where_the_prior_knows_them(calibrated):
    platform, _ = calibrated
    gelu = Op("aten::gelu", (Tensor((3_000_000,), "bfloat16", "cuda:0"),), overload="default")
    assert _priced(platform, gelu).source.tolist() == [MODEL]
    assert _priced(platform, relu(10**11)).source.tolist() == [EXTRAPOLATED]


def test_a_platform_needs_nothing_but_its_folder(calibrated, tmp_path):
    platform, _ = calibrated
    copied = shutil.copytree(platform.folder / "models", tmp_path / "models")
    for ratios in (copied / "prior").glob("ratios-*"):
        assert any(ratios.iterdir())
    elsewhere = replace(platform, folder=tmp_path)
    ops = relu(3_000_000), Op("aten::mm", (Tensor((512, 512), "bfloat16", "cuda:0"),) * 2, overload="default")
    assert _priced(elsewhere, *ops).typical.tolist() == _priced(platform, *ops).typical.tolist()
    scaling = present(device_models(copied).prior).prior.scaling
    while scaling:
        assert scaling.ratios is None or tmp_path in scaling.ratios.parents
        scaling = scaling.base


def test_where_nothing_was_measured_a_platform_is_its_prior_alone(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "models").mkdir()
    assert fit_models(tmp_path / "raw", H200, tmp_path / "models", prior=Prior.of(Platform.named("h100"), H200)) == {}
    h200 = Platform.named("h200")
    costs = _priced(Platform("mine", H200, h200.host, None, tmp_path, h200.about), relu(3_000_000))
    assert costs.typical.sum() == pytest.approx(_priced(h200, relu(3_000_000)).typical.sum(), rel=0.3)


def test_a_family_of_which_too_little_was_measured_is_left_to_the_prior(tmp_path):
    write(tmp_path / "raw", "elementwise", _slower(20))
    (tmp_path / "models").mkdir()
    assert fit_models(tmp_path / "raw", H200, tmp_path / "models", prior=Prior.of(Platform.named("a100"), H200)) == {}
    assert not (tmp_path / "models" / "elementwise.npz").exists()


def test_several_processes_fit_the_same_models(calibrated, tmp_path, monkeypatch):
    platform, index = calibrated
    monkeypatch.setattr(fit, "_processes_for", lambda raw: 2)
    monkeypatch.setattr(fit, "FULL_TIMES", math.inf)
    stages: list[Progress] = []
    found = fit_models(
        platform.folder / "raw", H200, tmp_path, stages.append,
        until=time.monotonic() + 1e6, prior=Prior.of(Platform.named("a100"), H200),
    )  # fmt: skip
    assert found["elementwise"]["others"].keys() >= index["elementwise"]["others"].keys()
    assert stages[0].text == "fitting" and stages[0].of == len(FAMILIES)


def test_families_that_are_not_fitted_in_time_are_left_to_the_prior(calibrated, tmp_path, monkeypatch):
    platform, _ = calibrated
    monkeypatch.setattr(fit, "_processes_for", lambda raw: 2)
    prior = Prior.of(Platform.named("a100"), H200)
    assert fit_models(platform.folder / "raw", H200, tmp_path, until=time.monotonic(), prior=prior) == {}
    assert not list(tmp_path.glob("*.npz")) and (tmp_path / "fallback.json").is_file()


def test_it_is_shown_where_each_family_comes_from(calibrated, tmp_path):
    platform, _ = calibrated
    folder = shutil.copytree(platform.folder, tmp_path / "mine")
    dump(folder / "device.json", asdict(H200))
    dump(folder / "platform.json", asdict(replace(platform.about, name="mine")))
    summary = Summary.named(folder).to_dict()
    assert summary["prior"] == "a100"
    assert summary["families"]["elementwise"]["source"] == "measured, as a difference to a100, scaled"
    assert summary["families"]["matrix"]["source"] == "not measured: a100, scaled"
    assert summary["families"]["matrix"]["gmae"] is None


def test_priors_are_named_or_chosen_by_the_device():
    assert present(prior_platform("auto", H200)).name == "h200"
    assert prior_platform("none", H200) is None
    unknown = replace(Device.named("a10"), name="here", matches="NVIDIA Something")
    chosen = present(prior_platform("auto", unknown))
    assert chosen.name == "here" and chosen.cross_device is not None
    with pytest.raises(ForetraceError, match="no platform is called"):
        prior_platform("h1000", H200)


def test_a_cpu_starts_from_nothing_and_takes_no_gpu_for_a_prior():
    cpu = replace(H200, kind="cpu", name="cpu", matches="some CPU")
    assert prior_platform("auto", cpu) is None
    with pytest.raises(ForetraceError, match="this device is a cpu"):
        prior_platform("h200", cpu)


def test_a_copy_that_names_a_folder_elsewhere_is_refused(tmp_path):
    Prior.of(Platform.named("a100"), H200).write(tmp_path / "prior")
    file = tmp_path / "prior" / "prior.json"
    file.write_text(file.read_text().replace("ratios-1", "../ratios"))
    with pytest.raises(ForetraceError, match="names a folder elsewhere"):
        Prior.read(tmp_path / "prior")
