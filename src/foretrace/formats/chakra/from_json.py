"""Chakra traces written as JSON: protobuf's own JSON, one object per message, or the feeder's ``workload_graph``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from foretrace.formats.chakra import schema

FEEDER_GRAPH = "workload_graph"
"""Key of the list of nodes in the JSON that MLCommons' feeder reads."""
_FEEDER_FIELDS = {"Id": "id", "Name": "name", "NodeType": "type", "runtime": "duration_micros"}
_NODE_FIELDS = ("id", "name", "type", "duration_micros", "data_deps", "ctrl_deps")


def json_messages(text: str) -> Iterator[Any]:
    """The messages in a JSON text, the metadata first; `DecodeError` for what is none.

    >>> metadata, node = json_messages('{"version": "0.0.4"}{"id": "7", "name": "a", "type": "COMP_NODE"}')
    >>> metadata.version, node.id, node.type
    ('0.0.4', 7, 4)
    """
    try:
        first, *others = _objects(text)
        if isinstance(first, dict) and isinstance(first.get(FEEDER_GRAPH), list):
            yield schema.GlobalMetadata()
            yield from map(_feeder_node, first[FEEDER_GRAPH])
            return
        is_node = isinstance(first, dict) and ("id" in first or "name" in first)
        yield schema.GlobalMetadata() if is_node else _message(first, schema.GlobalMetadata())
        for one in [first, *others] if is_node else others:
            yield _message(one, schema.Node())
    # SystemError: protobuf's own, where a text is half of a character
    except (ParseError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, SystemError) as error:
        raise DecodeError(str(error).partition("\n")[0][:120]) from None


def _message(value: Any, message: Any) -> Any:
    return ParseDict(value, message, ignore_unknown_fields=True)


def _objects(text: str) -> list[Any]:
    """The objects of a text: one after the other, on lines of their own, or in a list."""
    decode, at, found = json.JSONDecoder().raw_decode, 0, []
    while at < len(text):
        if text[at] in " \t\r\n,":
            at += 1
            continue
        value, at = decode(text, at)
        found += value if isinstance(value, list) else [value]
    return found


def _feeder_node(values: dict[str, Any]) -> Any:
    fields = {_FEEDER_FIELDS.get(key, key): value for key, value in values.items()}
    node = _message({key: fields.pop(key) for key in _NODE_FIELDS if fields.get(key) is not None}, schema.Node())
    plain = {key: value for key, value in fields.items() if isinstance(value, (bool, int, float, str, list))}
    schema.add_attributes(node, **plain)
    return node
