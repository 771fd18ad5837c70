"""The command that starts a training script, and the step function to write where its own loop can't be sketched.

`foretrace predict -- python train.py --batch 32` sketches an unchanged script: its own loop runs on fake tensors, until
a few steps are done.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

from foretrace.errors import ForetraceError

PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?")
LAUNCHERS = ("torchrun", "accelerate", "uv", "poetry", "pdm", "pipenv")
"""Programs that start a Python script, besides Python."""
DISTRIBUTED = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""The same as modules."""
RANKS = re.compile(r"--?(nproc[-_]per[-_]node|num[-_]processes|nnodes)(?:=(.*))?")
"""Options of launchers that say how many ranks there are."""


class Script(NamedTuple):
    """A script to sketch, and how it is started."""

    path: Path
    function: str | None = None
    """The function that does a step, or builds one; unset for the usual names."""
    arguments: tuple[str, ...] = ()
    program: bool = False
    """Whether it is run as a program, whose own loop is sketched; otherwise its function is called."""
    module: str | None = None
    """Its name, where ``python -m`` starts it; the path is then unknown."""
    world: int | None = None
    """Ranks that its launcher starts."""
    compile: str | None = None
    """Whether what it does is compiled, whatever it says itself: ``on``, ``reduce-overhead``, ``off``."""
    programs: bool = False
    """Whether the graphs of compiled programs are wanted, which edits of a compiled step need."""

    def __str__(self) -> str:
        return f"-m {self.module}" if self.module else str(self.path)


def find_script(text: str) -> Script | None:
    """The script that a path or a command line names; None where it is something else.

    >>> find_script("train.py:build").function, find_script("a trace.json"), find_script("python train.py").program
    ('build', None, True)
    """
    if " " in text and not Path(text).exists():
        words = _split(text)
        if words and (is_launcher(words[0]) or _named(words[0])):
            return parse_command(text)
    return _named(text)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that does not end
        return []


def _named(text: str) -> Script | None:
    """A script by its path, and its function where one is named."""
    path, _, function = text.partition(".py:")
    if function:
        return Script(Path(f"{path}.py"), function)
    return Script(Path(path)) if path.endswith(".py") else None


def parse_command(text: str) -> Script:
    """The script of a command line.

    >>> parse_command("python -u train.py --batch 32").arguments
    ('--batch', '32')
    >>> parse_command("torchrun --nproc-per-node 8 train.py").world
    8
    >>> parse_command("train.py:build --batch 32").function
    'build'
    """
    words = _split(text) or [text]
    if script := _named(words[0]):
        return script._replace(arguments=tuple(words[1:]))
    if not is_launcher(words[0]):
        if len(words) > 1 and all(Path(word).is_file() for word in words):
            raise ForetraceError(
                f"{words[0]} and {len(words) - 1} more are files, and one path is asked for",
                "Put the files of a job into one folder and give that, or write a pattern in quotes: 'rank*.json.gz'.",
            )
        raise ForetraceError(
            f"{words[0]} starts no script that can be sketched",
            "Write the command as `python train.py …` or `torchrun … train.py …`; or record a real run: "
            f"foretrace record --out DIR -- {text}",
        )
    for place, word in enumerate(words[1:], 1):
        rest, before = tuple(words[place + 1 :]), words[1:place]
        if word == "-m" and rest and rest[0] not in DISTRIBUTED:
            return Script(Path(), None, rest[1:], True, rest[0], _world(before))
        if word.endswith(".py"):
            return Script(Path(word), None, rest, True, None, _world(before))
    raise ForetraceError(f"`{text}` names no Python script", "Write it like: foretrace predict -- python train.py")


def is_launcher(word: str) -> bool:
    """Whether a command that begins with this word starts a Python script.

    >>> is_launcher("/usr/bin/python3.11"), is_launcher("torchrun"), is_launcher("run.json")
    (True, True, False)
    """
    name = Path(word).name
    return bool(PYTHON.fullmatch(name)) or name in LAUNCHERS


