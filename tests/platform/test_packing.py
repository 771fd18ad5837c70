from __future__ import annotations

import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.platform.packing import COMMON, pack, unpack

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(values, max_size=6), st.integers(1, COMMON + 1))
def test_what_was_packed_comes_back_to_the_letter(said, times):
    lines = [json.dumps(value) for value in said] * times
    assert unpack(pack(lines)) == lines


def test_alike_lines_take_less_room_by_columns():
    lines = [json.dumps({"op": "aten::mm", "side": n % 7, "us": [n * 17 % 101 / 8] * 4}) for n in range(2000)]
    assert len(pack(lines)) < 0.8 * len(lzma.compress("\n".join(lines).encode(), preset=9))


@pytest.mark.parametrize("text", ["", "one", "2\na", "1\na\n7", "1\n\0\n0 0\n5", "1\n\0,\0\n0 0\n5 6\n7"])
def test_what_is_not_whole_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        unpack(lzma.compress(text.encode()))
