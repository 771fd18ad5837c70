from __future__ import annotations

import pytest
import torch

from foretrace.graph import Constant, ForetraceError, Op, Tensor
from foretrace.platform.cases import Case
from foretrace.platform.measure.call import Call
from foretrace.platform.measure.timed import timed
from foretrace.platform.measure.traced import as_called

X = Tensor((4, 4), "float32")
UNSAID = Constant("object", "Scalar")


@pytest.mark.parametrize(
    ("op", "overload"),
    [
        (Op("aten::add", (X, X, UNSAID)), "Tensor"),
        (Op("aten::add_", (X, 1.5, 1)), "Scalar"),
        (Op("aten::mean", (X, [-1], True, None)), "dim"),
        (Op("aten::mean", (X, None)), "default"),
        (Op("aten::sum", (X, None, False, None)), "dim_IntList"),
        (Op("aten::gelu", (X, None)), "default"),
        (Op("aten::_to_copy", (X, 5, None, "cuda:0", UNSAID, False, None)), "default"),
        (Op("aten::clamp", (X, Constant("float", "-inf"), 1)), "default"),
        (Op("aten::index", (X, [None, Tensor((2,), "int64")])), "Tensor"),
    ],
)
def test_a_call_of_a_profiler_finds_its_overload_and_runs(op, overload):
    assert as_called(op).overload == overload
    Call(Case(op), torch.device("cpu"))()


def test_arguments_by_name_are_taken_out_of_the_row():
    made = as_called(Op("aten::_to_copy", (X, 5, None, "cuda:0", UNSAID, False, None)))
    assert made.args == (X,) and made.kwargs == {"dtype": 5, "non_blocking": False}


@pytest.mark.parametrize(
    "op",
    [
        Op("aten::gather", (X, UNSAID, Tensor((4,), "int64"), False)),  # along which dimension?
        Op("fb::offsets_range", (X,)),
        Op("aten::no_such_thing", (X,)),
        Op("aten::from_file", ("/tmp/x", True, 10)),
        Op("nccl:all_to_all", (X,)),
        Op("aten::cat", ([Tensor((2,), ""), Tensor((2,), "")], 0)),
    ],
)
def test_what_can_t_be_made_of_a_trace_fails_alone(op):
    with pytest.raises(ForetraceError):
        Call(Case(op), torch.device("cpu"))
    (failed,) = timed([Case(op)], torch.device("cpu"))
    assert failed.error and not failed.cold


def test_a_recording_s_word_does_not_open_files(tmp_path):
    path = tmp_path / "made"
    op = Op("aten::from_file", (str(path), True, 10), overload="default")
    (failed,) = timed([Case(op)], torch.device("cpu"))
    assert "is not called on a trace's word" in failed.error and not path.exists()
