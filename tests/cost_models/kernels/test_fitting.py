from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace.cost_models.kernels import fitting as fit
from foretrace.cost_models.kernels.estimators.dataset import dataset_of
from foretrace.cost_models.kernels.estimators.net_training import EFFORTS
from foretrace.cost_models.kernels.families import FAMILIES
from foretrace.cost_models.kernels.families.compiled import Compiled
from foretrace.cost_models.kernels.fitting import estimated_errors, fit_family, fit_models
from foretrace.cost_models.kernels.model import FamilyModel, device_models
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.roofline import EXTRAPOLATED, FALLBACK, MEASURED, MODEL
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import Measurement
from foretrace.platform.platform import Platform
from foretrace.platform.typed_json import write as dump
from tests.cost_models.made_up import relu, relu_us, relus, write

H200 = Device.named("h200")


@pytest.fixture(scope="module", autouse=True)
def quick():
    """A few small trees and few updates of nets: what is fitted here follows a simple rule."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "FOREST_SIZES", {0: (100, 15)})
        for purpose, effort in EFFORTS["cpu"].items():
            patch.setitem(EFFORTS["cpu"], purpose, replace(effort, steps=40))
        yield


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder of models, fitted on relus alone, and one call that was measured exactly."""
    folder = tmp_path_factory.mktemp("platform")
    write(folder / "raw", "elementwise", relus())
    exact = Measurement(Case(Op("aten::erfinv", (Tensor((64,), "float32"),), overload="default")))
    exact.cold, exact.warm = [[("k", 9.0), ("l", 1.0)]], [[("k", 5.0), ("l", 1.0)]]
    write(folder / "raw", "exact", [exact])
    (folder / "models").mkdir()
    index = fit_models(folder / "raw", H200, folder / "models")
    return folder, index


@pytest.fixture(scope="module")
def platform(fitted):
    folder, _ = fitted
    h200 = Platform.named("h200")
    return Platform("made up", H200, h200.host, None, folder, h200.about)


def _priced(platform, *ops):
    return price_kernels(Graph(OpTable.of(ops)), np.arange(len(ops), dtype=np.int32), platform)


def test_families_that_were_measured_are_fitted_and_the_best_kind_wins(fitted):
    folder, index = fitted
    assert list(index) == ["elementwise"]
    best = index["elementwise"]
    assert best["measurements"] == 200
    assert best["gmae"] <= min(best["others"].values())
    assert best["gmae"] < 0.01  # the rule is a roofline's own
    assert sorted(path.name for path in (folder / "models").iterdir()) == [
        "elementwise.npz", "exact.json.gz", "fallback.json"]  # fmt: skip


def test_too_few_measurements_make_no_model():
    assert fit_family(FAMILIES["elementwise"], dataset_of(FAMILIES["elementwise"], relus(10), H200)) is None


def test_a_call_between_those_measured_is_met(platform):
    costs = _priced(platform, relu(3_000_000))
    assert costs.source.tolist() == [MODEL]
    assert costs.name == ["vectorized_elementwise_kernel"]
    cold, warm = relu_us(3_000_000), 0.8 * relu_us(3_000_000)
    assert 0.97 * warm < costs.typical[0] < 1.03 * cold
    assert costs.low[0] <= costs.typical[0] <= costs.high[0]


def test_what_was_just_written_is_read_faster(platform):
    made = Tensor((1_000_000,), "float32", "cuda:0", storage=5)
    first = Op("aten::relu", (Tensor((1_000_000,), "float32", "cuda:0", storage=4),), outputs=(made,))
    cold, warm = _priced(platform, first, Op("aten::relu", (made,))).typical
    assert warm < 0.9 * cold


def test_a_call_far_larger_than_any_measured_is_marked(platform):
    assert _priced(platform, relu(10**11)).source.tolist() == [EXTRAPOLATED]


def test_a_call_of_no_family_gets_a_roofline_and_is_marked(platform):
    x = Tensor((10**7,), "float32", "cuda:0")
    costs = _priced(platform, Op("aten::cholesky", (x,), outputs=(x,)))
    assert costs.source.tolist() == [FALLBACK]
    assert costs.typical[0] > 8e7 / (H200.memory_gbps * 1e3)
    assert costs.low[0] < costs.typical[0] < costs.high[0]


