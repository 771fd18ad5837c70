from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.api import load
from foretrace.calibration.timing.call import Call
from foretrace.graph import Constant, Indices, Op, Tensor, Tf32
from foretrace.graph.codec import from_lines
from foretrace.platform.measurements.cases import Draw, Ids, case_key, recorded_cases, stripped
from tests.narrowing import present

DATA = Path(__file__).resolve().parents[2] / "data" / "h200"
F = "float32"


def on_gpu(shape, number, dtype=F, **given):
    return Tensor(shape, dtype, "cuda:0", id=number, storage=number, **given)


def test_a_call_is_taken_once_wherever_and_with_whatever_tensors_it_was_made():
    first = Op("aten::mm", (on_gpu((4, 4), 1), on_gpu((4, 4), 2)), overload="default", phase="forward", module="a")
    again = Op("aten::mm", (on_gpu((4, 4), 7), on_gpu((4, 4), 9)), overload="default", phase="backward", thread=1)
    other = Op("aten::mm", (on_gpu((4, 4), 7), on_gpu((4, 4), 7)), overload="default")
    assert len(recorded_cases([first, again])) == 1
    assert len(recorded_cases([first, again, other])) == 2, "a matrix times itself reads less"


def test_tensors_of_one_storage_still_share_it_and_nothing_before_them_is_allocated():
    q, k = (on_gpu((2, 8), 5, stride=(48, 1), offset=10**9 + part) for part in (3, 11))
    a, b = stripped(Op("aten::add", (q, k), overload="Tensor")).tensors
    assert a.storage == b.storage == 0
    assert b.offset - a.offset == 8 and a.offset < 128


def test_memory_seen_as_two_dtypes_becomes_two_pieces():
    op = Op("aten::copy_", (on_gpu((4,), 5), on_gpu((4,), 5, dtype="int32")), overload="default")
    assert [t.storage for t in stripped(op).tensors] == [-1, -1]


def test_a_gradient_and_a_sparse_update_have_the_ids_of_their_lookup():
    table, ids, offsets = on_gpu((1000, 4), 1), on_gpu((64,), 2, "int64"), on_gpu((8,), 3, "int64")
    grad = Tensor((1000, 4), F, "cuda:0", id=9, layout="sparse_coo")
    args = (on_gpu((8, 4), 4), ids, offsets, on_gpu((64,), 5, "int64"), offsets, on_gpu((0,), 6, "int64"))
    ops = [
        Op("aten::_embedding_bag", (table, ids, offsets, False, 0, True, None), overload="default"),
        Op("aten::_embedding_bag_backward", (*args, 1000, False, 0, True, None), outputs=(grad,), overload="default"),
        Op("aten::add_", (table, grad), {"alpha": -0.1}, overload="Tensor"),
    ]
    known = Indices(op=0, rows=1000, count=64, unique=40, bags=8, reuse=(20, 16, 4))
    cases = recorded_cases(ops, [known])
    assert [case.ids for case in cases] == [Ids(64, reuse=(0.5, 0.4, 0.1), distinct=40)] * 3
    torch.manual_seed(0)
    for case in cases:
        made = Call(case, torch.device("cpu"))
        indices = present(made.indices)
        assert indices.unique == pytest.approx(40, abs=2) and indices.count == 64


def test_tables_whose_ids_hardly_differ_are_measured_once_and_others_apart():
    table, ids = on_gpu((1000, 4), 1), on_gpu((9000,), 2, "int64")
    (case,) = recorded_cases([Op("aten::embedding", (table, ids), overload="default")])
    alike = [replace(case, ids=Ids(9000, reuse=(0.801, 0.199), distinct=n)) for n in (7510, 7522, 4000)]
    assert case_key(alike[0]) == case_key(alike[1]) != case_key(alike[2])


def test_what_needs_other_ranks_or_launches_nothing_by_itself_is_left_out():
    ops = [Op("c10d::allreduce_", ([on_gpu((8,), 1)],)), Op("cuda::device_synchronize")]
    assert recorded_cases(ops) == []


def test_constants_stay_what_they_are():
    op = Op("aten::_to_copy", (on_gpu((8,), 1),), {"dtype": Constant("dtype", "bfloat16")}, overload="default")
    assert stripped(op).kwargs == {"dtype": Constant("dtype", "bfloat16")}


def test_every_call_of_a_recorded_step_can_be_made_again():
    (graph,) = load(DATA / "dlrm_default_b512").graphs
    cases = recorded_cases(list(graph.ops), graph.indices)
    assert 50 < len(cases) < len(graph.ops)
    for case in cases:
        if sum(tensor.nbytes for tensor in case.op.tensors) < 2**24:
            with torch.no_grad():
                Call(case, torch.device("cpu"))()


def test_a_language_model_makes_few_distinct_calls():
    import gzip

    with gzip.open(DATA / "bert_bf16.ops.jsonl.gz", "rt") as file:
        ops = from_lines(file, "bert")
    assert len(recorded_cases(ops)) < len(ops) / 10


def test_the_step_says_which_calls_may_use_tf32():
    names = ("aten::addmm", "aten::convolution", "aten::relu")
    cases = recorded_cases([Op(name) for name in names], tf32=Tf32(gemms=True, convolutions=False))
    assert [case.tf32 for case in cases] == [True, False, False]
    assert [case.tf32 for case in recorded_cases([Op(name) for name in names])] == [False, True, False]


def test_sizes_lie_in_their_range_and_powers_of_two_and_odd_ones_both_come():
    draw = Draw("sizes", most=2**20, kind="cuda")
    sizes = [draw.size(16, 16384) for _ in range(500)]
    assert min(sizes) >= 16 and max(sizes) <= 16384
    assert sum(size & (size - 1) == 0 for size in sizes) > 100
    assert sum(size % 8 != 0 for size in sizes) > 20


@settings(max_examples=50)
@given(seed=st.text(max_size=5), dims=st.integers(1, 4), high=st.integers(1, 10**6))
def test_a_shape_holds_no_more_elements_than_asked_for(seed, dims, high):
    shape = Draw(seed, most=2**20, kind="cuda").shape(dims, low=1, high=high)
    assert len(shape) == dims and min(shape) >= 1 and math.prod(shape) <= high
