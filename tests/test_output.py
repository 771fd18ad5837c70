"""Writing files and folders named by users: complete or not at all, and never over another's file."""

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
from pathlib import Path

import pytest

from foretrace import output
from foretrace.formats.chakra import write_chakra
from foretrace.formats.perfetto import write_perfetto
from foretrace.graph import ForetraceError, Graph, Job, Op, OpTable
from foretrace.output import (
    CHAKRA,
    PAGE,
    PLAN,
    TIMELINE,
    atomic_folder,
    atomic_write,
    check_new_folder,
    check_output,
    check_writable,
    open_output,
)
from foretrace.report.pages.page import Page
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import Placement, write_plan
from foretrace.sharding.tables import Table

JOB = Job([Graph(OpTable.of([Op("aten::mm", start_us=0.0, end_us=2.5)]))])


def write(path: Path, data: bytes = b"page") -> None:
    with open_output(path, PAGE) as file:
        file.write(data)


def null_node(path: Path) -> Path:
    """A device like /dev/null, which tests may lose."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this user may make no device nodes")
    return path


FORM = ("what", "platforms", "chosen", "changes", "settings", "of_jobs", "wrong")


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_device_node_is_written_to_and_stays(tmp_path):
    node = null_node(tmp_path / "null")
    write(node)
    assert node.is_char_device() and not node.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["null"]


def test_so_does_a_link_to_one(tmp_path):
    null_node(tmp_path / "null")
    (tmp_path / "link").symlink_to("null")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "null").is_char_device()


def test_a_link_keeps_leading_to_the_page(tmp_path):
    (tmp_path / "real.html").touch()
    (tmp_path / "latest.html").symlink_to("real.html")
    write(tmp_path / "latest.html")
    assert (tmp_path / "latest.html").is_symlink() and (tmp_path / "real.html").read_bytes() == b"page"


def test_the_reader_of_a_named_pipe_gets_the_page(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_bytes()))
    reader.start()
    write(tmp_path / "fifo", b"x" * 1_000_000)
    reader.join()
    assert read == [b"x" * 1_000_000] and (tmp_path / "fifo").is_fifo()


def test_a_named_pipe_without_a_reader_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "PIPE_READER_WAIT_S", 0.1)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ForetraceError, match=r"can't be written \(no process reads this pipe\)"):
        write(tmp_path / "fifo")


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_an_open_file_goes_on_where_it_was(tmp_path, name):
    with (tmp_path / "log").open("wb") as file:
        file.write(b"before, ")
        file.flush()
        write(Path(name.format(file.fileno())))
        file.write(b", after")
    assert (tmp_path / "log").read_bytes() == b"before, page, after"


def test_a_file_that_is_not_open_is_refused():
    with pytest.raises(ForetraceError, match="Bad file descriptor"):
        check_output(Path("/dev/fd/987"), PAGE)


def test_a_full_device_is_reported():
    with pytest.raises(ForetraceError, match=r"/dev/full can't be written \(No space left on device\)"):
        write(Path("/dev/full"))


@pytest.mark.parametrize("name", [".", "", "/", "..", "/dev"])
def test_a_folder_is_refused_with_the_name_of_a_file(name):
    with pytest.raises(ForetraceError, match=r"is a folder, and a page is a file\. Name one: .*page\.html"):
        check_output(Path(name), PAGE)


def test_a_socket_and_a_disk_are_refused(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(ForetraceError, match="is a socket, and a page is a file"):
            check_output(tmp_path / "s", PAGE)
    try:
        os.mknod(tmp_path / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    except PermissionError:
        pytest.skip("this user may make no device nodes")
    with pytest.raises(ForetraceError, match="is a disk, and a page is a file"):
        check_output(tmp_path / "disk", PAGE)


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(ForetraceError, match="round can't be written"):
        check_output(tmp_path / "round", PAGE)


@pytest.mark.parametrize("kind", [PAGE, TIMELINE, PLAN, CHAKRA])
@pytest.mark.parametrize(
    "content",
    [
        b"import torch\n",
        b"name,rows,dim\nusers,10,8\n",
        b'{\n  "schemaVersion": 1,\n  "deviceProperties": [], "traceEvents": []}',
        b"<!doctype html><html><head><title>Home \xe2\x80\x93 Foretrace</title>",
        gzip.compress(b"something else", mtime=0),
        b"\x1f\x8bno gzip",
    ],
)
def test_what_foretrace_did_not_write_is_not_replaced(tmp_path, kind, content):
    path = tmp_path / "precious"
    path.write_bytes(content)
    message = f"precious is there already, and is not {kind.name}"
    with pytest.raises(ForetraceError, match=message), open_output(path, kind) as file:
        file.write(b"lost")
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_a_timeline_is_replaced_by_a_newer_one(tmp_path, name):
    for _ in range(2):
        write_perfetto(JOB, tmp_path / name)


def test_so_are_chakra_traces_and_plans_and_pages(tmp_path):
    for _ in range(2):
        write_chakra(JOB, tmp_path)
        write_plan((Placement("table_wise", (1,)),), [Table("t", 9, 16)], Ranks(2), tmp_path / "plan.json")
        Page("whatif.html", "a <step>", {}, dict.fromkeys(FORM, "")).write(tmp_path / "page.html")
    assert len(list(tmp_path.iterdir())) == 3


def test_one_kind_does_not_replace_another(tmp_path):
    write_perfetto(JOB, tmp_path / "a.json")
    with pytest.raises(ForetraceError, match="is not a sharding plan"):
        check_output(tmp_path / "a.json", PLAN)


def test_an_empty_file_may_be_replaced(tmp_path):
    (tmp_path / "page.html").touch()
    write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == b"page"


def test_a_read_only_file_is_left_alone(tmp_path):
    (tmp_path / "page.html").touch(0o444)
    if os.access(tmp_path / "page.html", os.W_OK):
        pytest.skip("this user may write everything")
    with pytest.raises(ForetraceError, match="is read-only"):
        check_output(tmp_path / "page.html", PAGE)


def test_a_link_stays_and_leads_to_what_was_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "latest").symlink_to("there/page")
    for text in (b"new", b"newer"):  # at first it leads nowhere
        with atomic_write(tmp_path / "latest") as file:
            file.write(text)
        assert (tmp_path / "latest").is_symlink() and (tmp_path / "there" / "page").read_bytes() == text
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["page"]


def test_a_replaced_file_keeps_who_may_read_it(tmp_path):
    path = tmp_path / "page"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with atomic_write(path) as file:
        file.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_where_writing_fails_all_is_as_it_was(tmp_path):
    (tmp_path / "page").write_bytes(b"old")
    for path in (tmp_path / "page", tmp_path / "new" / "folder" / "page"):
        with pytest.raises(OSError, match="No space"), atomic_write(path) as file:
            file.write(b"half")
            full()
    assert [path.name for path in tmp_path.rglob("*")] == ["page"]
    assert (tmp_path / "page").read_bytes() == b"old"


def test_a_name_as_long_as_names_may_be_can_be_written(tmp_path):
    path = tmp_path / ("ü" * 127)
    with atomic_write(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"


def test_a_folder_is_whole_or_not_there(tmp_path):
    message = r"made can't be written \(No space left on device\)"
    with pytest.raises(ForetraceError, match=message), atomic_folder(tmp_path / "new" / "made") as folder:
        (folder / "run.py").write_text("")
        full()
    assert not list(tmp_path.iterdir())


def test_why_a_folder_could_not_be_copied_is_said(tmp_path):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "main.py").write_text("")
    message = r"can't be written \(No space left on device"
    with pytest.raises(ForetraceError, match=message), atomic_folder(tmp_path / "made") as folder:
        shutil.copytree(tmp_path / "harness", folder / "harness", copy_function=full)
    assert not (tmp_path / "made").exists()


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path, tmp_path / "link"):
        with pytest.raises(ForetraceError, match="is there already"):
            check_new_folder(path)


def test_nothing_can_be_written_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ForetraceError, match="file is no folder"):
        check_writable(tmp_path / "file" / "new" / "page.html")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems mount otherwise")
def test_on_a_full_disk_nothing_is_left(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may mount nothing")
    try:
        with pytest.raises(ForetraceError, match="No space left on device"), atomic_folder(disk / "made") as folder:
            (folder / "large").write_bytes(bytes(1 << 20))
        with pytest.raises(OSError, match="No space left on device"), atomic_write(disk / "page") as file:
            file.write(bytes(1 << 20))
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)