def _world(options: Sequence[str]) -> int | None:
    """The number of ranks that a launcher's options ask for.

    >>> _world(["--nnodes=2", "--nproc_per_node", "4"]), _world(["--standalone"])
    (8, None)
    """
    world = None
    for place, option in enumerate(options):
        if found := RANKS.fullmatch(option):
            value = found[2] if found[2] is not None else next(iter(options[place + 1 :]), "")
            if value.isdecimal() and int(value) > 0:
                world = (world or 1) * int(value)
    return world if world != 1 else None


# The step function to write.

STEP = """\
def make_step():
{before}

    def {step}():
{body}

    return {step}
"""
WRAPPERS = ("enumerate", "iter", "tqdm", "islice")
"""Calls around what a loop goes through."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
UNKNOWN = """\
    model = ...  # as {name} builds it, on device "cuda"
    optimizer = torch.optim.AdamW(model.parameters())
    batch = ...  # made up: torch.randint(0, 50257, (8, 1024), device="cuda")"""
TYPICAL_BODY = """\
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()"""


def suggested_step(source: str, name: str) -> str:
    """A function ``make_step`` for a script, made of the lines of its training loop where it has one.

    >>> loop = "model = Net()\\nfor x in loader:\\n    loss = model(x)\\n    loss.backward()\\n"
    >>> print(suggested_step(loop, "train.py"))
    # move the loop of train.py under: if __name__ == "__main__":
    def make_step():
        x = ...  # one batch, made up; train.py takes it from loader
        model = Net()
    <BLANKLINE>
        def step():
            loss = model(x)
            loss.backward()
    <BLANKLINE>
        return step
    <BLANKLINE>
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])
    loop = _training_loop(tree)
    if loop is None:
        return STEP.format(before=UNKNOWN.format(name=name), body=TYPICAL_BODY, step="step")
    lines = source.splitlines()
    body = dedent("\n".join(lines[loop.body[0].lineno - 1 : loop.body[-1].end_lineno]))
    outer = [node for node in ast.walk(tree) if isinstance(node, ast.For) and loop in ast.walk(node)]
    before = [_first_item(one, name) for one in outer]
    before += [dedent(ast.get_source_segment(source, one, padded=True) or "") for one in _makers(tree, loop)]
    made_before = _names(ast.parse("\n".join(before)), ast.Store)
    changed = sorted(_names(ast.Module(loop.body, []), ast.Store) & made_before)
    outside = f"nonlocal {', '.join(changed)}\n" if changed else ""
    taken = any(isinstance(node, ast.Name) and node.id == "step" for node in ast.walk(loop))
    parts = {"before": indent("\n".join(before) or "...", "    "), "step": "train_step" if taken else "step"}
    made = STEP.format(body=indent(f"{outside}{body}", "        "), **parts)
    try:
        compile(made, name, "exec")
    except SyntaxError:  # a break that belongs to the loop
        once = f"{outside}for _ in range(1):  # once\n{indent(body, '    ')}"
        made = STEP.format(body=indent(once, "        "), **parts)
    (whole,) = (node for node in tree.body if loop in ast.walk(node))
    if isinstance(whole, DEFINITIONS) or (isinstance(whole, ast.If) and "__name__" in _names(whole.test, ast.Load)):
        return made
    return f'# move the loop of {name} under: if __name__ == "__main__":\n{made}'


def _first_item(loop: ast.For, name: str) -> str:
    """The line that sets the variables of a loop: counters to 0, a batch to what the user has to fill in.

    >>> _first_item(ast.parse("for i, x in enumerate(loader): pass").body[0], "train.py")
    'i, x = 0, ...  # one batch, made up; train.py takes it from loader'
    >>> _first_item(ast.parse("for i, (x, y) in enumerate(loader): pass").body[0], "train.py")
    'i, (x, y) = 0, (..., ...)  # one batch, made up; train.py takes it from loader'
    >>> _first_item(ast.parse("for step in range(100): pass").body[0], "train.py")
    'step = 0'
    """
    places = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    target, taken, start = ", ".join(map(ast.unparse, places)), loop.iter, ""
    while isinstance(taken, ast.Call) and isinstance(taken.func, ast.Name) and taken.args:
        if taken.func.id == "enumerate" and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2:
            start, places = "0, ", places[1:]
        elif taken.func.id == "range":
            return f"{target} = 0"
        elif taken.func.id not in WRAPPERS:
            break
        taken = taken.args[0]
    unknown = ", ".join(
        f"({', '.join('...' for _ in one.elts)})" if isinstance(one, ast.Tuple) else "..." for one in places
    )
    return f"{target} = {start}{unknown}  # one batch, made up; {name} takes it from {ast.unparse(taken)}"


def _names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The names that some code reads, or sets; but for those of its comprehensions, which are theirs alone.

    >>> sorted(_names(ast.parse("ids = [draw(n, m) for n in sizes]"), ast.Load))
    ['draw', 'm', 'sizes']
    """
    inner = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            own = {name for one in node.generators for name in _names(one.target, ast.Store)}
            inner |= {name for name in ast.walk(node) if isinstance(name, ast.Name) and name.id in own}
    named = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in inner)
    return {node.id for node in named if isinstance(node.ctx, context)}


