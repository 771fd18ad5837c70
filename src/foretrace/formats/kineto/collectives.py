"""Collectives in a profiler trace: NCCL's and RCCL's kernels and gloo's work, with what the ops around them say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.kineto.arguments import Arguments, decoded, values
from foretrace.formats.kineto.columns import Comm
from foretrace.formats.values import dtype_name
from foretrace.graph import Collective, KernelTable, OpTable, tensors_in
from foretrace.graph.operators import collective_kind
from foretrace.graph.tables import COLLECTIVE
from foretrace.graph.tensor import ITEMSIZE

_TALKING = ("nccl", "rccl", "allreduce", "allgather", "reducescatter", "alltoall", "crossdevicereduce")
_AROUND = re.compile(r"nccl:|gloo:|c10d::|_?c10d_functional::|record_param_comms")
_OTHER_END = re.compile(r"nccl:(?:send|recv) \d+(?:->|<-)(\d+)$")
_PARTS = ("all_gather", "reduce_scatter")
"""Collectives with a whole buffer at one end and a part of it at the other."""


def is_collective(kernel: str) -> bool:
    """Whether a kernel talks to other ranks: NCCL's, RCCL's, or an all-reduce that an engine brings along.

    >>> [is_collective(n) for n in ("ncclDevKernel_Generic", "cross_device_reduce_1stage<half>", "reduce_kernel<512>")]
    [True, True, False]
    """
    plain = kernel.lower().replace("_", "")
    return any(word in plain for word in _TALKING)


class Finder:
    """Puts together what a trace says about each collective."""

    def __init__(self, ops: OpTable, comms: dict[int, Comm], groups: dict[str, tuple[int, ...]], world: int) -> None:
        self.ops, self.groups, self.world = ops, groups, world
        self.comms = comms
        self._around = ops.names.matching(lambda name: bool(_AROUND.match(name)))
        self._buffers: dict[int, tuple[str, list[int]]] = {}

    def of_kernels(self, kernels: KernelTable, comms: dict[int, Comm], events: NDArray[np.intp]) -> list[Collective]:
        """One collective for each kernel that is one.

        ``events`` has the event that each kernel came from; what that event tells of a collective is in ``comms``.
        """
        found = []
        for row in np.flatnonzero(kernels.kind == COLLECTIVE).tolist():
            told = self._told(int(kernels.op[row]), comms.get(int(events[row])))
            name = kernels.names[kernels.name[row]]
            # Nothing but the op tells what the kernel that sends and receives is for.
            told.kind = told.kind or ("all_to_all" if "SendRecv" in name else collective_kind(name))
            told.kernel = row
            found.append(told)
        return found

    def of_host(self) -> list[Collective]:
        """Collectives that ran on the host: gloo's work, or where it left no mark the calls that asked for it."""
        rows = self._named("gloo:")
        if not len(rows) and not len(self._named("nccl:")):
            rows = self._named("c10d::")
        return [self._told(int(row), None) for row in rows]

    def _named(self, prefix: str) -> NDArray[np.intp]:
        wanted = self.ops.names.matching(lambda name: name.startswith(prefix) and bool(collective_kind(name)))
        return np.flatnonzero(wanted[self.ops.name]) if len(self.ops) else np.zeros(0, np.intp)

    def _told(self, op: int, comm: Comm | None) -> Collective:
        told = Collective("", "", 0, -1, op)
        chain = list(self._chain(op))
        for row in chain:
            comm = comm or self.comms.get(int(self.ops.source[row]))
            told.kind = told.kind or collective_kind(self.ops.names[self.ops.name[row]])
        if comm and collective_kind(comm.collective):
            self._from_comm(told, comm)
        told.peer = self._peer(told, chain)
        if not told.nbytes:
            self._from_shapes(told, chain)
        return told

    def _peer(self, told: Collective, chain: list[int]) -> int:
        """The rank at the other end of a send or a recv, which NCCL's annotation names by its place in the group."""
        ends = (_OTHER_END.match(self.ops.names[self.ops.name[row]]) for row in chain)
        place = next((int(end[1]) for end in ends if end), -1)
        return told.ranks[place] if 0 <= place < len(told.ranks) else place

    def _chain(self, op: int) -> Iterator[int]:
        """The op and the rows around it that tell of a collective, innermost first."""
        while op >= 0:
            if self._around[self.ops.name[op]]:
                yield op
            op = int(self.ops.parent[op])

    def _from_comm(self, told: Collective, comm: Comm) -> None:
        told.kind = collective_kind(comm.collective)
        told.group, told.dtype = comm.group, dtype_name(comm.dtype)
        told.ranks = _ranks(comm.ranks) or self.groups.get(comm.group, ())
        whole = comm.received if told.kind in ("all_gather", "recv") else comm.sent or comm.received
        told.nbytes = whole * ITEMSIZE.get(told.dtype, 0)

    def _from_shapes(self, told: Collective, chain: list[int]) -> None:
        """Sizes where only the shapes of arguments tell them: NCCL's annotation has what is sent, c10d's call both."""
        elements, both_ends = 0, False
        for row in chain:
            dtype, sizes = self._buffer_sizes(row)
            told.dtype = told.dtype or dtype
            if told.kind in _PARTS:
                elements = max([elements, *sizes])
                both_ends |= len(sizes) > 1
            elif sizes and not elements:
                elements = sizes[-1]
        if told.kind == "all_gather" and not both_ends:
            elements *= len(told.ranks) or self.world
        told.nbytes = elements * ITEMSIZE.get(told.dtype, 0)

    def _buffer_sizes(self, row: int) -> tuple[str, list[int]]:
        """Dtype, where known, and elements of each argument of a row that is a tensor or a list of them."""
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
