"""The collectives among recorded calls: kind, group, size and peer."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.graph import Collective, Constant, Op, Tensor, tensors_in
from foretrace.graph.operators import COLLECTIVE_CALLS, collective_kind

BY_OUTPUT = ("all_gather", "gather")
"""Kinds whose size is that of the result; the others' is that of what is given (nccl-tests' convention)."""


def collectives_of(ops: Sequence[Op], groups: dict[str, tuple[int, ...]]) -> list[Collective]:
    """Each collective a step calls, in order, with its group, kind and size.

    >>> given = Tensor((1024,), "float32", id=0)
    >>> call = Op("c10d::allreduce_", ([given], Constant("group", "0"), Constant("reduce_op", "sum")))
    >>> found, = collectives_of([call], {"0": (0, 1)})
    >>> found.kind, found.nbytes, found.ranks
    ('all_reduce', 4096, (0, 1))
    """
    found = []
    for row, op in enumerate(ops):
        kind = collective_kind(op.name) if op.name.startswith(COLLECTIVE_CALLS) else ""
        if kind:
            group = _group(op)
            ranks = tuple(groups.get(group, ()))
            tensors = _sized(op, kind, len(ranks))
            found.append(
                Collective(
                    kind=kind,
                    group=group,
                    nbytes=sum(t.nbytes for t in tensors),
                    kernel=-1,
                    op=row,
                    ranks=ranks,
                    dtype=tensors[0].dtype if tensors else "",
                    peer=_peer(op, kind, ranks),
                )
            )
    return found


def _peer(op: Op, kind: str, ranks: tuple[int, ...]) -> int:
    """The rank at the other end of a send or a recv, which the call names by its place in the group."""
    place = next((value for value in op.args if type(value) is int), -1)
    return ranks[place] if kind in ("send", "recv") and 0 <= place < len(ranks) else -1


def _group(op: Op) -> str:
    named = [value.value for value in op.args if isinstance(value, Constant) and value.kind == "group"]
    texts = [value for value in op.args if isinstance(value, str)]  # functional ones name their group in plain text
    return named[0] if named else texts[-1] if texts else ""


def _sized(op: Op, kind: str, ranks: int) -> list[Tensor]:
    """The tensors whose bytes are the collective's size."""
    first, second = (list(tensors_in(value)) for value in (*op.args, None, None)[:2])
    if not op.name.startswith("c10d::"):
        return op.produced if kind in BY_OUTPUT else first
    if kind in ("gather", "scatter"):
        whole, part = (first, second) if kind == "gather" else (second, first)
        return whole or part * ranks  # only the root has the whole
    # In place: (outputs, inputs, …), or (what is changed, …).
    return first if kind in BY_OUTPUT or not second else second
