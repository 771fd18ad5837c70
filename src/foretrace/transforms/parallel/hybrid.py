"""Hybrid parallelism of recommendation models: embedding tables are sharded over the ranks, the rest is replicated.

A rank looks up the rows that it holds for the samples of all ranks. Ids are sent to the ranks that hold their rows,
embeddings come back to the ranks of the samples, and in backward their gradients return. All other weights are data
parallel as under DDP.

| function | calls on tables | communication |
| --- | --- | --- |
| `tables_on_ranks` | those of the step for the samples of all ranks; whole tables | blocking, as in plain PyTorch |
| `sharded_steps` | given for each rank, for shards of any kind | overlapped, ids sent a step ahead, as in TorchRec |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from foretrace.graph import ForetraceError, Graph, Indices, Job, Op, Tensor
from foretrace.graph.op import CONTIGUOUS, contiguous_strides, with_tensors
from foretrace.graph.operators import EMBEDDING_BAGS, LOOKUPS
from foretrace.transforms.draft import Draft, ProcessGroup, allocation, call_like, draft_of, freed_after_last_use
from foretrace.transforms.parallel.data import DEFAULT_BUCKET_MB, share_gradients
from foretrace.transforms.resize.resizable import resized_indices
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import propagate_owners, restrict_update

BAG_BACKWARD = "aten::_embedding_bag_backward"
BACKWARD = (
    BAG_BACKWARD, "aten::_embedding_bag_dense_backward", "aten::_embedding_bag_sparse_backward",
    "aten::embedding_dense_backward",
)  # fmt: skip
SPARSE_UPDATES = ("aten::add_", "aten::sub_", "aten::_coalesce")
"""Calls of an optimizer that update a table by a sparse gradient."""
ACCUMULATES = "AccumulateGrad"


class Transfer(NamedTuple):
    """A collective of ids, embeddings or gradients, as one rank takes part in it."""

    kind: str
    group: ProcessGroup
    nbytes: int
    """What this rank sends."""
    forwards: bool = False
    """Whether it sends on what the transfer before it brought, and so waits for that one."""


@dataclass(frozen=True)
class TableShare:
    """What one rank does for the tables under a sharding plan."""

    lookups: Graph
    """Calls on the shards that it holds, with the access statistics of their ids."""
    backward: Sequence[bool]
    """Of each call, whether it makes gradients or updates rows."""
    ids: Transfer | None = None
    embeddings: Sequence[Transfer] = ()
    """From the ranks of the shards to those of the samples, in order."""
    gradients: Sequence[Transfer] = ()
    """Back to the ranks of the shards, in order."""
    replicas: Transfer | None = None
    """The all_reduce of gradients of data-parallel tables."""
    sent_as: str = ""
    """The dtype that embeddings and gradients are converted into before they are sent; empty for none."""
    sent_elements: int = 0


class RankStep(NamedTuple):
    """The step of one rank."""

    graph: Graph
    lookups: tuple[list[int], list[int]]
    """Rows of its lookups; and of their gradients and updates."""


def tables_on_ranks(
    graph: Graph, ways: int, owners: Sequence[int] | None = None, bucket_mb: float = DEFAULT_BUCKET_MB
) -> Job:
    """The steps of ranks that hold some of the embedding tables each, whole, and a replica of the rest.

    ``owners`` are the ranks of the tables, in the order of forward; round-robin where left out.
    """
    draft = draft_of(graph, "tables on ranks of their own")
    tables = _bags(draft.ops)
    if not tables:
        raise ForetraceError(
            f"{graph.source or 'the graph'} looks up no embedding bags", "Tables are found by aten::_embedding_bag."
        )
    owners = [place % ways for place in range(len(tables))] if owners is None else list(owners)
    if len(owners) != len(tables) or not all(0 <= rank < ways for rank in owners):
        raise ForetraceError(
            f"{len(tables)} tables need an owner each, of the ranks 0 to {ways - 1}", f"Given are: {owners}."
        )
    if len(set(owners)) < ways:
        raise ForetraceError(f"{len(tables)} tables are too few for {ways} ranks: some have none", "Give fewer ranks.")
    note = f"{len(tables)} tables on {ways} ranks, the rest data parallel: added to the step that was given"
    graphs = []
    for rank in range(ways):
        writer = _WholeTables(Draft(draft.graph), rank, ways, tables, owners)
        made = writer.draft.graph_of(writer.lines(bucket_mb), rank, ways, note)
        made.indices = [resized_indices(i, i.rows, i.count * ways, i.bags * ways) for i in made.indices]
        graphs.append(made)
    return Job(graphs, graph.source)


def sharded_steps(graph: Graph, shares: Sequence[TableShare]) -> list[RankStep]:
    """The steps of ranks that hold shards of the embedding tables, and a replica of the rest.

    Lookups stand where the first lookup of the step stood. Embeddings are waited for when something reads them.
    Gradients return where the step had the first gradient of a lookup, and rows are updated right then. Ids of the next
    step are sent from the lookups on, and arrive before the step ends.
    """
    draft = draft_of(graph, "a plan for its tables")
    places = _Places.of(draft.ops, graph.source)
    note = f"{len(shares)} ranks with tables of their own: added to the step that was given"
    return [
        _Shards(Draft(draft.graph), rank, len(shares), places, share).step(note) for rank, share in enumerate(shares)
    ]


class _HybridRank:
    """Writes the step of one rank: calls on tables replaced, communication inserted, the other gradients reduced."""

    def __init__(self, draft: Draft, rank: int, world: int) -> None:
        self.draft, self.ops, self.rank, self.world = draft, draft.ops, rank, world
        self.received: dict[int, Tensor] = {}
        """The tensor that a collective brings in place of one of the step, by the storage of the latter."""

    def written(
        self,
        replaced: Collection[int],
        inserted: Sequence[tuple[int, Iterable[EditedCall]]],
        trained: dict[int, bool],
        bucket_mb: float = DEFAULT_BUCKET_MB,
        own_gradients: Collection[int] = (),
    ) -> list[EditedCall]:
        """All calls in order, with those on tables, at rows ``replaced``, by the rank's own.

        ``inserted`` are new calls with the row that they stand before, generated in the order of the step. ``trained``
        says by storage whether the step's optimizer calls update it on this rank; what is not in it is updated.
        """
        before: dict[int, Iterable[EditedCall]] = {}
        for row, calls in inserted:
            before[row] = chain(before.get(row, ()), calls)
        lines: list[EditedCall] = []
        original = self.draft.next_storage
        for row, line in enumerate(self.draft.calls):
            lines += before.get(row, ())
            if row in replaced:
                lines += self.own_calls(row)
            elif line.op.phase != "optimizer":
                op = with_tensors(line.op, lambda t: self.received.get(t.storage, t))
                lines.append(EditedCall(op, line.origin))
            elif (update := restrict_update(line.op, trained)) is not None:
                lines.append(EditedCall(update, line.origin))
        lines += before.get(len(self.draft.calls), ())
        freed_after_last_use(lines, range(original, self.draft.next_storage))
        group = ProcessGroup("data", tuple(range(self.world)))
        return share_gradients(self.draft, lines, group, bucket_mb, own_gradients) if self.world > 1 else lines

    def own_calls(self, row: int) -> Iterator[EditedCall]:
        """What this rank calls in place of a call on a table: nothing, where its lookups are inserted."""
        yield from ()

    def communicate(self, kind: str, group: ProcessGroup, got: Tensor, given: Tensor, like: Op) -> Iterator[EditedCall]:
        """A collective, and the wait for its end."""
        begun = self.draft.collective(kind, group, got, given, like)
        yield EditedCall(allocation(got, like))
        yield begun
        yield self.draft.wait_for(begun, like)


class _Table(NamedTuple):
    """A table that is looked up by bags: rows of its call in forward, and of its calls in backward."""

    forward: int
    backward: tuple[int, ...]


def _bags(ops: Sequence[Op]) -> list[_Table]:
    found = []
    for row, op in enumerate(ops):
        if op.phase == "forward" and op.name in EMBEDDING_BAGS:
            bags = op.produced[1].storage  # its own, though tables may share their ids
            start = next(
                (r for r, o in enumerate(ops) if o.name == BAG_BACKWARD and o.tensors[3].storage == bags), None
            )
            rows = [] if start is None else [start]
            while rows and rows[-1] + 1 < len(ops) and ops[rows[-1] + 1].node.endswith(ACCUMULATES):
                rows.append(rows[-1] + 1)
            found.append(_Table(row, tuple(rows)))
    return found


class _WholeTables(_HybridRank):
    """The step of a rank that holds some tables whole: the step's own calls on them, at the global batch."""

    def __init__(self, draft: Draft, rank: int, world: int, tables: Sequence[_Table], owners: Sequence[int]) -> None:
        super().__init__(draft, rank, world)
        self.tables = tables
        self.held = [table for table, owner in zip(tables, owners) if owner == rank]
        self.group = ProcessGroup("tables", tuple(range(world)))
        self.weights = {self.ops[table.forward].tensors[0].storage for table in tables}
        made = [t for table in tables for row in table.backward for t in self.ops[row].produced]
        shapes = {self.ops[table.forward].tensors[0].shape for table in tables}
        self.gradients = {tensor.storage for tensor in made if tensor.layout == "strided" and tensor.shape in shapes}
        """Dense gradients of the tables, which DDP leaves out."""
        calls = [self.ops[table.forward] for table in self.held]
        self.sizes = {size for call in calls for size in (call.tensors[1].numel, call.produced[0].shape[0])}
        """Ids and bags of one rank's samples."""
        self.received_ids: dict[_Table, Tensor] = {}
        """The ids of all ranks' samples for each table that this rank holds."""

    def lines(self, bucket_mb: float) -> list[EditedCall]:
        """All calls in order."""
        forward = [table.forward for table in self.tables]
        backward = [row for table in self.tables for row in table.backward]
        inserted = [(min(forward), self._send_ids()), (max(forward) + 1, self._return_embeddings())]
        if backward:
            inserted.append((min(backward), self._return_gradients(min(backward))))
        held = {self.ops[table.forward].tensors[0].storage for table in self.held}
        trained = {weight: weight in held for weight in self.weights}
        propagate_owners([op for op in self.ops if op.phase == "optimizer"], trained)
        return self.written({*forward, *backward}, inserted, trained, bucket_mb, self.gradients)

    def own_calls(self, row: int) -> Iterator[EditedCall]:
        """The call on a table that this rank holds, for the samples of all ranks."""
        table = next((t for t in self.held if row == t.forward or row in t.backward), None)
        if table is None:
            return
        op, ids = self.ops[row], self.ops[table.forward].tensors[1]
        kept: dict[int, Tensor] = {}
        if op.name == BAG_BACKWARD:
            gradient = self.received[_view_key(op.tensors[0])]
            op, kept = replace(op, args=(gradient, *op.args[1:])), {gradient.storage: gradient}
        kept[ids.storage] = self.received_ids[table]
        yield EditedCall(with_tensors(op, lambda t: kept.get(t.storage) or self._at_global_batch(t)), row)

    def _send_ids(self) -> Iterator[EditedCall]:
        """The ids of this rank's samples go to the ranks that hold the tables."""
        like = _outside(self.ops[min(table.forward for table in self.tables)])
        ids = [self.ops[table.forward].tensors[1] for table in self.tables]
        own = [self.ops[table.forward].tensors[1].numel for table in self.held]
        given = self.draft.tensor((sum(t.numel for t in ids),), ids[0].dtype, ids[0].device)
        got = self.draft.tensor((sum(own) * self.world,), ids[0].dtype, ids[0].device)
        sorted_ids = self.draft.tensor(got.shape, got.dtype, got.device)
        yield EditedCall(call_like("aten::cat", ([*ids],), (given,), like))
        yield from self.communicate("all_to_all", self.group, got, given, like)
        for place, table in enumerate(self.held):
            self.received_ids[table] = self.draft.view(
                sorted_ids, (own[place] * self.world,), sum(own[:place]) * self.world
            )
        yield EditedCall(call_like("aten::clone", (got,), (sorted_ids,), like, memory_format=CONTIGUOUS))

    def _return_embeddings(self) -> Iterator[EditedCall]:
        """The embeddings of all samples go to the ranks of the samples."""
        like = _outside(self.ops[max(table.forward for table in self.tables)])
        every = [self.ops[table.forward].produced[0] for table in self.tables]
        found = [self._at_global_batch(self.ops[table.forward].produced[0]) for table in self.held]
        bags, dim = every[0].shape
        stacked = self.draft.tensor((len(found), bags * self.world, dim), found[0].dtype, found[0].device)
        by_rank = self.draft.tensor(stacked.shape, stacked.dtype, stacked.device)
        got = self.draft.tensor((len(every) * bags, dim), stacked.dtype, stacked.device)
        yield EditedCall(call_like("aten::stack", ([*found],), (stacked,), like))
        yield EditedCall(call_like("aten::clone", (stacked,), (by_rank,), like, memory_format=CONTIGUOUS))
        yield from self.communicate("all_to_all", self.group, got, by_rank, like)
        for place, tensor in enumerate(every):
            part = self.draft.view(got, (bags, dim), place * bags * dim)
            self.received[tensor.storage] = part
            yield EditedCall(call_like("aten::select", (got, 0, place), (part,), like))

    def _return_gradients(self, first: int) -> Iterator[EditedCall]:
        """Gradients of embeddings go to the ranks that hold the tables."""
        like = _outside(self.ops[first])
        every = [self.ops[table.backward[0]].tensors[0] for table in self.tables]
        bags, dim = every[0].shape
        given = self.draft.tensor((len(every) * bags, dim), every[0].dtype, every[0].device)
        got = self.draft.tensor((len(self.held) * bags * self.world, dim), given.dtype, given.device)
        mean, by_table = (self.draft.tensor(got.shape, got.dtype, got.device) for _ in range(2))
        for place, table in enumerate(self.held):
            gradient = self.ops[table.backward[0]].tensors[0]
            offset = place * bags * self.world * dim
            self.received[_view_key(gradient)] = self.draft.view(by_table, (bags * self.world, dim), offset)
        yield EditedCall(call_like("aten::cat", ([*every],), (given,), like))
        yield from self.communicate("all_to_all", self.group, got, given, like)
        yield EditedCall(call_like("aten::div", (got, self.world), (mean,), like))
        yield EditedCall(call_like("aten::clone", (mean,), (by_table,), like, memory_format=CONTIGUOUS))

    def _at_global_batch(self, tensor: Tensor) -> Tensor:
        """A tensor of ids, bags or embeddings of the samples of all ranks; tables and their gradients stay."""
        if tensor.storage in self.weights | self.gradients or tensor.layout != "strided" or not tensor.shape:
            return tensor
        shape = tuple(size * self.world if size in self.sizes else size for size in tensor.shape)
        return replace(tensor, shape=shape, stride=contiguous_strides(shape))


