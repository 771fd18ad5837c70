"""Sketching does no harm: nothing that a script tries gets out of its process, all is named, and the graph is made."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import posix
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import torch

from foretrace.errors import ForetraceError
from foretrace.graph import Graph
from foretrace.record.command import Script
from foretrace.record.guard.landlock import version
from foretrace.record.script import ScriptError, sketch_command, sketch_script
from foretrace.record.sketch.sketch import sketch
from tests.record.guard.attempts import ATTEMPTS, LOOP, STEP, lines_of, script_of

WHERE = ("top", "step")
FORMS = {"function": STEP, "program": LOOP}
"""How a script is sketched: by its step function, or by its own loop."""
PARTS = 2
"""How many scripts the attempts are shared between."""


@dataclass
class Outcome:
    """What became of a script with many attempts."""

    script: str
    graph: Graph
    before: dict[str, object]
    after: dict[str, object]
    reached: list[str]
    """What arrived at the sockets that were listening."""

    @property
    def named(self) -> set[int]:
        """The lines of the script that the notes name."""
        return {int(line) for note in self.graph.notes for line in re.findall(r"train\.py:(\d+)", note)}


def state_of(folder: Path) -> dict[str, object]:
    """All that is in a folder: kinds, permissions, times and contents."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        held = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (held.st_mode, held.st_mtime_ns, held.st_nlink, content)
    return found


def something_to_lose(folder: Path) -> None:
    (folder / "empty").mkdir(parents=True)
    (folder / "full").mkdir()
    (folder / "full" / "inner.txt").write_text("precious")
    (folder / "keep.txt").write_text("precious")
    (folder / "data.bin").write_bytes(bytes(64))
    (folder / "link").symlink_to("keep.txt")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    names = list(ATTEMPTS)
    with (
        _victim() as victim,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        port = server.getsockname()[1]
        datagrams.bind(("127.0.0.1", port))
        found: dict[str, list[Outcome]] = {form: [] for form in FORMS}
        for form, part in product(FORMS, range(PARTS)):
            folder = tmp_path_factory.mktemp(f"part{part}")
            some = {name: ATTEMPTS[name] for name in names[part::PARTS]}
            places = {(name, where): str(folder / "victims" / where / name) for name in some for where in WHERE}
            for place in places.values():
                something_to_lose(Path(place))
            script = folder / "train.py"
            script.write_text(script_of(some, places, port, victim.pid, FORMS[form]))
            before = state_of(folder)
            graph = sketch_command(Script(script, program=form == "program"))
            reached = [f"a {kind}" for kind, one in (("connection", server), ("datagram", datagrams)) if waiting(one)]
            found[form].append(Outcome(script.read_text(), graph, before, state_of(folder), reached))
        assert victim.poll() is None  # no signal reached it
    return found


@contextmanager
def _victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process to kill."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def waiting(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        one.accept() if one.type == socket.SOCK_STREAM else one.recv(1)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_changes_nothing_and_is_named(
    outcomes: dict[str, list[Outcome]], name: str, where: str, form: str
) -> None:
    outcome = outcomes[form][list(ATTEMPTS).index(name) % PARTS]
    mine = f"victims/{where}/{name}"
    before, after = (
        {p: s for p, s in states.items() if p.startswith(mine)} for states in (outcome.before, outcome.after)
    )
    assert after == before and before
    by_line = outcome.named & set(lines_of(outcome.script, f"{where}_{name}"))
    assert by_line or any(f"{mine}/" in note for note in outcome.graph.notes)


def test_nothing_else_has_changed_and_nothing_was_sent(outcomes: dict[str, list[Outcome]]) -> None:
    for outcome in chain.from_iterable(outcomes.values()):
        assert outcome.after == outcome.before
        assert not outcome.reached


def test_the_graph_is_that_of_the_step_and_nothing_was_skipped(outcomes: dict[str, list[Outcome]]) -> None:
    for outcome in chain.from_iterable(outcomes.values()):
        names = [op.name for op in outcome.graph.ops]
        assert "aten::addmm" in names and names.count("aten::mm") == 1
        assert not [note for note in outcome.graph.notes if note.startswith("skipped")]


def sketched(tmp_path: Path, text: str, **options: object) -> Graph:
    script = tmp_path / "train.py"
    script.write_text(f"import os, torch\n{text}\ndef step():\n    torch.ones(2).relu()\n")
    return sketch_script(script, **options)  # type: ignore[arg-type]


