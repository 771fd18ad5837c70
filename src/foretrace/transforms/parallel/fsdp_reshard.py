"""Weights in other shards: FSDP2 over another number of ranks.

A rank keeps a part of every weight. Before a unit of the model runs, the parts of its weights are copied together and
gathered, then copied out to whole ones; after its backward, gradients are joined and scattered. Everything changes that
has the number of ranks in its size. The whole weights, and what is computed with them, stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Collective, Graph
from foretrace.graph.op import RESIZE, Op, with_tensors
from foretrace.graph.tensor import Tensor, contiguous_strides
from foretrace.transforms.step import EditedCall, assemble, editable_step
from foretrace.transforms.weights import tensor_lists

JOIN, COPY_IN, COPY_OUT = "fsdp::chunk_cat", "fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy"
SPLIT = "aten::split_with_sizes"
VIEW, EMPTY, PART = "aten::view", "aten::empty", "aten::as_strided"
CASTS = ("aten::_to_copy", "aten::_foreach_copy_")
SCATTER = "c10d::_reduce_scatter_base_"
Shape = tuple[int, ...]


def uses_fsdp(graph: Graph) -> bool:
    """Whether a step's gradients are scattered as FSDP2 does it."""
    return any(op.name == JOIN for op in graph.ops)


def shards(graph: Graph, ranks: int) -> Graph:
    """The step with its weights in shards over so many ranks.

    Parameters
    ----------
    graph
        The step of a rank under FSDP2: a recording, a sketch, or a trace with the arguments of its calls.
    ranks
        How many share the weights now.
    """
    graph, ops = editable_step(graph)
    if not any(op.name == JOIN for op in ops):
        raise ForetraceError(f"{graph.title} has no weights in shards", "Give a step under FSDP2.")
    resharding = _Resharding(ops, ranks)
    rows = [EditedCall(resharding.changed(op), row) for row, op in enumerate(ops)]
    storages = {  # those that change are as large as what is seen in them
        number: replace(storage, nbytes=0) if number in resharding.sized else storage
        for number, storage in graph.storages.items()
    }
    made = assemble(replace(graph, storages=storages), rows)
    made.collectives = [_sized(one, ops[one.op], made.ops[one.op]) for one in made.collectives]
    made.notes.append(f"weights are in shards on {ranks} ranks instead of {resharding.was}")
    return made


def _sized(one: Collective, was: Op, now: Op) -> Collective:
    """A collective with the bytes of the tensor by which it is sized: what is gathered, or what is scattered."""
    sizes = (after.nbytes for before, after in zip(was.tensors, now.tensors) if before.nbytes == one.nbytes)
    return replace(one, nbytes=next(sizes, one.nbytes))


@dataclass(frozen=True)
class _Unit:
    """Weights that are gathered together, by their whole shapes."""

    weights: tuple[Shape, ...]

    def parts(self, ranks: int) -> list[int]:
        """Elements of each weight that the first rank keeps; others may have fewer, and pad them to as many."""
        return [prod(_part(shape, ranks)) for shape in self.weights]

    def starts(self, ranks: int) -> list[int]:
        """Where each part begins among those of a rank."""
        sizes = self.parts(ranks)
        return [sum(sizes[:place]) for place in range(len(sizes))]


