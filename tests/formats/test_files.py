"""Opening files that may be anything."""

import gzip
import os
import resource
import time
from pathlib import Path

import pytest

from foretrace.formats.files import json_pieces, pieces
from foretrace.graph import ForetraceError
from tests.traces import training_step


def complaint(path: Path) -> str:
    with pytest.raises(ForetraceError) as caught:
        b"".join(json_pieces(path))
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_plain_and_gzipped_files_give_the_same_bytes(tmp_path: Path) -> None:
    text = b"x" * 10_000_000
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "packed").write_bytes(gzip.compress(text[:6_000_000]) + gzip.compress(text[6_000_000:]))
    assert b"".join(pieces(tmp_path / "plain")) == text
    assert b"".join(pieces(tmp_path / "packed")) == text


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    assert "is empty (0 bytes)" in complaint(tmp_path / "a.json")


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    assert "does not exist" in complaint(tmp_path / "nowhere.json")


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    assert "is a folder" in complaint(tmp_path)


def test_a_truncated_gz_says_at_which_byte_it_ends(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(100_000).hex().encode().replace(b"0", b"{", 1))
    (tmp_path / "a.json.gz").write_bytes(whole[:40_000])
    with pytest.raises(ForetraceError, match=r"ends in the middle of its gzip data \(byte 40,000\)"):
        list(pieces(tmp_path / "a.json.gz"))


def test_a_corrupt_gz_says_so(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(os.urandom(100_000)))
    whole[50_000:50_100] = bytes(100)
    (tmp_path / "a.gz").write_bytes(whole)
    with pytest.raises(ForetraceError, match="not a sound gzip file"):
        list(pieces(tmp_path / "a.gz"))


def test_a_file_called_gz_that_is_not_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(training_step().text())
    assert "is not gzipped" in complaint(tmp_path / "a.json.gz")


def test_a_gz_under_a_plain_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(gzip.compress(b" {}"))
    assert b"".join(json_pieces(tmp_path / "a.json")) == b"{}"


@pytest.mark.parametrize("content", [b"hello", b"   ", b"\x00\x01", b'"text"'])
def test_what_cannot_start_a_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert "is not JSON" in complaint(tmp_path / "a.json")


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf\n{}")
    assert b"".join(json_pieces(tmp_path / "a.json")) == b"{}"


@pytest.mark.parametrize("first", [b"", b'{"traceEvents": ['])
def test_a_bomb_is_refused_soon_and_in_little_memory(tmp_path: Path, first: bytes) -> None:
    bomb = tmp_path / "bomb.json.gz"
    member = gzip.compress(b" " * (1 << 27))
    bomb.write_bytes(gzip.compress(first) + member * 80)  # 10 GB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(ForetraceError, match=r"bomb\.json\.gz (unpacks to over|is not JSON)"):
        for _ in json_pieces(bomb):
            pass
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"{}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "can't be read" in complaint(path)


def test_a_bomb_of_sound_events_is_refused_long_before_its_end(tmp_path: Path) -> None:
    event = b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 2, "args": {}},\n'
    packed = gzip.compress(event * 200_000)
    (tmp_path / "bomb.json.gz").write_bytes(packed * 40)  # 800 MB in several members, each of them the same
    unpacked = 0
    with pytest.raises(ForetraceError, match=r"bomb\.json\.gz unpacks to over \d+ MB from \d+ kB"):
        for piece in pieces(tmp_path / "bomb.json.gz"):
            unpacked += len(piece)
    assert unpacked < 128 << 20
