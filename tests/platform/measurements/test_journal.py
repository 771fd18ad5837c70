from __future__ import annotations

import gzip
import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lib.pack import COMMON, pack_file, pack_lines
from foretrace.graph import ForetraceError
from foretrace.platform.measurements.journal import append, exists, packed, read_lines, unpack_lines


def test_what_is_added_is_read_in_order(tmp_path):
    for number in range(3):
        append(tmp_path / "some", [{"n": number}, {"n": -number}])
    assert len(list(read_lines(tmp_path / "some"))) == 6


def test_what_was_cut_off_while_writing_is_left_out(tmp_path):
    path = tmp_path / "some"
    append(path, [{"n": 1}])
    whole = path.stat().st_size
    append(path, [{"n": 2}])
    both = path.read_bytes()
    for length in range(whole + 1, len(both)):
        path.write_bytes(both[:length])
        assert list(read_lines(path)) == ['{"n":1}']


def test_what_there_is_no_room_for_leaves_the_file_as_it_was(tmp_path):
    resource = pytest.importorskip("resource")
    path, many = tmp_path / "some", [{"n": number * 7919 % 10007} for number in range(9000)]
    append(path, [{"n": 1}])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(OSError, match="large"):
            append(path, many)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append(path, [{"n": 2}])
    assert list(read_lines(path)) == ['{"n":1}', '{"n":2}']


def test_what_is_packed_is_read_first_and_gone_on_with(tmp_path):
    path = tmp_path / "some.jsonl.gz"
    assert not exists(path)
    append(path, [{"n": 1}, {"n": 2}])
    pack_file(path)
    assert not path.exists() and exists(path) and list(read_lines(path)) == ['{"n":1}', '{"n":2}']
    append(path, [{"n": 3}])
    pack_file(path)
    assert not path.exists() and list(read_lines(path)) == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_a_damaged_packed_file_is_named(tmp_path):
    packed(tmp_path / "some.gz").write_bytes(b"not xz")
    with pytest.raises(ForetraceError, match=r"some\.gz is damaged"):
        list(read_lines(tmp_path / "some.gz"))


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"\xff\xfe")], ids=["no gzip", "no text"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "some.gz"
    path.write_bytes(content)
    with pytest.raises(ForetraceError, match=r"some\.gz is damaged"):
        list(read_lines(path))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(values, max_size=6), st.integers(1, COMMON + 1))
def test_what_was_packed_comes_back_to_the_letter(said, times):
    lines = [json.dumps(value) for value in said] * times
    assert unpack_lines(pack_lines(lines)) == lines


def test_alike_lines_take_less_room_by_columns():
    lines = [json.dumps({"op": "aten::mm", "side": n % 7, "us": [n * 17 % 101 / 8] * 4}) for n in range(2000)]
    assert len(pack_lines(lines)) < 0.8 * len(lzma.compress("\n".join(lines).encode(), preset=9))


@pytest.mark.parametrize("text", ["", "one", "2\na", "1\na\n7", "1\n\0\n0 0\n5", "1\n\0,\0\n0 0\n5 6\n7"])
def test_what_is_not_whole_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        unpack_lines(lzma.compress(text.encode()))
