"""The nodes of an execution trace, read the same whatever its schema.

Schema 1.0.1 keeps everything on the node; later ones keep most of it in a list of attributes. Lists that only an op's
arguments need (shapes, types, strides) stay undecoded.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from foretrace.files import read_json_chunks
from foretrace.graph import ForetraceError

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Small = Annotated[int, Meta(ge=0, lt=2**31)]

FLAT = ("1.0.1",)
NESTED = ("1.0.2", "1.0.3", "1.0.4", "1.1.0", "1.1.1")
_NOTHING, _UNKNOWN = Raw(b"[]"), Raw(b"null")


class Marks(Struct, gc=False, kw_only=True):
    """What a node says about itself beside its name and arguments."""

    rf_id: Count = 0
    """Number of the record function, which a profiler trace of the same run has too."""
    fw_parent: Count = 0
    scope: Small = 0
    tid: Small = 0
    op_schema: str = ""
    kernel_backend: str = ""
    kernel_file: str = ""
    collective_name: str = ""
    pg_name: str = ""
    pg_size: Count = 0
    dtype: str = ""
    in_msg_nelems: Count = 0
    out_msg_nelems: Count = 0
    global_rank_start: int = 0
    global_rank_stride: int = 0


class Side(Struct, gc=False):
    """What went into a node, or came out of it."""

    values: list[Any]
    shapes: Raw = _NOTHING
    types: Raw = _NOTHING
    strides: Raw = _UNKNOWN


class Node(Struct, gc=False):
    """One call, annotation or thread."""

    id: Count
    name: str
    parent: Count
    inputs: Side
    outputs: Side
    marks: Marks


class _FlatNode(Marks, gc=False, kw_only=True):
    id: Count
    name: str
    parent: Count
    inputs: list[Any] = []
    input_shapes: Raw = _NOTHING
    input_types: Raw = _NOTHING
    input_strides: Raw = _UNKNOWN
    outputs: list[Any] = []
    output_shapes: Raw = _NOTHING
    output_types: Raw = _NOTHING
    output_strides: Raw = _UNKNOWN


class _Attribute(Struct, gc=False):
    name: str
    value: Any


class _NestedNode(Struct, gc=False):
    id: Count
    name: str
    ctrl_deps: Count
    inputs: Side
    outputs: Side
    attrs: list[_Attribute]


class _Head(Struct):
    schema: str


class _FlatFile(_Head):
    nodes: list[_FlatNode]


class _NestedFile(_Head):
    nodes: list[_NestedNode]


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    **dict.fromkeys(FLAT, msgspec.json.Decoder(_FlatFile)),
    **dict.fromkeys(NESTED, msgspec.json.Decoder(_NestedFile)),
}
_SCHEMA_FIRST = re.compile(rb'\{\s*"schema"\s*:\s*"([^"\\]*)"')


def read_nodes(path: Path) -> list[Node]:
    """All nodes of a trace, in the order they ended.

    >>> import tempfile
    >>> trace = b'{"schema": "1.0.1", "nodes": [{"id": 3, "name": "aten::relu", "parent": 2}]}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "et.json").write_bytes(trace)
    ...     [node.name for node in read_nodes(Path(folder) / "et.json")]
    ['aten::relu']
    """
    text = b"".join(read_json_chunks(path))
    try:
        file = _decoder(path, _schema(text)).decode(text)
        make = _of_flat if isinstance(file, _FlatFile) else _of_nested
        return [make(path, node) for node in file.nodes]
    except msgspec.ValidationError as error:
        raise (_wrong(path, str(error)) if "$.nodes[" in str(error) else _no_trace(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(path, len(text), str(error)) from None
    except RecursionError:
        raise ForetraceError(f"{path} nests lists too deeply for a trace", "Record it again.") from None


def _schema(text: bytes) -> str:
    """Which schema it is. PyTorch writes that first; other writers may put it anywhere."""
    told = _SCHEMA_FIRST.match(text)
    return told[1].decode() if told else msgspec.json.decode(text, type=_Head).schema


def _decoder(path: Path, schema: str) -> msgspec.json.Decoder[Any]:
    decoder = _DECODERS.get(schema.partition("-")[0])
    if decoder is None:
        raise ForetraceError(
            f"{path} is an execution trace of schema {schema[:40]!r}",
            f"Schemas {FLAT[0]} to {NESTED[-1]} can be read: record it with another version of PyTorch.",
        )
    return decoder


def _of_flat(path: Path, flat: _FlatNode) -> Node:
    inputs = Side(flat.inputs, flat.input_shapes, flat.input_types, flat.input_strides)
    outputs = Side(flat.outputs, flat.output_shapes, flat.output_types, flat.output_strides)
    return Node(flat.id, flat.name, flat.parent, inputs, outputs, marks=flat)


def _of_nested(path: Path, nested: _NestedNode) -> Node:
    try:
        marks = msgspec.convert({a.name: a.value for a in nested.attrs}, Marks)
    except msgspec.ValidationError as error:
        raise _wrong(path, f"node {nested.id}: {error}") from None
    return Node(nested.id, nested.name, nested.ctrl_deps, nested.inputs, nested.outputs, marks)


def _no_trace(path: Path) -> ForetraceError:
    return ForetraceError(f"{path} is JSON, but no PyTorch execution trace", "Give one that has a schema and nodes.")


def _wrong(path: Path, error: str) -> ForetraceError:
    what = re.sub(r" - at `\$\.nodes\[(\d+)\]\.?(\w*).*`", r" in \2 of entry \1 of its nodes", error)
    return ForetraceError(f"{path}: {what}", "The trace was damaged or edited: record it again.")


def _broken(path: Path, size: int, error: str) -> ForetraceError:
    if "truncated" in error:
        return ForetraceError(
            f"{path} ends in the middle of a node (byte {size:,})",
            "The observer was probably not stopped before the job ended: record this rank again, or leave it out.",
        )
    return ForetraceError(f"{path} is not valid JSON ({error})", "Record or copy it again.")
