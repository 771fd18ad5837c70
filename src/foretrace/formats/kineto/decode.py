"""Decoding the JSON of a profiler trace into typed events: fast if it is valid, leniently if it is not."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

Id = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Sizes = Annotated[tuple[Id, ...], Meta(max_length=3)]
_NOTHING = Raw(b"[]")
if TYPE_CHECKING:
    Phase = str
else:  # one object for all events of a phase; Chrome's format has no other phases
    Phase = Literal[tuple("BEXiICbnestfSTpFPNODMVvRc()")]


class Args(Struct, frozen=True, gc=False):
    """The ``args`` of an event; lists of arguments stay undecoded.

    Fields are in the order of most traces, where the decoder looks for them first.
    """

    external: Id = field(default=-1, name="External id")
    record: Id = field(default=-1, name="Record function id")
    concrete: Raw = field(default=_NOTHING, name="Concrete Inputs")
    types: Raw = field(default=_NOTHING, name="Input type")
    strides: Raw = field(default=_NOTHING, name="Input Strides")
    dims: Raw = field(default=_NOTHING, name="Input Dims")
    device: Id = 0
    stream: Id = 0
    correlation: Id = 0
    nbytes: Id | str = field(default=0, name="bytes")
    grid: Sizes = ()
    block: Sizes = ()
    collective: str = field(default="", name="Collective name")
    sent: Id = field(default=0, name="In msg nelems")
    received: Id = field(default=0, name="Out msg nelems")
    dtype: str = ""
    group: str = field(default="", name="Process Group Name")
    ranks: str = field(default="", name="Process Group Ranks")
    source_rank: Id | str = field(default=-1, name="Src Rank")
    target_rank: Id | str = field(default=-1, name="Dst Rank")
    allocated: Id = field(default=-1, name="Total Allocated")
    device_type: Id = field(default=0, name="Device Type")
    device_id: Id = field(default=0, name="Device Id")
    label: Any = field(default="", name="name")
    """What a process or a thread is called."""


class Event(Struct, gc=False):
    """One event of the trace."""

    ph: Phase = ""
    cat: str = ""
    name: str = ""
    pid: Id | str = 0
    tid: Id | str = 0
    ts: Id | float = math.nan
    dur: Id | float = 0
    args: Args = Args()


class Head(Struct):
    """The top-level fields of a trace, with the events of its last chunk."""

    traceEvents: list[Event] = []  # noqa: N815 - the trace's own names
    distributedInfo: Any = None  # noqa: N815
    deviceProperties: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    cuda_runtime_version: Any = None

    def or_else(self, other: Head) -> Head:
        """This head, with missing fields taken from another."""
        return Head(
            self.traceEvents,
            self.distributedInfo or other.distributedInfo,
            self.deviceProperties or other.deviceProperties,
            self.baseTimeNanoseconds or other.baseTimeNanoseconds,
            self.cuda_runtime_version or other.cuda_runtime_version,
        )


class UndecodableError(Exception):
    """Text that no decoder can read; ``cut`` if it only ends too early."""

    def __init__(self, cut: bool) -> None:
        super().__init__(cut)
        self.cut = cut


_events = msgspec.json.Decoder(list[Event])
_head = msgspec.json.Decoder(Head)


def decode_events(text: bytes | bytearray) -> list[Event]:
    """A JSON array of events.

    >>> decode_events(b'[{"ph": "X", "name": "aten::mm", "ts": NaN}]')[0].name
    'aten::mm'
    """
    try:
        return _events.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return [lenient_event(event) for event in lenient_json(text, error)]


def decode_head(text: bytes | bytearray) -> Head:
    """A whole trace, or the part of one around its events.

    >>> decode_head(b'{"traceEvents": [], "distributedInfo": {"rank": 3}}').distributedInfo
    {'rank': 3}
    """
    try:
        return _head.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return lenient_head(lenient_json(text, error))


def lenient_json(text: bytes | bytearray, error: Exception) -> Any:
    """JSON as the standard library reads it, with the NaN, control characters and bad UTF-8 that msgspec refuses."""
    cut = "truncated" in str(error)
    try:
        return json.loads(text.decode(errors="replace"), strict=False)
    except (ValueError, RecursionError):
        raise UndecodableError(cut) from None


def lenient_head(loaded: Any) -> Head:
    """A head from JSON of any types."""
    if not isinstance(loaded, dict) or not isinstance(loaded.get("traceEvents"), list):
        raise UndecodableError(cut=False)
    names = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "cuda_runtime_version")
    return Head([lenient_event(event) for event in loaded["traceEvents"]], *(loaded.get(name) for name in names))


def lenient_event(event: Any) -> Event:
    """An event from JSON of any types: an invalid time becomes NaN, other invalid fields are left out.

    >>> lenient_event({"ph": "X", "ts": 1, "args": {"stream": "seven", "correlation": 2**70}}).ts
    1
    """
    if not isinstance(event, dict):
        return Event()
    args = event.get("args")
    return Event(
        ph=_text(event.get("ph")),
        cat=_text(event.get("cat")),
        name=_text(event.get("name")),
        pid=_id_or_text(event.get("pid")),
        tid=_id_or_text(event.get("tid")),
        ts=parsed_time(event.get("ts", math.nan)),
        dur=parsed_time(event.get("dur", 0)),
        args=_lenient_args(args) if isinstance(args, dict) else Args(),
    )


def _lenient_args(args: dict[str, Any]) -> Args:
    taken: dict[str, Any] = {}
    for info in _ARG_FIELDS:
        value = args.get(info.encode_name)
        if info.type is Raw:
            taken[info.name] = Raw(json.dumps(value if isinstance(value, list) else []).encode())
        elif isinstance(info.default, tuple):
            taken[info.name] = tuple(_id(size) or 0 for size in value[:3]) if isinstance(value, list) else ()
        elif isinstance(info.default, str):
            taken[info.name] = "" if value is None else str(value)
        elif (number := _id(value)) is not None:
            taken[info.name] = number
    return Args(**taken)


_ARG_FIELDS = msgspec.structs.fields(Args)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _id(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 40:
        value = int(value)
    if not isinstance(value, int):
        return None
    # Ids are only compared, so one too large for 64 bits may lose its upper bits.
    return value if abs(value) < 2**63 else value & (2**63 - 1)


def _id_or_text(value: Any) -> int | str:
    # Text stays text, as the strict decoder leaves it: a trace's chunks may be decoded either way.
    number = None if isinstance(value, str) else _id(value)
    return str(value) if number is None else number


def parsed_time(value: Any) -> int | float:
    """A time as a number, from whatever a trace has in its place; NaN for none.

    >>> parsed_time("12.5"), parsed_time([])
    (12.5, nan)
    """
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value) if value.isdecimal() else float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return math.inf if abs(value) >= 2**63 else value
