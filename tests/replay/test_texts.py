"""Text for people."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foretrace.replay.texts import printable, sentence


@given(st.text())
def test_text_is_one_line_without_anything_that_steers(text: str) -> None:
    for made in (sentence(text), printable(text)):
        assert made.isascii() and (made.isprintable() or not made)
    assert not set("`<>[]*#|\\") & set(sentence(text))


def test_a_note_of_ours_stays_as_it_is() -> None:
    note = "100.0 % of the recorded calls found in the profile; 3 of 5 (a=1, b-c/d)"
    assert sentence(note) == note


def test_the_name_of_a_kernel_stays_as_it_is() -> None:
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)"
    )
    assert printable(name) == name
