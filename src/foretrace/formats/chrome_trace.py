"""Traces in other shapes of Chrome's format: JAX and XLA, Ascend, PyTorch before Kineto, and spans as pairs of events.

Events of other profilers have no categories that tell host from device: the names of processes and threads do. The
events become those of a PyTorch profiler trace.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretrace.files import read_json_chunks
from foretrace.formats.kineto.columns import BEGINS, Columns, is_device
from foretrace.formats.kineto.decode import Args, Event, lenient_event, parsed_time
from foretrace.formats.kineto.events import json_or_error

_WORK_LANES = (re.compile(r"(?i)stream"), re.compile(r"XLA Ops"))
"""Threads of a device that show its work; others repeat it by module, step or framework op."""
_HOST = re.compile(r"(?i)host|cpu|python")
_RUNTIME_CALL = re.compile(r"(cuda|cu|hip|ze|acl)[A-Z]\w+")
_LEGACY_HOST = "CPU functions"
"""Process under which PyTorch's profiler before Kineto lists ops."""
_CATEGORIES = ("cpu_op", "user_annotation", "python_function")
_COPY = re.compile(r"(?i)memcpy|(?<![a-z])copy|MemCopy")
_QUEUED = re.compile(r"(?i)kernel|memcpy|memset")
"""Categories of work that ends in the order in which it begins."""
_BORDERS = {*BEGINS, *BEGINS.values()}
MAX_DIGITS = 20
"""Longer numbers of processes are names: Python refuses to read very long ones."""
_LAUNCH_US = 1.0
"""What a launch takes at most of the op in which it is, where only the op is known."""

Lane = tuple[Any, Any]
"""Process and thread of an event."""


def read_lanes(path: Path) -> Columns | None:
    """The events of a trace whose spans are pairs of events, whose launches only flows name, or whose processes say
    what is a device; None for others.

    Spans that never end are left out, and counted in ``begun``.
    """
    loaded = json_or_error(path, b"".join(read_json_chunks(path)))
    listed = loaded.get("traceEvents") if isinstance(loaded, dict) else loaded
    events = [event for event in listed if isinstance(event, dict)] if isinstance(listed, list) else []
    raw = [event for event in events if isinstance(event.get("ph"), str)]
    paired, unended = joined_pairs(raw)
    found = Columns.of([lenient_event(event) for event in with_flow_ids(paired)], str(path))
    lanes = _Lanes(paired)
    if not found.device.count:
        if lanes.devices:
            found = Columns.of(list(lanes.events(paired)), str(path))
        elif len(paired) == len(raw):
            return None
    found.begun = unended
    return found


