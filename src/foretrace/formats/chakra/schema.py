"""Chakra's protobuf messages (et_def.proto of MLCommons), defined here without a protobuf compiler, and their framing.

A file is a `GlobalMetadata` and then `Node` messages, each after its length as a varint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

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
"""Types of an attribute's value, or of a list of values, in the order of their field numbers, which start at 3."""

NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
METADATA_NODE, COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE = 1, 4, 5, 6, 7

COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
"""Foretrace's names of Chakra's collective types, by number; its two kinds of reduce_scatter are one here."""

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
    old_metadata = file.message_type.add(name="OldMetadata")
    _field(old_metadata, "attr", 1, _MESSAGE, _MANY, "AttributeProto")
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
_OldMetadata: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.OldMetadata"))
Node: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.Node"))


def add_attributes(message: Any, **values: Attribute) -> None:
    """Add attributes to a node or the metadata, each of the type of its value.

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


def global_metadata(content: bytes) -> Any:
    """The metadata of a file; earlier versions of Chakra had the attributes in the version's place.

    >>> metadata = GlobalMetadata(version="0.0.4")
    >>> add_attributes(metadata, schema="1.0.2")
    >>> old = GlobalMetadata(attr=metadata.attr).SerializeToString().replace(b"\\x12", b"\\n", 1)
    >>> global_metadata(metadata.SerializeToString()) == metadata, attributes(global_metadata(old))
    (True, {'schema': '1.0.2'})
    """
    with suppress(DecodeError):
        metadata = GlobalMetadata.FromString(content)
        if metadata.version.isprintable():
            return metadata
    old = _OldMetadata.FromString(content)
    return GlobalMetadata(attr=old.attr)


def framed(message: Any) -> bytes:
    """A message with its length in front.

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
    """The messages of a file; `DecodeError` if it ends in the middle of one.

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
