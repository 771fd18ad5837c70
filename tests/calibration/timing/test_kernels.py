from __future__ import annotations

import time

import pytest
import torch

from foretrace._progress import Progress
from foretrace.calibration.timing import kernels as module
from foretrace.calibration.timing.kernels import MeasuredFamily, measure_families, reference_drift
from foretrace.calibration.timing.timer import HostTimer
from foretrace.cost_models.kernels.families import DRAWN
from foretrace.graph import ForetraceError, Op
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import Batch, Measurement, open_batch, read_batches

CPU = torch.device("cpu")


@pytest.fixture
def few(monkeypatch):
    """Batches of two small cases and no wait for the cache, so that a test sees several."""
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "MAX_ELEMENTS", {"cpu": 2**12})
    monkeypatch.setattr(HostTimer, "flush_cache", lambda clock: None)


def test_all_families_are_measured_for_real(tmp_path, few):
    left, runs = list(DRAWN), 0
    while left and runs < 20:  # a busy machine takes several
        done = measure_families(tmp_path, CPU, minutes=0.12 * len(left) / len(DRAWN), families=left)
        assert [progress.family for progress in done] == left
        assert [progress.problem for progress in done if progress.failed] == []
        left, runs = [progress.family for progress in done if not progress.cases], runs + 1
    for name in DRAWN:
        found = [m for batch in read_batches(tmp_path / f"{name}.jsonl.gz") for m in batch.measurements]
        assert found and all(m.us("cold") > 0 and m.us("warm") > 0 for m in found)


def test_a_second_run_goes_on_after_the_first(tmp_path, few):
    for _ in range(2):
        measure_families(tmp_path, CPU, minutes=0.005, families=["fills"])
    batches = read_batches(tmp_path / "fills.jsonl.gz")
    assert [batch.first for batch in batches] == [2 * n for n in range(len(batches))]
    assert len(batches) > 1


def test_where_the_time_is_short_a_second_run_begins_with_what_the_first_left_out(tmp_path, monkeypatch):
    measured = []

    def long(path, cases, batch, device, until):
        measured.append(path.name)
        open_batch(path, batch)
        time.sleep(0.1)
        return batch

    monkeypatch.setattr(module, "measure_batch", long)
    for _ in range(2):
        measure_families(tmp_path, CPU, minutes=0.05 / 60, families=["fills", "softmax"])
    assert measured == ["fills.jsonl.gz", "softmax.jsonl.gz"]


def test_a_batch_that_took_the_machine_down_is_not_tried_again(tmp_path, few, monkeypatch):
    def down(cases, device, until=None):
        if until is not None:
            raise RuntimeError("CUDA error: unspecified launch failure")

    with monkeypatch.context() as broken, pytest.raises(RuntimeError):
        broken.setattr(module, "time_cases", down)
        measure_families(tmp_path, CPU, minutes=0.005, families=["fills"])
    measure_families(tmp_path, CPU, minutes=0.005, families=["fills"])
    batches = read_batches(tmp_path / "fills.jsonl.gz")
    assert batches[0].measurements == [] and batches[1].first == 2


def test_progress_is_reported_batch_by_batch(tmp_path, few):
    seen: list[Progress] = []
    measure_families(tmp_path, CPU, minutes=0.005, families=["fills"], on_progress=seen.append)
    cases = [int(text.removeprefix("fills: ").removesuffix(" cases").replace(",", "")) for text, *_ in seen]
    assert cases and cases == sorted(cases)
    assert all(progress.done > 0 and progress.of == pytest.approx(0.3) for progress in seen)


def test_a_folder_of_another_device_is_refused(tmp_path):
    open_batch(tmp_path / "fills.jsonl.gz", Batch(0, 2, {"device": "NVIDIA H200"}))
    with pytest.raises(ForetraceError, match=r"was measured on NVIDIA H200, this is .*CPU. Give another --out"):
        measure_families(tmp_path, CPU, minutes=0.01, families=["fills"])


def test_a_device_that_slows_down_shows_in_the_reference():
    steady, throttled = MeasuredFamily("matrix", references=[10.0, 10.1]), MeasuredFamily("fills", references=[12.5])
    assert reference_drift([steady]) < 0.02
    assert reference_drift([steady, throttled]) == pytest.approx(0.25)


def test_progress_says_what_failed_and_how_far_repeats_lie_apart_where_there_are_some():
    relu, broken = Case(Op("aten::relu")), Case(Op("aten::cat"))
    once = Measurement(relu, cold=[[("k", 1.0)]])
    early, late = MeasuredFamily("some"), MeasuredFamily("some")
    early.add_batch(Batch(0, 1, {}, [once]))
    spread_of_none = early.spread
    assert spread_of_none is None
    late.add_batch(
        Batch(1, 3, {}, [Measurement(relu, cold=[[("k", 4.0)], [("k", 6.0)]]), Measurement(broken, error="no")])
    )
    early.add(late)
    assert (early.cases, early.failed, early.problem, early.spread) == (2, 1, "aten::cat: no", 0.4)
