"""What PyTorch, NCCL and RCCL call a collective, in our words; and which call asks for which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from foretrace.graph.graph import Graph
from foretrace.graph.tables import Ints, Longs

EXCHANGES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
"""How the names of calls begin that ask for a collective."""
_KINDS = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("all2all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send"),
    ("recv", "recv"),
)
_NOT_LETTERS = re.compile(r"[^a-z0-9]")


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> str:
    """The kind of collective a name stands for; empty where it stands for none (a wait, an init).

    >>> [collective_kind(n) for n in ("_allgather_base", "c10d::allreduce_", "all_to_allv", "wait")]
    ['all_gather', 'all_reduce', 'all_to_all', '']
    """
    letters = _NOT_LETTERS.sub("", name.lower())
    return next((kind for word, kind in _KINDS if word in letters), "")


def asked_for(graph: Graph, rows: Ints | Longs) -> dict[int, int]:
    """The rows of the calls that ask for collectives which a backend, such as gloo, does on a thread of its own.

    Those are the calls of the same kind and turn.
    """
    ops, names = graph.ops, graph.ops.names
    done_by = {c.op for c in graph.collectives}
    asks = names.matching(lambda name: name.startswith(EXCHANGES) and "wait" not in name)
    free = [row for row in rows.tolist() if asks[ops.name[row]] and row not in done_by]
    turns: dict[str, Iterator[int]] = {}
    found = {}
    for number, collective in enumerate(graph.collectives):
        kind = collective.kind
        if collective.op < 0 or names[ops.name[collective.op]].startswith(EXCHANGES):
            continue
        if kind not in turns:
            turns[kind] = iter([row for row in free if collective_kind(names[ops.name[row]]) == kind])
        found[number] = next(turns[kind], -1)
    return {number: row for number, row in found.items() if row >= 0}
