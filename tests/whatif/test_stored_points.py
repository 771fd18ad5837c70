"""Points that a sweep kept are taken again only while all that they depend on is the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import foretrace as ft
from foretrace.graph import ForetraceError
from foretrace.platform.registry import find_platform
from foretrace.whatif import stored_points as sweep_keys
from foretrace.whatif.points import Sweep
from foretrace.whatif.stored_points import step_digest
from foretrace.whatif.sweep import sweep
from tests.record.jobs import SHORT, foretrace

SCRIPT = """
import torch
{imports}

def make_step():
    model = torch.nn.Sequential(*[torch.nn.Linear({width}, {width}) for _ in range(8)]).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.randn(3, {width}, device="cuda")

    def step():
        optimizer.zero_grad()
        model(given).sum().backward()
        optimizer.step()

    return step
"""


def script(path: Path, width: object = 16, imports: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCRIPT.format(width=width, imports=imports))
    return path


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "points.jsonl"


def swept(what: Path | str, batches: list[int], out: Path, on: str | Path = "h200", **more: Any) -> tuple[int, Sweep]:
    """How many points were predicted, and the answer."""
    done: list[float] = []
    found = sweep(
        what, [on], {"batch": batches}, out=out, on_progress=lambda progress: done.append(progress.done), **more
    )
    return len(done), found


def memory(found: Sweep) -> dict[str, int | None]:
    return {point.changes[0]: point.memory_bytes for point in found.points}


def test_an_edited_script_is_predicted_anew_and_its_old_points_stay_in_the_file(tmp_path: Path, kept: Path) -> None:
    train = script(tmp_path / "stale.py")
    assert swept(train, [3, 6], kept)[0] == 2
    before = kept.read_text()
    script(train, width=4096)
    count, found = swept(train, [3, 6, 12], kept)
    assert count == 3 and len(found.points) == 3
    assert min(size or 0 for size in memory(found).values()) > 8 * 4096 * 4096 * 4, "all are of the large model"
    assert kept.read_text().startswith(before)
    (note,) = [note for note in found.notes if "not reused" in note]
    assert note.startswith(f"2 points that {kept} holds") and "another version" in note
    script(train)
    assert swept(train, [3, 6], kept)[0] == 0, "the first version is known still"


def test_a_script_that_does_the_same_is_the_same_however_it_is_written_and_wherever_it_lies(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = script(tmp_path / "train.py")
    swept(train, [3, 6], kept)
    monkeypatch.chdir(tmp_path)
    for same in ("train.py", "./train.py", "train.py:make_step", f"{tmp_path}/../{tmp_path.name}/train.py"):
        assert swept(same, [3, 6], kept)[0] == 0
    train.write_text("# a comment\n" + train.read_text())
    moved = tmp_path / "elsewhere" / "other.py"
    moved.parent.mkdir()
    shutil.move(train, moved)
    count, found = swept(moved, [3, 6], kept)
    assert count == 0 and len(found.points) == 2 and not [note for note in found.notes if "not reused" in note]


def test_an_edited_module_of_the_script_is_another_step(tmp_path: Path, kept: Path) -> None:
    """From the command line, since a module is read once in a process."""
    train = script(tmp_path / "train.py", "WIDTH", "from width import WIDTH")
    answers = []
    for width in (16, 16, 4096):
        (tmp_path / "width.py").write_text(f"WIDTH = {width}\n")
        done = foretrace("sweep", train, "--set", "batch=3", "--out", kept, "--json")
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    small, same, large = (answer["points"][0]["memory_bytes"] for answer in answers)
    assert small == same < large
    assert len(kept.read_text().splitlines()) == 2
    assert ["not reused" in "".join(answer["notes"]) for answer in answers] == [False, False, True]


def test_what_a_script_reads_when_it_is_sketched_is_a_part_of_it(tmp_path: Path, kept: Path) -> None:
    (tmp_path / "width.json").write_text("16")
    train = script(tmp_path / "train.py", "WIDTH", f"WIDTH = int(open({str(tmp_path / 'width.json')!r}).read())")
    assert swept(train, [3], kept)[0] == 1
    (tmp_path / "width.json").write_text("32")
    assert swept(train, [3], kept)[0] == 1


def recorded(out: Path, width: int) -> Path:
    layer = torch.nn.Linear(width, width)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    given = torch.ones(4, width)

    def step() -> None:
        optimizer.zero_grad()
        layer(given).sum().backward()
        optimizer.step()

    return ft.record_step(step, out, **SHORT)


@pytest.fixture
def cpu_like(tmp_path: Path) -> Path:
    """A platform in a folder of its own whose device is a CPU by name: recordings of tests run on one."""
    folder = tmp_path / "mine"
    shutil.copytree(find_platform("h200"), folder)
    device = json.loads((folder / "device.json").read_text())
    (folder / "device.json").write_text(json.dumps({**device, "kind": "cpu"}))
    return folder


def test_a_new_recording_of_the_same_name_is_another_step(tmp_path: Path, kept: Path, cpu_like: Path) -> None:
    run = recorded(tmp_path / "run", 8)
    assert swept(run, [4, 8], kept, cpu_like)[0] == 2
    assert swept(f"{run}/../run/", [4, 8], kept, cpu_like)[0] == 0
    shutil.move(run, tmp_path / "moved")
    assert swept(tmp_path / "moved", [4, 8], kept, cpu_like)[0] == 0
    recorded(run, 16)
    count, found = swept(run, [4, 8], kept, cpu_like)
    assert count == 2 and any("2 points" in note and "not reused" in note for note in found.notes)


def test_a_recording_that_changes_while_it_is_swept_is_refused(
    tmp_path: Path, kept: Path, cpu_like: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(tmp_path / "run", 8)
    digests = iter(["before", "after"])
    monkeypatch.setattr("foretrace.whatif.sweep.step_digest", lambda what: next(digests))
    with pytest.raises(ForetraceError, match="changed while it was swept"):
        swept(run, [4, 8], kept, cpu_like)


def test_a_trace_is_known_by_its_content_and_files_beside_it_are_not_part_of_it(tmp_path: Path) -> None:
    trace = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    first = step_digest(tmp_path)
    (tmp_path / "points.json").write_text("{}")
    assert step_digest(tmp_path) == step_digest(f"{tmp_path}/./") == first
    trace["traceEvents"][0]["dur"] = 3
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    assert step_digest(tmp_path) != first


def twice(number: object) -> object:
    return number * 2 if isinstance(number, float) else number


@pytest.mark.parametrize("part", ["host.json", "device.json", "models/index.json"])
def test_a_platform_that_was_calibrated_again_is_another_one(tmp_path: Path, kept: Path, part: str) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(find_platform("h200"), mine)
    train = script(tmp_path / "train.py")
    assert swept(train, [3], kept, mine)[0] == 1
    assert swept(train, [3], kept, f"{tmp_path}/./mine")[0] == 0
    facts = json.loads((mine / part).read_text())
    key = next(name for name, value in facts.items() if twice(value) != value) if part == "host.json" else None
    facts |= {key: twice(facts[key])} if key else {"provenance": "again"} if part == "device.json" else {}
    (mine / part).write_text(json.dumps(facts, indent=3))
    count, found = swept(train, [3], kept, mine)
    assert count == 1 and any("their platform has changed" in note for note in found.notes)


def test_points_of_platforms_that_nobody_asks_for_are_no_matter(tmp_path: Path, kept: Path) -> None:
    train = script(tmp_path / "train.py")
    swept(train, [3], kept, "h200")
    count, found = swept(train, [3], kept, "a100")
    assert count == 1 and not [note for note in found.notes if "not reused" in note]
    assert swept(train, [3], kept, "h200")[0] == swept(train, [3], kept, "a100")[0] == 0
    assert swept(train, [3], kept, "h200:host=2")[0] == 1


def test_another_foretrace_predicts_anew(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = script(tmp_path / "train.py")
    swept(train, [3], kept)
    with monkeypatch.context() as patched:
        patched.setattr(ft, "__version__", "99.0")
        count, found = swept(train, [3], kept)
        assert count == 1 and any("another version of Foretrace" in note for note in found.notes)
    with monkeypatch.context() as patched:
        patched.setattr(sweep_keys, "_code_digest", lambda: "of other code of the same version")
        assert swept(train, [3], kept)[0] == 1
    assert swept(train, [3], kept)[0] == 0


def test_a_file_of_an_older_foretrace_is_not_taken_from(tmp_path: Path, kept: Path) -> None:
    train = script(tmp_path / "train.py")
    swept(train, [3], kept)
    entry = json.loads(kept.read_text())
    del entry["key"]
    kept.write_text(json.dumps({**entry, "joined": [None, None]}) + "\n")
    count, found = swept(train, [3], kept)
    assert count == 1 and len(found.points) == 1
    assert any(note.startswith("1 point that") and "an older Foretrace" in note for note in found.notes)
    assert len(kept.read_text().splitlines()) == 2


@pytest.mark.parametrize("key", [7, {}, {"step": 1}, ["a"]])
def test_a_damaged_key_is_said(tmp_path: Path, kept: Path, key: object) -> None:
    kept.write_text(json.dumps({"key": key, "point": {"changes": [], "platform": "h200"}}) + "\n")
    with pytest.raises(ForetraceError, match="something else than points"):
        swept(script(tmp_path / "train.py"), [3], kept)


def test_all_processes_of_a_sweep_work_on_one_sketch(tmp_path: Path) -> None:
    """Even of a script that is another one each time it is run."""
    train = script(tmp_path / "train.py", "WIDTH", "import os; WIDTH = 1024 + os.getpid() % 997")
    found = sweep(train, ["h200"], {"batch": [3, 6, 9, 12]}, workers=2)
    sizes = [point.memory_bytes or 0 for point in found.points]
    assert len(sizes) == 4 and max(sizes) - min(sizes) < 2**20


@pytest.mark.parametrize("name", ["dlrm.py", "gpt.py", "resnet.py"])
def test_a_script_is_sketched_alike_again_and_again(name: str, made: Callable[[str], str]) -> None:
    assert made(name) == made(name)


@pytest.fixture
def made() -> Callable[[str], str]:
    from foretrace.api import read

    examples = Path(__file__).resolve().parents[2] / "examples"
    return lambda name: step_digest(read(examples / name))


def test_points_go_to_a_folder_that_is_made_for_them(tmp_path: Path) -> None:
    out = tmp_path / "new" / "points.jsonl"
    assert swept(script(tmp_path / "train.py"), [3], out)[0] == 1 and out.is_file()
