"""One call that reached the dispatcher, with every argument."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from foretrace.graph.tensor import Tensor

PHASES = ("forward", "backward", "optimizer", "other")
"""The parts of a step an op can belong to; tables store the position in this tuple."""

SIDE_CALLS = ("cuda::", "storage::", "c10d::wait")
"""How the names of calls begin that steer streams, memory or works without passing the dispatcher."""

RESIZE = "storage::resize_"
"""A side call: a storage is given another size, as FSDP does with its weights."""
GRAPH_LAUNCH = "cuda::graph_launch"
"""A side call: all calls of the step after it were captured as one CUDA graph, which it launches."""

NAN = float("nan")


class Constant(NamedTuple):
    """An argument that is neither number, text nor tensor.

    Kinds: dtype, device, layout, memory_format, group, reduce_op, generator, work, float (inf and nan), complex,
    tensor (values of a small integer tensor that steers an op), object (nothing but its type is known).

    >>> Constant("dtype", "bfloat16")
    Constant(kind='dtype', value='bfloat16')
    """

    kind: str
    value: str


Value: TypeAlias = (
    "bool | int | float | str | Tensor | Constant | list[Value] | tuple[Value, ...] | dict[str, Value] | None"
)


@dataclass(slots=True)
class Op:
    """A dispatcher call: what was called with what, from where, and when.

    Times are microseconds since the graph's origin, NaN where nobody measured them. ``frees`` names the storages
    that died between the op before this one and this one.

    >>> Op("aten::mm", (Tensor((4, 8), "float32"), Tensor((8, 2), "float32"))).tensors[1].shape
    (8, 2)
    """

    name: str
    args: tuple[Value, ...] = ()
    kwargs: dict[str, Value] = field(default_factory=dict)
    outputs: tuple[Value, ...] = ()
    overload: str = ""
    phase: str = "other"
    thread: int = 0
    stream: int = 0
    parent: int = -1
    module: str = ""
    node: str = ""
    """The autograd node that made the call, in backward."""
    entered: int = 0
    """Modules entered since the op before: each costs Python time."""
    frees: tuple[int, ...] = ()
    start_us: float = NAN
    end_us: float = NAN

    def __copy__(self) -> Op:
        # As copy() would, ten times as fast: tables make a copy of an op whenever somebody looks at it.
        return Op(
            self.name, self.args, self.kwargs, self.outputs, self.overload, self.phase, self.thread, self.stream,
            self.parent, self.module, self.node, self.entered, self.frees, self.start_us, self.end_us,
        )  # fmt: skip

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, in order, lists and keywords included."""
        found: list[Tensor] = []
        _collect(self.args, found)
        if self.kwargs:
            _collect(self.kwargs.values(), found)
        return found

    @property
    def resized(self) -> tuple[int, int, int] | None:
        """Of a call that gives a storage another size: its number before and after, and its bytes. None for others.

        >>> Op(RESIZE, (3, 4, 1024)).resized, Op(RESIZE, ("3", None)).resized
        ((3, 4, 1024), None)
        """
        match self.args:
            case (int(before), int(after), int(nbytes)) if self.name == RESIZE and nbytes >= 0:
                return before, after, nbytes
        return None

    @property
    def is_side_call(self) -> bool:
        """Whether it steers a stream, a storage or a work without passing the dispatcher.

        >>> Op("cuda::event_record").is_side_call
        True
        """
        return self.name.startswith(SIDE_CALLS)

    @property
    def produced(self) -> list[Tensor]:
        """Every tensor among the results."""
        found: list[Tensor] = []
        _collect(self.outputs, found)
        return found


def _collect(values: Iterable[Value], found: list[Tensor]) -> None:
    """Add the tensors inside some values, however deep: a step asks for them thousands of times."""
    for value in values:
        kind = type(value)
        if kind is Tensor:
            found.append(value)  # type: ignore[arg-type]
        elif kind is list or kind is tuple:
            _collect(value, found)  # type: ignore[arg-type]
        elif kind is dict:
            _collect(value.values(), found)  # type: ignore[union-attr]


def tensors_in(value: Value) -> list[Tensor]:
    """Tensors inside a value, however deep.

    >>> [t.shape for t in tensors_in([Tensor((1,), "int8"), [Tensor((2,), "int8")]])]
    [(1,), (2,)]
    """
    found: list[Tensor] = []
    _collect((value,), found)
    return found


# --- was graph.signature: What tells calls apart whose times may differ: a step makes most of its calls many times over.

ALIGNMENT = 128
"""Elements: where a tensor begins in its storage matters up to this."""


def signature(op: Op) -> Hashable:
    """Equal for calls that may be expected to take the same time.

    They call the same op with the same arguments, where of a tensor only its shape, type and layout count, and the same
    arguments share a storage.

    >>> here, there = Tensor((8, 8), "float32", storage=1), Tensor((8, 8), "float32", storage=2)
    >>> product = signature(Op("aten::mm", (here, there)))
    >>> product == signature(Op("aten::mm", (there, here))), product == signature(Op("aten::mm", (here, here)))
    (True, False)
    """
    parts: list[Hashable] = [op.name, op.overload]
    views: list[Tensor] = []
    _take_apart(op.args, parts, views)
    if op.kwargs:
        _take_apart(op.kwargs.items(), parts, views)
    last = {view.storage: place for place, view in enumerate(views)}
    if len(last) < len(views):
        parts += [(last[view.storage], view.offset) for view in views]
    return tuple(parts)


def _take_apart(values: Iterable[Value], parts: list[Hashable], views: list[Tensor]) -> None:
    """Add what counts of some values, and the tensors among them, however deep."""
    for value in values:
        if isinstance(value, Tensor):
            views.append(value)
            parts += (value.shape, value.stride, value.offset % ALIGNMENT, value.dtype, value.device, value.layout)
        elif isinstance(value, (list, tuple)):
            parts.append(len(value))
            _take_apart(value, parts, views)
        elif isinstance(value, dict):
            parts.append(len(value))
            _take_apart(value.items(), parts, views)
        else:
            parts += (type(value).__name__, value)  # since 1, 1.0 and True are equal


# --- was transforms.other_tensors: Calls over other tensors than they had.


def change_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A value with something else for each tensor in it, however deep.

    >>> change_tensors({"given": [Tensor((8,), "float32"), 2]}, lambda tensor: tensor.shape)
    {'given': [(8,), 2]}
    """
    kind = type(value)  # a constant is a tuple too, but not of that type
    if kind is Tensor:
        return change(value)
    if kind is list:
        return [change_tensors(item, change) for item in value]
    if kind is tuple:
        return tuple([change_tensors(item, change) for item in value])
    if kind is dict:
        return {key: change_tensors(item, change) for key, item in value.items()}
    return value


def with_tensors(op: Op, change: Callable[[Tensor], Tensor]) -> Op:
    """A copy of a call, with another tensor for each that it takes or gives.

    >>> relu = Op("aten::relu", (Tensor((8,), "float32"),))
    >>> with_tensors(relu, lambda tensor: Tensor((4,), tensor.dtype)).tensors[0].shape
    (4,)
    """
    changed = op.__copy__()
    changed.args = change_tensors(op.args, change)
    changed.kwargs = change_tensors(op.kwargs, change) if op.kwargs else op.kwargs
    changed.outputs = change_tensors(op.outputs, change)
    return changed
