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

from foretrace.formats.files import json_pieces
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


class Node(Marks, gc=False, kw_only=True):
    """One call, annotation or thread: schema 1.0.1 as it is, with what later schemas added."""

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


class _Side(Struct, gc=False):
    values: list[Any]
    shapes: Raw
    types: Raw
    strides: Raw = _UNKNOWN


class _Attribute(Struct, gc=False):
    name: str
    value: Any


class _NestedNode(Struct, gc=False):
    id: Count
    name: str
    ctrl_deps: Count
    inputs: _Side
    outputs: _Side
    attrs: list[_Attribute]


class _File(Struct):
    schema: str
    nodes: Raw


_DECODERS: dict[str, msgspec.json.Decoder[list[Any]]] = {
    **dict.fromkeys(FLAT, msgspec.json.Decoder(list[Node])),
    **dict.fromkeys(NESTED, msgspec.json.Decoder(list[_NestedNode])),
}


def read_nodes(path: Path) -> list[Node]:
    """All nodes of a trace, in the order they ended.

    >>> import tempfile
    >>> trace = b'{"schema": "1.0.1", "nodes": [{"id": 3, "name": "aten::relu", "parent": 2}]}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "et.json").write_bytes(trace)
    ...     [node.name for node in read_nodes(Path(folder) / "et.json")]
    ['aten::relu']
    """
    text = b"".join(json_pieces(path))
    try:
        file = _opened(path, text)
        nodes = _decoder(path, file.schema).decode(file.nodes)
        return [n if isinstance(n, Node) else _flattened(path, n) for n in nodes]
    except msgspec.ValidationError as error:
        raise _wrong(path, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(path, len(text), str(error)) from None
    except RecursionError:
        raise ForetraceError(f"{path} nests lists too deeply for a trace", "Record it again.") from None


def _opened(path: Path, text: bytes) -> _File:
    try:
        return msgspec.json.decode(text, type=_File)
    except msgspec.ValidationError:
        raise ForetraceError(
            f"{path} is JSON, but no PyTorch execution trace", "Give one that has a schema and nodes."
        ) from None


def _decoder(path: Path, schema: str) -> msgspec.json.Decoder[list[Any]]:
    decoder = _DECODERS.get(schema.partition("-")[0])
    if decoder is None:
        raise ForetraceError(
            f"{path} is an execution trace of schema {schema[:40]!r}",
            f"Schemas {FLAT[0]} to {NESTED[-1]} can be read: record it with another version of PyTorch.",
        )
    return decoder


def _flattened(path: Path, nested: _NestedNode) -> Node:
    try:
        marks = msgspec.convert({a.name: a.value for a in nested.attrs}, Marks)
    except msgspec.ValidationError as error:
        raise _wrong(path, f"node {nested.id}: {error}") from None
    inputs, outputs = nested.inputs, nested.outputs
    return Node(
        id=nested.id, name=nested.name, parent=nested.ctrl_deps, **msgspec.structs.asdict(marks),
        inputs=inputs.values, input_shapes=inputs.shapes, input_types=inputs.types, input_strides=inputs.strides,
        outputs=outputs.values, output_shapes=outputs.shapes, output_types=outputs.types,
        output_strides=outputs.strides,
    )  # fmt: skip


def _wrong(path: Path, error: str) -> ForetraceError:
    what = re.sub(r" - at `\$\[(\d+)\]\.?(\w*).*`", r" in \2 of entry \1 of its nodes", error)
    return ForetraceError(f"{path}: {what}", "The trace was damaged or edited: record it again.")


def _broken(path: Path, size: int, error: str) -> ForetraceError:
    if "truncated" in error:
        return ForetraceError(
            f"{path} ends in the middle of a node (byte {size:,})",
            "The observer was probably not stopped before the job ended: record this rank again, or leave it out.",
        )
    return ForetraceError(f"{path} is not valid JSON ({error})", "Record or copy it again.")
