"""Lossless JSON lines of ops: the format of a recording's calls, to be readable in ten years.

A line is an object: ``op`` name, ``overload``, ``args``, ``kwargs``, ``out``, phase, thread and module. A tensor is
``{"t": n}``, the n-th of the tensors defined so far; ``new`` defines those that a line is the first to use. Values
without a JSON type are ``{"c": [kind, text]}``. Floats keep their full precision.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.op import PHASES, AssumedSize, Constant, Op, Tensor, Value

DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""Exceptions that parsing a damaged file raises."""

INT64_END = 1 << 63
OPTIONAL = ("overload", "kwargs", "thread", "stream", "module", "node", "entered", "frees", "line", "assumed")
"""Fields omitted from a line when empty."""


def to_lines(ops: Iterable[Op]) -> Iterator[str]:
    """One line of JSON per op.

    >>> print(*to_lines([Op("aten::mm", (Tensor((2,), "int8", id=0),))]))
    {"op": "aten::mm", "phase": "other", "args": [{"t": 0}], "new": [[[2], "int8", "", null, 0, 0, -1, "strided"]]}
    """
    known: dict[Tensor, int] = {}
    for op in ops:
        new: list[Tensor] = []
        line: dict[str, Any] = {"op": op.name, "phase": op.phase, "args": [_plain(a, known, new) for a in op.args]}
        if op.outputs:
            line["out"] = [_plain(value, known, new) for value in op.outputs]
        for name in OPTIONAL:
            value = getattr(op, name)
            if value:
                line[name] = _plain(value, known, new)["d"] if name == "kwargs" else value
        if new:
            line["new"] = [_fields(t) for t in new]
        yield json.dumps(line)


def _fields(t: Tensor) -> list[Any]:
    fields = [t.shape, t.dtype, t.device, t.stride, t.offset, t.id, t.storage, t.layout]
    return fields if t.stored < 0 else [*fields, t.stored]


def _plain(value: Value, known: dict[Tensor, int], new: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value not in known:
            known[value] = len(known)
            new.append(value)
        return {"t": known[value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"c": ["float", repr(value)]}
    if isinstance(value, Constant):
        return {"c": [value.kind, value.value]}
    if isinstance(value, dict):
        return {"d": {key: _plain(item, known, new) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_plain(item, known, new) for item in value]
    return value


def from_lines(lines: Iterable[bytes | str], source: str) -> list[Op]:
    """The ops that `to_lines` wrote.

    >>> op = Op("aten::add_", (Tensor((2,), "float32", id=3), 1e-08), {"alpha": float("inf")}, phase="optimizer")
    >>> from_lines(to_lines([op]), "here")[0] == op
    True
    """
    known: list[Tensor] = []
    ops: list[Op] = []
    for number, line in enumerate(lines, 1):
        try:
            ops.append(op_of(json.loads(line), known))
        except DAMAGE as error:
            raise ForetraceError(
                f"{source}: line {number} is not an op ({error})", "Record the step again, or restore the file."
            ) from None
    return ops


def op_of(line: dict[str, Any], known: list[Tensor]) -> Op:
    """The op of a parsed line; the tensors that it defines are appended to ``known``.

    >>> op_of({"op": "aten::relu", "phase": "other", "args": [1]}, []).args
    (1,)
    """
    known.extend(_tensor(*description) for description in line.get("new", ()))
    return Op(
        name=str(line["op"]),
        args=tuple([_value(item, known) for item in line["args"]]),
        kwargs={key: _value(item, known) for key, item in line.get("kwargs", {}).items()},
        outputs=tuple(_value(item, known) for item in line.get("out", ())),
        overload=str(line.get("overload", "")),
        phase=PHASES[PHASES.index(line["phase"])],
        thread=_int32(line["thread"]) if "thread" in line else 0,
        stream=_int32(line["stream"]) if "stream" in line else 0,
        module=str(line.get("module", "")),
        node=str(line.get("node", "")),
        entered=_int32(line["entered"]) if "entered" in line else 0,
        frees=_integers(line["frees"]) if "frees" in line else (),
        line=str(line.get("line", "")),
        assumed=_assumed_size(*line["assumed"]) if "assumed" in line else None,
    )


def _assumed_size(less: float, more: float, fewest: float, most: float) -> AssumedSize:
    """Factors of work and of counts, below and above one."""
    if not (0 < less <= 1 <= more < math.inf and 0 < fewest <= 1 <= most < math.inf):
        raise ValueError(f"{less}, {more}, {fewest}, {most} are no factors around one")
    return AssumedSize(float(less), float(more), float(fewest), float(most))


def _tensor(
    shape: Any, dtype: Any, device: Any, stride: Any, offset: Any, tensor: Any, storage: Any, layout: Any,
    stored: Any = -1,
) -> Tensor:  # fmt: skip
    strides = None if stride is None else _integers(stride)
    start, number, held, elements = _integers((offset, tensor, storage, stored))
    return Tensor(_integers(shape), str(dtype), str(device), strides, start, number, held, str(layout), elements)


def _integers(numbers: Iterable[Any]) -> tuple[int, ...]:
    """Numbers that fit 64 bits, as PyTorch's ids and offsets do."""
    found = tuple(map(int, numbers))
    if found and not -INT64_END <= min(found) <= max(found) < INT64_END:
        raise ValueError(f"{str(max(found, key=abs))[:40]} is out of range")
    return found


def _int32(number: Any) -> int:
    """A number that fits a 32-bit column."""
    if not 0 <= int(number) < 1 << 31:
        raise ValueError(f"{number} is out of range")
    return int(number)


def _value(item: Any, known: list[Tensor]) -> Value:
    if isinstance(item, dict) and "t" in item:
        return known[_int32(item["t"])]
    if isinstance(item, list):
        return [_value(part, known) for part in item]
    if not isinstance(item, dict):
        if type(item) is int and not -INT64_END <= item < 2 * INT64_END:  # some are unsigned
            raise ValueError(f"{str(item)[:40]} is out of range")
        return item  # type: ignore[no-any-return]
    if "d" in item:
        return {key: _value(part, known) for key, part in item["d"].items()}
    kind, text = item["c"]
    return float(text) if kind == "float" else Constant(str(kind), str(text))
