"""Files by the names that users give them: pipes, devices, links, full disks."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest

from foretrace import files
from foretrace.files import (
    check_new_folder,
    check_place,
    descriptor_of,
    opened,
    read_bounded,
    written_folder,
    written_whole,
)
from foretrace.graph import ForetraceError


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def piped(data: bytes) -> tuple[Path, threading.Thread]:
    """What a shell puts in the place of ``<(command)``."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    return Path(f"/dev/fd/{reading}"), writer


def test_a_pipe_of_the_shell_is_read_as_often_as_one_likes():
    path, writer = piped(b"x" * 3_000_000)
    for _ in range(2):
        with opened(path) as file:
            assert file.read(2) == b"xx" and file.seek(0) == 0 and len(file.read()) == 3_000_000
    writer.join()
    os.close(int(path.name))


def test_a_pipe_without_end_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(files, "MAX_PIPED_BYTES", 5 << 20)
    endless = subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE)
    assert endless.stdout
    with endless.stdout, pytest.raises(ForetraceError, match=r"gives more than 5 MB.*Write it to a file"):
        opened(Path(f"/dev/fd/{endless.stdout.fileno()}"))
    endless.kill()
    endless.wait()


def test_a_named_pipe_or_a_device_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, what in ((tmp_path / "fifo", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(ForetraceError, match=f"is {what}: reading it may never end"):
            opened(path)


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


def test_a_link_stays_and_leads_to_what_was_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "latest").symlink_to("there/page")
    for text in (b"new", b"newer"):  # at first it leads nowhere
        with written_whole(tmp_path / "latest") as file:
            file.write(text)
        assert (tmp_path / "latest").is_symlink() and (tmp_path / "there" / "page").read_bytes() == text
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["page"]


def test_a_replaced_file_keeps_who_may_read_it(tmp_path):
    path = tmp_path / "page"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with written_whole(path) as file:
        file.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_where_writing_fails_all_is_as_it_was(tmp_path):
    (tmp_path / "page").write_bytes(b"old")
    for path in (tmp_path / "page", tmp_path / "new" / "folder" / "page"):
        with pytest.raises(OSError, match="No space"), written_whole(path) as file:
            file.write(b"half")
            full()
    assert [path.name for path in tmp_path.rglob("*")] == ["page"]
    assert (tmp_path / "page").read_bytes() == b"old"


def test_a_name_as_long_as_names_may_be_can_be_written(tmp_path):
    path = tmp_path / ("ü" * 127)
    with written_whole(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"


def test_a_folder_is_whole_or_not_there(tmp_path):
    said = r"kept can't be written \(No space left on device\)"
    with pytest.raises(ForetraceError, match=said), written_folder(tmp_path / "new" / "kept") as folder:
        (folder / "run.py").write_text("")
        full()
    assert not list(tmp_path.iterdir())


def test_why_a_folder_could_not_be_copied_is_said(tmp_path):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "main.py").write_text("")
    said = r"can't be written \(No space left on device"
    with pytest.raises(ForetraceError, match=said), written_folder(tmp_path / "kept") as folder:
        shutil.copytree(tmp_path / "harness", folder / "harness", copy_function=full)
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path, tmp_path / "link"):
        with pytest.raises(ForetraceError, match="is there already"):
            check_new_folder(path)


def test_nothing_can_be_written_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ForetraceError, match="file is no folder"):
        check_place(tmp_path / "file" / "new" / "page.html")


def test_nothing_can_be_written_to_a_socket(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(ForetraceError, match="is a socket"):
            opened(tmp_path / "s")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems mount otherwise")
def test_on_a_full_disk_nothing_is_left(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may mount nothing")
    try:
        with pytest.raises(ForetraceError, match="No space left on device"), written_folder(disk / "kept") as folder:
            (folder / "large").write_bytes(bytes(1 << 20))
        with pytest.raises(OSError, match="No space left on device"), written_whole(disk / "page") as file:
            file.write(bytes(1 << 20))
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)
