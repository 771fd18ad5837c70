"""Sketching the step of a script: the file is run as a module, its step function called on fake tensors."""

from __future__ import annotations

import contextlib
import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import foretrace
from foretrace.graph import ForetraceError, Graph
from foretrace.record.sketch import BEYOND_PAPER, refusal, sketch

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for each rank."""
STEP_FUNCTIONS = ("make_step", "step")
"""What a script calls the function that builds a step, or does one."""

OURS_AND_TORCHS = tuple(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (foretrace, torch))
PYTHONS = f"{Path(str(contextlib.__file__)).parent}{os.sep}"

SUBCLASSED = "tensor subclasses"
"""In what PyTorch says where a tensor's values are wanted and it has none."""


NO_GROUP = ("process group has not been initialized", "env:// rendezvous")
"""In what PyTorch says where a script that is started by torchrun was not."""


class ScriptError(ForetraceError):
    """A script that failed while it was sketched, with the part of the traceback that is the script's."""

    def __init__(self, what: str, advice: str, frames: str) -> None:
        super().__init__(what, advice)
        self.frames = frames


def sketch_script(
    script: Path, function: str | None = None, device: str | None = None, world: int | None = None
) -> Graph:
    """The graph of a script's step, which never runs.

    Parameters
    ----------
    script
        A Python file.
    function
        The function in it that does one step, or that builds the model and returns the function that does;
        ``make_step`` or ``step`` where it is left out.
    device
        ``"cuda"`` lets the script find a GPU; left out, the machine is as it is.
    world
        Ranks of the process group that a script finds, as torchrun would start it: it is the first of them.

    >>> import tempfile
    >>> script = Path(tempfile.mkdtemp()) / "train.py"
    >>> _ = script.write_text("import torch\\ndef step():\\n    torch.ones(2, 2) @ torch.ones(2, 2)\\n")
    >>> [op.name for op in sketch_script(script).ops]
    ['aten::ones', 'aten::ones', 'aten::mm']
    """
    if not script.is_file():
        raise ForetraceError(f"{script} does not exist", "Give a recording, a trace or a script.")

    def build() -> Any:
        with _as_started(script):
            found = _step_function(runpy.run_path(str(script), run_name=script.stem), script, function)
            return found()

    try:
        with contextlib.redirect_stdout(sys.stderr):
            graph = sketch(build, device, world)
    except ForetraceError as error:
        cause = error.__cause__ or error
        said = refusal(cause, str(script)) if isinstance(cause, BEYOND_PAPER) else error
        raise ScriptError(f"{script}: {said.what}", said.advice, frames_of(cause)) from None
    except (Exception, SystemExit) as error:
        what = f"{script} failed while its step was sketched ({type(error).__name__}: {error})"
        raise ScriptError(what, advice_on(error, script), frames_of(error)) from None
    graph.source = str(script)
    return graph


def advice_on(error: BaseException, script: Path) -> str:
    """What to do about a script that failed, by how it did.

    >>> advice_on(ModuleNotFoundError("No module named 'wonders'", name="wonders"), Path("train.py"))
    'Sketching imports what the script imports: install wonders here, or put its folder on PYTHONPATH.'
    """
    record = f"record a real run instead: foretrace record --out DIR -- python {script}"
    if isinstance(error, ImportError):
        wanted = error.name or "it"
        return f"Sketching imports what the script imports: install {wanted} here, or put its folder on PYTHONPATH."
    if isinstance(error, SyntaxError):
        return f"Give a script that Python {sys.version_info.major}.{sys.version_info.minor} can read."
    if isinstance(error, SystemExit):
        return (
            "It is loaded as a module, without arguments: give its options defaults, and keep what only a program does "
            'under `if __name__ == "__main__":`.'
        )
    if _wants_a_group(error):
        return (
            "It is one rank of several: `foretrace predict` finds it a group with --world N. Or record a real run: "
            f"foretrace record --out DIR -- torchrun --nproc-per-node N {script}"
        )
    if isinstance(error, OSError):
        return f"It must find its files: start Foretrace where the script is started. Or {record}"
    if SUBCLASSED in str(error):
        return f"Sketches have shapes and no values, and it wants some; {record}"
    return f"Try it by itself: python {script}. If it runs, it needs values, which sketches have not: {record}"


def _wants_a_group(error: BaseException) -> bool:
    """Whether a script failed since torchrun did not start it."""
    if isinstance(error, KeyError):
        return bool(error.args) and error.args[0] in TORCHRUN
    return any(said in str(error) for said in NO_GROUP)


def frames_of(error: BaseException) -> str:
    """The frames of a traceback that are the user's, innermost last; empty where none is."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _foreign(f.filename)]
    return "".join(traceback.format_list(frames))


def _foreign(filename: str) -> bool:
    """Whether a file's frames say nothing about a script: those of Foretrace, PyTorch and Python itself."""
    installed = "site-packages" in filename
    return filename.startswith(("<", *OURS_AND_TORCHS)) or (filename.startswith(PYTHONS) and not installed)


def _step_function(names: dict[str, Any], script: Path, function: str | None) -> Callable[[], Any]:
    wanted = STEP_FUNCTIONS if function is None else (function,)
    found = next((names[name] for name in wanted if callable(names.get(name))), None)
    if found is None:
        has = sorted(n for n, v in names.items() if inspect.isfunction(v) and v.__module__ == script.stem)
        raise ForetraceError(
            f"it has no function {' or '.join(wanted)}",
            f"Name the one that builds a step or does one: {script}:FUNCTION. It has {', '.join(has) or 'none'}.",
        )
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


@contextlib.contextmanager
def _as_started(script: Path) -> Iterator[None]:
    """What a script finds when it is started: its folder to import from, and no arguments."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
