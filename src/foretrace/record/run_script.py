"""Running a script on fake tensors, in a process of its own: its top level once, then its step."""

from __future__ import annotations
import __future__

import ast
import contextlib
import errno
import functools
import importlib.util
import inspect
import os
import struct
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import BadZipFile

import torch

import foretrace
from foretrace.errors import ForetraceError
from foretrace.graph import Graph
from foretrace.record.command import Script, suggested_step
from foretrace.record.guard import RefusedError, SideEffects, guarded
from foretrace.record.guard.guard import note
from foretrace.record.script import STEP_FUNCTIONS, ScriptError, WaitsError, defined_functions, no_such_function
from foretrace.record.sketch.sketch import NEEDS_VALUES, STEERED, refusal, sketch

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for each rank."""
OURS_AND_TORCHS = tuple(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (foretrace, torch))
PYTHONS = f"{Path(str(contextlib.__file__)).parent}{os.sep}"
REFUSALS = (errno.EACCES, errno.EPERM)
"""Errors of code in C that the kernel keeps from writing a file or connecting."""
REFUSED_TEXTS = ("Permission denied", "Operation not permitted", "unable to open database")
"""Parts of errors of libraries in C that were kept from it."""
SUBCLASSED = "tensor subclasses"
"""Part of PyTorch's error where the values of a fake tensor are read."""
NEEDS_GPU = (
    "not compiled with CUDA",
    "must be a GPU",
    "must be a CUDA",
    "must be CUDA",
    "libcuda",
    "NVIDIA driver",
    "nvidia-smi",
    "CUDA error",
)
"""In errors where code reaches for a GPU past the functions that a sketch pretends."""
OWN_RANKS = "It starts its ranks itself: give their number, and its first rank is sketched: --world N."
UNLOADABLE = ("undefined symbol", "shared object", "Could not load this library")
"""Parts of errors where a library in C was built for something else."""
DAMAGED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    NameError,
    EOFError,
    BadZipFile,
    zlib.error,
    struct.error,
)
"""Errors of a script that makes something of an empty answer."""
END_OF_STEP = "end the program: what the step did until then is predicted"
COMPILE_ADVICE = "Give the script by itself, with a function make_step: train.py or train.py:function."
EXITED = "What it printed says why. It may need options: give them after its name, as in {} --data DIR"
NO_GROUP = ("process group has not been initialized", "env:// rendezvous")
"""Parts of PyTorch's errors where a script of torchrun was started without it."""


def sketch_of(script: Script, device: str | None, world: int | None) -> Graph:
    """The graph of a script's step; the rest is as in `foretrace.record.script.sketch_script`."""
    with guarded() as effects:
        running = Running(script, effects)
        try:
            if script.program:
                from foretrace.record.sketch.program import sketch_program

                if script.compile is not None:
                    raise ForetraceError("a program's own loop is not compiled anew", COMPILE_ADVICE)
                graph = sketch_program(running.run, device, world, script.programs)
            else:
                graph = sketch(running.step, device, world, compile=script.compile, programs=script.programs)
        except ForetraceError as error:
            if running.interrupted is not None:  # the program went no further than that
                raise running.left_off(running.interrupted) from None
            if running.exit_code not in (None, 0):
                ended = f"{script} ended with {running.exit_code!r} before it had trained: {error.what}"
                raise running.failure(ended, EXITED.format(f"foretrace predict -- python {script}"), error) from None
            cause = error.__cause__ or error
            said = refusal(cause, str(script)) if isinstance(cause, NEEDS_VALUES) else error
            raise running.failure(f"{script}: {said.what}", said.advice, cause) from None
        except WaitsError as error:
            what = f"{script} waits {error} for what never comes in a sketch"
            advice = "A process or a connection that it waits for does not exist in a sketch"
            advice = "It waits for a thread that failed" if effects.failed else advice
            raise running.failure(what, f"{advice}: leave it out; or {_record(script)}", error) from None
        except (Exception, SystemExit) as error:
            first = _first_cause(error)
            reason = f"{type(error).__name__}: {error}"
            reason += f"; the first error was {type(first).__name__}: {first}" if str(first) not in str(error) else ""
            what = f"{script} failed while its step was sketched ({reason})"
            raise running.failure(what, running.advice_on(first), error) from None
    graph.source = str(script)
    return graph


