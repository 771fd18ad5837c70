"""Fused embedding lookups: tables of one dimension become one table with a single lookup, as batched kernels do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Content, Graph, Indices
from foretrace.graph.op import Op, Tensor, contiguous_strides, map_tensors, with_tensors
from foretrace.graph.operators import EMBEDDING_BAGS
from foretrace.transforms.dataflow import Dataflow, SlotCall, with_elements
from foretrace.transforms.draft import call_like
from foretrace.transforms.inputs import WeightOwners, foreach_lists
from foretrace.transforms.resize.resizable import resized_content
from foretrace.transforms.resize.tables import table_ids, table_rows
from foretrace.transforms.step import EditedCall, UnusedIds, editable_step, reassemble

IDS, OFFSETS = 1, 2
"""Positions among the arguments of a lookup."""
PER_BAG = 2
"""From this result on, a lookup returns one row per bag."""


def fuse_lookups(graph: Graph) -> Graph:
    """The step with its EmbeddingBags fused into one lookup per group of equal tables.

    Tables of the same dimension, dtype and pooling become one large table. It is looked up once with all ids, and the
    result is split into what each table returned before. Backward and optimizer work on the one table.
    """
    graph, _ = editable_step(graph)
    groups = _fusable_groups(graph)
    if not groups:
        raise ForetraceError(
            f"{graph.title} has no two lookups that can be fused",
            "They must be EmbeddingBags of one dimension with as many bags, whose ids exist before the step.",
        )
    for tables in groups:
        graph = _FusedStep(_with_large_table(graph, tables), tables).graph()
    graph.notes.append(f"lookups in {sum(map(len, groups))} tables are fused into {len(groups)}")
    return graph


def _fusable_groups(graph: Graph) -> list[list[int]]:
    """Tables that can be one, by the ids of their tensors."""
    found: dict[Any, list[int]] = {}
    step = Dataflow(list(graph.ops))
    lookups = [call for call in step.calls if call.op.name in EMBEDDING_BAGS]
    weights = [call.reads[0] for call in lookups]
    for call in lookups:
        table, rest = call.op.tensors[0], tuple(call.op.args[OFFSETS + 1 :])
        all_inputs = all(slot in step.inputs for slot in call.reads)
        if all_inputs and weights.count(call.reads[0]) == 1 and not any(isinstance(value, Tensor) for value in rest):
            key = (table.shape[1], table.dtype, table.device, call.op.produced[0].shape[0], str(rest))
            found.setdefault(key, []).append(table.id)
    return [tables for tables in found.values() if len(tables) > 1]


def _with_large_table(graph: Graph, tables: Sequence[int]) -> Graph:
    """The step with the first table as large as all together, looked up with as many ids; index statistics too."""
    lookups = [op for op in graph.ops if op.name in EMBEDDING_BAGS]
    by_table = {op.tensors[0].id: op for op in lookups}
    rows, ids = (sum(by_table[table].tensors[place].shape[0] for table in tables) for place in (0, IDS))
    known = {graph.ops[i.op].tensors[0].id: i for i in graph.indices if graph.ops[i.op].name in EMBEDDING_BAGS}
    first = str([op.tensors[0].id for op in lookups].index(tables[0]))
    graph = table_ids(table_rows(graph, rows, first), ids, first)
    if all(table in known for table in tables):
        total = Indices.summed([known[table] for table in tables])
        graph.indices = [total if found.op == total.op else found for found in graph.indices]
    return graph


class _FusedStep:
    """A step in which the first of several tables stands for all: one lookup, one backward, one update.

    In the given step, the first table is as large as all together, and looked up with as many ids.
    """

    def __init__(self, graph: Graph, tables: Sequence[int]) -> None:
        self._graph, self._ops = graph, list(graph.ops)
        self._step = Dataflow(self._ops)
        self._calls = [call for call in self._step.calls if call.row >= 0]
        by_table = {call.op.tensors[0].id: call for call in self._calls if call.op.name in EMBEDDING_BAGS}
        self._lookups = [by_table[table] for table in tables]
        self._backwards = [found for call in self._lookups if (found := self._backward_of(call))]
        self._last = max((call.row for call in self._backwards), default=-1)
        """The row at which the gradients of all tables are complete."""
        self._owners, self._dropped = self._find_owners()
        ids, count = UnusedIds(self._ops), len(self._lookups)
        first = self._lookups[0].op
        self._part = first.produced[0]
        self._parts = {call.op.produced[0].storage: number for number, call in enumerate(self._lookups)}
        """By its old storage, which part of the fused result is each table's."""
        bags, dim = self._part.shape
        offsets, like = first.tensors[OFFSETS], (self._part.dtype, self._part.device)
        self._offsets = ids.tensor((bags * count + offsets.shape[0] - bags,), offsets.dtype, offsets.device)
        self._out = ids.tensor((bags * count, dim), *like)
        self._out_by_table = ids.view(self._out, (count, bags, dim))
        self._stacked = ids.tensor((count, bags, dim), *like)
        self._gradient = ids.view(self._stacked, (count * bags, dim))

    def _backward_of(self, lookup: SlotCall) -> SlotCall | None:
        """The call that makes the gradient of a lookup's table: it reads the bag of each id."""
        bag_of_id = lookup.op.produced[1].storage
        later = (call for call in self._calls if call.op.phase == "backward")
        return next((call for call in later if bag_of_id in {tensor.storage for tensor in call.op.tensors}), None)

    def _find_owners(self) -> tuple[WeightOwners, set[int]]:
        """The table of each call of backward and optimizer, and the rows that are dropped."""
        known = {call.reads[0]: number for number, call in enumerate(self._lookups)}
        for number, call in enumerate(self._backwards):
            known.update(dict.fromkeys(call.made, number))
        lookups = {call.row for call in (*self._lookups, *self._backwards)}
        owners = WeightOwners(self._step, known, lookups)
        others = {row for row, owner in owners.of_row.items() if owner > 0}
        return owners, others | lookups

    def graph(self) -> Graph:
        """The step with fused lookups."""
        calls: list[EditedCall] = []
        deferred: list[EditedCall] = []
        for call in self._calls:
            if call.row == self._lookups[0].row:
                calls += self._forward(call)
            elif call.row == self._last:
                calls += self._backward() + deferred
            elif call.row not in self._dropped:
                # What uses the first table's gradient has to come after those of the others.
                early = self._owners.of_row.get(call.row) == 0 and call.row < self._last
                (deferred if early else calls).append(EditedCall(self._with_first_table_only(call), call.row))
        calls = [EditedCall(with_tensors(call.op, self._relocated), call.origin) for call in calls]
        self._check(calls)
        early_frees = {call.op.tensors[0].storage for call in self._backwards} | {self._gradient.storage}
        merged = dict.fromkeys(self._parts, self._out.storage)
        made = reassemble(self._graph, self._ops, calls, early_frees, merged)
        return replace(made, contents=self._contents())

    def _forward(self, call: SlotCall) -> list[EditedCall]:
        """The lookup, and its result split by table."""
        op = call.op.__copy__()
        bags, dim = self._part.shape
        op.args = (*op.args[:OFFSETS], self._offsets, *op.args[OFFSETS + 1 :])
        op.outputs = (self._out, *op.outputs[1:PER_BAG], *map(self._for_all_bags, op.produced[PER_BAG:]))
        parts = [each.op.produced[0] for each in self._lookups]
        view = call_like("aten::view", (self._out, [-1, bags, dim]), (self._out_by_table,), op)
        split = call_like("aten::unbind", (self._out_by_table,), (parts,), op)
        split.overload = "int"
        view.node = split.node = ""
        return [EditedCall(op, call.row), EditedCall(view), EditedCall(split)]

    def _for_all_bags(self, made: Tensor) -> Tensor:
        """A result with one row per bag, for the bags of all tables; an empty one stays: it was not requested."""
        if not made.shape[0]:
            return made
        shape = (made.shape[0] * len(self._lookups), *made.shape[1:])
        return replace(made, shape=shape, stride=contiguous_strides(shape))

    def _backward(self) -> list[EditedCall]:
        """The backward of the lookup, for the stacked gradients of all tables."""
        gradients = [call.op.tensors[0] for call in self._backwards]
        op = self._backwards[0].op.__copy__()
        saved = [self._lookups[0].op.tensors[OFFSETS], *self._lookups[0].op.produced[PER_BAG:]]
        new = [self._offsets, *map(self._for_all_bags, saved[1:])]
        by_storage = {tensor.storage: wide for tensor, wide in zip(saved, new)}
        args = map_tensors(op.args, lambda tensor: by_storage.get(tensor.storage, tensor))
        op.args = (self._gradient, *args[1:])
        stack = call_like("aten::stack", (gradients,), (self._stacked,), op)
        view = call_like("aten::view", (self._stacked, list(self._gradient.shape)), (self._gradient,), op)
        stack.node, view.node = "UnbindBackward0", "ViewBackward0"
        return [EditedCall(stack), EditedCall(view), EditedCall(op, self._last)]

    def _with_first_table_only(self, call: SlotCall) -> Op:
        """A call without the other tables' elements in its lists."""
        if not foreach_lists(call):
            return call.op.__copy__()
        return with_elements(call.op, [not owner for owner in self._owners.of_elements(call)])

    def _relocated(self, tensor: Tensor) -> Tensor:
        """A table's result at its place in the fused one; any other tensor as it is."""
        number = self._parts.get(tensor.storage)
        if number is None:
            return tensor
        return replace(tensor, storage=self._out.storage, offset=tensor.offset + number * self._part.numel)

    def _check(self, calls: Sequence[EditedCall]) -> None:
        """Raise if a remaining call reads a result of a dropped one."""
        made = {tensor.id for call in calls for tensor in call.op.produced}
        gone = {t.id: self._ops[row].name for row in self._dropped for t in self._ops[row].produced if t.id not in made}
        for call in calls:
            lost = next((gone[tensor.id] for tensor in call.op.tensors if tensor.id in gone), None)
            if lost is not None:
                raise ForetraceError(
                    f"lookups can't be fused: call {call.origin}, {call.op.name}, reads what {lost} made of one table",
                    "Fuse them in the model, and sketch it.",
                )

    def _contents(self) -> dict[int, Content]:
        """Contents of the inputs; there are more offsets now."""
        contents = dict(self._graph.contents)
        known = contents.get(self._lookups[0].op.tensors[OFFSETS].id)
        if known is not None:
            contents[self._offsets.id] = resized_content(known, float(len(self._lookups)))
        return contents
