import gzip
import json

import pytest

from foretrace.cost_models.kernels.exact import FILE, ExactTimes, TimedCall
from foretrace.graph import ForetraceError, Op, Tensor, Tf32
from foretrace.platform.measurements.cases import Case, case_key
from foretrace.platform.measurements.kernels import CALL, Measurement

SEEN = Measurement(
    Case(Op("aten::relu", (Tensor((8,), "float32"),))),
    cold=[[("a", 4.0), ("b", 1.0)], [("a", 6.0), ("b", 1.0)]],
    warm=[[("a", 2.0), ("b", 1.0)]],
)


def test_written_and_read_it_says_the_same(tmp_path):
    ExactTimes({case_key(SEEN.case): TimedCall.of(SEEN)}).write(tmp_path)
    on_device = Op("aten::relu", (Tensor((8,), "float32", "cuda:0", id=4, storage=9),), phase="backward")
    found, other = ExactTimes.read(tmp_path).of([on_device, Op("aten::relu", (Tensor((9,), "float32"),))], [], Tf32())
    assert found is not None
    assert (found.kernels, found.cold_us.tolist(), found.warm_us.tolist()) == (["a", "b"], [5.0, 1.0], [2.0, 1.0])
    assert other is None


def test_calls_of_processors_take_the_mean_over_processes_and_a_fast_one_counts_no_more_than_a_slow_one():
    case = Case(Op("aten::relu", (Tensor((8,), "float32"),)))
    fast, slow = ([[(CALL, us)]] * repeats for us, repeats in ((10.0, 8), (20.0, 4)))
    found = ExactTimes.measured([Measurement(case, cold=fast, warm=fast), Measurement(case, cold=slow, warm=slow)])
    assert [timed.cold_us.tolist() for timed in found.calls.values()] == [[15.0]]


def test_without_a_file_nothing_was_timed(tmp_path):
    assert ExactTimes.read(tmp_path).of([Op("aten::relu")], [], Tf32()) == [None]


@pytest.mark.parametrize("damage", [b"", b"not gzip", b"\x1f\x8b\x08\x00"])
def test_a_damaged_file_is_named(tmp_path, damage):
    (tmp_path / FILE).write_bytes(damage)
    with pytest.raises(ForetraceError, match=r"exact\.json\.gz does not hold timed calls"):
        ExactTimes.read(tmp_path)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "wrong", [None, "x", -1.0, float("nan"), 10**40, [], ["x", "y"], [-5.0], [float("nan")], [[1.0]]]
)
def test_a_call_whose_figures_are_none_is_shown(tmp_path, place, wrong):
    line = [["gemm"], [4.0], [3.0], 0.1]
    line[place] = wrong
    (tmp_path / FILE).write_bytes(gzip.compress(json.dumps({"a call": line}).encode()))
    with pytest.raises(ForetraceError, match=r"exact\.json\.gz does not hold timed calls"):
        ExactTimes.read(tmp_path)


def test_a_call_may_launch_nothing():
    timed = TimedCall.of(Measurement(Case(Op("aten::view")), cold=[[], []], warm=[[]]))
    assert timed.kernels == [] and timed.cold_us.shape == timed.warm_us.shape == (0,)