def _training_loop(tree: ast.Module) -> ast.For | ast.While | None:
    """The innermost loop that calls both a backward and an optimizer's step."""
    found = None
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, (ast.For, ast.While)):
            called = {call.func.attr for call in _calls(node) if isinstance(call.func, ast.Attribute)}
            found = node if "backward" in called and (found is None or "step" in called) else found
    return found


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (call for call in ast.walk(node) if isinstance(call, ast.Call))


def _makers(tree: ast.Module, loop: ast.For | ast.While) -> list[ast.stmt]:
    """The statements before the loop that make what its body reads: the model, the optimizer, the loss; and what these
    read in turn, but for what is made at the top level, which is there."""
    before = [node for node in _before(tree.body, loop) if node not in tree.body or not isinstance(node, DEFINITIONS)]
    wanted, taken, made = _read_first(loop.body, set()), set[ast.stmt](), set[str]()
    while more := {node for node in before if _sets(node) & wanted or _changed_by(node) & made} - taken:
        taken |= more
        made |= {name for node in more for name in _sets(node)}
        wanted |= {name for node in more if node not in tree.body for name in _names(node, ast.Load)}
    return [node for node in before if node in taken]


def _before(body: Sequence[ast.stmt], loop: ast.stmt) -> Iterator[ast.stmt]:
    """The statements that run before the loop in the blocks around it; other functions and classes are not entered."""
    for node in body:
        if loop not in ast.walk(node):
            yield node
            continue
        for block in _blocks(node) if node is not loop else ():
            if any(loop in ast.walk(one) for one in block):
                yield from _before(block, loop)
        return


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements inside of a statement."""
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for name in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(node, name, None), list) and block:
            yield block


def _read_first(body: Sequence[ast.stmt], known: set[str]) -> set[str]:
    """The names that statements read before they set them; what they set is added to the known ones.

    >>> sorted(_read_first(ast.parse("x = f(y)\\ntotal += x\\nwith a:\\n  z = x").body, set()))
    ['a', 'f', 'total', 'y']
    """
    read = set[str]()
    for node in body:
        blocks = list(_blocks(node))
        inside = {one for block in blocks for one in block}
        head = ast.Module([part for part in ast.iter_child_nodes(node) if part not in inside], [])  # type: ignore[misc]
        again = _names(node.target, ast.Store) if isinstance(node, ast.AugAssign) else set()
        read |= (_names(head, ast.Load) | again) - known
        known |= _names(head, ast.Store)
        for block in blocks:
            read |= _read_first(block, known)
    return read


def _sets(node: ast.stmt) -> set[str]:
    """The names that a statement sets."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    return _names(node, ast.Store)


def _changed_by(node: ast.stmt) -> set[str]:
    """The names of the objects that a statement changes in place: ``parser.add_argument(…)``, ``model.scale = 2``."""
    parts: list[ast.expr] = [node.value.func] if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else []
    parts += node.targets if isinstance(node, ast.Assign) else []
    changed = set[str]()
    for part in parts:
        root = part
        while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
            root = root.func if isinstance(root, ast.Call) else root.value
        changed |= {root.id} if isinstance(root, ast.Name) and root is not part else set()
    return changed
