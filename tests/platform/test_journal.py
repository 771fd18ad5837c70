from __future__ import annotations

import gzip

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.journal import append, lines


def test_what_is_added_is_read_in_order(tmp_path):
    for number in range(3):
        append(tmp_path / "some", [{"n": number}, {"n": -number}])
    assert len(list(lines(tmp_path / "some"))) == 6


def test_what_was_cut_off_while_writing_is_left_out(tmp_path):
    path = tmp_path / "some"
    append(path, [{"n": 1}])
    whole = path.stat().st_size
    append(path, [{"n": 2}])
    both = path.read_bytes()
    for length in range(whole + 1, len(both)):
        path.write_bytes(both[:length])
        assert list(lines(path)) == ['{"n":1}']


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"\xff\xfe")], ids=["no gzip", "no text"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "some.gz"
    path.write_bytes(content)
    with pytest.raises(ForetraceError, match=r"some\.gz is damaged"):
        list(lines(path))
