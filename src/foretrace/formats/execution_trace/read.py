"""PyTorch execution traces (schemas 1.0.1 to 1.1.1): what was called with what, without times.

Nodes are written as ops end; their ids count up as ops start. Arguments stay undecoded until somebody asks for the op.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.files import gc_paused
from foretrace.formats.call_tree import BACKWARD_SCOPE, kinds_by_scope, phases_by_scope
from foretrace.formats.execution_trace.groups import INIT, collectives_of, largest_group, process_groups, rank_in
from foretrace.formats.execution_trace.nodes import Node, Side, read_nodes
from foretrace.formats.values import Naming, Reading, reading, signature, tensors_among
from foretrace.graph import ForetraceError, Graph, Names, Op, OpTable, Storage, Value
from foretrace.graph.tables import Ints

SCAFFOLD = "[pytorch|profiler|execution_"
NO_TIMES = "an execution trace has no times: bring the profiler trace of the same job for them"
NO_PARENT = "{count} of its calls name a caller that was never written, since the trace ended inside of it"
NO_FREES = "an execution trace does not say when memory is freed: storages are taken to die after their last use"


def read_execution_trace(path: Path) -> Graph:
    """The graph of one rank's execution trace: ops with all their arguments, collectives and storages; no times.

    >>> import tempfile
    >>> trace = b'''{"schema": "1.0.1", "nodes": [
    ...     {"id": 5, "name": "aten::t", "parent": 1, "inputs": [[3, 4, 0, 8, 4, "cpu"]], "input_shapes": [[4, 2]],
    ...      "input_types": ["Tensor(float)"]},
    ...     {"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "parent": 1}]}'''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "et.json").write_bytes(trace)
    ...     read_execution_trace(Path(folder) / "et.json").ops[0].tensors[0].shape
    (4, 2)
    """
    with gc_paused():
        ended = read_nodes(path)
        if not ended:
            raise ForetraceError(f"{path} holds no calls", "Observe at least one step and record it again.")
        started, parent, lost = _call_order(path, ended)
        nodes = [ended[i] for i in started]
        lifetimes = _lifetimes(path, ended, started)
        groups = process_groups(node.inputs.values for node in nodes if node.name == INIT)
        return Graph(
            ops=_table(nodes, parent, _Details(path, nodes, parent, lifetimes)),
            rank=rank_in(groups),
            world=max([largest_group(nodes), *(len(ranks) for ranks in groups.values())]),
            source=str(path),
            collectives=collectives_of(nodes, parent, groups),
            storages=lifetimes.storages(),
            groups=groups,
            notes=[NO_TIMES, NO_FREES, *([NO_PARENT.format(count=lost)] if lost else [])],
        )


def _call_order(path: Path, ended: Sequence[Node]) -> tuple[NDArray[np.intp], Ints, int]:
    """Which nodes are calls, in the order they started, the row of each one's parent, and how many have lost theirs.

    A node is written when it ends. Calls inside one that had not ended when the trace did stand at the top.
    """
    ids = _column(ended, "id", np.int64)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    above = _column(ended, "parent", np.int64)[order]
    kept = np.fromiter((not n.name.startswith(SCAFFOLD) for n in ended), bool, len(ended))[order]
    at = np.searchsorted(ids, above)

    def refuse(wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            node = ended[order[int(np.argmax(wrong))]]
            raise ForetraceError(
                f"{path}: node {node.id} ({node.name[:60]!r}) {what.format(parent=node.parent)}",
                "The trace was cut or edited: record it again.",
            )

    refuse(np.diff(ids, append=-1) == 0, "has the same id as another node")
    at = np.minimum(at, len(ids) - 1)
    lost = ids[at] != above
    refuse(
        kept & (np.where(lost, above > ids, at >= np.arange(len(ids)))),
        "has a parent, node {parent}, that was called after it",
    )
    parent = np.where(kept[at] & ~lost, np.cumsum(kept)[at] - 1, -1)
    return order[kept], parent[kept].astype(np.int32), int((kept & lost).sum())


def _lifetimes(path: Path, ended: Sequence[Node], started: NDArray[np.intp]) -> Lifetimes:
    row_of = np.full(len(ended), -1)
    row_of[started] = np.arange(len(started))
    lifetimes = Lifetimes()
    for node, row in zip(ended, row_of.tolist()):
        given, made = node.inputs.values, node.outputs.values
        if row >= 0 and (given or made):
            try:
                lifetimes.touch(row, given, made, allocates=bool(node.marks.op_schema))
            except (TypeError, ValueError, OverflowError, RecursionError):
                raise _unreadable(path, node) from None
    return lifetimes


def _unreadable(path: Path, node: Node) -> ForetraceError:
    return ForetraceError(
        f"{path}: arguments of node {node.id} ({node.name[:60]!r}) are not what a trace writes",
        "The trace was damaged or edited: record it again.",
    )


def _column(nodes: Sequence[Node], name: str, kind: type) -> NDArray[Any]:
    return np.fromiter(map(attrgetter(name), nodes), kind, len(nodes))


def _table(nodes: Sequence[Node], parent: Ints, details: _Details) -> OpTable:
    names, count = Names(), len(nodes)
    name = np.fromiter(map(names.code, map(attrgetter("name"), nodes)), np.int32, count)
    scope, forward_parent = _column(nodes, "marks.scope", np.int32), _column(nodes, "marks.fw_parent", np.int64)
    return OpTable(
        name=name,
        start=np.full(count, np.nan),
        end=np.full(count, np.nan),
        thread=_column(nodes, "marks.tid", np.int32),
        parent=parent,
        phase=phases_by_scope(names, name, (scope == BACKWARD_SCOPE) | (forward_parent > 0), parent),
        kind=kinds_by_scope(names, name, scope, parent),
        module=np.zeros(count, np.int32),
        names=names,
        modules=Names([""]),
        source=np.arange(count, dtype=np.int32),
        detail=details,
        record=_column(nodes, "marks.rf_id", np.int64),
    )


class _Details:
    """Makes the op of a row: decodes its arguments."""

    def __init__(self, path: Path, nodes: Sequence[Node], parent: Ints, lifetimes: Lifetimes) -> None:
        self._path, self._nodes, self._lifetimes = path, nodes, lifetimes
        self._parent: list[int] = parent.tolist()

    def __reduce__(self) -> tuple[type[LazyOps], tuple[Callable[[Path], Graph], Path]]:
        return LazyOps, (read_execution_trace, self._path.absolute())

    @cached_property
    def _last_inside(self) -> list[int]:
        last = list(range(len(self._nodes)))
        for row in reversed(range(len(last))):
            if (above := self._parent[row]) >= 0:
                last[above] = max(last[above], last[row])
        return last

    @cached_property
    def _freed_before(self) -> dict[int, tuple[int, ...]]:
        freed = defaultdict[int, list[int]](list)
        for storage in self._lifetimes.storages().values():
            freed[storage.death].append(storage.id)
        return {row: tuple(ids) for row, ids in freed.items()}

    def __call__(self, row: int) -> Op:
        node = self._nodes[row]
        number = self._lifetimes.number
        try:
            args, kwargs = self._arguments(node, lambda storage: number(storage, row))
            outputs = _values(node.outputs, "", lambda storage: number(storage, self._last_inside[row]))
        except (TypeError, ValueError, IndexError, OverflowError, RecursionError, msgspec.DecodeError):
            raise _unreadable(self._path, node) from None
        return Op(
            node.name,
            args,
            kwargs,
            tuple(outputs),
            overload=signature(node.marks.op_schema).overload,
            node=self._autograd_node(row),
            frees=self._freed_before.get(row, ()),
        )

    def _arguments(self, node: Node, storage: Naming) -> tuple[tuple[Value, ...], dict[str, Value]]:
        marks = node.marks
        values = _values(node.inputs, marks.op_schema, storage)
        parameters = signature(marks.op_schema).parameters
        positional = next((i for i, p in enumerate(parameters) if p.keyword), len(values))
        kwargs = {p.name: v for p, v in zip(parameters[positional:], values[positional:])}
        if marks.kernel_backend:
            kwargs |= {"kernel_backend": marks.kernel_backend, "kernel_file": marks.kernel_file}
        return tuple(values[:positional]), kwargs

    def _autograd_node(self, row: int) -> str:
        while row >= 0:
            if self._nodes[row].marks.scope == BACKWARD_SCOPE:
                return self._nodes[row].name
            row = self._parent[row]
        return ""


_any_list = msgspec.json.Decoder(list[object])
_text_list = msgspec.json.Decoder(list[str])


def _values(side: Side, schema: str, storage: Naming) -> list[Value]:
    values = side.values
    readings = _readings(bytes(side.shapes), bytes(side.types), bytes(side.strides), schema, len(values))
    return [read(value, storage) for read, value in zip(readings, values)]


@lru_cache(maxsize=4096)
def _readings(shapes: bytes, types: bytes, strides: bytes, schema: str, count: int) -> list[Reading]:
    """How each of so many values is decoded: a step calls the same things with the same shapes over and over."""
    sizes, kinds = _any_list.decode(shapes), _text_list.decode(types)
    steps = msgspec.json.decode(strides) or []
    steps += [None] * (count - len(steps))  # of compiled kernels the trace leaves out the last one
    if not len(sizes) == len(kinds) == len(steps) == count:
        raise ValueError("lists of different lengths")
    parameters = signature(schema).parameters if schema else ()
    # a call may have more values than its schema has parameters, and then nobody knows which is which
    hints = parameters if len(parameters) >= count else (None,) * count
    return [reading(size, kind, step, hint) for size, kind, step, hint in zip(sizes, kinds, steps, hints)]


# --- was formats.lifetimes: Which storages a traced step used, and from which op to which: the trace's own ids are used again after a free.


class Lifetimes:
    """Storages by a number of their own, and the number behind a trace's storage id at a row.

    >>> lives = Lifetimes()
    >>> for row in range(2):
    ...     lives.touch(row, [], [[1, 7, 0, 256, 4, "cuda:0"]])
    >>> [(s.birth, s.death, s.nbytes) for s in lives.storages().values()], lives.number(7, 1)
    ([(0, 1, 1024), (1, 2, 1024)], 1)
    """

    def __init__(self) -> None:
        self._lives: list[_Life] = []
        self._current: dict[int, _Life] = {}
        self._by_id: dict[int, list[_Life]] = {}

    def touch(self, row: int, inputs: list[Any], outputs: list[Any], allocates: bool = True) -> None:
        """Take in an op; ops come in the order they ended, so that those inside an op come before it."""
        current = self._current
        given = []
        for tensor in tensors_among(inputs):
            _, storage_id, offset, count, itemsize, _ = tensor
            if count:  # all empty tensors share one id
                given.append(storage_id)
                life = current.get(storage_id) or self._begin(-1, tensor)
                life.touches.append(row)
                # a view further back shows that the storage reaches there; one at its front may be expanded
                if offset and (offset + count) * itemsize > life.nbytes:
                    life.nbytes = (offset + count) * itemsize
        for tensor in tensors_among(outputs):
            storage_id = tensor[1]
            if tensor[3] and storage_id not in given:
                life = current.get(storage_id) or self._begin(row if allocates else -1, tensor)
                if life.birth < row and allocates:
                    life = self._born_inside(row, life, tensor)
                life.touches.append(row)

    def _begin(self, row: int, tensor: list[Any]) -> _Life:
        _, storage_id, offset, count, itemsize, device = tensor
        life = _Life(len(self._lives), row, (offset + count) * itemsize, device)
        self._lives.append(life)
        self._current[storage_id] = life
        self._by_id.setdefault(storage_id, []).append(life)
        return life

    def _born_inside(self, row: int, life: _Life, tensor: list[Any]) -> _Life:
        """The storage an op made: what the ops inside it touched under the same id belongs to it."""
        inside = []
        while life.touches and life.touches[-1] > row:
            inside.append(life.touches.pop())
        if not life.touches:  # nobody knew it before
            life.birth = row
        else:
            life = self._begin(row, tensor)
        life.touches.extend(inside)
        return life

    def number(self, storage_id: int, row: int) -> int:
        """The storage that an id stood for at a row; -1 for the id of empty tensors."""
        lives = self._by_id.get(storage_id)
        if not lives:
            return -1
        if len(lives) == 1:  # as of most, and quicker than to look for it
            return lives[0].number
        return lives[max(0, bisect_right(lives, row, key=_birth) - 1)].number

    def storages(self) -> dict[int, Storage]:
        """All storages; those that were there before the step are taken to outlive it."""
        return {
            life.number: Storage(
                life.number, life.nbytes, life.device, life.birth, max(life.touches) + 1 if life.birth >= 0 else -1
            )
            for life in self._lives
        }


class _Life:
    """A storage while its touches are still being collected."""

    __slots__ = ("birth", "device", "nbytes", "number", "touches")

    def __init__(self, number: int, birth: int, nbytes: int, device: str) -> None:
        self.number, self.birth, self.nbytes, self.device = number, birth, nbytes, device
        self.touches: list[int] = []


def _birth(life: _Life) -> int:
    return life.birth


# --- was formats.again: Arguments that are not kept but read again: few who look at a step ever ask for them.


@dataclass
class LazyOps:
    """Makes the ops of a file's rows, from when it is first asked: an op table's ``detail``.

    What a reader keeps of a file for its ops is large, and passed on to another process it would cost more than it is
    worth.

    >>> from foretrace.graph import OpTable
    >>> detail = LazyOps(lambda path: Graph(OpTable.of([Op("aten::mm"), Op(f"read from {path}")])), Path("et.json"))
    >>> detail(1).name
    'read from et.json'
    """

    read: Callable[[Path], Graph]
    path: Path

    @cached_property
    def _detail(self) -> Callable[[int], Op]:
        return self.read(self.path).ops.__getitem__

    def __call__(self, row: int) -> Op:
        """The op of a source row."""
        return self._detail(row)
