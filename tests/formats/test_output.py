"""What Foretrace writes takes nobody's place."""

from __future__ import annotations

import gzip
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from foretrace.formats import output
from foretrace.formats.chakra import write_chakra
from foretrace.formats.output import CHAKRA, PAGE, PLAN, TIMELINE, check_output, replaced
from foretrace.formats.perfetto import write_perfetto
from foretrace.graph import ForetraceError, Graph, Job, Op, OpTable
from foretrace.report.pages.page import Page
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import Placement, write_plan
from foretrace.sharding.tables import Table

JOB = Job([Graph(OpTable.of([Op("aten::mm", start_us=0.0, end_us=2.5)]))])


def write(path: Path, data: bytes = b"page") -> None:
    with replaced(path, PAGE) as file:
        file.write(data)


def null_node(path: Path) -> Path:
    """A device like /dev/null, which tests may lose."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this user may make no device nodes")
    return path


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


def test_who_reads_a_named_pipe_gets_the_page(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_bytes()))
    reader.start()
    write(tmp_path / "fifo", b"x" * 1_000_000)
    reader.join()
    assert read == [b"x" * 1_000_000] and (tmp_path / "fifo").is_fifo()


def test_a_named_pipe_that_nobody_reads_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "READER_WAIT_S", 0.1)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ForetraceError, match=r"can't be written \(nobody reads this pipe\)"):
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


def test_a_full_device_is_told_of():
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
        gzip.compress(b"something else"),
        b"\x1f\x8bno gzip",
    ],
)
def test_what_foretrace_did_not_write_is_not_replaced(tmp_path, kind, content):
    path = tmp_path / "precious"
    path.write_bytes(content)
    said = f"precious is there already, and is not {kind.name}"
    with pytest.raises(ForetraceError, match=said), replaced(path, kind) as file:
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


FORM = ("what", "platforms", "chosen", "changes", "settings", "of_jobs", "wrong")


def test_one_kind_does_not_replace_another(tmp_path):
    write_perfetto(JOB, tmp_path / "a.json")
    with pytest.raises(ForetraceError, match="is not a sharding plan"):
        check_output(tmp_path / "a.json", PLAN)


def test_an_empty_file_is_nobody_s(tmp_path):
    (tmp_path / "page.html").touch()
    write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == b"page"


def test_a_read_only_file_is_left_alone(tmp_path):
    (tmp_path / "page.html").touch(0o444)
    if os.access(tmp_path / "page.html", os.W_OK):
        pytest.skip("this user may write everything")
    with pytest.raises(ForetraceError, match="is read-only"):
        check_output(tmp_path / "page.html", PAGE)
