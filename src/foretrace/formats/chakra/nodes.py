"""The nodes of a Chakra file, with the file's times or with times simulated from durations and dependencies."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from foretrace.files import read_chunks
from foretrace.formats.chakra import schema
from foretrace.graph import ForetraceError

_DAMAGED = "The file was cut or damaged: write or copy it again."


@dataclass(slots=True)
class ChakraNode:
    """One node."""

    id: int
    name: str
    type: int
    parent: int
    """Id of the node it was called from; 0 for none."""
    deps: set[int]
    duration: float
    attributes: dict[str, Any]
    inputs: tuple[str, str, str]
    outputs: tuple[str, str, str]
    start: float = math.nan
    end: float = math.nan

    @property
    def on_host(self) -> bool:
        """Whether it is a call on the host, not device work."""
        return bool(self.attributes.get("is_cpu_op", False))

    @property
    def communicates(self) -> bool:
        """Whether it is a collective, a send or a receive."""
        return self.type in (schema.COMM_SEND_NODE, schema.COMM_RECV_NODE, schema.COMM_COLL_NODE)

    def number(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name)
        return int(value) if isinstance(value, int) and abs(value) < 2**62 else default

    def text(self, name: str) -> str:
        """A text attribute."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else ""


@dataclass
class ChakraFile:
    """All nodes of a file, and the attributes of the file itself."""

    attributes: dict[str, Any]
    nodes: list[ChakraNode] = field(default_factory=list)
    is_measured: bool = False
    """Whether the times are those of the file."""


def read_nodes(path: Path) -> ChakraFile:
    """Every node of a file, with times."""
    messages = schema.unframed(b"".join(read_chunks(path)))
    try:
        metadata = schema.GlobalMetadata.FromString(next(messages, b""))
    except DecodeError:
        raise ForetraceError(f"{path} is no Chakra trace", "Give a trace of PyTorch or a Chakra trace.") from None
    file = ChakraFile(schema.attributes(metadata))
    try:
        for message in messages:
            file.nodes.append(_node(schema.Node.FromString(message)))
    except DecodeError as error:
        place = len(file.nodes) + 1
        raise ForetraceError(f"{path}: node number {place} can't be read ({error})", _DAMAGED) from None
    if not file.nodes:
        raise ForetraceError(f"{path} holds no nodes", "Write the trace of at least one step.")
    _set_times(path, file)
    return file


def _node(message: Any) -> ChakraNode:
    attributes = schema.attributes(message)
    node = ChakraNode(
        id=message.id,
        name=message.name,
        type=message.type,
        parent=message.ctrl_deps[0] if message.ctrl_deps else 0,
        deps={*message.ctrl_deps, *message.data_deps},
        duration=float(message.duration_micros),
        attributes=attributes,
        inputs=(message.inputs.values, message.inputs.shapes, message.inputs.types),
        outputs=(message.outputs.values, message.outputs.shapes, message.outputs.types),
    )
    start, end = attributes.get("start_us"), attributes.get("end_us")
    if isinstance(start, float) and isinstance(end, float) and math.isfinite(start) and math.isfinite(end):
        node.start, node.end = start, end
    elif message.start_time_micros:
        node.start = float(message.start_time_micros)
        node.end = node.start + node.duration
    return node


def _set_times(path: Path, file: ChakraFile) -> None:
    """Give nodes simulated times if some have none, and extend each caller to the end of its callees."""
    nodes = file.nodes
    start, end, order = _simulated(path, nodes)
    untimed = [node for node in nodes if math.isnan(node.start) and "gap" not in node.attributes]
    file.is_measured = not untimed
    if untimed and any(node.duration for node in nodes):
        for i, node in enumerate(nodes):
            node.start, node.end = start[i], end[i]
    index = {node.id: i for i, node in enumerate(nodes)}
    for i in reversed(order):
        above = nodes[index[nodes[i].parent]] if nodes[i].parent in index else None
        if above is not None and nodes[i].on_host and nodes[i].end > above.end:
            above.end = nodes[i].end


def _simulated(path: Path, nodes: list[ChakraNode]) -> tuple[list[float], list[float], list[int]]:
    """Start and end of each node if all start as soon as they can, and a topological order.

    Device nodes without a stream run one after the other, communication in parallel with the rest.
    """
    index: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if index.setdefault(node.id, i) != i:
            raise ForetraceError(f"{path}: two nodes have the id {node.id}", _DAMAGED)
    followers: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    for i, node in enumerate(nodes):
        for dep in node.deps:
            if dep in index:
                followers[index[dep]].append(i)
                waiting[i] += 1
    start, end, order = [0.0] * len(nodes), [0.0] * len(nodes), []
    free: dict[tuple[object, bool], float] = {}
    ready = [(0.0, i) for i, count in enumerate(waiting) if not count]
    while ready:
        at, i = heapq.heappop(ready)
        node = nodes[i]
        if not node.on_host:
            lane = node.attributes.get("stream"), node.communicates
            at = max(at, free.get(lane, 0.0))
            free[lane] = at + node.duration
        start[i], end[i] = at, at + node.duration
        order.append(i)
        for follower in followers[i]:
            start[follower] = max(start[follower], end[i])
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (start[follower], follower))
    if len(order) < len(nodes):
        stuck = next(node for node, count in zip(nodes, waiting) if count)
        raise ForetraceError(f"{path}: node {stuck.id} ({stuck.name[:60]!r}) waits for itself, in a circle", _DAMAGED)
    return start, end, order