def test_a_call_of_a_family_that_was_not_measured_is_marked_too(platform):
    square = Tensor((512, 512), "float32", "cuda:0")
    assert _priced(platform, Op("aten::mm", (square, square))).source.tolist() == [FALLBACK]


def test_a_call_that_was_timed_needs_no_model(platform):
    x = Tensor((64,), "float32", "cuda:0", storage=8)
    costs = _priced(platform, Op("aten::erfinv", (x,), overload="default"))
    assert costs.source.tolist() == [MEASURED, MEASURED]
    assert costs.name == ["k", "l"]
    assert costs.typical.tolist() == [9.0, 1.0]


def test_views_cost_the_device_nothing(platform):
    assert not len(_priced(platform, Op("aten::view", (Tensor((8,), "float32", "cuda:0"),))).op)


def test_a_damaged_model_is_named(fitted, tmp_path):
    folder, _ = fitted
    (tmp_path / "elementwise.npz").write_bytes((folder / "models" / "elementwise.npz").read_bytes()[:500])
    with pytest.raises(ForetraceError, match=r"elementwise\.npz is not a fitted model.*fit it again"):
        FamilyModel.read(tmp_path, "elementwise")


def test_a_model_of_other_features_is_refused_with_the_way_to_refit_it(fitted, tmp_path):
    folder, _ = fitted
    arrays = dict(np.load(folder / "models" / "elementwise.npz"))
    arrays["columns"] = np.array(["of", "another", "version"])
    np.savez(tmp_path / "elementwise.npz", **arrays)
    with pytest.raises(ForetraceError, match=r"other features.*foretrace calibrate fit"):
        FamilyModel.read(tmp_path, "elementwise")


def test_a_model_that_would_run_code_is_not_read(tmp_path):
    np.savez(tmp_path / "elementwise.npz", kind=np.array([print], dtype=object))
    with pytest.raises(ForetraceError, match="is not a fitted model"):
        FamilyModel.read(tmp_path, "elementwise")


def test_models_are_read_once(fitted):
    folder, _ = fitted
    assert device_models(folder / "models") is device_models(folder / "models")
    families = device_models(folder / "models").families
    assert families["elementwise"] is families["elementwise"]


def test_a_model_that_no_call_asks_for_is_not_read(fitted, tmp_path):
    folder, _ = fitted
    for path in (folder / "models").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "matrix.npz").write_bytes(b"damaged")
    families = device_models(tmp_path).families
    assert list(families) == ["matrix", "elementwise"]
    assert "matrix" in families and "attention" not in families
    assert families["elementwise"].family is FAMILIES["elementwise"]
    with pytest.raises(ForetraceError, match=r"matrix\.npz is not a fitted model"):
        families["matrix"]
    with pytest.raises(KeyError):
        families["attention"]


def _damaged(folder, tmp_path, **changed):
    arrays = {**np.load(folder / "models" / "elementwise.npz"), **changed}
    np.savez(tmp_path / "elementwise.npz", **arrays)
    with pytest.raises(ForetraceError, match="is not a fitted model"):
        FamilyModel.read(tmp_path, "elementwise")


@pytest.mark.parametrize(
    "changed",
    [
        {"spread.low": np.zeros(6, complex)},
        {"spread.high": np.full(6, 1e300)},
        {"spread.edges_us": np.zeros((5, 1))},
        {"most_roof_us": np.array(np.nan)},
        {"pattern.leaf": np.array(0.0)},
        {"kind": np.array("roofline"), "roofline.ops": np.zeros(0), "roofline.rates": np.zeros((0, 2, 3))},
        {"kind": np.array("roofline"), "roofline.ops": np.array(0.0), "roofline.rates": np.zeros((1, 2, 3))},
        {"kind": np.array("roofline"), "roofline.ops": np.zeros(1), "roofline.rates": np.full((1, 2, 3), np.nan)},
        {"kind": np.array("roofline"), "roofline.ops": np.zeros(1), "roofline.rates": np.array([["a"] * 3] * 2)},
    ],
    ids=str,
)
def test_numbers_of_another_shape_or_none_at_all_are_refused(fitted, tmp_path, changed):
    _damaged(fitted[0], tmp_path, **changed)