def test_a_script_finds_what_it_wrote_renamed_and_deleted(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_text("a")
    graph = sketched(
        tmp_path,
        f"os.chdir({str(tmp_path)!r})\n"
        """
import glob, json, shutil, sqlite3
from pathlib import Path
from typing import Any
with open("old.txt", "a") as file: file.write(" and new")
assert open("old.txt").read() == "old and new" and file.name == "old.txt"
os.makedirs("out/deep", exist_ok=True)
Path("out/deep/x.json").write_text(json.dumps([1]))
assert json.loads(Path("out/deep/x.json").read_text()) == [1] and Path("out").is_dir()
assert sorted(os.listdir(".")) == ["old.txt", "out", "run", "train.py"]
os.rename("out", "done")
assert glob.glob("done/*/*.json") == ["done/deep/x.json"] and not Path("out").exists()
assert [folders for _, folders, _ in os.walk("done")] == [["deep"], []]
Path("old.txt").rename("older.txt")
assert not os.path.exists("old.txt") and os.path.getsize("older.txt") == 11
shutil.rmtree("run")
assert not os.path.exists("run/a")
os.mkdir("run")
assert os.listdir("run") == []
try: os.mkdir("run")
except FileExistsError: pass
try: open("nowhere/x", "w")
except FileNotFoundError: pass
db = sqlite3.connect("my.db"); db.execute("create table a (b)"); db.commit(); db.close()
assert sqlite3.connect("my.db").execute("select count(*) from a").fetchone() == (0,)
torch.save({"weights": torch.ones(3)}, "model.pt")
assert torch.load("model.pt")["weights"].shape == (3,)
with open("other.pt", "wb") as file: torch.save([1], file)
with open("other.pt", "rb") as file: assert torch.load(file) == [1]
""",
    )
    assert not [note for note in graph.notes if note.startswith("skipped")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.txt", "run", "train.py"]
    assert (tmp_path / "old.txt").read_text() == "old" and (tmp_path / "run" / "a").read_text() == "a"


def test_temporary_files_are_the_scripts_own_and_nothing_to_tell(tmp_path: Path) -> None:
    text = """
import tempfile, multiprocessing
with tempfile.TemporaryDirectory() as folder: open(folder + "/x", "w").write("x"); assert os.listdir(folder) == ["x"]
with tempfile.NamedTemporaryFile("w") as file: file.write("x")
with tempfile.TemporaryFile() as file: file.write(b"x")
open(os.devnull, "w").write("x")
open("/dev/stdout", "w").write("x")
lock, event = multiprocessing.Lock(), multiprocessing.Event()
queue, value = multiprocessing.Queue(), multiprocessing.Value("i", 3)
with lock: event.set()
queue.put(1)
assert queue.get() == 1 and value.value == 3 and event.wait(1)
"""
    assert sketched(tmp_path, text).notes == []


def test_what_slips_past_the_stand_ins_is_refused_and_its_statement_skipped(tmp_path: Path) -> None:
    (tmp_path / "keep.txt").write_text("precious")
    graph = sketched(tmp_path, f"import posix\nposix.remove.__wrapped__({str(tmp_path / 'keep.txt')!r})\nafter = 1")
    assert (tmp_path / "keep.txt").exists()
    assert "keep.txt (train.py:3)" in graph.notes[0]
    assert graph.notes[1].startswith(
        "skipped while sketching: train.py:3 (RefusedError: not done while sketching: delete"
    )
    assert [op.name for op in graph.ops] == ["aten::ones", "aten::relu"]


@pytest.mark.skipif(not version(), reason="this kernel has no Landlock")
def test_what_c_code_writes_is_stopped_by_the_kernel(tmp_path: Path) -> None:
    new = tmp_path / "new"
    graph = sketched(tmp_path, f"import ctypes\nassert ctypes.CDLL(None).mkfifoat(0, {bytes(new)!r}, 0o644) == -1")
    assert not new.exists() and [op.name for op in graph.ops] == ["aten::ones", "aten::relu"]


@pytest.mark.parametrize("found", ["(('chmod', library))", "(_ctypes.dlsym(library._handle, 'chmod'))"])
def test_a_function_of_c_that_a_prototype_finds_is_refused(tmp_path: Path, found: str) -> None:
    prototype = "ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int)"
    before = tmp_path.stat().st_mode
    text = f"import ctypes, _ctypes\nlibrary = ctypes.CDLL(None)\n{prototype}{found}({bytes(tmp_path)!r}, 0o777)"
    assert "find chmod of the C library (train.py:4)" in sketched(tmp_path, text).notes[0]
    assert tmp_path.stat().st_mode == before


def test_a_function_of_c_is_itself_again_afterwards_and_reads_meanwhile(tmp_path: Path) -> None:
    library = ctypes.CDLL(None)
    (tmp_path / "keep.txt").write_text("precious")
    found = []

    def step() -> None:
        relu()
        found.append((library.open(bytes(tmp_path / "keep.txt"), 0), library.unlink(bytes(tmp_path / "keep.txt"))))

    notes = sketch(step).notes
    (opened, removed), *_ = found
    assert opened > 2 and removed == -1 and (tmp_path / "keep.txt").exists()
    assert any("call unlink of the C library on" in note for note in notes)
    assert library.unlink(bytes(tmp_path / "keep.txt")) == 0 and not (tmp_path / "keep.txt").exists()


def test_a_library_that_the_kernel_refused_a_file_is_skipped(tmp_path: Path) -> None:
    text = f"import sqlite3\nsqlite3.connect(':memory:').execute(\"attach ('{tmp_path}/new.db') as other\")"
    assert sketched(tmp_path, text).notes == [
        f"skipped while sketching: train.py:3 (OperationalError: unable to open database: {tmp_path}/new.db)"
    ]
    assert not (tmp_path / "new.db").exists()


def test_a_statement_that_fails_on_a_stand_ins_answer_is_skipped(tmp_path: Path) -> None:
    text = "import subprocess\nHEAD = subprocess.check_output(['git', 'log']).split()[0]\nNEXT = 'HEAD' in globals()"
    graph = sketched(tmp_path, text)
    assert graph.notes == [
        "not done while sketching: run git log (train.py:3)",
        "skipped while sketching: train.py:3 (IndexError: list index out of range)",
    ]


def test_a_library_that_fails_on_what_it_saves_is_skipped(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "keeper"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("def keep(path):\n    open(path, 'w')\n    raise ValueError('no values')\n")
    text = f"import sys\nsys.path.append({str(library.parent)!r})\nimport keeper\nkeeper.keep({str(tmp_path / 'x')!r})"
    assert sketched(tmp_path, text).notes[1] == "skipped while sketching: train.py:5 (ValueError: no values)"


def test_mpi_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise SystemExit('started')")
    graph = sketched(tmp_path, "try: from mpi4py import MPI\nexcept ImportError: MPI = None")
    assert graph.notes[0].startswith("not done while sketching: import mpi4py.MPI: MPI starts a daemon")


def test_an_error_of_the_script_itself_is_still_one_and_says_what_was_not_done(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="ZeroDivisionError") as failed:
        sketched(tmp_path, f"open({str(tmp_path / 'log.txt')!r}, 'w')\n1 / 0")
    assert failed.value.advice.endswith("log.txt for writing (train.py:2).")
    assert "line 3, in <module>" in failed.value.frames


def test_many_files_of_one_line_are_counted(tmp_path: Path) -> None:
    graph = sketched(tmp_path, f"for i in range(9): open({str(tmp_path)!r} + f'/{{i}}.txt', 'w')")
    assert graph.notes == [
        f"not done while sketching: open {tmp_path}/0.txt, {tmp_path}/1.txt and 7 others for writing (train.py:2)"
    ]


# In the user's own process.


def relu() -> None:
    torch.ones(2).relu()


def test_a_function_is_sketched_without_side_effects_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # notes shorten long paths
    kept = Path("keep.txt")
    kept.write_text("precious")

    def step() -> None:
        relu()
        torch.save({}, kept)
        subprocess.run(["rm", kept])
        with socket.create_connection(("127.0.0.1", 1)) as connected:
            connected.sendall(b"x")

    before = (open, os.open, subprocess.Popen.__init__, socket.socket.connect, torch.save, threading.Thread.start)
    (note,) = sketch(step).notes
    assert kept.read_text() == "precious"
    assert re.sub(r":\d+\)", ")", note) == (
        f"not done while sketching: torch.save to {kept}, 2 times (test_guard.py); "
        f"run rm {kept}, 2 times (test_guard.py); connect to 127.0.0.1:1, 2 times (test_guard.py)"
    )
    after = (open, os.open, subprocess.Popen.__init__, socket.socket.connect, torch.save, threading.Thread.start)
    assert after == before and "connect" not in vars(socket.socket)


def test_afterwards_everything_works_again(tmp_path: Path) -> None:
    sketch(relu)
    (tmp_path / "new").write_text("x")
    (tmp_path / "new").rename(tmp_path / "newer")
    assert subprocess.run(["ls", tmp_path], capture_output=True, text=True).stdout == "newer\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_other_threads_go_on_with_their_work(tmp_path: Path) -> None:
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        (tmp_path / "mine.txt").write_text("x")
        helper = threading.Thread(target=(tmp_path / "helpers.txt").write_text, args=("x",))
        helper.start()
        helper.join()
        done.set()

    def step() -> None:
        relu()
        go.set()
        assert done.wait(10)
        (tmp_path / "sketched.txt").write_text("x")
        assert (tmp_path / "sketched.txt").exists()

    thread = threading.Thread(target=work)
    thread.start()
    graph = sketch(step)
    thread.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["helpers.txt", "mine.txt"]
    assert "sketched.txt for writing" in graph.notes[0] and "mine" not in graph.notes[0]


def test_a_log_that_was_opened_before_gets_no_lines(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "train.log")
    logger = logging.getLogger("of a step")
    logger.addHandler(handler)
    logger.propagate = False

    def step() -> None:
        relu()
        logger.warning("a step")

    graph = sketch(step)
    logger.warning("after")
    handler.close()
    assert (tmp_path / "train.log").read_text() == "after\n"
    assert "log to train.log" in graph.notes[0]


def test_workers_of_a_loader_are_left_out_for_the_sketch_alone() -> None:
    loader = torch.utils.data.DataLoader(range(8), num_workers=2)
    graph = sketch(lambda: [relu(), list(loader)])
    assert any("start 2 workers of a DataLoader" in note for note in graph.notes)
    assert loader.num_workers == 2


def test_a_step_that_needs_what_is_refused_is_refused_in_one_line(tmp_path: Path) -> None:
    remove = posix.remove  # as it is before the sketch

    def step() -> None:
        relu()
        remove(tmp_path / "keep.txt")

    (tmp_path / "keep.txt").write_text("precious")
    with pytest.raises(ForetraceError, match=r"can't be sketched: not done while sketching: delete .*keep\.txt"):
        sketch(step)
    assert (tmp_path / "keep.txt").exists()


def saver(folder: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a library on the path, whose functions a sketch stands in for."""
    package, _, module = name.partition(".")
    (folder / package).mkdir()
    (folder / package / "__init__.py").touch()
    (folder / package / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)


def safetensors_in(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and values of a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), file.read()


def test_a_script_finds_names_dtypes_and_shapes_of_the_weights_that_it_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver(tmp_path, "safetensors.torch", "def save_file(tensors, filename):\n    raise ValueError\n", monkeypatch)
    found: list[Any] = []

    def step() -> None:
        from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]

        relu()
        save_file({"weight": torch.ones(2, 3).bfloat16(), "ids": torch.ones(4).long()}, tmp_path / "model.safetensors")
        found[:] = safetensors_in(tmp_path / "model.safetensors")

    sketch(step)
    assert found == [
        {"weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
         "ids": {"dtype": "I64", "shape": [4], "data_offsets": [12, 44]}},
        bytes(44),
    ]  # fmt: skip
    assert not (tmp_path / "model.safetensors").exists()


def test_a_model_of_transformers_that_a_script_saved_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = """
import torch

class Config:
    def save_pretrained(self, folder):
        with open(f"{folder}/config.json", "w") as file:
            file.write(" ".join(self.architectures))

class PreTrainedModel(torch.nn.Linear):
    config = Config()

    def save_pretrained(self, save_directory):
        raise ValueError("fake tensors can't be saved")
"""
    saver(tmp_path, "transformers.modeling_utils", library, monkeypatch)
    found: list[Any] = []

    def step() -> None:
        from transformers.modeling_utils import PreTrainedModel  # type: ignore[import-not-found, unused-ignore]

        relu()
        PreTrainedModel(3, 2).save_pretrained(tmp_path / "model")
        config = (tmp_path / "model" / "config.json").read_text()
        found[:] = [config, *safetensors_in(tmp_path / "model" / "model.safetensors")]

    assert "save_pretrained to" in sketch(step).notes[0]
    config, header, values = found
    assert config == "PreTrainedModel" and header["weight"]["shape"] == [2, 3] and values == bytes(4 * (6 + 2))
    assert not (tmp_path / "model").exists()


def test_a_signal_by_a_descriptor_is_not_said_to_be_for_a_process_of_that_number() -> None:
    def step() -> None:
        descriptor = os.pidfd_open(os.getppid())
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        torch.ones(2).sum()

    (note,) = (note for note in sketch(step).notes if note.startswith("not done"))
    assert re.search(r"send SIGKILL to the process of descriptor \d+\b.* \(test_guard\.py:\d+\)", note)


def test_the_module_of_an_exported_program_is_the_one_that_was_exported() -> None:
    def step() -> None:
        program = torch.export.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
        program.module()(torch.ones(2, 4))

    graph = sketch(step)
    assert "aten::addmm" in {op.name for op in graph.ops} and any("export a model" in note for note in graph.notes)


def test_a_module_that_is_imported_meanwhile_gets_its_stand_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").touch()
    (tmp_path / "safetensors" / "torch.py").write_text("def save_file(tensors, filename):\n    raise ValueError\n")
    monkeypatch.syspath_prepend(tmp_path)

    def step() -> None:
        from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]

        relu()
        save_file({}, tmp_path / "model.safetensors")
        assert (tmp_path / "model.safetensors").exists()

    assert "save safetensors to" in sketch(step).notes[0]
    assert not (tmp_path / "model.safetensors").exists()
