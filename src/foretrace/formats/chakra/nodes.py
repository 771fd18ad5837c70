"""The nodes of a Chakra file, with the file's times or with times simulated from durations and dependencies."""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from foretrace.files import read_chunks
from foretrace.formats.chakra import schema
from foretrace.formats.chakra.from_json import json_messages
from foretrace.graph import ForetraceError

_JSON = re.compile(rb'\s*(\{\s*["}]|\[\s*[{\]])')
_DAMAGED = "The file was cut or damaged: write or copy it again."


@dataclass(slots=True)
class ChakraNode:
    """One node."""

    id: int
    name: str
    type: int
    parent: int
    """Id of the node it was called from; -1 for none."""
    deps: set[int]
    """Ids of the nodes it waits for, as data or control dependencies."""
    data_deps: set[int]
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
    has_durations: bool = False


def read_nodes(path: Path) -> ChakraFile:
    """Every node of a file, with times."""
    text = b"".join(read_chunks(path)).removeprefix(b"\xef\xbb\xbf")
    messages = json_messages(text.decode(errors="replace")) if _JSON.match(text) else _binary(text)
    try:
        metadata = next(messages)
    except DecodeError:
        raise ForetraceError(f"{path} is no Chakra trace", "Give a trace of PyTorch or a Chakra trace.") from None
    file = ChakraFile(schema.attributes(metadata))
    try:
        file.nodes.extend(map(_node, messages))
    except DecodeError as error:
        place = len(file.nodes) + 1
        raise ForetraceError(f"{path}: node number {place} can't be read ({error})", _DAMAGED) from None
    if not file.nodes:
        raise ForetraceError(f"{path} holds no nodes", "Write the trace of at least one step.")
    _set_times(path, file)
    return file


def _binary(text: bytes) -> Iterator[Any]:
    messages = schema.unframed(text)
    yield schema.global_metadata(next(messages, b""))
    yield from map(schema.Node.FromString, messages)


def _node(message: Any) -> ChakraNode:
    attributes = schema.attributes(message)
    node = ChakraNode(
        id=message.id,
        name=message.name,
        type=message.type,
        parent=message.ctrl_deps[0] if message.ctrl_deps else -1,
        # PyTorch's root node is its own parent
        deps={*message.ctrl_deps, *message.data_deps} - {message.id},
        data_deps=set(message.data_deps) - {message.id},
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
    index: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if index.setdefault(node.id, i) != i:
            raise ForetraceError(f"{path}: two nodes have the id {node.id}", _DAMAGED)
    untimed = [node for node in nodes if math.isnan(node.start) and "gap" not in node.attributes]
    file.is_measured = not untimed
    file.has_durations = any(node.duration for node in nodes)
    if untimed:
        for node, times in zip(nodes, _simulated(path, nodes, index)):
            node.start, node.end = times if file.has_durations else (math.nan, math.nan)
    for node in reversed(_callers_first(nodes, index)):
        above = nodes[index[node.parent]] if node.parent in index else node
        if node.on_host and node.end > above.end:
            above.end = node.end


def _callers_first(nodes: list[ChakraNode], index: dict[int, int]) -> list[ChakraNode]:
    """The nodes, each after the one it was called from; those that call each other in a circle last."""
    callees: dict[int, list[ChakraNode]] = defaultdict(list)
    outermost = []
    for node in nodes:
        if node.parent in index and node.parent != node.id:
            callees[node.parent].append(node)
        else:
            outermost.append(node)
    for node in outermost:
        outermost += callees.pop(node.id, [])
    return outermost


def _simulated(path: Path, nodes: list[ChakraNode], index: dict[int, int]) -> list[tuple[float, float]]:
    """Start and end of each node if all start as soon as they can.

    Control dependencies say what called what. A node that waits for work of its own callees contradicts them: then
    data dependencies alone count, as for MLCommons' feeder.
    """
    stuck = nodes[0]
    for deps in (attrgetter("deps"), attrgetter("data_deps")):
        start, end, waiting = _run(nodes, [[index[dep] for dep in deps(node) if dep in index] for node in nodes])
        if not any(waiting):
            return list(zip(start, end))
        stuck = next(node for node, count in zip(nodes, waiting) if count)
    raise ForetraceError(f"{path}: node {stuck.id} ({stuck.name[:60]!r}) waits for itself, in a circle", _DAMAGED)


def _run(nodes: list[ChakraNode], deps: list[list[int]]) -> tuple[list[float], list[float], list[int]]:
    """Start and end of each node, and how many others it still waits for at the end.

    Device nodes without a stream run one after the other, communication in parallel with the rest.
    """
    followers: list[list[int]] = [[] for _ in nodes]
    waiting = list(map(len, deps))
    for i, needed in enumerate(deps):
        for dep in needed:
            followers[dep].append(i)
    start, end = [0.0] * len(nodes), [0.0] * len(nodes)
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
        for follower in followers[i]:
            start[follower] = max(start[follower], end[i])
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (start[follower], follower))
    return start, end, waiting