class _Places(NamedTuple):
    """Where a step looks up its tables."""

    replaced: frozenset[int]
    """All calls that look up rows, make their gradients or update them."""
    first: int
    needed: int
    """The first call that reads an embedding."""
    back: int
    """The first gradient of a lookup."""
    update: int
    """The first call of the optimizer."""
    device: str
    trained: dict[int, bool]
    """False for storages of tables, their gradients and optimizer states: the rows of shards are updated apart."""

    @classmethod
    def of(cls, ops: Sequence[Op], source: str) -> _Places:
        """Of the ops of a step; a step that trains no tables is refused."""
        rows = [row for row, op in enumerate(ops) if _is_on_table(op)]
        forward = [row for row in rows if ops[row].name in LOOKUPS and ops[row].phase == "forward"]
        back = next((row for row in rows if ops[row].phase == "backward"), None)
        updates = [row for row, op in enumerate(ops) if op.phase == "optimizer"]
        if not forward or back is None or not updates:
            raise ForetraceError(
                f"{source or 'the step'} does not train its tables", "Give a whole step: forward, backward, optimizer."
            )
        made = {tensor.storage for row in forward for tensor in ops[row].produced[:1]}
        others = (row for row in range(forward[0], back) if row not in rows)
        needed = next((row for row in others if made & {t.storage for t in ops[row].tensors}), back)
        trained = dict.fromkeys((ops[row].tensors[0].storage for row in forward), False)
        propagate_owners([ops[row] for row in updates], trained)
        device = ops[forward[0]].tensors[0].device
        return cls(frozenset(rows), forward[0], needed, back, updates[0], device, trained)


