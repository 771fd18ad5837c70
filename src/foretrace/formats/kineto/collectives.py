"""Collectives in a profiler trace: kernels of NCCL and RCCL and gloo's work, with what the ops around them say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.kineto.arguments import Arguments, decoded, values
from foretrace.formats.kineto.columns import CollectiveArgs
from foretrace.formats.values import dtype_name
from foretrace.graph import Collective, KernelTable, OpTable, tensors_in
from foretrace.graph.op import ITEMSIZE
from foretrace.graph.operators import collective_kind
from foretrace.graph.tables import COLLECTIVE

_AROUND = re.compile(r"nccl:|gloo:|c10d::|_?c10d_functional::|record_param_comms")
_OTHER_END = re.compile(r"nccl:(?:send|recv) \d+(?:->|<-)(\d+)$")
_PARTIAL = ("all_gather", "reduce_scatter")
"""Collectives with a whole buffer at one end and a part of it at the other."""


class CollectiveFinder:
    """Combines what a trace says about each collective: kernel names, event arguments, annotations and shapes."""

    def __init__(
        self, ops: OpTable, arguments: dict[int, CollectiveArgs], groups: dict[str, tuple[int, ...]], world: int
    ) -> None:
        self.ops, self.groups, self.world = ops, groups, world
        self.arguments = arguments
        self._around = ops.names.matching(lambda name: bool(_AROUND.match(name)))
        self._buffers: dict[int, tuple[str, list[int]]] = {}

    def of_kernels(
        self, kernels: KernelTable, arguments: dict[int, CollectiveArgs], events: NDArray[np.intp]
    ) -> list[Collective]:
        """One collective for each kernel that is one.

        ``events`` has the event of each kernel, by which ``arguments`` are looked up.
        """
        found = []
        for row in np.flatnonzero(kernels.kind == COLLECTIVE).tolist():
            collective = self._collective(int(kernels.op[row]), arguments.get(int(events[row])))
            name = kernels.names[kernels.name[row]]
            # Only the op shows what the kernel that sends and receives is for.
            collective.kind = collective.kind or ("all_to_all" if "SendRecv" in name else collective_kind(name))
            collective.kernel = row
            if not collective.is_sized:
                collective.us = float(kernels.end[row] - kernels.start[row])
            found.append(collective)
        return found

    def of_host(self) -> list[Collective]:
        """Collectives that ran on the host: gloo's work, or without annotations of it the calls that started it."""
        rows = self._named("gloo:")
        if not len(rows) and not len(self._named("nccl:")):
            rows = self._named("c10d::")
        return [self._collective(int(row), None) for row in rows]

    def _named(self, prefix: str) -> NDArray[np.intp]:
        wanted = self.ops.names.matching(lambda name: name.startswith(prefix) and bool(collective_kind(name)))
        return np.flatnonzero(wanted[self.ops.name]) if len(self.ops) else np.zeros(0, np.intp)

    def _collective(self, op: int, arguments: CollectiveArgs | None) -> Collective:
        collective = Collective("", "", 0, -1, op)
        chain = list(self._chain(op))
        for row in chain:
            arguments = arguments or self.arguments.get(int(self.ops.source[row]))
            collective.kind = collective.kind or collective_kind(self.ops.names[self.ops.name[row]])
        if arguments and collective_kind(arguments.collective):
            self._add_arguments(collective, arguments)
        collective.peer = self._peer(collective, chain)
        if not collective.nbytes:
            self._add_sizes(collective, chain)
        return collective

    def _peer(self, collective: Collective, chain: list[int]) -> int:
        """The rank at the other end of a send or a recv, which NCCL's annotation names by its position in the group."""
        ends = (_OTHER_END.match(self.ops.names[self.ops.name[row]]) for row in chain)
        place = next((int(end[1]) for end in ends if end), -1)
        return collective.ranks[place] if 0 <= place < len(collective.ranks) else place

    def _chain(self, op: int) -> Iterator[int]:
        """The op and the rows around it that describe a collective, innermost first."""
        while op >= 0:
            if self._around[self.ops.name[op]]:
                yield op
            op = int(self.ops.parent[op])

    def _add_arguments(self, collective: Collective, arguments: CollectiveArgs) -> None:
        collective.kind = collective_kind(arguments.collective)
        collective.group, collective.dtype = arguments.group, dtype_name(arguments.dtype)
        collective.ranks = _ranks(arguments.ranks) or self.groups.get(arguments.group, ())
        received = collective.kind in ("all_gather", "recv") or not arguments.sent
        elements = arguments.received if received else arguments.sent
        collective.nbytes = elements * ITEMSIZE.get(collective.dtype, 0)

    def _add_sizes(self, collective: Collective, chain: list[int]) -> None:
        """Size from the shapes of arguments: NCCL's annotation has what is sent, c10d's call both ends."""
        elements, both_ends = 0, False
        for row in chain:
            dtype, sizes = self._buffer_sizes(row)
            collective.dtype = collective.dtype or dtype
            if collective.kind in _PARTIAL:
                elements = max([elements, *sizes])
                both_ends |= len(sizes) > 1
            elif sizes and not elements:
                elements = sizes[-1]
        if collective.kind == "all_gather" and not both_ends:
            elements *= len(collective.ranks) or self.world
        collective.nbytes = elements * ITEMSIZE.get(collective.dtype, 0)

    def _buffer_sizes(self, row: int) -> tuple[str, list[int]]:
        """Dtype, if known, and elements of each argument of a row that is a tensor or a list of tensors."""
        arguments, source = self.ops.detail, int(self.ops.source[row])
        assert isinstance(arguments, Arguments)
        key = int(arguments.signature[source])
        if key not in self._buffers:
            tensors = [list(tensors_in(value)) for value in values(decoded(arguments.signatures[key]))]
            dtype = next((t.dtype for group in tensors for t in group if t.itemsize), "")
            self._buffers[key] = dtype, [sum(t.numel for t in group) for group in tensors if group]
        return self._buffers[key]


def _ranks(text: str) -> tuple[int, ...]:
    items = text.strip("[]() ").split(",")
    return tuple(int(item) for item in items) if all(item.strip().isdecimal() for item in items) else ()
