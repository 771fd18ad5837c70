"""The nodes of a Chakra file as plain entries; where they have no times, these come from playing them back."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from foretrace.formats import chakra_schema as schema
from foretrace.formats.files import pieces
from foretrace.graph import ForetraceError

_DAMAGED = "The file was cut or damaged: write or copy it again."


@dataclass(slots=True)
class Entry:
    """One node."""

    id: int
    name: str
    type: int
    parent: int
    """Id of the node it was called from; 0 for none."""
    deps: set[int]
    duration: float
    said: dict[str, Any]
    inputs: tuple[str, str, str]
    outputs: tuple[str, str, str]
    start: float = math.nan
    end: float = math.nan

    @property
    def on_host(self) -> bool:
        """Whether it is a call on the host rather than work of a device."""
        return bool(self.said.get("is_cpu_op", False))

    @property
    def communicates(self) -> bool:
        """Whether other ranks take part in it."""
        return self.type in (schema.COMM_SEND_NODE, schema.COMM_RECV_NODE, schema.COMM_COLL_NODE)

    def number(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        value = self.said.get(name)
        return int(value) if isinstance(value, int) and abs(value) < 2**62 else default

    def text(self, name: str) -> str:
        """An attribute that is text."""
        value = self.said.get(name)
        return value if isinstance(value, str) else ""


@dataclass
class Entries:
    """All nodes of a file, and what the file says about itself."""

    said: dict[str, Any]
    nodes: list[Entry] = field(default_factory=list)
    is_measured: bool = False
    """Whether the times are the file's own."""


def read_entries(path: Path) -> Entries:
    """Every node of a file, with times."""
    messages = schema.unframed(b"".join(pieces(path)))
    try:
        metadata = schema.GlobalMetadata.FromString(next(messages, b""))
    except DecodeError:
        raise ForetraceError(f"{path} is no Chakra trace", "Give a trace of PyTorch or a Chakra trace.") from None
    entries = Entries(schema.attributes(metadata))
    try:
        for message in messages:
            entries.nodes.append(_entry(schema.Node.FromString(message)))
    except DecodeError as error:
        place = len(entries.nodes) + 1
        raise ForetraceError(f"{path}: node number {place} can't be read ({error})", _DAMAGED) from None
    if not entries.nodes:
        raise ForetraceError(f"{path} holds no nodes", "Write the trace of at least one step.")
    _tell_times(path, entries)
    return entries


def _entry(node: Any) -> Entry:
    said = schema.attributes(node)
    entry = Entry(
        id=node.id,
        name=node.name,
        type=node.type,
        parent=node.ctrl_deps[0] if node.ctrl_deps else 0,
        deps={*node.ctrl_deps, *node.data_deps},
        duration=float(node.duration_micros),
        said=said,
        inputs=(node.inputs.values, node.inputs.shapes, node.inputs.types),
        outputs=(node.outputs.values, node.outputs.shapes, node.outputs.types),
    )
    start, end = said.get("start_us"), said.get("end_us")
    if isinstance(start, float) and isinstance(end, float) and math.isfinite(start) and math.isfinite(end):
        entry.start, entry.end = start, end
    elif node.start_time_micros:
        entry.start = float(node.start_time_micros)
        entry.end = entry.start + entry.duration
    return entry


def _tell_times(path: Path, entries: Entries) -> None:
    nodes = entries.nodes
    start, end, order = _played_back(path, nodes)
    missing = [entry for entry in nodes if math.isnan(entry.start) and "gap" not in entry.said]
    entries.is_measured = not missing
    if missing and any(entry.duration for entry in nodes):
        for i, entry in enumerate(nodes):
            entry.start, entry.end = start[i], end[i]
    # a caller lasts as long as what it calls, where durations leave that out
    index = {entry.id: i for i, entry in enumerate(nodes)}
    for i in reversed(order):
        above = nodes[index[nodes[i].parent]] if nodes[i].parent in index else None
        if above is not None and nodes[i].on_host and nodes[i].end > above.end:
            above.end = nodes[i].end


def _played_back(path: Path, nodes: list[Entry]) -> tuple[list[float], list[float], list[int]]:
    """When each node would start and end, all starting as soon as they can, and an order that edges follow.

    Nodes of a device that name no stream run one after the other, communication beside the rest.
    """
    index: dict[int, int] = {}
    for i, entry in enumerate(nodes):
        if index.setdefault(entry.id, i) != i:
            raise ForetraceError(f"{path}: two nodes have the id {entry.id}", _DAMAGED)
    followers: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    for i, entry in enumerate(nodes):
        for dep in entry.deps:
            if dep in index:
                followers[index[dep]].append(i)
                waiting[i] += 1
    start, end, order = [0.0] * len(nodes), [0.0] * len(nodes), []
    free: dict[tuple[object, bool], float] = {}
    ready = [(0.0, i) for i, count in enumerate(waiting) if not count]
    while ready:
        at, i = heapq.heappop(ready)
        entry = nodes[i]
        if not entry.on_host:
            lane = entry.said.get("stream"), entry.communicates
            at = max(at, free.get(lane, 0.0))
            free[lane] = at + entry.duration
        start[i], end[i] = at, at + entry.duration
        order.append(i)
        for follower in followers[i]:
            start[follower] = max(start[follower], end[i])
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (start[follower], follower))
    if len(order) < len(nodes):
        stuck = next(entry for entry, count in zip(nodes, waiting) if count)
        raise ForetraceError(f"{path}: node {stuck.id} ({stuck.name[:60]!r}) waits for itself, in a circle", _DAMAGED)
    return start, end, order
