"""Changes of a step as a user writes them, ``batch=64`` or ``rows:tables.3=1000000``, and the edits that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foretrace.errors import parse_size, unknown_name
from foretrace.graph import ForetraceError, Graph
from foretrace.questions.job_words import OF_JOBS
from foretrace.transforms.fusion.cuda_graph import cudagraph
from foretrace.transforms.fusion.elementwise import fuse_elementwise
from foretrace.transforms.fusion.lookups import fuse_lookups
from foretrace.transforms.numerics.autocast import autocast, parse_autocast_dtype
from foretrace.transforms.numerics.dtype import dtype, parse_dtype
from foretrace.transforms.resize.batch_sequence import resizable_batch, resizable_sequence
from foretrace.transforms.resize.resizable import Resizable
from foretrace.transforms.resize.tables import pooling, table_dim, table_rows
from foretrace.transforms.resize.width import ResizableHidden, heads, width
from foretrace.transforms.structure.attention import attention, check_attention
from foretrace.transforms.structure.checkpointing import checkpointing
from foretrace.transforms.structure.depth import depth
from foretrace.transforms.structure.insert_remove import check_insertable, insert, without
from foretrace.transforms.structure.optimizer import optimizer, parse_optimizer

SIZES: dict[str, Callable[..., Graph]] = {
    "rows": table_rows,
    "dim": table_dim,
    "pooling": pooling,
    "width": width,
    "heads": heads,
    "depth": depth,
}
FUSES: dict[str, Callable[[Graph], Graph]] = {
    "lookups": fuse_lookups,
    "elementwise": fuse_elementwise,
    "optimizer": lambda graph: optimizer(graph, "fused"),
    "launches": cudagraph,
}
"""What can be made of many calls."""


def fuse(graph: Graph, what: str) -> Graph:
    """The step with many calls as one.

    ``"lookups"``, ``"elementwise"`` chains, the calls of the ``"optimizer"``, or all ``"launches"``, as a CUDA graph.
    """
    return FUSES[fusable(what)](graph)


def fusable(what: str) -> str:
    """The name, if that can be fused.

    >>> fusable("lookups")
    'lookups'
    """
    if what not in FUSES:
        raise ForetraceError(f"nobody can fuse {what!r}", f"What can be fused is {', '.join(FUSES)}.")
    return what


BY_NAME: dict[str, Callable[..., Graph]] = {
    "dtype": lambda graph, name: dtype(graph, parse_dtype(name)),
    "autocast": autocast,
    "optimizer": optimizer,
    "attention": attention,
    "checkpoint": checkpointing,
    "fuse": fuse,
    "without": without,
    "insert": insert,
}
ANY_SIZE = ("batch", "seq", "hidden")
"""Changes that are found once and made for any size; they may say what was recorded."""
SETS = (*ANY_SIZE, *SIZES, *BY_NAME, *OF_JOBS)
CHECKS: dict[str, Callable[[str], object]] = {
    "dtype": parse_dtype,
    "autocast": parse_autocast_dtype,
    "insert": check_insertable,
    "optimizer": parse_optimizer,
    "attention": check_attention,
    "fuse": fusable,
    **OF_JOBS,
}
"""What refuses a value that makes no sense."""
OF_SOME = ("rows", "pooling", "width", "insert")
"""Changes that may be of some tables, layers or calls only."""
ALWAYS_OF = {"width": "a layer, as in width:top.0=512", "insert": "a call, as in insert:addmm@mlp.0=gelu"}
"""Changes that have to say of what they are."""
REPEATABLE = ("checkpoint", "fuse", "without")
"""Changes whose value says of what they are: several make sense."""


@dataclass(frozen=True)
class Change:
    """One change: what, of which, to what.

    >>> str(Change.read("rows:tables.3=1000"))
    'rows:tables.3=1000'
    """

    name: str
    value: str
    where: str = ""

    @classmethod
    def read(cls, text: str) -> Change:
        """The change that a text like ``batch=64`` says; refuses one that makes no sense."""
        key, equals, value = (part.strip() for part in text.partition("="))
        name, colon, where = key.partition(":")
        if not equals or not value or (colon and not where):
            raise ForetraceError(f"{text!r} is no change", "Write what to set to what, as in batch=64.")
        if name not in SETS:
            raise unknown_name("setting", name, SETS)
        if name in SIZES and "/" in value:
            raise ForetraceError(
                f"{name} needs no recorded value", f"Write {key}={value.partition('/')[0]}: the step shows what it was."
            )
        if name in ALWAYS_OF and not where:
            raise ForetraceError(f"{text!r} does not say of what it is", f"Name {ALWAYS_OF[name]}.")
        if where and name not in OF_SOME:
            raise ForetraceError(f"{name} is of the whole step", f"Write {name}={value}.")
        if name in CHECKS:
            CHECKS[name](value)
        elif name not in BY_NAME:
            parse_size(name, value)
        return cls(name, value, where)

    def __str__(self) -> str:
        return f"{self.name}{':' if self.where else ''}{self.where}={self.value}"


def read_changes(changes: Iterable[Change | str] | str) -> list[Change]:
    """Changes, or one; texts are read. Refuses two that set the same, of which the second would undo the first.

    >>> read_changes(["batch=64", "batch=32"])
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: batch is set twice. Leave batch=64 or batch=32 out.
    """
    read = [change if isinstance(change, Change) else Change.read(change) for change in listed(changes)]
    first: dict[tuple[str, str, str], Change] = {}
    for change in read:
        # batch=64/16 and batch=8/4 are of different things.
        before = first.setdefault((change.name, change.where, change.value.partition("/")[2]), change)
        if before is not change and change.name not in REPEATABLE:
            name = f"{change.name}{':' if change.where else ''}{change.where}"
            raise ForetraceError(f"{name} is set twice", f"Leave {before} or {change} out.")
    return read


def listed(changes: Iterable[Change | str] | str) -> list[Change | str]:
    """Changes in a list; a single text need not be in one.

    >>> listed("batch=64")
    ['batch=64']
    """
    return [changes] if isinstance(changes, str) else list(changes)


class Edited:
    """A step and what becomes of it; what was found once serves for every later change of the same kind.

    Parameters
    ----------
    graph
        The step.
    longest
        The longest sequence that will be asked for.
    on_progress
        Called with which change is made.
    """

    def __init__(self, graph: Graph, longest: int = 0, on_progress: Callable[[str], None] = lambda stage: None) -> None:
        self._told = on_progress
        self._graphs: dict[tuple[Change, ...], Graph] = {(): graph}
        self._sizes: dict[tuple[tuple[Change, ...], str, int | None], Resizable | ResizableHidden] = {}
        self._longest = longest

    def by(self, changes: Sequence[Change]) -> Graph:
        """The step after these changes, in their order."""
        done = tuple(changes)
        if done in self._graphs:
            return self._graphs[done]
        self.by(done[:-1])
        self._told(f"setting {done[-1]}")
        made = self._changed(done[:-1], done[-1])
        self._graphs = {key: graph for key, graph in self._graphs.items() if key == done[: len(key)]}
        self._graphs[done] = made
        return made

    def _changed(self, before: tuple[Change, ...], change: Change) -> Graph:
        if change.name in ANY_SIZE:
            return self._resized(before, change)
        graph, where = self.by(before), [change.where] if change.where else []
        if change.name in BY_NAME:
            return BY_NAME[change.name](graph, change.value, *where)
        size, _ = parse_size(change.name, change.value)
        return SIZES[change.name](graph, size, *where)

    def _resized(self, before: tuple[Change, ...], change: Change) -> Graph:
        new, old = parse_size(change.name, change.value)
        key = (before, change.name, old)
        if key not in self._sizes:
            self._sizes[key] = self._resizable(change.name, self.by(before), max(new, self._longest), old)
        return self._sizes[key].to(new)

    @staticmethod
    def _resizable(name: str, graph: Graph, largest: int, old: int | None) -> Resizable | ResizableHidden:
        if name == "seq":
            return resizable_sequence(graph, largest, old)
        return resizable_batch(graph, old) if name == "batch" else ResizableHidden(graph, old)


def edited(graph: Graph, changes: Iterable[Change | str]) -> Graph:
    """A step after some changes, in their order; texts as in ``batch=64``.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> x, y = (Tensor((8, 4), "float32", "cpu", (4, 1), id=number, storage=number) for number in (0, 1))
    >>> step = Graph(OpTable.of([Op("aten::relu", (x,), outputs=(y,), overload="default", phase="forward")]))
    >>> made = edited(step, ["batch=32", "dtype=bf16"]).ops[0].outputs[0]
    >>> made.shape, made.dtype
    ((32, 4), 'bfloat16')
    """
    return Edited(graph).by(read_changes(changes))