def _first_cause(error: BaseException) -> BaseException:
    """The error at the start of a chain of causes: libraries hide what went wrong behind errors of their own."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain[-1]


class Notebook:
    """What `get_ipython` gives in a notebook: a script that was exported from one has its commands and magics."""

    def system(self, command: str) -> None:
        """A line that begins with ``!``."""
        subprocess.run(command, shell=True)

    getoutput = system

    def run_line_magic(self, name: str, line: str, *_: Any) -> None:
        """A line that begins with ``%``: of programs only, nothing else is needed for a step."""
        if name in ("pip", "conda", "system", "sx"):
            self.system(f"{name} {line}")

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        """A cell that begins with ``%%``, as `run_line_magic`."""
        self.run_line_magic(name, line)


class Running:
    """A script whose top level runs when its step is first called, or as a program."""

    def __init__(self, script: Script, effects: SideEffects) -> None:
        self._script, self._effects = script, effects
        self._path = script.path
        self._found: Callable[[], Any] | None = None
        self.exit_code: Any = None
        self.interrupted: Exception | None = None
        """The error for which a statement was skipped that had begun to train."""

    def step(self) -> Any:
        """Call the function that does a step, or that builds the model and returns the function which does."""
        if self._found is None:
            module = ModuleType(self._path.stem)
            module.__dict__.update(__file__=str(self._path), __package__="")
            with _known(module):
                tree = self._load(module)
            wanted = self._script.function
            self._found = _until_exit(_step_function(module.__dict__, self._path, wanted, defined_functions(tree)))
        built = self._found()
        return _until_exit(built) if callable(built) else built

    def run(self) -> None:
        """Run the script as a program, as Python does."""
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        if self._script.module:
            sys.path.insert(0, str(Path.cwd()))
            self._path, package = _program_of(self._script.module)
            module.__dict__.update(__file__=str(self._path), __package__=package)
        else:
            module.__dict__.update(__file__=str(self._path), __package__=None)
        try:
            self._load(module)
        except SystemExit as error:  # as many programs end; one that has not trained is reported
            self.exit_code = error.code

    def left_off(self, error: Exception) -> ScriptError:
        """The failure of a program whose training was skipped for an error, before enough of its steps were done."""
        reason = str(error).partition("\n")[0]
        frames = [frame for frame in _users_frames(error) if frame.filename == str(self._path)]
        place = f"{self._path.name}:{frames[-1].lineno}" if frames else self._path.name
        what = f"{self._script}: its training got no further than {place} ({type(error).__name__}: {reason})"
        advice = f"A sketch does nothing outside of its process: leave that out of the loop. Or {_record(self._script)}"
        return self.failure(what, advice, error)

    def failure(self, what: str, advice: str, error: BaseException) -> ScriptError:
        """The error, with the side effects that were prevented before it: it may follow from them."""
        steered = [note for note in getattr(error, "__notes__", ()) if note.startswith(STEERED)]
        notes = "".join(f" {note[:1].upper()}{note[1:]}." for note in (*steered, *self._effects.notes()))
        frames = "".join(traceback.format_list(_users_frames(error)))
        if self._script.program and self._path.is_file() and self.exit_code in (None, 0):
            if "start a process for" in notes:
                advice = f"{OWN_RANKS} {advice}"
            source = self._path.read_bytes().decode(errors="replace")
            frames += f"\n{suggested_step(source, self._path.name)}\n"
            advice = f"{advice.rstrip('.')}. Or add the function above, and predict it: foretrace predict {self._path}"
        return ScriptError(what, f"{advice.rstrip('.')}.{notes}", frames)

    def advice_on(self, error: BaseException) -> str:
        """Advice on an error of the script."""
        return advice_on(error, self._script, self._found is not None, list(dict.fromkeys(self._effects.asked)))

    def _load(self, module: ModuleType) -> ast.Module:
        """Run the top level of the script, statement by statement."""
        script = self._path
        sys.argv = [str(script), *self._script.arguments]
        if not self._script.module:
            sys.path.insert(0, str(script.resolve().parent))
        tree = ast.parse(script.read_bytes(), str(script))
        module.__dict__.update(__cached__=None, __builtins__=__builtins__, __doc__=ast.get_docstring(tree))
        if any(isinstance(node, ast.Name) and node.id == "get_ipython" for node in ast.walk(tree)):
            module.__dict__.update(get_ipython=Notebook, display=print)
        for number, code in _statements(tree, str(script)):
            self._run(number, code, module.__dict__)
        return tree

    def _run(self, line: int, code: Any, names: dict[str, Any]) -> None:
        """Run a statement; skip one that fails since something was refused or stood in for.

        A library that writes files fails where it looks into the tensors that it saves: that is skipped as well.
        """
        before, saved = self._effects.answered, self._effects.total
        trained = torch.autograd._get_sequence_nr()
        try:
            exec(code, names)
        except Exception as error:
            frames = _users_frames(error)
            in_library = bool(frames) and "site-packages" in frames[-1].filename
            answered, saves = self._effects.answered > before, self._effects.total > saved and in_library
            if not (answered or saves or _is_refused(error)):
                raise
            if self._script.program and torch.autograd._get_sequence_nr() > trained:
                self.interrupted = error
            reason = str(error).partition("\n")[0]
            self._effects.skipped.append(f"{self._path.name}:{line} ({type(error).__name__}: {reason})")


def _program_of(name: str) -> tuple[Path, str]:
    """The file that ``python -m`` runs, and its package."""
    for one in (name, f"{name}.__main__"):
        with contextlib.suppress(ModuleNotFoundError):
            spec = importlib.util.find_spec(one)
            if spec is not None and spec.origin and spec.submodule_search_locations is None:
                return Path(spec.origin), spec.parent or ""
    raise ForetraceError(f"no module {name} is found", "Start Foretrace where the module is started.")


def _statements(tree: ast.Module, name: str) -> Iterator[tuple[int, Any]]:
    """The statements of a module, each with its line and compiled alone."""
    flags = 0
    for place, statement in enumerate(tree.body):
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for alias in statement.names:
                flags |= getattr(__future__, alias.name).compiler_flag
        if place and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # alone it would be the docstring
        yield statement.lineno, compile(ast.Module([statement], []), name, "exec", flags, dont_inherit=True)


def _is_refused(error: BaseException | None) -> bool:
    """Whether an error comes from something that was refused: by a stand-in, the audit hook, or the kernel."""
    while error is not None:
        if isinstance(error, RefusedError) or getattr(error, "errno", None) in REFUSALS:
            return True
        if any(part in str(error) for part in REFUSED_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def _known(module: ModuleType) -> Iterator[None]:
    """Register the script as a module for imports; a module of the same name is restored afterwards."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        if before is not None:
            sys.modules[module.__name__] = before


