"""A step under DistributedDataParallel as one that shares nothing, and shared again: its buckets are filled anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.operators import COMMUNICATES
from foretrace.transforms.ddp import SHARES, SharedStep
from foretrace.transforms.parallel.data import reduced
from foretrace.transforms.parallel.draft import Group, lines_of

BUCKET_MB = 25.0
"""DDP's own choice."""


def unshared(graph: Graph, what: str) -> tuple[Graph, Callable[[Graph], Graph]]:
    """The flat step of one rank by itself, and what shares the gradients of such a step as they were.

    Refuses a step whose ranks exchange more than gradients in buckets.
    """
    if not any(op.name == SHARES for op in graph.ops):
        _check(list(graph.ops), what)
        return graph, lambda made: made
    step = SharedStep(graph)
    ours = {row for bucket in step.buckets for row in (bucket.row, *bucket.back)}
    ours |= {share.fill for bucket in step.buckets for share in bucket.shares}
    alone = step.written((((row, 0), line) for row, line in enumerate(step.lines) if row not in ours), "")
    alone.notes.pop()
    _check(list(alone.ops), what)
    group = step.buckets[0].group
    ranks = tuple(graph.groups.get(group, ())) or tuple(range(graph.world))

    def shared(made: Graph) -> Graph:
        draft = lines_of(replace(made, world=1), what)
        lines = reduced(draft, draft.lines, Group(group, ranks), BUCKET_MB)
        note = f"gradients are shared in buckets of {BUCKET_MB:g} MB, as DistributedDataParallel has them"
        return draft.graph_of(lines, graph.rank, graph.world, note)

    return alone, shared


def _check(ops: Sequence[Op], what: str) -> None:
    for row, op in enumerate(ops):
        if op.name.startswith(COMMUNICATES) and op.phase != "other":
            raise ForetraceError(
                f"call {row}, {op.name}, exchanges what another {what} changes the size of",
                f"Set {what} of the step of one rank, and let ranks share it after that.",
            )
