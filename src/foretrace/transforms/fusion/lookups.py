"""Many lookups in one: tables of one dimension become one table, which is asked once for all their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Content, Graph, Indices
from foretrace.graph.op import Op, map_tensors, with_tensors
from foretrace.graph.tensor import Tensor, contiguous_strides
from foretrace.transforms.dataflow import Call, Dataflow, is_sequence
from foretrace.transforms.inputs import EMBEDDING_BAGS, WeightOwners, foreach_lists
from foretrace.transforms.resize.resizable import resized_content
from foretrace.transforms.resize.tables import table_ids, table_rows
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, editable_step, recompute_frees, storages_in


def fuse_lookups(graph: Graph) -> Graph:
    """The step with its EmbeddingBags joined, as a batched lookup does it.

    Tables with the same dimension, type and pooling become one large table. It is asked once, for the ids of all, and
    the result is cut into what each table gave before. Backward and optimizer work on the one table.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    """
    graph, _ = editable_step(graph)
    groups = _groups(graph)
    if not groups:
        raise ForetraceError(
            f"{graph.title} has no two lookups that can be one",
            "They are EmbeddingBags of one dimension, with as many bags, whose ids are there before the step.",
        )
    for tables in groups:
        graph = Joined(_enlarged(graph, tables), tables).graph()
    graph.notes.append(f"lookups in {sum(map(len, groups))} tables are {len(groups)}")
    return graph


def _groups(graph: Graph) -> list[list[int]]:
    """Tables that can be one, by the numbers of their tensors."""
    found: dict[Any, list[int]] = {}
    step = Dataflow(list(graph.ops))
    looked = [call for call in step.calls if call.op.name in EMBEDDING_BAGS]
    weights = [call.reads[0] for call in looked]
    for call in looked:
        table, rest = call.op.tensors[0], tuple(call.op.args[OFFSETS + 1 :])
        given = all(slot in step.inputs for slot in call.reads)
        if given and weights.count(call.reads[0]) == 1 and not any(isinstance(value, Tensor) for value in rest):
            alike = (table.shape[1], table.dtype, table.device, call.op.produced[0].shape[0], str(rest))
            found.setdefault(alike, []).append(table.id)
    return [tables for tables in found.values() if len(tables) > 1]


def _bags(graph: Graph, tables: Sequence[int]) -> list[Op]:
    by_table = {op.tensors[0].id: op for op in graph.ops if op.name in EMBEDDING_BAGS}
    return [by_table[table] for table in tables]


def _enlarged(graph: Graph, tables: Sequence[int]) -> Graph:
    """The step with the first table as large as all together, asked for as many ids; statistics too."""
    bags = _bags(graph, tables)
    rows, ids = (sum(op.tensors[place].shape[0] for op in bags) for place in (0, IDS))
    places = [op.tensors[0].id for op in graph.ops if op.name in EMBEDDING_BAGS]
    known = {graph.ops[found.op].tensors[0].id: found for found in graph.indices if graph.ops[found.op].name in EMBEDDING_BAGS}
    first = str(places.index(tables[0]))
    graph = table_ids(table_rows(graph, rows, first), ids, first)
    if all(table in known for table in tables):
        joined = _summed([known[table] for table in tables])
        graph.indices = [joined if found.op == joined.op else found for found in graph.indices]
    return graph


def _summed(found: Sequence[Indices]) -> Indices:
    """The reuse of rows in tables that are one."""
    longest = max(len(each.reuse) for each in found)
    reuse = tuple(sum(each.reuse[k] for each in found if k < len(each.reuse)) for k in range(longest))
    rows, count, unique, bags = (
        sum(getattr(each, word) for each in found) for word in ("rows", "count", "unique", "bags")
    )
    return Indices(found[0].op, rows, count, unique, bags, reuse)


# --- was transforms.joined: A step in which the first of several tables stands for all: one lookup, one backward, one update.

IDS, OFFSETS = 1, 2
"""Places among the arguments of a lookup."""
OF_BAGS = 2
"""From this result on, a lookup has one for each bag."""


class Joined:
    """The calls of such a step.

    Parameters
    ----------
    graph
        The step, flat; its first table is as large as all together, and asked for as many ids.
    tables
        Numbers of the tables' tensors.
    """

    def __init__(self, graph: Graph, tables: Sequence[int]) -> None:
        self._graph, self._ops = graph, list(graph.ops)
        self._step = Dataflow(self._ops)
        self._calls = [call for call in self._step.calls if call.row >= 0]
        looked = {call.op.tensors[0].id: call for call in self._calls if call.op.name in EMBEDDING_BAGS}
        self._lookups = [looked[table] for table in tables]
        self._backwards = [found for call in self._lookups if (found := self._backward(call))]
        self._last = max((call.row for call in self._backwards), default=-1)
        """The row at which the gradients of all are there."""
        self._owners, self._dropped = self._parted()
        fresh, count = IdAllocator(self._ops), len(self._lookups)
        first = self._lookups[0].op
        self._part = first.produced[0]
        self._parts = {call.op.produced[0].storage: number for number, call in enumerate(self._lookups)}
        """By the storage that it had, which part of the whole result each table gave."""
        bags, dim = self._part.shape
        starts = first.tensors[OFFSETS]
        self._offsets = fresh.tensor((bags * count + starts.shape[0] - bags,), starts.dtype, starts.device)
        self._out = fresh.tensor((bags * count, dim), self._part.dtype, self._part.device)
        self._cut = fresh.view(self._out, (count, bags, dim))
        self._stacked = fresh.tensor((count, bags, dim), self._part.dtype, self._part.device)
        self._gradient = fresh.view(self._stacked, (count * bags, dim))

    def _backward(self, lookup: Call) -> Call | None:
        """The call that makes the gradient of a lookup's table: it reads the bag of each id."""
        of_ids = lookup.op.produced[1].storage
        later = (call for call in self._calls if call.op.phase == "backward")
        return next((call for call in later if of_ids in {tensor.storage for tensor in call.op.tensors}), None)

    def _parted(self) -> tuple[WeightOwners, set[int]]:
        """Whose each call is, and the rows of those that are gone."""
        known = {call.reads[0]: number for number, call in enumerate(self._lookups)}
        for number, call in enumerate(self._backwards):
            known.update(dict.fromkeys(call.made, number))
        lookups = {call.row for call in (*self._lookups, *self._backwards)}
        owners = WeightOwners(self._step, known, lookups)
        others = {row for row, owner in owners.of_row.items() if owner > 0}
        return owners, others | lookups

    def graph(self) -> Graph:
        """The step."""
        rows: list[EditedCall] = []
        waiting: list[EditedCall] = []
        for call in self._calls:
            if call.row == self._lookups[0].row:
                rows += self._forward(call)
            elif call.row == self._last:
                rows += self._gradients() + waiting
            elif call.row not in self._dropped:
                # What the first table's gradient is used for has to wait for those of the others.
                early = self._owners.of_row.get(call.row) == 0 and call.row < self._last
                (waiting if early else rows).append(EditedCall(self._shorter(call), call.row))
        rows = [EditedCall(with_tensors(row.op, self._moved), row.origin) for row in rows]
        self._check(rows)
        soon = {call.op.tensors[0].storage for call in self._backwards} | {self._gradient.storage}
        recompute_frees(rows, self._ops, soon, dict.fromkeys(self._parts, self._out.storage))
        seen = storages_in(row.op for row in rows)
        gone = storages_in(self._ops) - seen
        storages = {number: storage for number, storage in self._graph.storages.items() if number not in gone}
        return replace(assemble(replace(self._graph, storages=storages), rows), contents=self._contents())

    def _forward(self, call: Call) -> list[EditedCall]:
        """The lookup, and what it gives cut into what each table gave."""
        op = call.op.__copy__()
        bags, dim = self._part.shape
        op.args = (*op.args[:OFFSETS], self._offsets, *op.args[OFFSETS + 1 :])
        op.outputs = (self._out, *op.outputs[1:OF_BAGS], *map(self._wider, op.produced[OF_BAGS:]))
        parts = [each.op.produced[0] for each in self._lookups]
        return [
            EditedCall(op, call.row),
            EditedCall(_new(op, "aten::view", (self._out, [-1, bags, dim]), (self._cut,)), -1),
            EditedCall(_new(op, "aten::unbind", (self._cut,), (parts,), "int"), -1),
        ]

    def _wider(self, made: Tensor) -> Tensor:
        """What a lookup makes for each bag, for all bags; it makes nothing of it where nobody asks."""
        if not made.shape[0]:
            return made
        shape = (made.shape[0] * len(self._lookups), *made.shape[1:])
        return replace(made, shape=shape, stride=contiguous_strides(shape))

    def _gradients(self) -> list[EditedCall]:
        """The backward of the lookup, for the gradients of all tables joined."""
        gradients = [call.op.tensors[0] for call in self._backwards]
        op = self._backwards[0].op.__copy__()
        made = [self._lookups[0].op.tensors[OFFSETS], *self._lookups[0].op.produced[OF_BAGS:]]
        now = {tensor.storage: wide for tensor, wide in zip(made, [self._offsets, *map(self._wider, made[1:])])}
        args = map_tensors(op.args, lambda tensor: now.get(tensor.storage, tensor))
        op.args = (self._gradient, *args[1:])
        return [
            EditedCall(_new(op, "aten::stack", (gradients,), (self._stacked,), node="UnbindBackward0"), -1),
            EditedCall(_new(op, "aten::view", (self._stacked, list(self._gradient.shape)), (self._gradient,),
                     node="ViewBackward0"), -1),
            EditedCall(op, self._last),
        ]  # fmt: skip

    def _shorter(self, call: Call) -> Op:
        """A call as it was; without the places of the other tables where it walks lists."""
        op = call.op.__copy__()
        if not foreach_lists(call):
            return op
        keep = [not owner for owner in self._owners.places(call)]

        def short(value: Any) -> Any:
            fits = is_sequence(value) and len(value) == len(keep)
            return [item for item, kept in zip(value, keep) if kept] if fits else value

        op.args, op.outputs = tuple(map(short, op.args)), tuple(map(short, op.outputs))
        op.kwargs = {name: short(value) for name, value in op.kwargs.items()}
        return op

    def _moved(self, tensor: Tensor) -> Tensor:
        """What a table gave, where it lies now; any other tensor as it is."""
        number = self._parts.get(tensor.storage)
        if number is None:
            return tensor
        return replace(tensor, storage=self._out.storage, offset=tensor.offset + number * self._part.numel)

    def _check(self, rows: Sequence[EditedCall]) -> None:
        """Refuse where a call that stays reads what nobody makes any more."""
        kept = {tensor.id for row in rows for tensor in row.op.produced}
        gone = {t.id: self._ops[row].name for row in self._dropped for t in self._ops[row].produced if t.id not in kept}
        for row in rows:
            lost = next((gone[tensor.id] for tensor in row.op.tensors if tensor.id in gone), None)
            if lost is not None:
                raise ForetraceError(
                    f"the lookups can't be joined: call {row.origin}, {row.op.name}, reads what {lost} made of one",
                    "Join them in the model, and sketch it.",
                )

    def _contents(self) -> dict[int, Content]:
        """What the tensors before the step held; of offsets there are more now."""
        contents = dict(self._graph.contents)
        known = contents.get(self._lookups[0].op.tensors[OFFSETS].id)
        if known is not None:
            contents[self._offsets.id] = resized_content(known, float(len(self._lookups)))
        return contents


def _new(
    like: Op, name: str, args: tuple[Any, ...], outputs: tuple[Any, ...], overload: str = "default", node: str = ""
) -> Op:
    """A call that was not there, made where another one is."""
    op = Op(name, args, {}, outputs, overload, like.phase, like.thread, like.stream, module=like.module)
    op.node = node
    return op