def test_trees_that_lead_out_of_the_file_or_nowhere_are_refused(fitted, tmp_path):
    folder, _ = fitted
    tree = dict(np.load(folder / "models" / "elementwise.npz"))
    _damaged(folder, tmp_path, **{"pattern.root": np.array([10**9], np.int32)})
    _damaged(folder, tmp_path, **{"pattern.leaf": np.full_like(tree["pattern.leaf"], 99)})
    _damaged(folder, tmp_path, **{"pattern.leaf": np.full_like(tree["pattern.leaf"], np.nan)})
    _damaged(folder, tmp_path, **{"pattern.feature": np.full_like(tree["pattern.feature"], 99)})


def test_a_spread_that_is_none_is_refused(fitted, tmp_path):
    folder, _ = fitted
    low = np.load(folder / "models" / "elementwise.npz")["spread.low"]
    _damaged(folder, tmp_path, **{"spread.low": low + 9.0})
    _damaged(folder, tmp_path, **{"spread.low": low[:2]})


def test_a_model_that_nothing_was_measured_for_since_is_taken_over(fitted, tmp_path, monkeypatch):
    folder, index = fitted
    before = shutil.copytree(folder / "models", tmp_path / "before")
    dump(before / "index.json", index)
    monkeypatch.setattr(fit, "fit_family", lambda family, rows: None)
    (tmp_path / "models").mkdir()
    assert fit_models(folder / "raw", H200, tmp_path / "models", before=before) == index
    assert {path.name for path in (tmp_path / "models").iterdir()} == {path.name for path in before.glob("e*")} | {
        "fallback.json"}  # fmt: skip


@pytest.mark.parametrize("how", ["more was measured", "its model is damaged", "its index is damaged"])
def test_otherwise_it_is_fitted_anew(fitted, tmp_path, monkeypatch, how):
    folder, index = fitted
    before = shutil.copytree(folder / "models", tmp_path / "before")
    if how == "more was measured":
        index = {"elementwise": index["elementwise"] | {"measurements": 199}}
    elif how == "its model is damaged":
        (before / "elementwise.npz").write_bytes(b"half a model")
    else:
        index = {"elementwise": None}
    dump(before / "index.json", index)
    seen = []
    monkeypatch.setattr(fit, "fit_family", lambda family, rows: seen.append(family.name))
    (tmp_path / "models").mkdir()
    assert fit_models(folder / "raw", H200, tmp_path / "models", before=before) == {}
    assert seen == list(FAMILIES)


def test_a_step_measured_alone_makes_a_platform_without_families(tmp_path):
    write(tmp_path / "raw", "exact", relus(1))
    (tmp_path / "models").mkdir()
    assert fit_models(tmp_path / "raw", H200, tmp_path / "models") == {}
    assert device_models(tmp_path / "models").families == {}


def test_a_gemm_without_a_model_still_takes_its_arithmetic(platform):
    square = Tensor((65536, 65536), "bfloat16", "cuda:0")
    costs = _priced(platform, Op("aten::mm", (square, square)))
    assert costs.typical[0] >= 2 * 65536**3 / (H200.peak("bfloat16") * 1e6)


def test_calls_without_shapes_are_refused_with_what_to_do(platform):
    with pytest.raises(ForetraceError, match=r"shapes of tensors.*record_shapes=True"):
        _priced(platform, Op("aten::mm"), Op("aten::add_"))


def test_kernels_come_in_the_order_of_their_calls_however_each_is_priced(platform):
    timed = Op("aten::erfinv", (Tensor((64,), "float32", "cuda:0"),), overload="default")
    unknown = Op("aten::cholesky", (Tensor((64, 64), "float32", "cuda:0"),))
    costs = _priced(platform, relu(10**6), unknown, timed, relu(10**6), unknown, relu(10**5))
    assert costs.op.tolist() == [0, 1, 2, 2, 3, 4, 5]
    assert costs.source.tolist() == [MODEL, FALLBACK, MEASURED, MEASURED, MODEL, FALLBACK, MODEL]
    assert costs.name[1:4] == ["aten::cholesky", "k", "l"]
    alone = [_priced(platform, op) for op in (relu(10**6), relu(10**5))]
    assert [costs.typical[row] for row in (0, 4, 6)] == [alone[row].typical[0] for row in (0, 0, 1)]


