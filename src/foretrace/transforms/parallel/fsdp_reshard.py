"""Resharding: an FSDP2 step over another number of ranks.

A rank holds a shard of every weight. Before a unit of the model runs, its shards are copied into a buffer, gathered,
and copied out into whole weights; after its backward, gradients are concatenated and scattered. Every size that depends
on the number of ranks changes. The whole weights, and what is computed with them, stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import RESIZE, Op, Tensor, contiguous_strides, with_tensors
from foretrace.transforms.step import EditedCall, assemble, editable_step
from foretrace.transforms.weights import tensor_lists

CHUNK_CAT, COPY_IN, COPY_OUT = "fsdp::chunk_cat", "fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy"
SPLIT = "aten::split_with_sizes"
VIEW, EMPTY, STRIDED_VIEW = "aten::view", "aten::empty", "aten::as_strided"
CASTS = ("aten::_to_copy", "aten::_foreach_copy_")
SCATTER = "c10d::_reduce_scatter_base_"
Shape = tuple[int, ...]


def uses_fsdp(graph: Graph) -> bool:
    """Whether a step scatters gradients as FSDP2 does."""
    return any(op.name == CHUNK_CAT for op in graph.ops)


def shards(graph: Graph, ranks: int) -> Graph:
    """The step of a rank under FSDP2 with its weights sharded over another number of ranks."""
    graph, ops = editable_step(graph)
    if not any(op.name == CHUNK_CAT for op in ops):
        raise ForetraceError(f"{graph.title} has no sharded weights", "Give a step under FSDP2.")
    resharding = _Resharding(ops, ranks)
    calls = [EditedCall(resharding.changed(op), row) for row, op in enumerate(ops)]
    storages = {  # those that change are as large as what is used of them
        number: replace(storage, nbytes=0) if number in resharding.sized else storage
        for number, storage in graph.storages.items()
    }
    made = assemble(replace(graph, storages=storages), calls)
    for one in made.collectives:  # as large as the tensor that gives their size: the gathered or the scattered one
        sides = zip(ops[one.op].tensors, made.ops[one.op].tensors)
        one.nbytes = next((after.nbytes for before, after in sides if before.nbytes == one.nbytes), one.nbytes)
    made.notes.append(f"weights are sharded over {ranks} ranks instead of {resharding.was}")
    return made


@dataclass(frozen=True)
class _Unit:
    """Shapes of the weights that are gathered together."""

    weights: tuple[Shape, ...]

    def shard_sizes(self, ranks: int) -> list[int]:
        """Elements of each weight on the first rank; others may have fewer, padded to as many."""
        return [prod(_shard_shape(shape, ranks)) for shape in self.weights]

    def starts(self, ranks: int) -> list[int]:
        """The offset of each shard among those of a rank."""
        sizes = self.shard_sizes(ranks)
        return [sum(sizes[:place]) for place in range(len(sizes))]


def _shard_shape(shape: Shape, ranks: int) -> Shape:
    """The shape of the first rank's shard."""
    return (-(-shape[0] // ranks), *shape[1:])


class _Resharding:
    """Changes tensors and calls of a step, by the storages of the tensors."""

    def __init__(self, ops: Sequence[Op], ranks: int) -> None:
        concats = [op for op in ops if op.name == CHUNK_CAT]
        self.was, self.now = int(str(concats[0].args[2])), ranks
        units = [_Unit(tuple(tensor.shape for tensor in op.tensors[:-1])) for op in concats]
        self._unit_of = {tuple(unit.shard_sizes(self.was)): unit for unit in units}
        self._buffer: dict[int, _Unit] = {}
        """Buffers with the shards of all ranks."""
        self._whole: dict[int, Shape] = {}
        """Storages of gathered weights, and the weight's shape."""
        self._shard: dict[int, Shape] = {}
        """Storages of shards and their optimizer states, and the whole shape."""
        self._rank: dict[int, _Unit] = {}
        """Buffers with the shards of one rank: scattered gradients, casts."""
        for op in ops:
            self._find(op)
        for _ in range(2):
            for op in ops:
                self._propagate(op)

    @property
    def sized(self) -> set[int]:
        """Storages whose size changes."""
        return {*self._buffer, *self._whole, *self._shard, *self._rank}

    def _find(self, op: Op) -> None:
        tensors = op.tensors
        if op.name == COPY_IN:
            unit = self._unit(op.args[2], op)
            self._buffer[tensors[-1].storage] = unit
            if len({tensor.storage for tensor in tensors[:-1]}) == 1 < len(unit.weights):  # cast into one buffer
                self._rank[tensors[0].storage] = unit
                return
            for tensor, shape in zip(tensors, unit.weights):
                self._shard[tensor.storage] = shape
        elif op.name == COPY_OUT:
            unit = self._unit(op.args[1], op)
            for tensor, shape in zip(tensors[1:], unit.weights):
                self._whole[tensor.storage] = shape
        elif op.name == CHUNK_CAT:
            self._buffer[tensors[-1].storage] = _Unit(tuple(tensor.shape for tensor in tensors[:-1]))
        elif op.name == SCATTER and tensors[1].storage in self._buffer:
            self._rank[tensors[0].storage] = self._buffer[tensors[1].storage]

    def _unit(self, parts: Any, op: Op) -> _Unit:
        unit = self._unit_of.get(tuple(parts))
        if unit is None:
            raise ForetraceError(
                f"{op.name} gathers {len(parts)} weights in {op.module or 'the step'} without gradients, so that their "
                "whole sizes are unknown",
                "Sketch the step with the new number of ranks.",
            )
        return unit

    def _propagate(self, op: Op) -> None:
        """Tensors of a shard's shape that are used with it belong to it: optimizer states, casts."""
        if op.phase != "optimizer" and op.name not in CASTS:
            return
        lists = tensor_lists(op)
        for related in zip(*lists) if lists else [(*op.tensors, *op.produced)]:
            known = {tensor.shape: self._whole_shape(tensor) for tensor in related if self._whole_shape(tensor)}
            for tensor in related:
                shape = known.get(tensor.shape)
                if shape is not None and tensor.storage not in self.sized:
                    self._shard[tensor.storage] = shape

    def _whole_shape(self, tensor: Tensor) -> Shape | None:
        """The whole shape of a shard; None for other tensors."""
        if tensor.storage in self._shard:
            return self._shard[tensor.storage]
        unit = self._rank.get(tensor.storage)
        if unit is None:
            return None
        starts = unit.starts(self.was)
        return unit.weights[starts.index(tensor.offset)] if tensor.offset in starts else None

    def tensor(self, tensor: Tensor) -> Tensor:
        """A tensor over the new number of ranks."""
        if tensor.storage in self._buffer:
            return self._in_buffer(tensor, self._buffer[tensor.storage])
        if tensor.storage in self._rank:
            return self._of_rank(tensor, self._rank[tensor.storage])
        if tensor.storage in self._shard:
            part = _shard_shape(self._shard[tensor.storage], self.now)
            return _like(tensor, part if len(tensor.shape) == len(part) else (prod(part),), tensor.offset)
        return tensor

    def _in_buffer(self, tensor: Tensor, unit: _Unit) -> Tensor:
        old, new = sum(unit.shard_sizes(self.was)), sum(unit.shard_sizes(self.now))
        if len(tensor.shape) == 2:
            return _like(tensor, (self.now, new), 0)
        if tensor.numel == old:
            return _like(tensor, (new,), tensor.offset // old * new)
        return _like(tensor, (self.now * new,), 0)

    def _of_rank(self, tensor: Tensor, unit: _Unit) -> Tensor:
        old, new = sum(unit.shard_sizes(self.was)), sum(unit.shard_sizes(self.now))
        if tensor.numel == old and len(unit.weights) > 1:
            return _like(tensor, (new,), 0)
        place = unit.starts(self.was).index(tensor.offset)
        part = _shard_shape(unit.weights[place], self.now)
        return _like(tensor, part if len(tensor.shape) == len(part) else (prod(part),), unit.starts(self.now)[place])

    def _gathered(self, tensor: Tensor) -> Tensor:
        """A gathered weight with its padding, as it is copied out."""
        shape = self._whole.get(tensor.storage)
        if shape is None:
            return self.tensor(tensor)
        each = prod(_shard_shape(shape, self.now))
        return _like(tensor, (self.now, each) if len(tensor.shape) == 2 else (self.now * each,), 0)

    def changed(self, op: Op) -> Op:
        """A call over the new number of ranks."""
        if op.name == RESIZE:
            return self._resized(op)
        copies = op.name == COPY_OUT or (op.name == VIEW and op.args[1] == [self.was, -1])
        new = with_tensors(op, self._gathered if copies else self.tensor)
        seen = op.tensors + op.produced
        if not copies and all(tensor.storage not in self.sized - self._whole.keys() for tensor in seen):
            return new
        new.args = self._arguments(op, new)
        return new

    def _arguments(self, op: Op, new: Op) -> tuple[Any, ...]:
        """The arguments, with new numbers of ranks and of elements."""
        args: list[Any] = list(new.args)
        if op.name == EMPTY:
            args[0] = list(new.produced[0].shape)
        elif op.name == VIEW and args[1] == [self.was, -1]:
            args[1] = [self.now, -1]
        elif op.name == COPY_IN:
            parts = self._unit(op.args[2], op).shard_sizes(self.now)
            args[2:4] = [parts, sum(parts)]
        elif op.name in (SPLIT, COPY_OUT):
            args[1] = self._unit(op.args[1], op).shard_sizes(self.now)
        elif op.name == CHUNK_CAT:
            args[2] = self.now
        elif op.name == STRIDED_VIEW:
            view = new.produced[0]
            args[1:4] = [list(view.shape), list(view.stride or ()), view.offset]
        return tuple(args)

    def _resized(self, op: Op) -> Op:
        """A resize that allocates a gathered weight, or frees it."""
        new = op.__copy__()
        storage, nbytes = op.args[1:3]
        shape = self._whole.get(storage) if isinstance(storage, int) else None
        if shape is not None and isinstance(nbytes, int) and nbytes:
            before, after = (count * prod(_shard_shape(shape, count)) for count in (self.was, self.now))
            new.args = (*op.args[:2], nbytes * after // before, *op.args[3:])
        return new


def _like(tensor: Tensor, shape: Shape, offset: int) -> Tensor:
    return replace(tensor, shape=shape, stride=contiguous_strides(shape), offset=offset)
