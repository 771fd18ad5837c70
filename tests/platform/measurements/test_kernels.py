from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.cost_models.kernels.families import DRAWN, case_number
from foretrace.graph import ForetraceError, Indices, Op
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import (
    Batch,
    Measurement,
    close_batch,
    open_batch,
    read_batches,
    read_openings,
)

repeats = st.lists(
    st.lists(st.tuples(st.sampled_from(["gemm", "reduce", "copy"]), st.integers(1, 10**7).map(lambda n: n / 1000))),
    max_size=4,
)


def batch_of(family="fills", first=0, **given):
    cases = [case_number(family, number, 4096, "cuda") for number in range(first, first + 3)]
    found = [Measurement(case, cold=[[("k", 1.5)]], warm=[[("k", 1.25), ("j", 0.5)]]) for case in cases]
    return Batch(first, first + 3, {"device": "NVIDIA H200", "torch": "2.11"}, found, **given)


def write(path, batch):
    open_batch(path, batch)
    close_batch(path, batch)


@settings(max_examples=40)
@given(cold=repeats, warm=repeats, family=st.sampled_from(list(DRAWN)), number=st.integers(0, 1000))
def test_what_is_written_is_read(tmp_path_factory, cold, warm, family, number):
    path = tmp_path_factory.mktemp("m") / "x.jsonl.gz"
    indices = Indices(op=-1, rows=10, count=8, unique=2, bags=4, reuse=(0, 0, 2))
    case = case_number(family, number, 4096, "cuda")
    made = Measurement(case, cold, warm, indices, "")
    write(path, Batch(5, 6, {"device": "x"}, [made], reference_us=12.5))
    (read,) = read_batches(path)
    (found,) = read.measurements
    assert (read.first, read.last, read.machine, read.reference_us) == (5, 6, {"device": "x"}, 12.5)
    assert (found.cold, found.warm, found.indices) == (cold, warm, indices)
    assert found.case.op.tensors == case.op.tensors
    assert (found.case.ids, found.case.tf32, found.case.pinned) == (case.ids, case.tf32, case.pinned)


def test_batches_follow_each_other_and_failures_are_kept(tmp_path):
    path = tmp_path / "fills.jsonl.gz"
    first, second = batch_of(reference_us=1.0), batch_of(first=3)
    second.measurements[1] = Measurement(Case(Op("aten::mm")), error="out of memory")
    write(path, first)
    write(path, second)
    read = read_batches(path)
    assert [batch.first for batch in read] == [0, 3]
    assert [found.error for found in read[1].measurements] == ["", "out of memory", ""]


def test_a_batch_that_was_begun_and_never_ended_is_known(tmp_path):
    path = tmp_path / "fills.jsonl.gz"
    write(path, batch_of())
    open_batch(path, Batch(3, 259, {"device": "x"}))
    assert [(batch.last, len(batch.measurements)) for batch in read_batches(path)] == [(3, 3), (259, 0)]


def test_where_to_go_on_is_known_without_reading_the_measurements(tmp_path):
    path = tmp_path / "fills.jsonl.gz"
    for first in (0, 3):
        write(path, batch_of(first=first))
    assert [(batch.first, batch.last, batch.machine) for batch in read_openings(path)] == [
        (batch.first, batch.last, batch.machine) for batch in read_batches(path)
    ]
    assert [batch.measurements for batch in read_openings(path)] == [[], []]


def test_a_file_cut_in_the_middle_of_a_write_keeps_what_came_before(tmp_path):
    path = tmp_path / "fills.jsonl.gz"
    write(path, batch_of())
    whole = path.stat().st_size
    write(path, batch_of(first=3))
    path.write_bytes(path.read_bytes()[: whole + 30])
    assert [len(batch.measurements) for batch in read_batches(path)] == [3]


def test_a_file_that_does_not_exist_holds_nothing(tmp_path):
    assert read_batches(tmp_path / "none.jsonl.gz") == []


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip",
        gzip.compress(b"{}\n"),
        gzip.compress(b'{"op": "aten::mm"}\n'),
        gzip.compress(b"[1]\n"),
        gzip.compress(b"nonsense\n"),
    ],
    ids=["no gzip", "no numbers", "no batch", "no object", "no json"],
)
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "matrix.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ForetraceError, match=r"matrix\.jsonl\.gz"):
        read_batches(path)


def test_a_damaged_call_inside_a_batch_is_named_by_file_and_line(tmp_path):
    path = tmp_path / "matrix.jsonl.gz"
    lines = [b'{"from": 0, "to": 1, "device": "x"}', b'{"kernels": [], "reference_us": 1.0}', b'{"op": "aten::mm"}']
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    with pytest.raises(ForetraceError, match=r"matrix\.jsonl\.gz: line 3 is not a measurement"):
        read_batches(path)


def test_of_many_repeats_the_odd_ones_do_not_make_the_spread():
    repeats = [[("call", 10.0 + place % 3)] for place in range(97)] + [[("call", 9000.0)]] * 3
    assert Measurement(Case(Op("aten::relu")), cold=repeats).spread("cold") == pytest.approx(2 / 11)