def test_gemms_of_float32_take_less_where_the_step_lets_them_use_tf32(platform):
    square = Tensor((8192, 8192), "float32", "cuda:0")
    ops, row = OpTable.of([Op("aten::mm", (square, square))]), np.zeros(1, np.int32)
    exact = price_kernels(Graph(ops), row, platform).typical[0]
    assert price_kernels(Graph(ops, settings={"matmul_precision": "high"}), row, platform).typical[0] < exact / 4


def _compiled(numel, name="triton_poi_fused_add_0"):
    tensor = Tensor((numel,), "float32", "cuda:0")
    return Op(name, (tensor, tensor, numel, 0))


def test_a_compiled_kernel_is_priced_like_a_call_that_moves_as_much_and_marked(platform):
    costs = _priced(platform, _compiled(3_000_000), _compiled(3_000_000, "my_own_kernel"), relu(3_000_000))
    assert costs.typical[:2] == pytest.approx(costs.typical[2])
    assert costs.name[:2] == ["triton_poi_fused_add_0", "my_own_kernel"]
    assert costs.source.tolist() == [FALLBACK, FALLBACK, MODEL]


@pytest.fixture
def compiled(tmp_path):
    """Measurements of compiled kernels."""
    measured = relus()
    for found in measured:
        found.case = Case(_compiled(found.case.op.tensors[0].numel))
    write(tmp_path / "raw", "compiled", measured)
    (tmp_path / "models").mkdir()


def test_of_a_few_compiled_kernels_no_model_is_made(tmp_path, compiled):
    assert fit_models(tmp_path / "raw", H200, tmp_path / "models") == {}


def test_where_many_compiled_kernels_were_measured_their_own_model_answers(tmp_path, compiled, monkeypatch):
    monkeypatch.setattr(Compiled, "min_measurements", 100)
    assert list(fit_models(tmp_path / "raw", H200, tmp_path / "models")) == ["compiled"]
    h200 = Platform.named("h200")
    platform = Platform("made up", H200, h200.host, None, tmp_path, h200.about)
    costs = _priced(platform, _compiled(3_000_000, "triton_poi_fused_mul_7"), _compiled(3_000_000, "my_own_kernel"))
    assert costs.name == ["triton_poi_fused_mul_7", "my_own_kernel"]
    assert costs.source.tolist() == [MODEL, FALLBACK], "the name of a custom kernel tells nothing"
    assert costs.typical[0] == pytest.approx(relu_us(3_000_000), rel=0.25)


MEASUREMENTS = Path(__file__).resolve().parents[3] / "measurements" / "h200"


def test_a_glance_tells_an_easy_family_from_a_hard_one(tmp_path):
    pytest.importorskip("lightgbm")
    for family in ("fills", "attention"):
        (measured,) = MEASUREMENTS.glob(f"{family}.jsonl.*")
        shutil.copy(measured, tmp_path)
    errors = estimated_errors(tmp_path, Device.named("h200"))
    assert set(errors) == {"fills", "attention"}
    assert 0 < errors["fills"] < errors["attention"] < 1


@pytest.mark.parametrize(
    ("left", "kinds"), [(0.0, {"roofline", "trees"}), (1e6, {"roofline", "trees", "net", "blend"})]
)
def test_within_a_time_a_family_gets_trees_and_the_best_estimator_where_there_is_time_for_it(
    fitted, tmp_path, left, kinds
):
    folder, _ = fitted
    index = fit_models(folder / "raw", H200, tmp_path, until=time.monotonic() + left)
    found = index["elementwise"]
    assert {found["kind"], *found["others"]} == kinds
    assert (tmp_path / "elementwise.npz").is_file()
