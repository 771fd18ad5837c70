"""Lossless JSON lines of ops."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.graph import PHASES, Constant, ForetraceError, Op, Tensor
from foretrace.graph.codec import from_lines, to_lines

sizes = st.integers(0, 2**40)
counts = st.integers(0, 2**31 - 1)
tensors = st.builds(
    Tensor,
    shape=st.lists(sizes, max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16", "int64", "bool"]),
    device=st.sampled_from(["cpu", "cuda:0", ""]),
    stride=st.none() | st.lists(sizes, max_size=4).map(tuple),
    offset=sizes,
    id=st.integers(-1, 5),
    storage=st.integers(-1, 5),
    layout=st.sampled_from(["strided", "sparse_coo"]),
    stored=st.sampled_from([-1, 7]),
)
constants = st.builds(Constant, st.sampled_from(["dtype", "group", "generator", "object"]), st.text())
leaves = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text() | tensors | constants
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
ops = st.builds(
    Op,
    name=st.text(),
    args=st.lists(values, max_size=4).map(tuple),
    kwargs=st.dictionaries(st.text(), values, max_size=3),
    outputs=st.lists(values, max_size=2).map(tuple),
    overload=st.text(),
    phase=st.sampled_from(PHASES),
    thread=counts,
    stream=counts,
    module=st.text(),
    node=st.text(),
    entered=counts,
    frees=st.lists(sizes, max_size=3).map(tuple),
)


def comparable(value: Any) -> Any:
    """The value with a name for nan, which equals nothing, and with types that Python takes for one told apart."""
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, Op):
        fields = ("name", "overload", "phase", "thread", "stream", "module", "node", "entered", "frees")
        inside = [comparable(part) for part in (value.args, value.kwargs, value.outputs)]
        return [getattr(value, field) for field in fields], inside
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, Constant):
        return [comparable(item) for item in value]
    return type(value).__name__, value


@given(st.lists(ops, max_size=6))
def test_any_ops_come_back_as_they_were(written: list[Op]) -> None:
    lines = list(to_lines(written))
    assert all("\n" not in line and line.isascii() for line in lines)
    assert comparable(from_lines(lines, "memory")) == comparable(written)


@pytest.mark.parametrize("value", [1e-8, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, float("inf"), 2**63, True])
def test_numbers_keep_every_bit_and_their_type(value: float) -> None:
    (back,) = from_lines(to_lines([Op("aten::mul", (value,))]), "memory")
    assert back.args[0] == value and type(back.args[0]) is type(value)
    assert math.copysign(1, back.args[0]) == math.copysign(1, value)


def test_a_tensor_is_written_once() -> None:
    weight = Tensor((4, 4), "float32", "cpu", (4, 1), id=7, storage=3)
    first, second = to_lines([Op("aten::t", (weight,)), Op("aten::mm", (weight, weight))])
    assert "new" in json.loads(first) and "new" not in json.loads(second)


SOUND = list(to_lines([Op("aten::mm", (Tensor((2, 2), "float32"),), {"x": 1}, phase="forward"), Op("aten::relu")]))

ZEROS = "0" * 400


@pytest.mark.parametrize(
    "damaged",
    [
        "", "{", "[]", "null", "3", '"op"', "{}", '{"op": "x"}',
        '{"op": "x", "args": 3, "phase": "other"}',
        '{"op": "x", "args": [{"t": 5}], "phase": "other"}',
        '{"op": "x", "args": [{"t": -1}], "phase": "other"}',
        '{"op": "x", "args": [{"t": "0"}, {"z": 0}], "phase": "other"}',
        '{"op": "x", "args": [{"c": 3}], "phase": "other"}',
        '{"op": "x", "args": [{"c": ["float", "many"]}], "phase": "other"}',
        '{"op": "x", "args": [], "phase": "sideways"}',
        '{"op": "x", "args": [], "phase": "other", "kwargs": [1]}',
        '{"op": "x", "args": [], "phase": "other", "thread": 1e300}',
        '{"op": "x", "args": [], "phase": "other", "thread": NaN}',
        '{"op": "x", "args": [], "phase": "other", "new": [[1, 2]]}',
        '{"op": "x", "args": [], "phase": "other", "new": [[[null], "float32", "", null, 0, 0, 0, "strided"]]}',
        '{"op": "x", "args": [], "phase": "other", "new": [[[1' + ZEROS + '], "float32", "", null, 0, 0, 0, ""]]}',
        '{"op": "x", "args": [], "phase": "other", "new": [[[1], "int8", "", null, -1' + ZEROS + ', 0, 0, ""]]}',
        '{"op": "x", "args": [[1' + ZEROS + ']], "phase": "other"}',
        '{"op": "x", "args": ' + "[" * 100_000 + "]" * 100_000 + ', "phase": "other"}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_named_with_its_file(damaged: str) -> None:
    with pytest.raises(ForetraceError, match=r"^run/ops\.jsonl\.gz: line 2 is not an op"):
        from_lines([SOUND[0], damaged, SOUND[1]], "run/ops.jsonl.gz")


@settings(max_examples=200)
@given(st.data())
def test_a_changed_line_gives_ops_or_one_kind_of_error(data: st.DataObject) -> None:
    line = SOUND[0]
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, len(line)))
    put = data.draw(st.sampled_from(["", "null", "-1", '"x"', "[]", "{}", "1e999", ":", "\x00"]) | st.text(max_size=3))
    try:
        assert all(isinstance(op, Op) for op in from_lines([line[:start] + put + line[end:]], "memory"))
    except ForetraceError as error:
        assert "memory: line 1" in str(error)
