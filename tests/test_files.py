"""Reading files named by users: gzip, pipes, devices, links, sizes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from foretrace import files
from foretrace.files import descriptor_of, open_input, read_bounded, read_chunks, read_json_chunks
from foretrace.graph import ForetraceError
from tests.traces import training_step


def complaint(path: Path) -> str:
    with pytest.raises(ForetraceError) as caught:
        b"".join(read_json_chunks(path))
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def piped(data: bytes) -> tuple[Path, threading.Thread]:
    """What a shell puts in the place of ``<(command)``."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    return Path(f"/dev/fd/{reading}"), writer


def test_plain_and_gzipped_files_give_the_same_bytes(tmp_path: Path) -> None:
    text = b"x" * 10_000_000
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "packed").write_bytes(gzip.compress(text[:6_000_000]) + gzip.compress(text[6_000_000:]))
    assert b"".join(read_chunks(tmp_path / "plain")) == text
    assert b"".join(read_chunks(tmp_path / "packed")) == text


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def zipped(*files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, data in enumerate(files):
            archive.writestr(f"trace_{number}.json", data)
    return packed.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd, ".zip": zipped,
}  # fmt: skip


@pytest.mark.parametrize("suffix", PACK)
def test_other_ways_to_compress_a_trace_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace.json{suffix}"
    path.write_bytes(PACK[suffix](b'{"traceEvents": []}' * 100_000))
    assert b"".join(read_chunks(path)) == b'{"traceEvents": []}' * 100_000


@pytest.mark.parametrize("suffix", PACK)
def test_a_damaged_one_says_so(tmp_path: Path, suffix: str) -> None:
    packed = bytearray(PACK[suffix](os.urandom(1 << 16) * 20))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / f"trace.json{suffix}"
    path.write_bytes(packed)
    with pytest.raises(ForetraceError, match=r"is not a sound (bzip2|xz|Zstandard|zip) file"):
        list(read_chunks(path))


def test_a_zip_of_several_files_or_of_half_a_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "traces.zip"
    path.write_bytes(zipped(b"{}", b"{}"))
    with pytest.raises(ForetraceError, match="holds 2 files"):
        list(read_chunks(path))
    path.write_bytes(zipped(b"{}" * 1000)[:-30])
    with pytest.raises(ForetraceError, match="is not a sound zip file"):
        list(read_chunks(path))


def test_without_zstandard_it_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "trace.json.zst"
    path.write_bytes(zstd(b"{}"))
    with pytest.raises(ForetraceError, match="pip install zstandard"):
        list(read_chunks(path))


@pytest.mark.parametrize("suffix", PACK)
def test_bombs_of_all_kinds_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace.json{suffix}"
    path.write_bytes(PACK[suffix](b"[" + b" " * (80 << 20)))
    with pytest.raises(ForetraceError, match="which no trace does"):
        list(read_chunks(path))


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
        list(read_chunks(tmp_path / "a.json.gz"))


def test_a_corrupt_gz_says_so(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(os.urandom(100_000)))
    whole[50_000:50_100] = bytes(100)
    (tmp_path / "a.gz").write_bytes(whole)
    with pytest.raises(ForetraceError, match="not a sound gzip file"):
        list(read_chunks(tmp_path / "a.gz"))


def test_a_file_called_gz_that_is_not_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(training_step().text())
    assert "is not gzipped" in complaint(tmp_path / "a.json.gz")


def test_a_gz_under_a_plain_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(gzip.compress(b" {}"))
    assert b"".join(read_json_chunks(tmp_path / "a.json")) == b"{}"


@pytest.mark.parametrize("content", [b"hello", b"   ", b"\x00\x01", b'"text"'])
def test_what_cannot_start_a_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert "is not JSON" in complaint(tmp_path / "a.json")


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf\n{}")
    assert b"".join(read_json_chunks(tmp_path / "a.json")) == b"{}"


@pytest.mark.parametrize("first", [b"", b'{"traceEvents": ['])
def test_a_bomb_is_refused_soon_and_in_little_memory(tmp_path: Path, first: bytes) -> None:
    bomb = tmp_path / "bomb.json.gz"
    member = gzip.compress(b" " * (1 << 27))
    bomb.write_bytes(gzip.compress(first) + member * 80)  # 10 GB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(ForetraceError, match=r"bomb\.json\.gz (unpacks to over|is not JSON)"):
        for _ in read_json_chunks(bomb):
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
        for piece in read_chunks(tmp_path / "bomb.json.gz"):
            unpacked += len(piece)
    assert unpacked < 128 << 20


def test_a_pipe_of_the_shell_is_read_as_often_as_one_likes():
    path, writer = piped(b"x" * 3_000_000)
    for _ in range(2):
        with open_input(path) as file:
            assert file.read(2) == b"xx" and file.seek(0) == 0 and len(file.read()) == 3_000_000
    writer.join()
    os.close(int(path.name))


def test_a_pipe_without_end_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(files, "MAX_PIPED_BYTES", 5 << 20)
    endless = subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE)
    assert endless.stdout
    with endless.stdout, pytest.raises(ForetraceError, match=r"gives more than 5 MB.*Write it to a file"):
        open_input(Path(f"/dev/fd/{endless.stdout.fileno()}"))
    endless.kill()
    endless.wait()


def test_a_named_pipe_or_a_device_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, what in ((tmp_path / "fifo", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(ForetraceError, match=f"is {what}: reading it may never end"):
            open_input(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_with_more_than_its_kind_may_have_is_refused(tmp_path, pack):
    path = tmp_path / "log"
    path.write_bytes(pack(b"x" * (1 << 20)))
    assert len(read_bounded(path, 1 << 20, "a log")) == 1 << 20
    with pytest.raises(ForetraceError, match=r"log is too large for a log \(more than 1,048,575 bytes\)"):
        read_bounded(path, (1 << 20) - 1, "a log")


def test_a_gzipped_file_may_have_several_members(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert read_bounded(tmp_path / "a.gz", 100, "a log") == b"one two"


@pytest.mark.parametrize("cut", [slice(0, -4), slice(0, 30)])
def test_a_gzipped_file_that_is_cut_short_is_no_file(tmp_path, cut):
    (tmp_path / "a.gz").write_bytes(gzip.compress(os.urandom(1000))[cut])
    with pytest.raises((EOFError, zlib.error)):
        read_bounded(tmp_path / "a.gz", 10_000, "a log")


def test_what_is_called_gz_has_to_be_gzipped(tmp_path):
    (tmp_path / "a.gz").write_bytes(b"plain")
    with pytest.raises(OSError, match="not gzipped"):
        read_bounded(tmp_path / "a.gz", 100, "a log")


def test_a_link_to_standard_output_is_standard_output(tmp_path):
    (tmp_path / "one").symlink_to("/dev/stdout")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "round").symlink_to("round")
    assert descriptor_of(tmp_path / "two") == 1
    assert descriptor_of(Path(f"/proc/{os.getpid()}/fd/7")) == 7
    assert descriptor_of(Path("/dev/../dev/fd/7")) == 7
    assert descriptor_of(Path("/proc/1/fd/7")) is None
    assert descriptor_of(tmp_path / "round") is None


def test_nothing_can_be_written_to_a_socket(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(ForetraceError, match="is a socket"):
            open_input(tmp_path / "s")
