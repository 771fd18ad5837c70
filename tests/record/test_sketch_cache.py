"""Sketches of compiled scripts are stored, and used again where nothing that they depend on has changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace.record.script import sketch_script
from foretrace.record.sketch_cache import NOTE, VARIABLE, SketchCache, fingerprint


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path


def test_an_answer_is_found_again_until_a_file_that_it_depends_on_changes(folder: Path) -> None:
    read, absent = folder / "model.py", folder / "config.json"
    read.write_text("width = 8")
    cache = SketchCache({"script": "train.py"})
    cache.write({str(path): fingerprint(str(path)) for path in (read, absent)}, [b"one\n", b"two\n"])
    assert cache.read() == [b"one\n", b"two\n"]
    read.write_text("width = 9")
    assert cache.read() == []
    read.write_text("width = 8")
    assert cache.read() == [b"one\n", b"two\n"]
    absent.write_text("{}")
    assert cache.read() == []


def test_a_folder_counts_by_what_can_be_imported_from_it_unless_the_script_has_listed_it(tmp_path: Path) -> None:
    imported, listed = fingerprint(str(tmp_path)), fingerprint(f"{tmp_path}/")
    (tmp_path / "run").mkdir()
    assert fingerprint(str(tmp_path)) == imported and fingerprint(f"{tmp_path}/") != listed
    (tmp_path / "torch.py").touch()
    assert fingerprint(str(tmp_path)) != imported


def test_another_way_to_ask_and_another_environment_are_other_sketches(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {__file__: fingerprint(__file__)}
    SketchCache({"arguments": ["8"]}).write(files, [b"eight\n"])
    assert SketchCache({"arguments": ["16"]}).read() == []
    monkeypatch.setenv("WIDTH", "4")
    assert SketchCache({"arguments": ["8"]}).read() == []
    monkeypatch.delenv("WIDTH")
    assert SketchCache({"arguments": ["8"]}).read() == [b"eight\n"]


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8b", b"not gzip", None])
def test_a_damaged_cache_is_no_cache(folder: Path, damage: bytes | None) -> None:
    cache = SketchCache({})
    cache.write({__file__: fingerprint(__file__)}, [b"one\n"])
    (path,) = (folder / "cache" / "sketches").iterdir()
    path.write_bytes(damage if damage is not None else path.read_bytes()[:-9])
    assert cache.read() == []


def test_nothing_is_stored_where_the_cache_is_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    SketchCache({}).write({__file__: fingerprint(__file__)}, [b"one\n"])
    assert SketchCache({}).read() == [] and not (folder / "cache").exists()


def test_files_that_a_process_reads_and_imports_are_known(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("width = 8")
    (tmp_path / "config.json").write_text("{}")
    code = """
import json, sys
from pathlib import Path
from foretrace.record.sketch_cache import FilesRead
read = FilesRead([Path("scratch").absolute()])
sys.path.insert(0, "")
import model
open("config.json").read()
for missing in ("absent.yaml", "scratch/x"):
    try: open(missing)
    except OSError: pass
open("written.txt", "w").close()
print(json.dumps(read.fingerprints()))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = {Path(path).name: what for path, what in json.loads(done.stdout).items() if str(tmp_path) in path}
    assert {"model.py", "config.json", "absent.yaml"} <= set(found)
    assert found["absent.yaml"] is None and found["model.py"]
    assert not {"written.txt", "x", "scratch"} & set(found)


SCRIPT = """
import torch
from width import WIDTH

def make_step():
    weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH, device="cuda"))
    run = torch.compile(lambda given: (given @ weight).relu().sum())
    return lambda: run(torch.ones(4, WIDTH, device="cuda")).backward()
"""


@pytest.mark.slow
def test_a_compiled_script_is_sketched_once_until_something_that_it_imports_changes(folder: Path) -> None:
    script, imported = folder / "train.py", folder / "width.py"
    script.write_text(SCRIPT)
    imported.write_text("WIDTH = 8")
    first, again = (sketch_script(script, device="cuda") for _ in range(2))
    assert NOTE not in first.notes and NOTE in again.notes
    assert [(op.name, op.args) for op in first.ops] == [(op.name, op.args) for op in again.ops]
    assert any(op.name.startswith("triton_") for op in again.ops)
    imported.write_text("WIDTH = 16")
    changed = sketch_script(script, device="cuda")
    assert NOTE not in changed.notes and any(tensor.shape == (16, 16) for op in changed.ops for tensor in op.tensors)
