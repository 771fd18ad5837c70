"""Values and texts of a recording as safe Python text."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.graph import Constant, Tensor
from foretrace.replay.generate.literals import NotWritableError, device_name, literal, printable, safe_text
from foretrace.replay.generate.plan import Name

plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=50),
    ),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)


@given(plain)
def test_a_value_comes_back_from_its_text(value: Any) -> None:
    text = literal(value)
    assert text.isascii() and "\n" not in text
    assert ast.literal_eval(text) == value


def test_infinity_is_a_name_that_benchmarks_have() -> None:
    assert literal([math.inf, -math.inf, math.nan]) == "[inf, -inf, nan]"


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1},
        b"bytes",
        Tensor((1,), "float32"),
        Constant("dtype", "notatype"),
        Constant("device", "disk:0"),
        Constant("complex", "inf"),
        2**64,
        "x" * 2000,
    ],
)
def test_what_has_no_text_is_refused(value: Any) -> None:
    with pytest.raises(NotWritableError):
        literal(value)


def test_constants_and_variables_are_names() -> None:
    assert literal([Name("t1"), Constant("dtype", "int8"), Constant("memory_format", "channels_last")]) == (
        "[t1, torch.int8, torch.channels_last]"
    )
    assert literal(Constant("stream", "3")) == "3" and literal(Constant("generator", "cuda:0")) == "None"


def test_a_device_is_a_variable() -> None:
    assert device_name("cuda:7") == "cuda_7"
    with pytest.raises(NotWritableError):
        device_name("cuda:7\n")


@given(st.text())
def test_text_is_one_line_without_anything_that_steers(text: str) -> None:
    for made in (safe_text(text), printable(text)):
        assert made.isascii() and (made.isprintable() or not made)
    assert not set("`<>[]*#|\\") & set(safe_text(text))


def test_a_note_of_ours_stays_as_it_is() -> None:
    note = "100.0 % of the recorded calls found in the profile; 3 of 5 (a=1, b-c/d)"
    assert safe_text(note) == note


def test_the_name_of_a_kernel_stays_as_it_is() -> None:
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)"
    )
    assert printable(name) == name
