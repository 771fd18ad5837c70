"""Tables on their own ranks, everything else on all of them: how recommendation models are trained.

Each rank keeps some of the embedding tables whole, and looks up the batches of all ranks in them. It sends the ids of
its own batch to whoever keeps the tables, gets the looked-up vectors back, and in backward sends their gradients home:
three all_to_all. The rest of the model is data parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretrace.graph import Constant, ForetraceError, Graph, Job, Op, Tensor
from foretrace.transforms.contents import resized_indices
from foretrace.transforms.layout import dense_strides
from foretrace.transforms.other_tensors import with_tensors
from foretrace.transforms.parallel.data import USUAL_MB, reduced
from foretrace.transforms.parallel.draft import Draft, Group, Line, called, lines_of
from foretrace.transforms.parallel.updates import only, spread

LOOKUPS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
BACKWARD = "aten::_embedding_bag_backward"
ACCUMULATES = "AccumulateGrad"


@dataclass(frozen=True)
class Lookup:
    """One table: its forward call, and the calls of its backward."""

    forward: int
    backward: tuple[int, ...]


def tables_on_ranks(graph: Graph, ways: int, owners: Sequence[int] | None = None, bucket_mb: float = USUAL_MB) -> Job:
    """The steps of so many ranks, each with some of the tables and a copy of all the rest.

    Parameters
    ----------
    graph
        The step of one rank.
    ways
        How many ranks.
    owners
        The rank of each table, in the order of forward; one after the other in turn where left out.
    bucket_mb
        Size of DDP's buckets.
    """
    draft = lines_of(graph, "tables on ranks of their own")
    lookups = _lookups([line.op for line in draft.lines])
    if not lookups:
        raise ForetraceError(
            f"{graph.source or 'the graph'} looks up no embedding bags", "Tables are told by aten::_embedding_bag."
        )
    owners = [place % ways for place in range(len(lookups))] if owners is None else list(owners)
    if len(owners) != len(lookups) or not all(0 <= rank < ways for rank in owners):
        raise ForetraceError(
            f"{len(lookups)} tables need an owner each, of the ranks 0 to {ways - 1}", f"Given are: {owners}."
        )
    if len(set(owners)) < ways:
        raise ForetraceError(f"{len(lookups)} tables are too few for {ways} ranks: some have none", "Give fewer ranks.")
    note = f"{len(lookups)} tables on {ways} ranks, the rest data parallel, were not in the step that was given"
    graphs = []
    for rank in range(ways):
        fresh = Draft(draft.graph)
        part = _Rank(fresh, lookups, owners, rank, ways)
        shared = reduced(fresh, part.written(), Group("data", tuple(range(ways))), bucket_mb, alone=part.gradients)
        made = fresh.graph_of(shared, rank, ways, note)
        made.indices = [resized_indices(i, i.rows, i.count * ways, i.bags * ways) for i in made.indices]
        graphs.append(made)
    return Job(graphs, graph.source)


def _lookups(ops: Sequence[Op]) -> list[Lookup]:
    found = []
    for row, op in enumerate(ops):
        if op.phase == "forward" and op.name in LOOKUPS:
            bags = op.produced[1].storage  # its own, though tables may share their ids
            start = next((r for r, o in enumerate(ops) if o.name == BACKWARD and o.tensors[3].storage == bags), None)
            rows = [] if start is None else [start]
            while rows and rows[-1] + 1 < len(ops) and ops[rows[-1] + 1].node.endswith(ACCUMULATES):
                rows.append(rows[-1] + 1)
            found.append(Lookup(row, tuple(rows)))
    return found


class _Rank:
    """What one rank calls."""

    def __init__(self, draft: Draft, lookups: Sequence[Lookup], owners: Sequence[int], rank: int, ways: int) -> None:
        self.draft, self.lookups, self.rank, self.ways = draft, lookups, rank, ways
        self.ours = [lookup for lookup, owner in zip(lookups, owners) if owner == rank]
        self.group = Group("tables", tuple(range(ways)))
        self.moved: dict[int, Tensor] = {}
        """What stands for a tensor after an exchange, by the storage that it had."""
        calls = [draft.graph.ops[lookup.forward] for lookup in self.ours]
        self.tables = {draft.graph.ops[lookup.forward].tensors[0].storage for lookup in lookups}
        self.mine = {call.tensors[0].storage for call in calls}
        made = [t for lookup in lookups for row in lookup.backward for t in draft.graph.ops[row].produced]
        shapes = {draft.graph.ops[lookup.forward].tensors[0].shape for lookup in lookups}
        self.gradients = {tensor.storage for tensor in made if tensor.layout == "strided" and tensor.shape in shapes}
        """Of the tables, where they are not sparse: each is its owner's alone."""
        self.sizes = {size for call in calls for size in (call.tensors[1].numel, call.produced[0].shape[0])}
        """Ids and bags of one batch."""

    def written(self) -> list[Line]:
        """Its lines; gradients of the tables are its own."""
        lines = self.draft.lines
        forward = {lookup.forward for lookup in self.lookups}
        backward = {row for lookup in self.lookups for row in lookup.backward}
        mine = {row for lookup in self.ours for row in (lookup.forward, *lookup.backward)}
        first_back = min(backward, default=-1)
        written: list[Line] = []
        for row, line in enumerate(lines):
            if row == min(forward):
                written += self._ask(line.op)
            if row == first_back:
                written += self._send_home(line.op)
            if row in mine:
                written.append(Line(self._at_all_batches(row, line.op), line.row))
            elif row not in forward and row not in backward and line.op.phase != "optimizer":
                written.append(Line(with_tensors(line.op, self._exchanged), line.row))
            if row == max(forward):
                written += self._answer(line.op)
        return written + self._update()

    def _ask(self, like: Op) -> list[Line]:
        """All ids of this rank's batch go to whoever keeps the tables."""
        like = _outside(like)
        ids = [self.draft.graph.ops[lookup.forward].tensors[1] for lookup in self.lookups]
        own = [self.draft.graph.ops[lookup.forward].tensors[1].numel for lookup in self.ours]
        given = self.draft.tensor((sum(t.numel for t in ids),), ids[0].dtype, ids[0].device)
        got = self.draft.tensor((sum(own) * self.ways,), ids[0].dtype, ids[0].device)
        sorted_ids = self.draft.tensor(got.shape, got.dtype, got.device)
        exchange = self.draft.collective("all_to_all", self.group, got, given, like)
        return [
            Line(called("aten::cat", ([*ids],), (given,), like)),
            exchange,
            self.draft.wait_for(exchange, like),
            Line(called("aten::clone", (got,), (sorted_ids,), like, memory_format=_CONTIGUOUS)),
        ]

    def _answer(self, like: Op) -> list[Line]:
        """The looked-up vectors of all batches go to whom they were asked by."""
        like = _outside(like)
        every = [self.draft.graph.ops[lookup.forward].produced[0] for lookup in self.lookups]
        found = [self._grown(self.draft.graph.ops[lookup.forward].produced[0]) for lookup in self.ours]
        bags, dim = every[0].shape
        stacked = self.draft.tensor((len(found), bags * self.ways, dim), found[0].dtype, found[0].device)
        by_rank = self.draft.tensor(stacked.shape, stacked.dtype, stacked.device)
        got = self.draft.tensor((len(every) * bags, dim), stacked.dtype, stacked.device)
        exchange = self.draft.collective("all_to_all", self.group, got, by_rank, like)
        looks = []
        for place, tensor in enumerate(every):
            part = self.draft.view(got, (bags, dim), place * bags * dim)
            self.moved[tensor.storage] = part
            looks.append(Line(called("aten::select", (got, 0, place), (part,), like)))
        return [
            Line(called("aten::stack", ([*found],), (stacked,), like)),
            Line(called("aten::clone", (stacked,), (by_rank,), like, memory_format=_CONTIGUOUS)),
            exchange,
            self.draft.wait_for(exchange, like),
            *looks,
        ]

    def _send_home(self, like: Op) -> list[Line]:
        """Gradients of vectors go to the ranks that keep their tables."""
        like = _outside(like)
        every = [self.draft.graph.ops[lookup.backward[0]].tensors[0] for lookup in self.lookups]
        bags, dim = every[0].shape
        given = self.draft.tensor((len(every) * bags, dim), every[0].dtype, every[0].device)
        got = self.draft.tensor((len(self.ours) * bags * self.ways, dim), given.dtype, given.device)
        mean, by_table = (self.draft.tensor(got.shape, got.dtype, got.device) for _ in range(2))
        exchange = self.draft.collective("all_to_all", self.group, got, given, like)
        for place, lookup in enumerate(self.ours):
            gradient = self.draft.graph.ops[lookup.backward[0]].tensors[0]
            offset = place * bags * self.ways * dim
            self.moved[_look(gradient)] = self.draft.view(by_table, (bags * self.ways, dim), offset)
        return [
            Line(called("aten::cat", ([*every],), (given,), like)),
            exchange,
            self.draft.wait_for(exchange, like),
            Line(called("aten::div", (got, self.ways), (mean,), like)),
            Line(called("aten::clone", (mean,), (by_table,), like, memory_format=_CONTIGUOUS)),
        ]

    def _at_all_batches(self, row: int, op: Op) -> Op:
        """A call on a table, for the batches of all ranks."""
        if op.name == BACKWARD:
            gradient = self.moved[_look(op.tensors[0])]
            op = replace(op, args=(gradient, *op.args[1:]))
            kept = gradient.id
            return with_tensors(op, lambda t: t if t.id == kept else self._grown(t))
        return with_tensors(op, self._grown)

    def _grown(self, tensor: Tensor) -> Tensor:
        """A tensor of ids, bags or looked-up vectors, of all batches; tables and their gradients stay."""
        if tensor.storage in self.tables | self.gradients or tensor.layout != "strided" or not tensor.shape:
            return tensor
        shape = tuple(size * self.ways if size in self.sizes else size for size in tensor.shape)
        return replace(tensor, shape=shape, stride=dense_strides(shape))

    def _exchanged(self, tensor: Tensor) -> Tensor:
        return self.moved.get(tensor.storage, tensor)

    def _update(self) -> list[Line]:
        """The optimizer, over the tables that are ours and all the rest."""
        lines = [line for line in self.draft.lines if line.op.phase == "optimizer"]
        owned = {table: table in self.mine for table in self.tables}
        spread([line.op for line in lines], owned)
        kept = [(line, only(line.op, owned)) for line in lines]
        return [Line(op, line.row) for line, op in kept if op is not None]


_CONTIGUOUS = Constant("memory_format", "contiguous_format")


def _look(tensor: Tensor) -> int:
    """A number for a look at a storage that several share: below those of storages."""
    return -2 - tensor.id


def _outside(op: Op) -> Op:
    """Where a call is made that belongs to all tables."""
    where = called("", (), (), op)
    where.module = op.module.rpartition(".")[0]
    return where
