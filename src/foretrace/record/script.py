"""Sketching the step of a script in a process of its own, without side effects."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.errors import ForetraceError
from foretrace.record.command import Script

if TYPE_CHECKING:
    from foretrace.graph import Graph

STEP_FUNCTIONS = ("make_step", "step")
"""Default names of the function that builds a step, or does one."""
IMPORTED = "Sketching imports the script: its top level runs, on fake tensors and without side effects."


class ScriptError(ForetraceError):
    """A script that failed while it was sketched, with the part of the traceback that is the script's."""

    def __init__(self, what: str, advice: str, frames: str) -> None:
        super().__init__(what, advice)
        self.frames = frames


class WaitsError(BaseException):
    """Ends a script that waits for what never comes in a sketch; no exception that programs handle."""


def sketch_script(
    script: Path,
    function: str | None = None,
    device: str | None = None,
    world: int | None = None,
    arguments: Sequence[str] = (),
) -> Graph:
    """The graph of a script's step, sketched in a process of its own.

    What stands at the script's top level runs there, and its step is called on fake tensors. Nothing that they do
    reaches outside of that process (see `foretrace.record.guard`); the graph's notes say what was tried.

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
    arguments
        What the script finds in ``sys.argv``, after its own name.

    >>> import tempfile
    >>> script = Path(tempfile.mkdtemp()) / "train.py"
    >>> _ = script.write_text("import torch\\ndef step():\\n    torch.ones(2, 2) @ torch.ones(2, 2)\\n")
    >>> [op.name for op in sketch_script(script).ops]
    ['aten::ones', 'aten::ones', 'aten::mm']
    """
    from foretrace.record.sketch_process import sketched

    if script.is_dir():
        raise ForetraceError(f"{script} is a folder, not a script", "Give a script in it.")
    if not script.is_file():
        raise ForetraceError(f"{script} does not exist", "Give a recording, a trace or a script.")
    check_source(script, function)
    return sketched(Script(script, function, tuple(arguments)), device, world)


def sketch_command(script: Script, device: str | None = None, world: int | None = None) -> Graph:
    """The graph of the step of a script that a command starts: its own loop runs, where no function is called.

    >>> import tempfile
    >>> train = Path(tempfile.mkdtemp()) / "train.py"
    >>> _ = train.write_text('''
    ... import sys, torch
    ... weight = torch.nn.Parameter(torch.ones(int(sys.argv[1]), 4))
    ... optimizer = torch.optim.SGD([weight], lr=0.1)
    ... for _ in range(1000):
    ...     (weight * 2).sum().backward()
    ...     optimizer.step()
    ... ''')
    >>> sketch_command(Script(train, arguments=("64",), program=True)).ops[0].args[0].shape
    (64, 4)
    """
    from foretrace.record.sketch_process import sketched

    if not script.program and script.compile is None and not script.programs:
        return sketch_script(script.path, script.function, device, world, script.arguments)
    if not script.program:
        check_source(script.path, script.function)
    if not (script.module or script.path.is_file()):
        raise ForetraceError(f"{script.path} does not exist", "Start Foretrace where the script is started.")
    return sketched(script, device, world)


def check_source(script: Path, function: str | None = None) -> None:
    """Refuse a script that has no step function, before anything of it runs."""
    try:
        tree = ast.parse(script.read_bytes(), str(script))
    except (SyntaxError, ValueError) as error:
        raise ScriptError(
            f"{script} can't be read ({type(error).__name__}: {error})",
            f"Give a script that Python {sys.version_info.major}.{sys.version_info.minor} can read.",
            "",
        ) from None
    except OSError as error:
        raise ForetraceError(f"{script} can't be read ({error.strerror})", "Check its permissions.") from None
    if any(isinstance(node, ast.ClassDef) and node.name == function and _is_model(node) for node in _top_level(tree)):
        raise ForetraceError(
            f"{script}:{function} is a model, not a step",
            f"Name a function that builds the model, its optimizer and a batch, and returns what trains once; or let "
            f"the script's own loop run on fake tensors: foretrace predict -- python {script}.",
        )
    names = set(_names(tree))
    wanted = STEP_FUNCTIONS if function is None else (function,)
    if "*" not in names and names.isdisjoint(wanted):
        raise no_such_function(str(script), script, function, defined_functions(tree))


def _is_model(node: ast.ClassDef) -> bool:
    """Whether a class is a module of PyTorch by the name of its base."""
    return any(ast.unparse(base).rpartition(".")[2] in ("Module", "LightningModule") for base in node.bases)


def no_such_function(subject: str, script: Path, function: str | None, defined: list[str]) -> ForetraceError:
    """The error for a script without a step function."""
    wanted = " or ".join(STEP_FUNCTIONS if function is None else (function,))
    return ForetraceError(
        f"{subject} has no function {wanted}",
        f"Let its own loop run on fake tensors: give the command that starts it after --, as in foretrace predict -- "
        f"python {script}. Or name the function that builds a step or does one: {script}:FUNCTION. It has "
        f"{', '.join(defined) or 'none'}. {IMPORTED}",
    )


def defined_functions(tree: ast.Module) -> list[str]:
    """The functions that a script defines at its top level.

    >>> defined_functions(ast.parse("def train(): pass\\nif True:\\n    def main(): pass"))
    ['main', 'train']
    """
    return sorted({node.name for node in _top_level(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))})


def _names(tree: ast.Module) -> Iterator[str]:
    """The names that a script may define, loops' own aside; ``*`` where it imports all of another module's.

    >>> sorted(_names(ast.parse("from a import b as step, c\\nx = y = 1\\nfor i in z: pass\\ndef f():\\n    global g")))
    ['c', 'f', 'g', 'step', 'x', 'y']
    """
    loops = [node.target for node in ast.walk(tree) if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension))]
    counters = {id(node) for target in loops for node in ast.walk(target)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
    for node in _top_level(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in counters:
            yield node.id


def _top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes at the top level of a module, inside of its conditions and loops too, but not of its functions."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _top_level(node)
