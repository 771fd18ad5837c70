"""The nodes of an execution trace, the same for all of its schemas.

Schema 1.0.1 has all fields on the node; later ones have most of them in a list of attributes. Arguments and results
stay undecoded: decoded, they would take more memory than all the rest.
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


class Node(Struct, gc=False, kw_only=True):
    """One call, annotation or thread.

    Fields are in the order of the files, where the decoder looks for them first.
    """

    name: str
    id: Count
    rf_id: Count = 0
    """Number of the record function, the same in a profiler trace of the same run."""
    parent: Count
    fw_parent: Count = 0
    scope: Small = 0
    tid: Small = 0
    op_schema: str = ""
    inputs: Raw = _NOTHING
    input_shapes: Raw = _NOTHING
    input_types: Raw = _NOTHING
    input_strides: Raw = _UNKNOWN
    outputs: Raw = _NOTHING
    output_shapes: Raw = _NOTHING
    output_types: Raw = _NOTHING
    output_strides: Raw = _UNKNOWN
    kernel_backend: str = ""
    kernel_file: str = ""
    collective_name: str = ""
    dtype: str = ""
    in_msg_nelems: Count = 0
    out_msg_nelems: Count = 0
    global_rank_start: int = 0
    global_rank_stride: int = 0
    pg_name: str = ""
    pg_size: Count = 0

    @property
    def input_values(self) -> list[Any]:
        """The values of its arguments."""
        return decode_list(self.inputs)

    @property
    def output_values(self) -> list[Any]:
        """The values of its results."""
        return decode_list(self.outputs)


class _Side(Struct, gc=False):
    values: Raw
    shapes: Raw = _NOTHING
    types: Raw = _NOTHING
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


class _Header(Struct):
    schema: str


class _FlatFile(_Header):
    nodes: list[Node]


class _NestedFile(_Header):
    nodes: list[_NestedNode]


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    **dict.fromkeys(FLAT, msgspec.json.Decoder(_FlatFile)),
    **dict.fromkeys(NESTED, msgspec.json.Decoder(_NestedFile)),
}
decode_list = msgspec.json.Decoder(list[Any]).decode
"""Decodes a list of values."""
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
        if isinstance(file, _FlatFile):
            return file.nodes
        return [_flattened(path, node) for node in file.nodes]
    except msgspec.ValidationError as error:
        raise (_invalid(path, str(error)) if "$.nodes[" in str(error) else _no_trace(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(path, len(text), str(error)) from None
    except RecursionError:
        raise ForetraceError(f"{path} nests lists too deeply for a trace", "Record it again.") from None


def _schema(text: bytes) -> str:
    """The schema's version. PyTorch writes it first; other writers may put it anywhere."""
    found = _SCHEMA_FIRST.match(text)
    return found[1].decode() if found else msgspec.json.decode(text, type=_Header).schema


def _decoder(path: Path, schema: str) -> msgspec.json.Decoder[Any]:
    decoder = _DECODERS.get(schema.partition("-")[0])
    if decoder is None:
        raise ForetraceError(
            f"{path} is an execution trace of schema {schema[:40]!r}",
            f"Schemas {FLAT[0]} to {NESTED[-1]} can be read: record it with another version of PyTorch.",
        )
    return decoder


def _flattened(path: Path, nested: _NestedNode) -> Node:
    inputs, outputs = nested.inputs, nested.outputs
    fields = {attribute.name: attribute.value for attribute in nested.attrs}
    fields |= {
        "name": nested.name, "id": nested.id, "parent": nested.ctrl_deps,
        "inputs": inputs.values, "input_shapes": inputs.shapes, "input_types": inputs.types,
        "input_strides": inputs.strides, "outputs": outputs.values, "output_shapes": outputs.shapes,
        "output_types": outputs.types, "output_strides": outputs.strides,
    }  # fmt: skip
    try:
        return msgspec.convert(fields, Node)
    except msgspec.ValidationError as error:
        raise _invalid(path, f"node {nested.id}: {error}") from None


def _no_trace(path: Path) -> ForetraceError:
    return ForetraceError(f"{path} is JSON, but no PyTorch execution trace", "Give one that has a schema and nodes.")


def _invalid(path: Path, error: str) -> ForetraceError:
    what = re.sub(r" - at `\$\.nodes\[(\d+)\]\.?(\w*).*`", r" in \2 of entry \1 of its nodes", error)
    return ForetraceError(f"{path}: {what}", "The trace was damaged or edited: record it again.")


def _broken(path: Path, size: int, error: str) -> ForetraceError:
    if "truncated" in error:
        return ForetraceError(
            f"{path} ends in the middle of a node (byte {size:,})",
            "The observer was probably not stopped before the job ended: record this rank again, or leave it out.",
        )
    return ForetraceError(f"{path} is not valid JSON ({error})", "Record or copy it again.")
