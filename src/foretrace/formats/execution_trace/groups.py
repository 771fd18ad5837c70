"""Process groups and collectives of an execution trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from foretrace.formats.execution_trace.nodes import Node
from foretrace.formats.values import dtype_name, tensors_among
from foretrace.graph import MAX_RANKS, Collective
from foretrace.graph.operators import collective_kind
from foretrace.graph.tables import Ints
from foretrace.graph.tensor import ITEMSIZE

INIT = "## process_group:init ##"
MARK = "record_param_comms"
"""The node below a collective call that says which group, which collective and how much."""

_ELEMENT = re.compile(rb"Tensor\(([\w: <>]+)\)")


class _Group(Struct):
    pg_name: str | int
    ranks: list[int] | dict[str, int] = []
    group_size: int = 0


_groups = msgspec.json.Decoder(list[_Group])


def process_groups(listings: Iterable[Sequence[Any]]) -> dict[str, tuple[int, ...]]:
    """Members of each process group, by name, from what nodes named `INIT` are given; nothing where none lists them.

    >>> process_groups([['[{"pg_name": "0", "ranks": [], "group_size": 2}, {"pg_name": "1", "ranks": [0]}]']])
    {'0': (0, 1), '1': (0,)}
    """
    groups: dict[str, tuple[int, ...]] = {}
    for given in listings:
        if given and isinstance(given[0], str):
            for group in _listed(given[0]):
                # no ranks listed: the group is the whole world
                ranks = group.ranks or range(min(group.group_size, MAX_RANKS))
                groups[str(group.pg_name)] = tuple(int(r) for r in ranks)
    return groups


def _listed(text: str) -> list[_Group]:
    # PyTorch cuts strings at 8 kB: take the groups that are whole
    for attempt in (text, text[: text.rfind("}") + 1] + "]"):
        try:
            return _groups.decode(attempt)
        except msgspec.DecodeError:
            continue
    return []


def rank_in(groups: dict[str, tuple[int, ...]]) -> int:
    """The rank that wrote the trace, where its groups leave only one: each of them has it as a member.

    >>> rank_in({"0": (0, 1, 2, 3), "4": (1, 3), "9": (3,)}), rank_in({"0": (0, 1)})
    (3, 0)
    """
    common = set.intersection(*map(set, groups.values())) if groups else set()
    return common.pop() if len(common) == 1 else 0


def collectives_of(nodes: Sequence[Node], parent: Ints, groups: dict[str, tuple[int, ...]]) -> list[Collective]:
    """Every collective of the trace, in call order; sizes follow nccl-tests: the larger of what goes in and out."""
    marked = {int(parent[row]) for row, node in enumerate(nodes) if node.name == MARK}
    calls = {name for name in {node.name for node in nodes} if name.startswith(("c10d::", "_c10d_functional::"))}
    pointers: dict[int, str] = {}
    found = []
    for row, node in enumerate(nodes):
        if node.name != MARK and (node.name not in calls or row in marked):
            continue
        mark = _Mark(node)
        if kind := collective_kind(mark.collective):
            group = pointers.setdefault(mark.group, f"group {len(pointers)}") if mark.by_pointer else str(mark.group)
            nbytes, dtype = _traffic(node)
            ranks = groups.get(group) or mark.ranks
            peer = ranks[mark.rank] if kind in ("send", "recv") and 0 <= mark.rank < len(ranks) else -1
            found.append(Collective(kind, group, nbytes, kernel=-1, op=row, ranks=ranks, dtype=dtype, peer=peer))
    return found


class _Mark:
    """Which collective, in which group: attributes say it since schema 1.1.0, before that the arguments do.

    The arguments are [tensors,] sequence number, group, rank, collective, sizes sent, sizes received[, first rank,
    stride][, group size]. The group is a pointer, a name, or a name and a description.
    """

    def __init__(self, node: Node) -> None:
        marks, values = node.marks, node.inputs.values
        texts = [i for i, value in enumerate(values) if isinstance(value, str)]
        at = texts[-1] if node.name == MARK and texts else -1
        self.collective = marks.collective_name or (values[at] if at >= 0 else node.name.partition("::")[2])
        group = values[at - 2] if at >= 2 else ""
        group = marks.pg_name or (group[0] if isinstance(group, list) and group else group)
        self.group: Any = group if isinstance(group, (str, int)) else ""
        self.by_pointer = isinstance(group, int)
        rank = values[at - 1] if at >= 2 else -1
        self.rank = rank if isinstance(rank, int) else -1
        """That of the process; of a send or a recv, the place of the other end in the group."""
        last = values[-1] if at >= 0 and len(values) > at + 3 else 0
        self.size = marks.pg_size or (last if isinstance(last, int) else 0)
        self.ranks: tuple[int, ...] = ()
        if marks.pg_size and marks.global_rank_stride > 0 and self.size <= MAX_RANKS:
            first, step = marks.global_rank_start, marks.global_rank_stride
            self.ranks = tuple(range(first, first + step * self.size, step))


def largest_group(nodes: Sequence[Node]) -> int:
    """How many ranks the largest group has that a collective says the size of; 1 where none does."""
    sizes = (_Mark(node).size for node in nodes if node.name == MARK)
    return max((size for size in sizes if 1 <= size <= MAX_RANKS), default=1)


def _traffic(node: Node) -> tuple[int, str]:
    """Bytes and dtype of a collective: of its tensors, or else as its attributes say."""
    sides = tensors_among(node.inputs.values), tensors_among(node.outputs.values)
    nbytes = max(sum(t[3] * t[4] for t in side) for side in sides)
    named = _ELEMENT.search(bytes(node.inputs.types)) or _ELEMENT.search(bytes(node.outputs.types))
    marks = node.marks
    dtype = dtype_name(named[1].decode(errors="replace") if named else marks.dtype)
    return nbytes or max(marks.in_msg_nelems, marks.out_msg_nelems) * ITEMSIZE.get(dtype, 0), dtype
