"""The job that a plan makes of a step: on each rank the lookups of what it holds, and all the rest as DDP runs it.

Lookups stand where the first lookup of the step stood. What they find is sent to the ranks of its samples, and waited
for when something reads it. Gradients come back where the step had the first gradient of a lookup, and rows are updated
right then. Ids of the next step travel from the lookups on, and arrive before the step ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from foretrace.cost_models.families import family_of
from foretrace.graph import ForetraceError, Graph, Indices, Op, Tensor
from foretrace.sharding.costing import Costing
from foretrace.sharding.hits import Floats
from foretrace.sharding.kinds import ACROSS, COPIES, IDS, NODE_SUMS, POOLED, SUMS
from foretrace.sharding.lookups import BACKWARD, FORWARD, graph_of
from foretrace.sharding.pieces import Pieces
from foretrace.sharding.plan import Plan
from foretrace.sharding.ranks import Ranks
from foretrace.sharding.recorded import LOOKUPS
from foretrace.transforms.other_tensors import with_tensors
from foretrace.transforms.parallel.data import USUAL_MB, reduced
from foretrace.transforms.parallel.draft import Draft, Group, Line, called, lines_of
from foretrace.transforms.parallel.updates import only, spread

PHASES = ("forward", "backward")
OUT = ((POOLED, "all_to_all"), (SUMS, "reduce_scatter"), (NODE_SUMS, "reduce_scatter"), (ACROSS, "all_to_all"))
"""How what was looked up gets to its samples, in order; gradients go back the other way round."""
BACK = ((POOLED, "all_to_all"), (SUMS, "all_gather"), (ACROSS, "all_to_all"), (NODE_SUMS, "all_gather"))
NARROW = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8_e4m3fn"}
"""What embeddings are made into before they travel."""


class RankStep(NamedTuple):
    """What one rank does."""

    graph: Graph
    lookups: tuple[list[int], list[int]]
    """Rows of its lookups; and of their gradients and updates."""


@dataclass(frozen=True)
class Places:
    """Where a step looks up its tables."""

    lookups: frozenset[int]
    """All calls that look up rows, make their gradients or update them."""
    first: int
    needed: int
    """The first call that reads what was looked up."""
    back: int
    """The first gradient."""
    update: int
    """The first call of the optimizer."""
    device: str
    ours: dict[int, bool]
    """That storages of tables, their gradients and what an optimizer keeps of them are not updated with the rest."""

    @classmethod
    def of(cls, ops: Sequence[Op], source: str) -> Places:
        """Those of a step; refused where it trains no tables."""
        rows = [row for row, op in enumerate(ops) if (family := family_of(op)) and family.name == "lookups"]
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
        ours = dict.fromkeys((ops[row].tensors[0].storage for row in forward), False)
        spread([ops[row] for row in updates], ours)
        device = ops[forward[0]].tensors[0].device
        return cls(frozenset(rows), forward[0], needed, back, updates[0], device, ours)


def steps_of_ranks(step: Graph, costing: Costing, plan: Plan) -> list[RankStep]:
    """What each rank does in a step under a plan.

    Parameters
    ----------
    step
        That of one rank alone, which has all tables.
    costing
        What the plan was made by.
    plan
        Where the tables lie.
    """
    draft = lines_of(step, "a plan for its tables")
    places = Places.of(draft.ops, step.source)
    pieces, rank = costing.held(plan)
    nbytes, _ = costing.exchanged(plan, pieces, rank)
    calls = [costing.kernels.calls(pieces.pick(rank == number)) for number in range(costing.ranks.world)]
    return [
        _Writer(Draft(draft.graph), places, costing.ranks, number, nbytes).written(calls[number])
        for number in range(costing.ranks.world)
    ]


@dataclass
class _Writer:
    """Writes the step of one rank."""

    draft: Draft
    places: Places
    ranks: Ranks
    rank: int
    nbytes: dict[str, Floats]
    begun: dict[str, Line] = field(default_factory=dict)
    """Exchanges that nobody has waited for."""
    known: dict[int, tuple[int, Indices]] = field(default_factory=dict)
    """Of each line that is a lookup, its phase and what is known of its ids."""

    def written(self, calls: Pieces) -> RankStep:
        """All its calls in order."""
        phases = self._lookups(calls)
        lines = [line for row, kept in enumerate(self.draft.lines) for line in self._at(row, kept, phases)]
        if self.ranks.world > 1:
            lines = reduced(self.draft, lines, Group("data", tuple(range(self.ranks.world))), USUAL_MB)
            lines += self._wait(IDS, self.draft.lines[-1].op)
        note = f"{self.ranks.world} ranks with tables of their own were not in the step that was given"
        graph = self.draft.graph_of(lines, self.rank, self.ranks.world, note)
        rows: tuple[list[int], list[int]] = ([], [])
        for row, line in enumerate(lines):
            if id(line) in self.known:
                phase, indices = self.known[id(line)]
                rows[phase].append(row)
                graph.indices.append(replace(indices, op=row))
        return RankStep(graph, rows)

    def _at(self, row: int, kept: Line, phases: tuple[list[Line], list[Line]]) -> Iterator[Line]:
        """What stands for a call of the step, and before it."""
        if row == self.places.first:
            yield from _called_at(phases[FORWARD], kept.op, PHASES[FORWARD])
            yield from self._begin(IDS, "all_to_all", kept.op)
            yield from self._exchange(OUT, kept.op)
        if row == self.places.needed:
            yield from self._arrive(OUT, kept.op)
        if row == self.places.back:
            yield from self._exchange(BACK, kept.op)
            yield from self._arrive(BACK, kept.op)
            yield from _called_at(phases[BACKWARD], kept.op, PHASES[BACKWARD])
            yield from self._begin(COPIES, "all_reduce", kept.op)
        if row == self.places.update:
            yield from self._wait(COPIES, kept.op)
        op = only(kept.op, self.places.ours) if kept.op.phase == "optimizer" else kept.op
        if row not in self.places.lookups and op is not None:
            yield Line(op, kept.row)

    def _lookups(self, calls: Pieces) -> tuple[list[Line], list[Line]]:
        """The calls for what this rank holds, by phase."""
        phases: tuple[list[Line], list[Line]] = ([], [])
        if not len(calls):
            return phases
        graph, _, phase = graph_of(calls)
        own: dict[int, Tensor] = {}

        def renumbered(tensor: Tensor) -> Tensor:
            if tensor.storage not in own:
                own[tensor.storage] = self.draft.again(tensor)
            made = own[tensor.storage]
            return replace(tensor, id=made.id, storage=made.storage, device=self.places.device)

        for op, indices, number in zip(graph.ops, graph.indices, phase.tolist()):
            line = Line(with_tensors(op, renumbered))
            phases[number].append(line)
            self.known[id(line)] = number, indices
        return phases

    def _exchange(self, ways: Sequence[tuple[str, str]], like: Op) -> Iterator[Line]:
        """What was looked up goes out, or gradients of it; what passes a node first waits for that."""
        yield from self._converted(like, narrow=True)
        for what, kind in ways:
            if what == ways[-1][0]:
                yield from self._wait(ways[-2][0], like)
            yield from self._begin(what, kind, like)

    def _arrive(self, ways: Sequence[tuple[str, str]], like: Op) -> Iterator[Line]:
        """From here on it is read."""
        for what, _ in ways:
            yield from self._wait(what, like)
        yield from self._converted(like, narrow=False)

    def _begin(self, what: str, kind: str, like: Op) -> Iterator[Line]:
        """Begin an exchange, where there is anything to exchange."""
        group = self._group(what)
        if group.size < 2 or not max(self.nbytes[what][rank] for rank in group.ranks):
            return
        given = self.draft.tensor((max(1, round(self.nbytes[what][self.rank])),), "uint8", self.places.device)
        got = given if kind == "all_reduce" else self.draft.again(given)
        self.begun[what] = self.draft.collective(kind, group, got, given, like)
        yield self.begun[what]

    def _wait(self, what: str, like: Op) -> Iterator[Line]:
        if what in self.begun:
            yield self.draft.wait_for(self.begun.pop(what), like)

    def _group(self, what: str) -> Group:
        node, place = divmod(self.rank, self.ranks.per_node)
        if what == NODE_SUMS:
            return Group(f"node {node}", tuple(self.ranks.of_node(node)))
        if what == ACROSS:
            return Group(f"across nodes {place}", tuple(range(place, self.ranks.world, self.ranks.per_node)))
        # Ids travel beside everything else.
        return Group(IDS if what == IDS else "tables", tuple(range(self.ranks.world)))

    def _converted(self, like: Op, narrow: bool) -> Iterator[Line]:
        """The copy that makes what is sent narrower, or what came in wide again."""
        nbytes = sum(self.nbytes[what][self.rank] for what in (POOLED, SUMS, NODE_SUMS))
        if self.ranks.sent_as not in NARROW or not nbytes:
            return
        shape, dtypes = (round(nbytes / self.ranks.sent_bytes),), ("float32", NARROW[self.ranks.sent_as])
        given, made = (self.draft.tensor(shape, dtype, self.places.device) for dtype in dtypes[:: 1 if narrow else -1])
        yield Line(called("aten::_to_copy", (given,), (made,), like))


def _called_at(lines: Sequence[Line], like: Op, phase: str) -> Sequence[Line]:
    """Lines as called where another call was."""
    for line in lines:
        line.op = replace(line.op, phase=phase, **{n: getattr(like, n) for n in ("thread", "stream", "module", "node")})
    return lines