def _part(shape: Shape, ranks: int) -> Shape:
    """
    >>> _part((10, 4), 8)
    (2, 4)
    """
    return (-(-shape[0] // ranks), *shape[1:])


class _Resharding:
    """What becomes of the tensors and calls of a step: by the storage that a tensor lies in."""

    def __init__(self, ops: Sequence[Op], ranks: int) -> None:
        joins = [op for op in ops if op.name == JOIN]
        self.was, self.now = int(str(joins[0].args[2])), ranks
        units = [_Unit(tuple(tensor.shape for tensor in op.tensors[:-1])) for op in joins]
        self._by_parts = {tuple(unit.parts(self.was)): unit for unit in units}
        self._buffer: dict[int, _Unit] = {}
        """Where the parts of all ranks lie together."""
        self._whole: dict[int, Shape] = {}
        """Where a weight lies while it is gathered, and its shape."""
        self._shard: dict[int, Shape] = {}
        """What a rank keeps of a weight, and what goes with it in the optimizer; and the whole shape."""
        self._rank: dict[int, _Unit] = {}
        """Where the parts of one rank lie one behind the other: gradients when they are scattered, casts."""
        for op in ops:
            self._find(op)
        for _ in range(2):
            for op in ops:
                self._spread(op)

    @property
    def sized(self) -> set[int]:
        """Storages of another size."""
        return {*self._buffer, *self._whole, *self._shard, *self._rank}

    def _find(self, op: Op) -> None:
        tensors = op.tensors
        if op.name == COPY_IN:
            unit = self._unit(op.args[2], op)
            self._buffer[tensors[-1].storage] = unit
            if len({tensor.storage for tensor in tensors[:-1]}) == 1 < len(unit.weights):  # cast to one place
                self._rank[tensors[0].storage] = unit
                return
            for tensor, shape in zip(tensors, unit.weights):
                self._shard[tensor.storage] = shape
        elif op.name == COPY_OUT:
            unit = self._unit(op.args[1], op)
            for tensor, shape in zip(tensors[1:], unit.weights):
                self._whole[tensor.storage] = shape
        elif op.name == JOIN:
            self._buffer[tensors[-1].storage] = _Unit(tuple(tensor.shape for tensor in tensors[:-1]))
        elif op.name == SCATTER and tensors[1].storage in self._buffer:
            self._rank[tensors[0].storage] = self._buffer[tensors[1].storage]

    def _unit(self, parts: Any, op: Op) -> _Unit:
        unit = self._by_parts.get(tuple(parts))
        if unit is None:
            raise ForetraceError(
                f"{op.name} gathers {len(parts)} weights in {op.module or 'the step'} of which no gradients are "
                "scattered, so that nobody can tell how large they are",
                "Sketch the step with the number of ranks.",
            )
        return unit

    def _spread(self, op: Op) -> None:
        """What is used with a shard and looks like it goes with it: states of the optimizer, casts."""
        if op.phase != "optimizer" and op.name not in CASTS:
            return
        lists = tensor_lists(op)
        for together in zip(*lists) if lists else [(*op.tensors, *op.produced)]:
            known = {tensor.shape: self._whole_shape(tensor) for tensor in together if self._whole_shape(tensor)}
            for tensor in together:
                shape = known.get(tensor.shape)
                if shape is not None and tensor.storage not in self.sized:
                    self._shard[tensor.storage] = shape

    def _whole_shape(self, tensor: Tensor) -> Shape | None:
        """The whole shape of what a tensor is a part of."""
        if tensor.storage in self._shard:
            return self._shard[tensor.storage]
        unit = self._rank.get(tensor.storage)
        if unit is None:
            return None
        starts = unit.starts(self.was)
        return unit.weights[starts.index(tensor.offset)] if tensor.offset in starts else None

    def tensor(self, tensor: Tensor) -> Tensor:
        """A tensor as it is now."""
        if tensor.storage in self._buffer:
            return self._in_buffer(tensor, self._buffer[tensor.storage])
        if tensor.storage in self._rank:
            return self._of_rank(tensor, self._rank[tensor.storage])
        if tensor.storage in self._shard:
            part = _part(self._shard[tensor.storage], self.now)
            return _like(tensor, part if len(tensor.shape) == len(part) else (prod(part),), tensor.offset)
        return tensor

    def _in_buffer(self, tensor: Tensor, unit: _Unit) -> Tensor:
        old, new = sum(unit.parts(self.was)), sum(unit.parts(self.now))
        if len(tensor.shape) == 2:
            return _like(tensor, (self.now, new), 0)
        if tensor.numel == old:
            return _like(tensor, (new,), tensor.offset // old * new)
        return _like(tensor, (self.now * new,), 0)

    def _of_rank(self, tensor: Tensor, unit: _Unit) -> Tensor:
        old, new = sum(unit.parts(self.was)), sum(unit.parts(self.now))
        if tensor.numel == old and len(unit.weights) > 1:
            return _like(tensor, (new,), 0)
        place = unit.starts(self.was).index(tensor.offset)
        part = _part(unit.weights[place], self.now)
        return _like(tensor, part if len(tensor.shape) == len(part) else (prod(part),), unit.starts(self.now)[place])

    def _gathered(self, tensor: Tensor) -> Tensor:
        """A whole weight with what pads it, as it is copied out."""
        shape = self._whole.get(tensor.storage)
        if shape is None:
            return self.tensor(tensor)
        each = prod(_part(shape, self.now))
        return _like(tensor, (self.now, each) if len(tensor.shape) == 2 else (self.now * each,), 0)

    def changed(self, op: Op) -> Op:
        """A call as it is now."""
        if op.name == RESIZE:
            return self._resized(op)
        copies = op.name == COPY_OUT or (op.name == VIEW and op.args[1] == [self.was, -1])
        new = with_tensors(op, self._gathered if copies else self.tensor)
        seen = op.tensors + op.produced
        if not copies and all(tensor.storage not in self.sized - self._whole.keys() for tensor in seen):
            return new
        new.args = self._numbers(op, new)
        return new

    def _numbers(self, op: Op, new: Op) -> tuple[Any, ...]:
        """The arguments, with what counts ranks or elements of shards."""
        args: list[Any] = list(new.args)
        if op.name == EMPTY:
            args[0] = list(new.produced[0].shape)
        elif op.name == VIEW and args[1] == [self.was, -1]:
            args[1] = [self.now, -1]
        elif op.name == COPY_IN:
            parts = self._unit(op.args[2], op).parts(self.now)
            args[2:4] = [parts, sum(parts)]
        elif op.name in (SPLIT, COPY_OUT):
            args[1] = self._unit(op.args[1], op).parts(self.now)
        elif op.name == JOIN:
            args[2] = self.now
        elif op.name == PART:
            look = new.produced[0]
            args[1:4] = [list(look.shape), list(look.stride or ()), look.offset]
        return tuple(args)

    def _resized(self, op: Op) -> Op:
        """A storage that takes a whole weight, or gives its memory back."""
        new = op.__copy__()
        storage, nbytes = op.args[1:3]
        shape = self._whole.get(storage) if isinstance(storage, int) else None
        if shape is not None and isinstance(nbytes, int) and nbytes:
            before, after = (count * prod(_part(shape, count)) for count in (self.was, self.now))
            new.args = (*op.args[:2], nbytes * after // before, *op.args[3:])
        return new


def _like(tensor: Tensor, shape: Shape, offset: int) -> Tensor:
    return replace(tensor, shape=shape, stride=contiguous_strides(shape), offset=offset)
