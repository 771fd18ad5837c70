from __future__ import annotations

import time

import pytest
import torch

from foretrace.calibration.timing import timer as module
from foretrace.calibration.timing.timer import REPEATS, HostTimer, cut_at_markers, time_cases
from foretrace.cost_models.kernels.families import case_number
from foretrace.graph import Op, Tensor
from foretrace.platform.measurements.cases import Case

CPU = torch.device("cpu")


def product(side, tf32=False):
    square = Tensor((side, side), "float32")
    return Case(Op("aten::mm", (square, square), overload="default"), tf32=tf32)


def test_a_larger_product_takes_longer_and_both_states_are_repeated():
    small, large = time_cases([product(16), product(512)], CPU)
    assert len(small.cold) == len(small.warm) == REPEATS
    assert large.us("warm") > 5 * small.us("warm")


def test_a_case_that_fails_says_why_and_the_next_one_is_measured():
    wrong = Case(Op("aten::mm", (Tensor((2, 3), "float32"), Tensor((2, 3), "float32")), overload="default"))
    failed, fine = time_cases([wrong, product(16)], CPU)
    assert "cannot be multiplied" in failed.error and failed.cold == []
    assert not fine.error and fine.us("cold") > 0


def test_an_op_that_this_pytorch_lacks_fails_alone():
    failed, fine = time_cases([Case(Op("aten::of_tomorrow", overload="default")), product(16)], CPU)
    assert "has no aten::of_tomorrow" in failed.error and not fine.error


def test_a_case_that_does_not_fit_is_left_out(monkeypatch):
    def full(case, device):
        if case.op.args[0].shape == (32, 32):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return lambda: torch.ones(4)

    full_then_fine = [product(32), product(16)]
    monkeypatch.setattr(module, "Call", lambda case, device: Fake(full(case, device)))
    failed, fine = time_cases(full_then_fine, CPU)
    assert failed.error == "out of memory" and not fine.error


class Fake:
    indices = None

    def __init__(self, run):
        self.run = run

    def __call__(self):
        return self.run()


def test_a_device_that_failed_for_good_ends_the_run(monkeypatch):
    def broken(case, device):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(module, "Call", broken)
    with pytest.raises(RuntimeError, match="device-side assert"):
        time_cases([product(16)], CPU)


def test_no_case_is_begun_after_the_time_is_up_but_the_first():
    assert len(time_cases([product(16)] * 5, CPU, until=time.monotonic() - 1)) == 1


def test_tf32_is_as_the_case_wants_it_and_afterwards_as_before(monkeypatch):
    seen = []

    def look(case, device):
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return Fake(lambda: None)

    monkeypatch.setattr(module, "Call", look)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    time_cases([product(16, tf32=True), product(16, tf32=False)], CPU)
    assert seen == [(True, True), (False, False)]
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_kernels_are_cut_at_pairs_of_markers():
    mark, flush = ("spin_kernel(long)", 1.0), ("fill", 60.0)
    work = [flush, mark, ("splitK", 5.0), ("reduce", 2.0), mark, flush, mark, ("splitK", 5.1), ("reduce", 2.1), mark]
    assert cut_at_markers(work) == [[("splitK", 5.0), ("reduce", 2.0)], [("splitK", 5.1), ("reduce", 2.1)]]


def test_the_host_s_clock_sees_what_a_call_takes():
    clock = HostTimer()
    clock.time(lambda: time.sleep(0.01))
    clock.flush_cache()
    assert clock.timed == 1
    assert 10_000 <= clock.repeats()[0][0][1] < 100_000


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_the_kernels_of_each_repeat_are_known():
    cases = [case_number("matrix", number, most=2**20, kind="cuda") for number in range(20)]
    for found in time_cases(cases, torch.device("cuda:0")):
        assert len(found.cold) == len(found.warm) == REPEATS
        assert all(us > 0 for repeat in found.cold + found.warm for _, us in repeat)
        assert not any("spin_kernel" in name for repeat in found.cold for name, _ in repeat)
