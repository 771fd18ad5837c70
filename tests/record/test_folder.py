"""A recording on disk: what comes back is what was written, and damage is reported with the file's name."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.graph import ForetraceError, Indices, Job, Op, Storage
from foretrace.record import folder as files
from foretrace.record.recording import load_recording

PLACES = [
    "job.json", "rank-0/rank.json", "rank-0/ops.jsonl.gz", "rank-0/storages.json.gz", "rank-0/indices.json",
    "rank-0/contents.json.gz", "rank-0/profile.json.gz",
]  # fmt: skip
WORDS = ["", "null", "-1", '"x"', "[]", "{}", "1e999", "NaN", "99999999999999999999", ",", "0", "true", '"rank": ""']


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    """A recording to break."""
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


@contextmanager
def broken(path: Path, data: bytes) -> Iterator[None]:
    """The file with other bytes while open."""
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


def test_a_recording_has_these_files(recorded: Path) -> None:
    assert sorted(str(p.relative_to(recorded)) for p in recorded.rglob("*") if p.is_file()) == sorted(PLACES)


def test_ops_storages_and_indices_come_back(tmp_path: Path) -> None:
    ops = [Op("aten::embedding"), Op("aten::relu"), Op("aten::embedding", phase="backward")]
    storages = {0: Storage(0, 64, "cpu"), 4: Storage(4, 128, "cuda:0", birth=1, death=3)}
    seen = Indices(op=-1, rows=10, count=8, unique=2, bags=4, reuse=(0, 0, 2))
    files.write_structure(tmp_path, ops, storages)
    files.write_indices(tmp_path, [("aten::embedding", 1, seen), ("aten::gone", 0, seen)])
    assert files.read_ops(tmp_path) == ops
    assert files.read_storages(tmp_path, len(ops)) == storages
    found, lost = files.read_indices(tmp_path, ops)
    assert found.op == 2 and lost.op == -1
    assert (found.rows, found.count, found.unique, found.bags, found.reuse) == (10, 8, 2, 4, (0, 0, 2))


def test_no_temporary_file_is_left(tmp_path: Path) -> None:
    files.write_structure(tmp_path, [Op("aten::relu")], {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ops.jsonl.gz", "storages.json.gz"]


def test_the_same_step_gives_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        files.write_structure(tmp_path / name, [Op("aten::relu")], {})
        written.append((tmp_path / name / files.OPS).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("place", ["job.json", "rank-0/rank.json"])
def test_another_version_is_refused_by_number(copy: Path, place: str) -> None:
    facts = json.loads((copy / place).read_text())
    (copy / place).write_text(json.dumps({**facts, "version": 99}))
    with pytest.raises(ForetraceError, match=r"version 99, .* reads version 1") as raised:
        load_recording(copy)
    assert str(copy / place) in str(raised.value)


OPTIONAL = ("rank-0/indices.json", "rank-0/contents.json.gz", "rank-0/profile.json.gz")


@pytest.mark.parametrize("place", [place for place in PLACES if place not in OPTIONAL])
def test_a_missing_file_is_named(copy: Path, place: str) -> None:
    (copy / place).unlink()
    with pytest.raises(ForetraceError, match="does not exist") as raised:
        load_recording(copy)
    assert str(copy / place) in str(raised.value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_named(copy: Path, place: str, share: float) -> None:
    data = (copy / place).read_bytes()
    (copy / place).write_bytes(data[: int(share * len(data))])
    with pytest.raises(ForetraceError) as raised:
        load_recording(copy)
    assert str(copy / place) in str(raised.value)
    assert raised.value.advice


FACTS, TABLES = ["job.json", "rank-0/rank.json"], ["rank-0/storages.json.gz", "rank-0/indices.json"]
OTHER = ["3", "null", '[{"op": []}]', "[[]]", "[[0, 1, 2, 3, 4, 5]]", '[["a"]]']


@pytest.mark.parametrize(
    ("place", "text"),
    [(place, text) for place in FACTS for text in ["[]", "{}", *OTHER]] + [(p, t) for p in TABLES for t in OTHER],
)
def test_a_file_that_holds_something_else_is_named(copy: Path, place: str, text: str) -> None:
    write(copy / place, text.encode())
    with pytest.raises(ForetraceError, match="does not hold what it should") as raised:
        load_recording(copy)
    assert str(copy / place) in str(raised.value)


@pytest.mark.parametrize("row", [[0, 64, "cpu", 10**6, -1], [0, 64, "cpu", 0, 10**6], [0, 64, "cpu", -5, -1]])
def test_a_storage_that_lives_outside_the_step_is_refused(copy: Path, row: list[object]) -> None:
    write(copy / "rank-0/storages.json.gz", json.dumps([row]).encode())
    with pytest.raises(ForetraceError, match=r"storages\.json\.gz .*lives from call"):
        load_recording(copy)


@pytest.mark.parametrize("world", [0, -1, 10**9, "two", None])
def test_a_job_of_no_possible_size_is_refused(copy: Path, world: object) -> None:
    facts = json.loads((copy / "job.json").read_text())
    (copy / "job.json").write_text(json.dumps({**facts, "world": world}))
    with pytest.raises(ForetraceError, match=r"job\.json does not hold what it should"):
        load_recording(copy)


@settings(max_examples=250)
@given(st.data())
def test_whatever_a_file_holds_the_answer_is_a_job_or_an_error_of_ours(copy: Path, data: st.DataObject) -> None:
    path = copy / data.draw(st.sampled_from(PLACES))
    text = content(path)
    # Half of the places are early: heads and first lines matter more than the long tail of a profile.
    start = data.draw(st.integers(0, min(len(text), 300)) | st.integers(0, len(text)))
    end = min(start + data.draw(st.integers(0, 20)), len(text))
    changed = text[:start] + data.draw(st.sampled_from(WORDS).map(str.encode) | st.binary(max_size=8)) + text[end:]
    with broken(path, gzip.compress(changed, 1) if path.suffix == ".gz" else changed):
        try:
            assert isinstance(load_recording(copy), Job)
        except ForetraceError as error:
            assert str(copy) in str(error)


@settings(max_examples=60)
@given(st.data())
def test_bytes_that_flip_on_the_disk_are_noticed_or_harmless(copy: Path, data: st.DataObject) -> None:
    path = copy / data.draw(st.sampled_from(PLACES))
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with broken(path, bytes(raw)):
        try:
            assert isinstance(load_recording(copy), Job)
        except ForetraceError as error:
            assert str(copy) in str(error)


def test_a_folder_is_a_recording_only_with_its_job_file(copy: Path) -> None:
    assert files.is_recording(copy)
    assert not files.is_recording(copy / "rank-0")
    assert not files.is_recording(copy / "job.json")


@pytest.mark.parametrize(
    "field", [{"rows": 10**400}, {"count": -1}, {"unique": 1 << 60}, {"reuse": [10**400]}, {"reuse": [1] * 2000}]
)
def test_counts_of_ids_that_can_not_be_are_refused(tmp_path: Path, field: dict[str, object]) -> None:
    entry = {"op": "aten::embedding", "nth": 0, "rows": 9, "count": 12, "unique": 3, "bags": 12, "reuse": [0, 0, 3]}
    (tmp_path / "indices.json").write_text(json.dumps([{**entry, **field}]))
    with pytest.raises(ForetraceError, match=r"indices\.json does not hold what it should"):
        files.read_indices(tmp_path, [Op("aten::embedding")])
