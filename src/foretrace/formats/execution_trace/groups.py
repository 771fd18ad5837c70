"""Process groups and collectives of an execution trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from foretrace.formats.execution_trace.nodes import Node
from foretrace.formats.values import dtype_name, find_tensors, sent_bytes
from foretrace.graph import MAX_RANKS, Collective, OpTable
from foretrace.graph.op import ITEMSIZE
from foretrace.graph.operators import collective_kind

GROUPS_NODE = "## process_group:init ##"
"""Name of the nodes whose first argument lists the process groups."""
COLLECTIVE_NODE = "record_param_comms"
"""Name of the node below a collective call that holds its group, kind and size."""

_ELEMENT = re.compile(rb"Tensor\(([\w: <>]+)\)")


class _Group(Struct):
    pg_name: str | int
    ranks: list[int] | dict[str, int] = []
    group_size: int = 0


_groups = msgspec.json.Decoder(list[_Group])


def process_groups(arguments: Iterable[Sequence[Any]]) -> dict[str, tuple[int, ...]]:
    """Members of each process group by its name, from the arguments of `GROUPS_NODE` nodes; empty if none lists them.

    >>> process_groups([['[{"pg_name": "0", "ranks": [], "group_size": 2}, {"pg_name": "1", "ranks": [0]}]']])
    {'0': (0, 1), '1': (0,)}
    """
    groups: dict[str, tuple[int, ...]] = {}
    for given in arguments:
        if given and isinstance(given[0], str):
            for group in _listed(given[0]):
                # without ranks the group is the whole world
                ranks = group.ranks or range(min(group.group_size, MAX_RANKS))
                groups[str(group.pg_name)] = tuple(int(r) for r in ranks)
    return groups


def _listed(text: str) -> list[_Group]:
    # PyTorch cuts strings at 8 kB: take the groups that are complete
    for attempt in (text, text[: text.rfind("}") + 1] + "]"):
        try:
            return _groups.decode(attempt)
        except msgspec.DecodeError:
            continue
    return []


def rank_in(groups: dict[str, tuple[int, ...]]) -> int:
    """The rank that wrote the trace, if its groups leave only one: it is a member of each of them; else 0.

    >>> rank_in({"0": (0, 1, 2, 3), "4": (1, 3), "9": (3,)}), rank_in({"0": (0, 1)})
    (3, 0)
    """
    common = set.intersection(*map(set, groups.values())) if groups else set()
    return common.pop() if len(common) == 1 else 0


def collectives_of(
    nodes: Sequence[Node], ops: OpTable, groups: dict[str, tuple[int, ...]]
) -> tuple[list[Collective], int]:
    """All collectives of a trace, in call order, and the number of ranks of the largest group that one gives, else 1.

    Sizes follow nccl-tests: the larger of input and output.
    """
    described = ops.names.matching(lambda name: name == COLLECTIVE_NODE)[ops.name]
    called = ops.names.matching(lambda name: name.startswith(("c10d::", "_c10d_functional::")))[ops.name]
    parents = ops.parent[described]
    called[parents[parents >= 0]] = False
    pointers: dict[int, str] = {}
    found, largest = [], 1
    for row in np.flatnonzero(described | called).tolist():
        node = nodes[row]
        call = _CollectiveCall(node)
        if described[row] and call.size <= MAX_RANKS:
            largest = max(largest, call.size)
        if kind := collective_kind(call.collective):
            group = pointers.setdefault(call.group, f"group {len(pointers)}") if call.by_pointer else str(call.group)
            nbytes, dtype = _traffic(node)
            ranks = groups.get(group) or call.ranks
            peer = ranks[call.rank] if kind in ("send", "recv") and 0 <= call.rank < len(ranks) else -1
            found.append(Collective(kind, group, nbytes, kernel=-1, op=row, ranks=ranks, dtype=dtype, peer=peer))
    return found, largest


class _CollectiveCall:
    """Kind and group of a collective: from attributes since schema 1.1.0, before that from the arguments.

    The arguments are [tensors,] sequence number, group, rank, collective, sizes sent, sizes received[, first rank,
    stride][, group size]. The group is a pointer, a name, or a name and a description.
    """

    def __init__(self, node: Node) -> None:
        values = node.input_values
        texts = [i for i, value in enumerate(values) if isinstance(value, str)]
        at = texts[-1] if node.name == COLLECTIVE_NODE and texts else -1
        self.collective = node.collective_name or (values[at] if at >= 0 else node.name.partition("::")[2])
        group = values[at - 2] if at >= 2 else ""
        group = node.pg_name or (group[0] if isinstance(group, list) and group else group)
        self.group: Any = group if isinstance(group, (str, int)) else ""
        self.by_pointer = isinstance(group, int)
        rank = values[at - 1] if at >= 2 else -1
        self.rank = rank if isinstance(rank, int) else -1
        """The process's own rank; of a send or a recv, the position of the other end in the group."""
        last = values[-1] if at >= 0 and len(values) > at + 3 else 0
        self.size = node.pg_size or (last if isinstance(last, int) else 0)
        self.ranks: tuple[int, ...] = ()
        if node.pg_size and node.global_rank_stride > 0 and self.size <= MAX_RANKS:
            first, step = node.global_rank_start, node.global_rank_stride
            self.ranks = tuple(range(first, first + step * self.size, step))


def _traffic(node: Node) -> tuple[int, str]:
    """Bytes and dtype of a collective: those of its tensors, or else of its attributes."""
    nbytes = max(sum(t[3] * t[4] for t in find_tensors(side)) for side in (node.input_values, node.output_values))
    named = _ELEMENT.search(bytes(node.input_types)) or _ELEMENT.search(bytes(node.output_types))
    dtype = dtype_name(named[1].decode(errors="replace") if named else node.dtype)
    nelems = max(node.in_msg_nelems, node.out_msg_nelems)
    return sent_bytes(nbytes or nelems * ITEMSIZE.get(dtype, 0)), dtype