def _is_on_table(op: Op) -> bool:
    if op.name in SPARSE_UPDATES:
        return any(tensor.layout != "strided" for tensor in op.tensors)
    return op.name in LOOKUPS or op.name in BACKWARD


class _Shards(_HybridRank):
    """The step of a rank that holds shards of tables: calls and transfers as a plan has them."""

    def __init__(self, draft: Draft, rank: int, world: int, places: _Places, share: TableShare) -> None:
        super().__init__(draft, rank, world)
        self.places, self.share = places, share
        self.begun: dict[Transfer, EditedCall] = {}
        """Transfers that are not yet waited for."""
        self.known: dict[int, tuple[bool, Indices]] = {}
        """Of each line that is a call on a shard, whether it is of backward and the statistics of its ids."""

    def step(self, note: str) -> RankStep:
        """The graph, and the rows of its calls on tables."""
        at, calls = self.places, self._calls()
        inserted = [
            (at.first, self._look_up(calls)),
            (at.needed, self._arrive(self.share.embeddings, self.ops[at.needed])),
            (at.back, self._update(calls)),
            (at.update, self._wait(self.share.replicas, self.ops[at.update])),
            (len(self.ops), self._wait(self.share.ids, self.ops[-1])),
        ]
        lines = self.written(at.replaced, inserted, at.trained)
        graph = self.draft.graph_of(lines, self.rank, self.world, note)
        rows: tuple[list[int], list[int]] = ([], [])
        for row, line in enumerate(lines):
            if id(line) in self.known:
                backward, indices = self.known[id(line)]
                rows[backward].append(row)
                graph.indices.append(replace(indices, op=row))
        return RankStep(graph, rows)

    def _calls(self) -> list[EditedCall]:
        """The calls on what this rank holds."""
        own: dict[int, Tensor] = {}

        def renumbered(tensor: Tensor) -> Tensor:
            if tensor.storage not in own:
                own[tensor.storage] = self.draft.copy(tensor)
            made = own[tensor.storage]
            return replace(tensor, id=made.id, storage=made.storage, device=self.places.device)

        lines = [EditedCall(with_tensors(op, renumbered)) for op in self.share.lookups.ops]
        for line, backward, indices in zip(lines, self.share.backward, self.share.lookups.indices):
            self.known[id(line)] = bool(backward), indices
        return lines

    def _look_up(self, calls: Sequence[EditedCall]) -> Iterator[EditedCall]:
        """The lookups; then ids of the next step and embeddings are sent."""
        like = self.ops[self.places.first]
        yield from self._called_at(calls, like, "forward")
        yield from self._begin(self.share.ids, like)
        yield from self._send(self.share.embeddings, like)

    def _update(self, calls: Sequence[EditedCall]) -> Iterator[EditedCall]:
        """Gradients arrive, rows are updated, and the gradients of replicas are sent."""
        like = self.ops[self.places.back]
        yield from self._send(self.share.gradients, like)
        yield from self._arrive(self.share.gradients, like)
        yield from self._called_at(calls, like, "backward")
        yield from self._begin(self.share.replicas, like)

    def _called_at(self, calls: Sequence[EditedCall], like: Op, phase: str) -> Iterator[EditedCall]:
        """The calls of a phase, as called where another call was."""
        where = {name: getattr(like, name) for name in ("thread", "stream", "module", "node")}
        for line in calls:
            if self.known[id(line)][0] == (phase == "backward"):
                line.op = replace(line.op, phase=phase, **where)
                yield line

    def _send(self, transfers: Sequence[Transfer], like: Op) -> Iterator[EditedCall]:
        """Begin transfers, of what was converted for that."""
        yield from self._converted(like, ("float32", self.share.sent_as))
        for before, transfer in zip((None, *transfers), transfers):
            if transfer.forwards:
                yield from self._wait(before, like)
            yield from self._begin(transfer, like)

    def _arrive(self, transfers: Sequence[Transfer], like: Op) -> Iterator[EditedCall]:
        """Wait for transfers, and convert what they brought."""
        for transfer in transfers:
            yield from self._wait(transfer, like)
        yield from self._converted(like, (self.share.sent_as, "float32"))

    def _begin(self, transfer: Transfer | None, like: Op) -> Iterator[EditedCall]:
        if transfer is not None:
            given = self.draft.tensor((max(1, transfer.nbytes),), "uint8", self.places.device)
            got = given if transfer.kind == "all_reduce" else self.draft.copy(given)
            self.begun[transfer] = self.draft.collective(transfer.kind, transfer.group, got, given, like)
            yield self.begun[transfer]

    def _wait(self, transfer: Transfer | None, like: Op) -> Iterator[EditedCall]:
        if transfer is not None and transfer in self.begun:
            yield self.draft.wait_for(self.begun.pop(transfer), like)

    def _converted(self, like: Op, dtypes: tuple[str, str]) -> Iterator[EditedCall]:
        """The copy that makes what is sent narrower, or what arrived wide again."""
        if self.share.sent_as and self.share.sent_elements:
            given, made = (self.draft.tensor((self.share.sent_elements,), d, self.places.device) for d in dtypes)
            yield EditedCall(call_like("aten::_to_copy", (given,), (made,), like))


def _view_key(tensor: Tensor) -> int:
    """A number for a view of a storage that several gradients share: below those of storages."""
    return -2 - tensor.id


def _outside(op: Op) -> Op:
    """A call's place, one module further out: where calls for all tables are made."""
    where = call_like("", (), (), op)
    where.module = op.module.rpartition(".")[0]
    return where
