"""The process in which a script is sketched: started ahead of time, used once, ended with its parent.

The process imports PyTorch first, and then reads its request from standard input: a caller that knows that a script
will be sketched, and not yet how, starts it at once (`start_ahead`). The graph comes back as lines of JSON. Only the
standard library is imported with this module, so that starting it costs little.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from foretrace.errors import ForetraceError

if TYPE_CHECKING:
    from foretrace.graph import Graph
    from foretrace.graph.op import Op
    from foretrace.graph.programs import Program
    from foretrace.record.command import Script
    from foretrace.record.guard import SideEffects
    from foretrace.record.sketch_cache import FilesRead, SketchCache

CODE = """
import gc, json, sys
gc.disable()
sys.path[:] = json.loads(sys.argv[1])
from foretrace.record.sketch_process import main
del sys.path[0]
main()
"""
"""The program of the process: it imports the same Foretrace, and then from the same path as this process. As on the
command line there is no garbage collection: nothing that it makes is thrown away."""
HOME = str(Path(__file__).resolve().parents[2])
LIBRARIES = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled"}
"""Variables by which libraries do without a network, unless the user has set them."""
FOLDERS = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
"""Variables that name the temporary folders of Python, PyTorch and compilers."""


def sketched(script: Script, device: str | None, world: int | None) -> Graph:
    """The graph of a script's step, from a process of its own; the rest is as in `sketch_script`."""
    from foretrace.record.sketch.shares import with_range_of_shares

    graph = _sketched(script, device, world)
    # A step function was called with all shares in its process; a program trains once in each.
    lean = script._replace(programs=False)
    return with_range_of_shares(graph, lambda: _sketched(lean, device, world)) if script.program else graph


def _sketched(script: Script, device: str | None, world: int | None) -> Graph:
    """The graph of a script's step with one share of elements where that is assumed."""
    from foretrace.processes import temporary_folder
    from foretrace.record.sketch_cache import NOTE, SketchCache

    how = {**script._asdict(), "path": str(script.path)}
    wanted = {"script": str(script), "how": how, "device": device, "world": world}
    cache = SketchCache(wanted)
    if stored := cache.read():
        graph = _decoded(json.loads(stored[0])["graph"], iter(stored[1:]))
        graph.notes.append(NOTE)
        return graph
    with temporary_folder() as folder, _ahead.pop() if _ahead else SketchProcess() as process:
        scratch = folder / "scratch"
        scratch.mkdir()
        return process.request({**wanted, "scratch": str(scratch)}, cache)


