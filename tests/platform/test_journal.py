from __future__ import annotations

import gzip

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.journal import append, exists, lines, pack, packed


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
    assert list(lines(path)) == ['{"n":1}', '{"n":2}']


def test_what_is_packed_is_read_first_and_gone_on_with(tmp_path):
    path = tmp_path / "some.jsonl.gz"
    assert not exists(path)
    append(path, [{"n": 1}, {"n": 2}])
    pack(path)
    assert not path.exists() and exists(path) and list(lines(path)) == ['{"n":1}', '{"n":2}']
    append(path, [{"n": 3}])
    pack(path)
    assert not path.exists() and list(lines(path)) == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_a_damaged_packed_file_is_named(tmp_path):
    packed(tmp_path / "some.gz").write_bytes(b"not xz")
    with pytest.raises(ForetraceError, match=r"some\.gz is damaged"):
        list(lines(tmp_path / "some.gz"))


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"\xff\xfe")], ids=["no gzip", "no text"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "some.gz"
    path.write_bytes(content)
    with pytest.raises(ForetraceError, match=r"some\.gz is damaged"):
        list(lines(path))
