"""Chakra's messages (et_def.proto of MLCommons), made here so that nobody needs a protobuf compiler; and their framing.

A file is a `GlobalMetadata` and then `Node` messages, each after its length as a varint.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from foretrace.files import read_chunks
from foretrace.formats.chakra import schema
from foretrace.graph import ForetraceError

_PACKAGE = "ChakraProtoMsg"
_NUMBER = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
"""Protobuf's own numbers of its field types."""

_MESSAGE, _ENUM = 11, 14
_ONE, _MANY = 1, 3
_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
"""What an attribute can hold, one or a list of it, in the order of the schema's field numbers, which start at 3."""

NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
METADATA_NODE, COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE = 1, 4, 5, 6, 7

COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
"""Our words for Chakra's collective types, by their number; its two kinds of reduce_scatter are one to us."""

Attribute: TypeAlias = "bool | int | float | str | list[int]"


def _field(message: Any, name: str, number: int, kind: str | int, label: int = _ONE, of: str = "") -> Any:
    field = message.field.add(name=name, number=number, label=label)
    field.type = _NUMBER[kind] if isinstance(kind, str) else kind
    if of:
        field.type_name = f".{_PACKAGE}.{of}"
    return field


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    types = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        types.value.add(name=name, number=number)
    attribute = file.message_type.add(name="AttributeProto")
    _field(attribute, "name", 1, "string")
    _field(attribute, "doc_string", 2, "string")
    attribute.oneof_decl.add(name="value")
    for i, kind in enumerate(_SCALARS):
        many = f"{kind.capitalize()}List"
        _field(file.message_type.add(name=many), "values", 1, kind, _MANY)
        _field(attribute, f"{kind}_val", 3 + 2 * i, kind).oneof_index = 0
        _field(attribute, f"{kind}_list", 4 + 2 * i, _MESSAGE, of=many).oneof_index = 0
    metadata = file.message_type.add(name="GlobalMetadata")
    _field(metadata, "version", 1, "string")
    _field(metadata, "attr", 2, _MESSAGE, _MANY, "AttributeProto")
    sides = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), start=1):
        _field(sides, name, number, "string")
    node = file.message_type.add(name="Node")
    _field(node, "id", 1, "uint64")
    _field(node, "name", 2, "string")
    _field(node, "type", 3, _ENUM, of="NodeType")
    for number, name in ((4, "ctrl_deps"), (5, "data_deps")):
        _field(node, name, number, "uint64", _MANY)
    for number, name in ((6, "start_time_micros"), (7, "duration_micros")):
        _field(node, name, number, "uint64")
    for number, name in ((8, "inputs"), (9, "outputs")):
        _field(node, name, number, _MESSAGE, of="IOInfo")
    _field(node, "attr", 10, _MESSAGE, _MANY, "AttributeProto")
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
GlobalMetadata: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.GlobalMetadata"))
Node: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.Node"))


def add_attributes(message: Any, **values: Attribute) -> None:
    """Give a node or the metadata attributes, each of the type its value has.

    >>> node = Node(id=1)
    >>> add_attributes(node, is_cpu_op=True, stream=7)
    >>> attributes(node)
    {'is_cpu_op': True, 'stream': 7}
    """
    for name, value in values.items():
        attribute = message.attr.add(name=name)
        if isinstance(value, bool):
            attribute.bool_val = value
        elif isinstance(value, int):
            attribute.int64_val = value
        elif isinstance(value, float):
            attribute.double_val = value
        elif isinstance(value, str):
            attribute.string_val = value
        else:
            attribute.int64_list.values.extend(value)


def attributes(message: Any) -> dict[str, Any]:
    """The attributes of a node or the metadata, whatever their types; lists as tuples."""
    found = {}
    for attribute in message.attr:
        which = attribute.WhichOneof("value")
        if which is not None:
            value = getattr(attribute, which)
            found[attribute.name] = tuple(value.values) if which.endswith("_list") else value
    return found


def framed(message: Any) -> bytes:
    """A message after its length.

    >>> framed(Node(id=1))
    b'\\x02\\x08\\x01'
    """
    content: bytes = message.SerializeToString(deterministic=True)
    size, length = bytearray(), len(content)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes(size) + content


def unframed(text: bytes) -> Iterator[bytes]:
    """The messages of a file; `DecodeError` where it ends in the middle of one.

    >>> list(unframed(framed(Node(id=1)) + framed(Node())))
    [b'\\x08\\x01', b'']
    """
    at = 0
    while at < len(text):
        size = shift = 0
        while True:
            if at == len(text) or shift > 28:
                raise DecodeError("no length")
            size |= (text[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if text[at - 1] < 0x80:
                break
        if at + size > len(text):
            raise DecodeError("cut short")
        yield text[at : at + size]
        at += size


# --- was formats.chakra_entries: The nodes of a Chakra file as plain entries; where they have no times, these come from playing them back.

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
    messages = schema.unframed(b"".join(read_chunks(path)))
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
