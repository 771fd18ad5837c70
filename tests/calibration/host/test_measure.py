"""Measuring the host, on the CPU."""

from __future__ import annotations

import pytest
import torch

from foretrace._progress import Progress
from foretrace.calibration.host import measure as measuring
from foretrace.calibration.host.measure import HostOutcome, SingleCalls, measure_host
from foretrace.calibration.host.profile import Event, cut_at_launches, mean_gaps
from foretrace.calibration.host.steps import STEPS
from foretrace.calibration.host.training import BACKWARD, FORWARD, OPTIMIZER, Training, calls_of
from foretrace.cost_models.host.fitting import fit_host
from foretrace.graph import ForetraceError
from foretrace.platform.measurements.host import HOST_FILE, Calls, read_host_runs
from foretrace.platform.measurements.journal import append

CPU = torch.device("cpu")
FEW = ["classifier adamw", "two towers"]


def test_a_round_is_measured_and_can_be_fitted(tmp_path):
    reported: list[Progress] = []
    done = measure_host(tmp_path, 0.0, reported.append, CPU, FEW)
    (run,) = read_host_runs(tmp_path / HOST_FILE)
    assert [progress.text for progress in reported] == ["host: 1 rounds"] and done.rounds == 1
    assert set(run.steps) == set(FEW) and run.machine["torch"] == torch.__version__
    assert all(len(step.plain) == measuring.IN_A_ROW and step.profiled for step in run.steps.values())
    host = fit_host([run])
    assert host.calls["aten::addmm"].to_launch > host.calls["aten::t"].to_launch > 0


def test_a_later_run_adds_to_what_is_there(tmp_path):
    for _ in range(2):
        measure_host(tmp_path, 0.0, device=CPU, steps=FEW[:1])
    assert len(read_host_runs(tmp_path / HOST_FILE)) == 2


def test_a_folder_measured_with_another_device_is_refused(tmp_path):
    append(tmp_path / HOST_FILE, [{"run": {"device": "NVIDIA H200"}}])
    with pytest.raises(ForetraceError, match="measured with NVIDIA H200"):
        measure_host(tmp_path, 0.0, device=CPU, steps=FEW[:1])


def test_a_run_that_is_stopped_keeps_its_rounds(tmp_path):
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_host(tmp_path, 1.0, stop, CPU, FEW[:1])
    (run,) = read_host_runs(tmp_path / HOST_FILE)
    assert run.steps[FEW[0]].plain


def test_a_step_that_this_machine_cannot_do_is_left_out_and_named(tmp_path, monkeypatch):
    def fails(device):
        raise RuntimeError("no kernel for that\nand a long story")

    monkeypatch.setitem(STEPS, "impossible", fails)
    done = measure_host(tmp_path, 0.0, device=CPU, steps=["impossible", *FEW[:1]])
    assert done.left_out == {"impossible": "no kernel for that"}
    assert list(done.totals) == FEW[:1]


def test_threads_are_as_before_afterwards(tmp_path):
    before = torch.get_num_threads()
    measure_host(tmp_path, 0.0, device=CPU, steps=FEW[1:])
    assert torch.get_num_threads() == before


def test_repeats_that_lie_far_apart_make_a_host_noisy():
    assert not HostOutcome(totals={"a": [10.0, 10.2, 10.1]}).noisy
    assert HostOutcome(totals={"a": [10.0, 20.0, 12.0], "b": [5.0, 9.0, 6.0]}).noisy


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_small_step_trains(one_thread):
    for name, make in STEPS.items():
        training = make(CPU)
        assert all(us > 0 for us in training.timed_step()), name


def test_the_watch_sees_phases_modules_and_the_length_of_lists():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    calls = calls_of(Training(lambda: model(torch.ones(1, 2)).sum(), optimizer))
    rows = list(zip(calls.name, calls.phase, calls.entered, calls.tensors))
    assert ("aten::t", FORWARD, 2, 0) in rows and ("aten::relu", FORWARD, 1, 0) in rows
    assert ("aten::threshold_backward", BACKWARD, 0, 0) in rows
    assert rows[-1] == ("aten::_foreach_add_", OPTIMIZER, 0, 2)
    assert "aten::detach" not in calls.name


def test_sparse_gradients_are_taken_as_in_a_plain_step():
    names = calls_of(STEPS["two towers"](CPU)).name
    for name in ("aten::_indices", "aten::_values", "aten::_sparse_coo_tensor_unsafe"):
        assert names.count(name) == names.count("aten::_embedding_bag")
    assert "aten::clone" not in names


def test_recomputed_modules_are_entered_in_backward():
    calls = calls_of(STEPS["joined recomputed"](CPU))
    assert sum(entered for entered, phase in zip(calls.entered, calls.phase) if phase == BACKWARD) > 0


def test_calls_are_cut_at_their_launches_and_composites_are_looked_into():
    events = [
        Event(0, 20_000, "aten::linear"),
        Event(1_000, 2_000, "aten::t"),
        Event(3_000, 15_000, "aten::addmm"),
        Event(5_000, 7_000, "cudaLaunchKernel"),
        Event(8_000, 9_000, "cudaMemsetAsync"),
        Event(16_000, 17_000, "aten::view"),
    ]
    found = cut_at_launches(events, ["aten::t", "aten::addmm", "aten::detach", "aten::view"])
    assert found.to_launch == [1.0, 2.0, -1.0, 1.0]
    assert (found.launching[1], found.between[1], found.after[1]) == (3.0, 1.0, 6.0)
    assert found.launches == [0, 2, 0, 0]


def test_single_calls_know_the_length_of_their_lists():
    single = SingleCalls(CPU, ["optimizers"])
    lengths = [n for name, n in zip(single.calls.name, single.calls.tensors) if "_foreach_" in name]
    assert lengths and min(lengths) >= 1 and len(set(lengths)) > 2
    assert all(us > 0 for us in single.timed())


def test_gaps_count_within_a_phase_and_not_where_something_held_a_step_up_once():
    calls = Calls(["aten::mm", "aten::relu", "aten::sum", "aten::mul"], [0, 0, 0, 1], [0] * 4, [0] * 4)
    ends = [(0, 4000), (6000, 9000), (10000, 11000), (90000, 91000)]
    usual = [Event(start, end, name) for (start, end), name in zip(ends, calls.name)]
    held_up = [usual[0], *(event._replace(start=event.start + 70000, end=event.end + 70000) for event in usual[1:])]
    assert mean_gaps([usual, held_up, usual], calls) == [1.5, 0.0, 0.0]