class SketchProcess:
    """A process that imports PyTorch, and sketches one script."""

    def __init__(self, meanwhile: Sequence[str] = ()) -> None:
        """Start it; ``meanwhile`` names modules to import in this process during the sketch."""
        self._meanwhile = meanwhile
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        words = [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", CODE]  # type: ignore[attr-defined]
        try:
            self._process = subprocess.Popen(
                [*words, json.dumps([HOME, *map(str, sys.path)]), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=_stderr(),
            )
        except OSError as error:
            raise ForetraceError(
                f"no process could be started to sketch in ({error.strerror})", "Close some programs, and try again."
            ) from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._relay: threading.Thread | None = None
        if self._process.stderr is not None:
            self._relay = threading.Thread(target=_relayed, args=(self._process.stderr,), daemon=True)
            self._relay.start()

    def __enter__(self) -> SketchProcess:
        return self

    def __exit__(self, *failure: object) -> None:
        self.end()

    def request(self, wanted: dict[str, Any], cache: SketchCache | None = None) -> Graph:
        """Send the request, and read the graph; one with compiled programs is stored."""
        with suppress(BrokenPipeError):  # it has ended: reported below
            self._requests.write(json.dumps(wanted).encode() + b"\n")
            self._requests.close()
        for module in self._meanwhile:
            with suppress(ImportError):  # reported where it is needed
                import_module(module)
        head = self._line(wanted["script"])
        answer = json.loads(head)
        if "again" in answer:
            with SketchProcess() as process:
                return process.request({**wanted, **answer["again"]}, cache)
        if "error" in answer:
            from foretrace.record.script import ScriptError

            raise ScriptError(**answer["error"])
        counted = answer["graph"]["ops"] + answer["graph"]["programs"]
        lines = [self._line(wanted["script"]) for _ in range(counted)]
        graph = _decoded(answer["graph"], iter(lines))
        if cache is not None and answer.get("files"):
            cache.write(answer["files"], [head, *lines])
        return graph

    def _line(self, script: str) -> bytes:
        """The next line of the answer; an error where the process ended before it."""
        line = self._answers.readline()
        if line.endswith(b"\n"):
            return line
        code = self._process.wait()
        try:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        except ValueError:
            how = f"by signal {-code}"
        advice = f"Try it by itself: python {script}. If it runs, memory may have run out."
        raise ForetraceError(f"{script}: the process that sketched it was ended {how}", advice)

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        # Freeing all its memory takes a while.
        threading.Thread(target=self._process.wait, daemon=True).start()
        if self._relay is not None:
            self._relay.join()
        for stream in (self._requests, self._answers, self._process.stderr):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


def _stderr() -> int:
    """Where the process writes: to this one's own standard error, or to a pipe where that is no file."""
    own = sys.__stderr__
    try:
        return own.fileno() if own is not None and sys.stderr is own else subprocess.PIPE
    except (OSError, ValueError):
        return subprocess.PIPE


def _relayed(stream: IO[bytes]) -> None:
    """Copy what the process writes to this one's standard error."""
    while piece := stream.read1():  # type: ignore[attr-defined]
        with suppress(OSError, ValueError):
            sys.stderr.write(piece.decode(errors="replace"))


_ahead: list[SketchProcess] = []
"""A process that was started before it was needed."""


def start_ahead(meanwhile: Sequence[str] = ()) -> None:
    """Start the process for the next script that is sketched, so that it has imported PyTorch by then."""
    with suppress(ForetraceError):
        if not _ahead:
            _ahead.append(SketchProcess(meanwhile))
            atexit.register(_end_ahead)


def _end_ahead() -> None:
    while _ahead:
        _ahead.pop().end()


# The answer: a graph without measurements.


def _encoded(graph: Graph, read: FilesRead) -> Iterator[str]:
    from foretrace.graph.codec import to_lines
    from foretrace.graph.op import COMPILED_REGION
    from foretrace.graph.programs import program_lines

    storages = [astuple(storage) for storage in graph.storages.values()]
    facts = {"rank": graph.rank, "world": graph.world, "source": graph.source, "notes": graph.notes}
    more = {"settings": graph.settings, "groups": graph.groups, "storages": storages, "ops": len(graph.ops)}
    programs = list(program_lines(graph.programs))
    files = read.fingerprints() if COMPILED_REGION in graph.ops.names.items else {}
    yield json.dumps({"graph": {**facts, **more, "programs": len(programs)}, "files": files})
    yield from to_lines(graph.ops)
    yield from to_lines(programs)


def _decoded(facts: dict[str, Any], lines: Iterator[bytes]) -> Graph:
    """The graph of an answer."""
    from foretrace.graph import Graph, OpTable, Storage
    from foretrace.graph.calls import collectives_of
    from foretrace.graph.codec import DAMAGE, from_lines

    ops = from_lines(islice(lines, facts["ops"]), "the sketch")
    programs = _programs(from_lines(lines, "the sketch"))
    try:
        groups = {str(name): tuple(map(int, ranks)) for name, ranks in facts["groups"].items()}
        storages = [Storage(*storage) for storage in facts["storages"]]
        return Graph(
            OpTable.of(ops),
            rank=int(facts["rank"]),
            world=int(facts["world"]),
            source=str(facts["source"]),
            notes=[str(note) for note in facts["notes"]],
            settings=dict(facts["settings"]),
            groups=groups,
            storages={storage.id: storage for storage in storages},
            collectives=collectives_of(ops, groups),
            programs=programs,
        )
    except DAMAGE as error:
        raise ForetraceError(f"the sketch arrived incomplete ({error})", "Sketch it again.") from None


def _programs(ops: list[Op]) -> tuple[Program, ...]:
    if not ops:  # few scripts compile
        return ()
    from foretrace.graph.programs import programs_of

    return programs_of(ops, "the sketch")


# The process itself.


def main() -> None:
    """The process: import PyTorch, read the request, send the graph."""
    from foretrace.processes import exit_with_parent

    exit_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C, and ends this process
    leave = os._exit
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what a script prints goes to standard error
        for line in _answer():
            answers.write(line.encode() + b"\n")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    leave(0)  # without waiting for the script's threads and exit functions


def _answer() -> Iterator[str]:
    from foretrace._numpy_threads import load_numpy
    from foretrace.record.sketch_cache import FilesRead

    load_numpy()  # as the command line does: fake tensors take no linear algebra
    try:
        try:
            import foretrace.record.run_script  # noqa: F401
            from foretrace.record.sketch.compiled.regions import DynamoNeededError, prepare_dynamo
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ForetraceError("sketching a script needs PyTorch", "Install it: pip install torch.") from None
        line = sys.stdin.readline()
        if not line:  # no script is sketched after all
            return
        wanted = json.loads(line)
        prepare_dynamo(_may_compile(wanted))  # before the guard is active, which slows each import
        read = FilesRead([Path(wanted["scratch"])])
        try:
            graph = _sketch(wanted)
        except DynamoNeededError:
            yield json.dumps({"again": {"compiles": True}})
            return
    except ForetraceError as error:
        frames = getattr(error, "frames", "")
        yield json.dumps({"error": {"what": error.what, "advice": error.advice, "frames": frames}})
    else:
        yield from _encoded(graph, read)


COMPILES = re.compile(rb"compile|_dynamo|transformers|lightning|accelerate")
"""In scripts that call torch.compile, or import libraries that look into TorchDynamo."""


def _may_compile(wanted: dict[str, Any]) -> bool:
    """Whether TorchDynamo is imported for a script; where it is needed after all, the script is sketched again."""
    how = wanted["how"]
    if wanted.get("compiles") or wanted["world"] or how["compile"] or how["module"]:
        return True
    with suppress(OSError):
        return COMPILES.search(Path(how["path"]).read_bytes()) is not None
    return False


IDLE_S = 60.0
"""How long a script may do nothing before it is ended: none of its threads computes, and it reads no large file."""
FAILED_IDLE_S = 2.0
"""The same once a thread of the script has failed."""
WATCH_S = 0.5
IDLE = 0.003
"""The processor's share of a process that does nothing."""
WAKE_UP = getattr(signal, "SIGRTMAX", signal.SIGINT)
"""The signal by which the main thread is interrupted; scripts handle others."""


def end_when_idle(idle_s: float = IDLE_S, *, has_failed: Callable[[], bool] = lambda: False) -> None:
    """Interrupt the main thread with a `WaitsError` once the process has done nothing for so long; sooner where a
    thread has failed that it may wait for."""
    send, main_thread = signal.pthread_kill, threading.main_thread().ident or 0
    signal.signal(WAKE_UP, _interrupt)

    def watch() -> None:
        last, since = time.process_time(), time.monotonic()
        woken = since
        while True:
            time.sleep(min(idle_s / 20, WATCH_S))
            used, now = time.process_time(), time.monotonic()
            was_stopped, woken = now - woken > idle_s / 2, now  # as by Ctrl-Z
            if was_stopped or used - last > IDLE * (now - since):
                last, since = used, now
            elif now - since > (min(idle_s, FAILED_IDLE_S) if has_failed() else idle_s):
                last, since = used, now
                send(main_thread, WAKE_UP)

    threading.Thread(target=watch, daemon=True).start()


def _interrupt(number: int, frame: FrameType | None) -> None:
    from foretrace.record.guard.side_effects import is_users
    from foretrace.record.script import WaitsError

    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    raise WaitsError("" if frame is None else f"at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}")


_until_exit = ExitStack()
"""Keeps the guard active as long as the process lives: threads of the script may outlive its step."""


def _sketch(wanted: dict[str, Any]) -> Graph:
    """Sketch the script with the guard active and the process restricted."""
    from foretrace.record.command import Script
    from foretrace.record.guard import guarded, restrict
    from foretrace.record.run_script import sketch_of

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    scratch = Path(wanted["scratch"])
    temporary = scratch / "temporary"
    temporary.mkdir(exist_ok=True)
    os.environ.update(dict.fromkeys(FOLDERS, str(temporary)))
    for name, value in LIBRARIES.items():
        os.environ.setdefault(name, value)
    import tempfile

    tempfile.tempdir = None  # found anew
    sys.dont_write_bytecode = True
    restrict([str(scratch)])
    handle = signal.signal  # as it is without the guard
    effects: SideEffects | None = None
    end_when_idle(has_failed=lambda: effects is not None and bool(effects.failed))
    effects = _until_exit.enter_context(guarded(scratch))
    how = wanted["how"]
    script = Script(**{**how, "path": Path(how["path"]), "arguments": tuple(how["arguments"])})
    try:
        return sketch_of(script, wanted["device"], wanted["world"])
    finally:
        handle(WAKE_UP, signal.SIG_IGN)  # who sends an answer may wait for its reader
