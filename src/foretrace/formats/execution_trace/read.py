"""Reading execution traces: the ops of one rank with all their arguments, collectives and storages, without times.

A trace lists nodes as they end; rows are in the order they start. Arguments are decoded when an op is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from foretrace.files import gc_paused
from foretrace.formats.call_tree import BACKWARD_SCOPE, kinds_by_scope, phases_by_scope, steps_by_row
from foretrace.formats.execution_trace.groups import GROUPS_NODE, collectives_of, process_groups, rank_in
from foretrace.formats.execution_trace.nodes import Node, decode_list, read_nodes
from foretrace.formats.execution_trace.storages import StorageLifetimes
from foretrace.formats.values import Decoder, StorageNumber, decoder, signature
from foretrace.graph import ForetraceError, Graph, Names, Op, OpTable, Value
from foretrace.graph.tables import Ints
from foretrace.graph.temporaries import RULES

SCAFFOLD = "[pytorch|profiler|execution_"
"""Start of the names of nodes that stand for processes and threads."""
NO_TIMES = "an execution trace has no times: bring the profiler trace of the same job for them"
NO_PARENT = "{count} of its calls name a caller that was never written, since the trace ended inside of it"
NO_FREES = "an execution trace does not say when memory is freed: tensors are assumed to be freed after their last use"


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
        started, parent, orphans = _call_order(path, ended)
        nodes = [ended[i] for i in started.tolist()]
        lifetimes = _lifetimes(path, ended, started)
        ops = _table(nodes, parent, _NodeOps(path, nodes, parent, lifetimes))
        lists_groups = ops.names.matching(lambda name: name == GROUPS_NODE)[ops.name]
        groups = process_groups(nodes[row].input_values for row in np.flatnonzero(lists_groups).tolist())
        collectives, largest = collectives_of(nodes, ops, groups)
        return Graph(
            ops,
            rank=rank_in(groups),
            world=max([largest, *map(len, groups.values())]),
            source=str(path),
            steps=steps_by_row(ops),
            collectives=collectives,
            storages=lifetimes.table,
            groups=groups,
            notes=[NO_TIMES, NO_FREES, *([NO_PARENT.format(count=orphans)] if orphans else [])],
        )


@dataclass
class LazyOps:
    """Creates the ops of a file's rows by reading the file again when the first op is needed: an op table's ``detail``.

    It stands in for a reader's own data in another process: these are large, and few commands look at arguments. Ops
    that all of them look at may come along.

    >>> detail = LazyOps(lambda path: Graph(OpTable.of([Op("aten::mm"), Op(f"read from {path}")])), Path("et.json"))
    >>> detail(1).name
    'read from et.json'
    """

    read: Callable[[Path], Graph]
    path: Path
    made: dict[int, Op] = field(default_factory=dict)

    @cached_property
    def _detail(self) -> Callable[[int], Op]:
        return self.read(self.path).ops.__getitem__

    def __call__(self, row: int) -> Op:
        """The op of a source row."""
        known = self.made.get(row)
        return self._detail(row) if known is None else replace(known)


def _call_order(path: Path, ended: Sequence[Node]) -> tuple[NDArray[np.intp], Ints, int]:
    """Nodes that are calls in the order they started, the row of each one's parent, and the number of orphans.

    A node is written when it ends: calls inside one that had not ended when the trace did have no parent.
    """
    ids = _column(ended, "id", np.int64)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    above = _column(ended, "parent", np.int64)[order]
    names = [node.name for node in ended]
    scaffold = {name for name in set(names) if name.startswith(SCAFFOLD)}
    is_call = np.array([name not in scaffold for name in names])[order]
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
    orphan = ids[at] != above
    refuse(
        is_call & (np.where(orphan, above > ids, at >= np.arange(len(ids)))),
        "has a parent, node {parent}, that was called after it",
    )
    parent = np.where(is_call[at] & ~orphan, np.cumsum(is_call)[at] - 1, -1)
    return order[is_call], parent[is_call].astype(np.int32), int((is_call & orphan).sum())


def _lifetimes(path: Path, ended: Sequence[Node], started: NDArray[np.intp]) -> StorageLifetimes:
    row_of = np.full(len(ended), -1)
    row_of[started] = np.arange(len(started))
    lifetimes = StorageLifetimes()
    for node, row in zip(ended, row_of.tolist()):
        if row >= 0:
            try:
                inputs, outputs = decode_list(node.inputs), decode_list(node.outputs)
                if inputs or outputs:
                    lifetimes.touch(row, inputs, outputs, allocates=node.op_schema != "")
            except (TypeError, ValueError, OverflowError, RecursionError, msgspec.DecodeError):
                raise _unreadable(path, node) from None
    return lifetimes


def _unreadable(path: Path, node: Node) -> ForetraceError:
    return ForetraceError(
        f"{path}: arguments of node {node.id} ({node.name[:60]!r}) are not what a trace writes",
        "The trace was damaged or edited: record it again.",
    )


def _column(nodes: Sequence[Node], name: str, kind: type) -> NDArray[Any]:
    return np.fromiter(map(attrgetter(name), nodes), kind, len(nodes))


def _table(nodes: Sequence[Node], parent: Ints, detail: _NodeOps) -> OpTable:
    names, count = Names(), len(nodes)
    name = names.column([node.name for node in nodes])
    scope = _column(nodes, "scope", np.int32)
    backward = (scope == BACKWARD_SCOPE) | (_column(nodes, "fw_parent", np.int64) > 0)
    return OpTable(
        name=name,
        start=np.full(count, np.nan),
        end=np.full(count, np.nan),
        thread=_column(nodes, "tid", np.int32),
        parent=parent,
        phase=phases_by_scope(names, name, backward, parent),
        kind=kinds_by_scope(names, name, scope, parent),
        module=np.zeros(count, np.int32),
        names=names,
        modules=Names([""]),
        source=np.arange(count, dtype=np.int32),
        detail=detail,
        record=_column(nodes, "rf_id", np.int64),
    )


class _NodeOps:
    """Creates the op of a row: decodes its arguments."""

    def __init__(self, path: Path, nodes: Sequence[Node], parent: Ints, lifetimes: StorageLifetimes) -> None:
        self._path, self._nodes, self._lifetimes = path, nodes, lifetimes
        self._parent: list[int] = parent.tolist()

    def __reduce__(self) -> tuple[type[LazyOps], tuple[Callable[[Path], Graph], Path, dict[int, Op]]]:
        made = {}
        with suppress(ForetraceError):  # said again by the one who looks at that op
            for row, node in enumerate(self._nodes):
                if node.name in RULES:
                    made[row] = self(row)
        return LazyOps, (read_execution_trace, self._path.absolute(), made)

    @cached_property
    def _last_inside(self) -> list[int]:
        last = list(range(len(self._nodes)))
        for row in reversed(range(len(last))):
            if (above := self._parent[row]) >= 0:
                last[above] = max(last[above], last[row])
        return last

    @cached_property
    def _freed_before(self) -> dict[int, list[int]]:
        freed = defaultdict[int, list[int]](list)
        for storage, death in enumerate(self._lifetimes.table.death.tolist()):
            freed[death].append(storage)
        return freed

    def __call__(self, row: int) -> Op:
        node = self._nodes[row]
        number = self._lifetimes.number
        try:
            args, kwargs = _arguments(node, lambda storage: number(storage, row))
            outputs = _values(
                node.output_values, node.output_shapes, node.output_types, node.output_strides, "",
                lambda storage: number(storage, self._last_inside[row]),
            )  # fmt: skip
        except (TypeError, ValueError, IndexError, OverflowError, RecursionError, msgspec.DecodeError):
            raise _unreadable(self._path, node) from None
        return Op(
            node.name,
            args,
            kwargs,
            tuple(outputs),
            overload=signature(node.op_schema).overload,
            node=self._autograd_node(row),
            frees=tuple(self._freed_before.get(row, ())),
        )

    def _autograd_node(self, row: int) -> str:
        while row >= 0:
            if self._nodes[row].scope == BACKWARD_SCOPE:
                return self._nodes[row].name
            row = self._parent[row]
        return ""


def _arguments(node: Node, storage: StorageNumber) -> tuple[tuple[Value, ...], dict[str, Value]]:
    values = _values(
        node.input_values, node.input_shapes, node.input_types, node.input_strides, node.op_schema, storage
    )  # fmt: skip
    parameters = signature(node.op_schema).parameters
    positional = next((i for i, p in enumerate(parameters) if p.keyword), len(values))
    kwargs = {p.name: v for p, v in zip(parameters[positional:], values[positional:])}
    if node.kernel_backend:
        kwargs |= {"kernel_backend": node.kernel_backend, "kernel_file": node.kernel_file}
    return tuple(values[:positional]), kwargs


_any_list = msgspec.json.Decoder(list[object])
_text_list = msgspec.json.Decoder(list[str])


def _values(
    values: list[Any], shapes: Raw, types: Raw, strides: Raw, schema: str, storage: StorageNumber
) -> list[Value]:
    decoders = _decoders(bytes(shapes), bytes(types), bytes(strides), schema, len(values))
    return [decode(value, storage) for decode, value in zip(decoders, values)]


@lru_cache(maxsize=4096)
def _decoders(shapes: bytes, types: bytes, strides: bytes, schema: str, count: int) -> list[Decoder]:
    """A decoder for each of so many values: a step repeats the same calls with the same shapes."""
    sizes, kinds = _any_list.decode(shapes), _text_list.decode(types)
    steps = msgspec.json.decode(strides) or []
    steps += [None] * (count - len(steps))  # for compiled kernels the trace leaves out the last one
    if not len(sizes) == len(kinds) == len(steps) == count:
        raise ValueError("lists of different lengths")
    parameters = signature(schema).parameters if schema else ()
    # a call may have more values than its schema has parameters: then it is unknown which is which
    hints = parameters if len(parameters) >= count else (None,) * count
    return [decoder(size, kind, step, hint) for size, kind, step, hint in zip(sizes, kinds, steps, hints)]