def _step_function(names: dict[str, Any], script: Path, function: str | None, defined: list[str]) -> Callable[[], Any]:
    wanted = STEP_FUNCTIONS if function is None else (function,)
    found = next((names[name] for name in wanted if callable(names.get(name))), None)
    if found is None:
        raise no_such_function("it", script, function, defined)
    needed = [
        p.name
        for p in inspect.signature(found).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise ForetraceError(
            f"{found.__name__} can't be called without {', '.join(needed)}",
            "Give the parameters defaults, or write a function without any that calls it.",
        )
    return found  # type: ignore[no-any-return]


def _until_exit(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function that may end the program: what it did until then is the step, unless it ends with an error."""

    @functools.wraps(function)
    def call() -> Any:
        try:
            return function()
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
            return note(END_OF_STEP)

    return call


def advice_on(error: BaseException, script: Script | Path, in_step: bool = False, asked: Sequence[str] = ()) -> str:
    """Advice on a script that failed, by its error; ``in_step``: after its top level, ``asked``: the lines that asked
    other machines for something.

    >>> advice_on(ModuleNotFoundError("No module named 'wonders'", name="wonders"), Path("train.py"))
    'Sketching imports what the script imports: install wonders here, or put its folder on PYTHONPATH.'
    """
    record = _record(script)
    if isinstance(error, ImportError):
        wanted = error.name or "it"
        return f"Sketching imports what the script imports: install {wanted} here, or put its folder on PYTHONPATH."
    if isinstance(error, SyntaxError):
        return f"Give a script that Python {sys.version_info.major}.{sys.version_info.minor} can read."
    program = isinstance(script, Script) and script.program
    if isinstance(error, SystemExit) and not program:
        if in_step:
            return f"Its step ends the program: leave that out of the step. Or {record}"
        return (
            "It is loaded as a module, without arguments: give its options defaults, and keep what only a program does "
            'under `if __name__ == "__main__":`.'
        )
    lacks_variable = isinstance(error, KeyError) and error.args[:1] and error.args[0] in TORCHRUN
    if lacks_variable or any(part in str(error) for part in NO_GROUP):
        return (
            "It is one rank of several: `foretrace predict` finds it a group with --world N. Or record a real run: "
            f"foretrace record --out DIR -- torchrun --nproc-per-node N {script}"
        )
    if _is_refused(error):
        return f"A sketch does nothing outside of its process: leave that out of the step. Or {record}"
    if isinstance(error, OSError) and error.filename is None and any(part in str(error) for part in UNLOADABLE):
        return f"A library that it imports can't be loaded here: check that it was built for this PyTorch. Or {record}"
    if asked and isinstance(error, (*DAMAGED, OSError)) and not getattr(error, "filename", None):
        return (
            f"It may fail for an empty answer: a sketch has no network, and nothing came for {' and '.join(asked)}. "
            f"Let it read a file that is here instead; or {record}"
        )
    if isinstance(error, OSError):
        files = (
            f"It needs {error.filename}" if error.filename else "It must find its files here: a sketch has no network"
        )
        return f"{files}: prepare its data, or start Foretrace where the script is started. Or {record}"
    if SUBCLASSED in str(error):
        return f"A sketch has shapes and no values, and the script needs values; {record}"
    if any(part in str(error) for part in NEEDS_GPU):
        return f"It asks for something that only a real GPU has: leave that out of the step, or {record}"
    missing = "it needs something that a sketch does not have, perhaps values of tensors"
    return f"Try it by itself: python {script}. If it runs, {missing}: {record}"


def _record(script: Script | Path) -> str:
    return f"record a real run instead: foretrace record --out DIR -- python {script}"


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a traceback besides those of Foretrace, PyTorch and Python itself, innermost last."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(("<", *OURS_AND_TORCHS))
    ]
    return [f for f in frames if "site-packages" in f.filename or not f.filename.startswith(PYTHONS)]