def with_flow_ids(raw: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events, those without a correlation id with that of the flow which starts or ends where they start.

    >>> launch, flow = ({"ph": ph, "pid": 1, "tid": 2, "ts": 5} for ph in ("X", "s"))
    >>> next(with_flow_ids([launch, {**flow, "id": 9}]))["args"]
    {'correlation': 9}
    """
    flows = {_at(event): event.get("id") for event in raw if event.get("ph") in ("s", "f", "t")}
    for event in raw:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        flow = flows.get(_at(event)) if event.get("ph") == "X" and not args.get("correlation") else None
        yield event if flow is None else {**event, "args": {**args, "correlation": flow}}


def joined_pairs(raw: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Events with each begin and end joined into one span, and the number of spans that never end.

    On a thread spans nest, so an end is that of the last open begin; kernels of a stream do not, so that theirs is that
    of the first. An asynchronous one has its own category and id, and overlaps with what its thread does.

    >>> begin = {"ph": "B", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5}
    >>> joined_pairs([begin, {"ph": "E", "pid": 1, "tid": 1, "ts": 9}])
    ([{'ph': 'X', 'name': 'aten::mm', 'pid': 1, 'tid': 1, 'ts': 5, 'dur': 4, 'args': {}}], 0)
    """
    borders = [event for event in raw if event.get("ph") in _BORDERS]
    found = [event for event in raw if event.get("ph") not in _BORDERS]
    open_spans: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in sorted(borders, key=_border_time):
        on_thread = event["ph"] in "BE"
        lane: Any = _lane(event)
        if not on_thread:
            lane = (str(event.get("cat")), str(event.get("id", event.get("id2"))))
        stack = open_spans[lane]
        if event["ph"] in BEGINS:
            stack.append(event)
            continue
        name = event.get("name", "")
        alike = [i for i, begin in enumerate(stack) if name in ("", begin.get("name"))]
        if not alike:
            continue
        in_order = _QUEUED.search(str(stack[alike[-1]].get("cat")))
        begin = stack.pop(alike[0] if in_order else alike[-1])
        args = [some for some in (begin.get("args"), event.get("args")) if isinstance(some, dict)]
        span = {**begin, "ph": "X", "dur": parsed_time(event.get("ts")) - parsed_time(begin.get("ts"))}
        span["args"] = {key: value for some in args for key, value in some.items()}
        if not on_thread:
            span["tid"] = f"{begin.get('tid')} {lane}"
        found.append(span)
    return found, sum(map(len, open_spans.values()))


def _border_time(event: dict[str, Any]) -> float:
    at = parsed_time(event.get("ts"))
    return -math.inf if math.isnan(at) else at


_DEVICE_NUMBER = re.compile(r"(?:gpu|[tnhx]pu|device)[ :#]?(\d{1,4})\b", re.IGNORECASE)


class _Lanes:
    """Which processes of a trace are devices, and which of their threads show work."""

    def __init__(self, raw: list[dict[str, Any]]) -> None:
        self.processes: dict[Any, str] = {}
        self.threads: dict[Lane, str] = {}
        for event in raw:
            args = event.get("args")
            label = str(args.get("name", "")) if isinstance(args, dict) else ""
            if event.get("name") == "process_name":
                self.processes[_key(event.get("pid"))] = label
            elif event.get("name") == "thread_name":
                self.threads[_lane(event)] = label
        pids = {_key(event.get("pid")) for event in raw if event.get("ph") == "X"}
        self.devices = {pid for pid in pids if is_device(self.processes.get(pid, str(pid)))}
        self.numbers = _device_numbers({pid: self.processes.get(pid, str(pid)) for pid in self.devices})
        """Of the devices."""
        spans = [event for event in raw if event.get("ph") == "X"]
        ends = [event for event in raw if event.get("ph") in ("f", "t")]
        self.begun = {_at(event): event.get("id") for event in raw if event.get("ph") == "s"}
        self.ended = {_at(event): event.get("id") for event in ends}
        """Flows by the place where they begin and end."""
        self.calls = {_at(event) for event in spans if _RUNTIME_CALL.match(str(event.get("name")))}
        self.ops = {_at(event): parsed_time(event.get("dur", 0)) for event in sorted(spans, key=_longest_first)}
        """Where calls of the device's runtime begin, and how long the innermost op takes that begins there."""
        self.arrival = {str(event.get("id")): parsed_time(event.get("ts")) for event in ends}
        """When flows end."""
        self.shown = {pid: self._shown(pid) for pid in self.devices}

    def _shown(self, pid: Any) -> set[Lane] | None:
        """The threads of a device that show its work; None for all."""
        named = {lane: name for lane, name in self.threads.items() if lane[0] == pid}
        for pattern in _WORK_LANES:
            if found := {lane for lane, name in named.items() if pattern.search(name)}:
                return found
        return None

    def events(self, raw: list[dict[str, Any]]) -> Iterator[Event]:
        """The events as PyTorch's profiler would have written them."""
        numbers: dict[Any, int] = {}
        for event in raw:
            pid, ph = _key(event.get("pid")), event.get("ph")
            if ph == "X" and pid in self.devices:
                if self.shown[pid] is None or _lane(event) in (self.shown[pid] or ()):
                    yield self._device_event(event, numbers)
            elif ph == "X":
                yield from self._host_event(event, numbers)
            elif ph == "s" and "id" in event and _at(event) not in self.calls:
                launch = lenient_event({**event, "ph": "X", "cat": "cuda_runtime", "name": "launch", "args": None})
                launch.args = Args(correlation=_number(event["id"], numbers))
                launch.ts, launch.dur = self._launch_time(event)
                yield launch

    def _launch_time(self, flow: dict[str, Any]) -> tuple[float, float]:
        """When a launch begins of which a flow tells, and how long it takes.

        A flow that begins where an op does says in which op the launch is, and not when: it is no later than the op's
        end, and than what was launched.
        """
        begin = parsed_time(flow.get("ts"))
        if not (taken := self.ops.get(_at(flow), 0.0)) > 0:
            return begin, 0.0
        end = max(min(begin + taken, self.arrival.get(str(flow["id"]), math.inf)), begin)
        took = min(_LAUNCH_US, (end - begin) / 2)
        return end - took, took

    def _device_event(self, event: dict[str, Any], numbers: dict[Any, int]) -> Event:
        found = lenient_event({**event, "args": None})
        flow = _correlation(event)
        flow = self.ended.get(_at(event)) if flow is None else flow
        found.cat = "gpu_memcpy" if _COPY.match(found.name) else "kernel"
        found.args = Args(
            device=self.numbers[_key(event.get("pid"))],
            stream=_number(("stream", _lane(event)), numbers),
            correlation=0 if flow is None else _number(flow, numbers),
        )
        return found

    def _host_event(self, event: dict[str, Any], numbers: dict[Any, int]) -> Iterator[Event]:
        pid = _key(event.get("pid"))
        process, found = self.processes.get(pid, str(pid)), lenient_event(event)
        flow = _correlation(event)
        if _RUNTIME_CALL.match(found.name) and found.cat not in _CATEGORIES:
            flow = self.begun.get(_at(event)) if flow is None else flow
            found.cat, found.args = "cuda_runtime", Args(correlation=0 if flow is None else _number(flow, numbers))
        elif pid == _LEGACY_HOST:
            found.cat = "cpu_op"
            if re.fullmatch(r"[a-z_]\w*", found.name):  # before PyTorch 1.6 without the namespace
                found.name = f"aten::{found.name}"
        elif found.cat not in _CATEGORIES:
            if not _HOST.search(process):
                return
            found.cat = "user_annotation"
            args = event.get("args")
            if isinstance(args, dict) and str(args.get("step_num", "")).isdecimal():
                found.name = f"ProfilerStep#{args['step_num']}"
        yield found


def _device_numbers(names: dict[Any, str]) -> dict[Any, int]:
    """The number of each device as the names of their processes have it; by order where these tell no devices apart.

    >>> _device_numbers({7: "/device:GPU:2", 8: "/device:GPU:3"}), _device_numbers({7: "NPU", 4: "NPU"})
    ({7: 2, 8: 3}, {4: 0, 7: 1})
    """
    last = {pid: _DEVICE_NUMBER.search(name) for pid, name in names.items()}
    numbers = {pid: int(found[1]) for pid, found in last.items() if found}
    if len(set(numbers.values())) == len(names):
        return numbers
    return {pid: place for place, pid in enumerate(sorted(names, key=lambda pid: (isinstance(pid, str), pid)))}


def _longest_first(event: dict[str, Any]) -> float:
    took = parsed_time(event.get("dur", 0))
    return 0.0 if math.isnan(took) else -took


def _key(number: Any) -> Any:
    """The number of a process or thread, which flows may have as text; or its name.

    >>> _key("7"), _key(7), _key("Stream 7")
    (7, 7, 'Stream 7')
    """
    if isinstance(number, str) and number.isdecimal() and len(number) < MAX_DIGITS:
        return int(number)
    return number if isinstance(number, (int, str)) else str(number)


def _lane(event: dict[str, Any]) -> Lane:
    return _key(event.get("pid")), _key(event.get("tid"))


def _at(event: dict[str, Any]) -> tuple[Lane, str]:
    return _lane(event), str(event.get("ts"))


def _correlation(event: dict[str, Any]) -> Any:
    args = event.get("args")
    if not isinstance(args, dict):
        return None
    found = args.get("correlation_id", args.get("correlation"))
    return None if found in (None, 0, "0", "") else str(found)


def _number(key: Any, numbers: dict[Any, int]) -> int:
    """A number for each distinct key, from 1 on."""
    return numbers.setdefault(key if isinstance(key, (int, str, tuple)) else str(key), len(numbers) + 1)
