"""Memory snapshots for pytorch.org/memory_viz: the allocations of a simulated process, in PyTorch's own form.

The viewer reads what ``torch.cuda.memory._dump_snapshot`` writes: a pickle of plain lists and dictionaries. Here one is
only ever written.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from foretrace.output import SNAPSHOT, open_output


class SnapshotEvent(NamedTuple):
    """An allocation or a free, and which call made it."""

    is_allocation: bool
    address: int
    nbytes: int
    stream: int
    call: str
    """The op, shown as the function that allocated."""
    place: str
    """Its module, or what the memory is for."""


def write_snapshot(
    path: Path, events: Iterable[tuple[bool, int, int, int, str, str]], segments: Mapping[int, int]
) -> None:
    """Write a snapshot of a process's memory: its allocations in order, each a `SnapshotEvent`, and its segments."""
    trace, living = [], dict[int, SnapshotEvent]()
    for time, event in enumerate(SnapshotEvent(*each) for each in events):
        frames = [{"name": event.call, "filename": event.place, "line": 0}]
        entry = {"addr": event.address, "size": event.nbytes, "stream": event.stream, "time_us": time, "frames": frames}
        if event.is_allocation:
            living[event.address] = event
            trace.append({"action": "alloc", **entry})
        else:
            living.pop(event.address, None)
            trace += [{"action": action, **entry} for action in ("free_requested", "free_completed")]
    starts = sorted(segments)
    inside: dict[int, list[SnapshotEvent]] = {start: [] for start in starts}
    for event in sorted(living.values(), key=lambda event: event.address):
        place = bisect_right(starts, event.address) - 1
        if place >= 0:
            inside[starts[place]].append(event)
    snapshot = {
        "segments": [_segment(start, segments[start], inside[start]) for start in starts],
        "device_traces": [trace],
        "allocator_settings": {},
        "external_annotations": [],
    }
    with open_output(path, SNAPSHOT) as file:
        pickle.dump(snapshot, file, protocol=4)


def _segment(start: int, nbytes: int, living: Sequence[SnapshotEvent]) -> dict[str, object]:
    """A segment, with the blocks in it, in use or free."""
    blocks: list[dict[str, object]] = []
    at = start
    for event in [*living, None]:
        end = event.address if event else start + nbytes
        if end > at:
            blocks.append({"address": at, "size": end - at, "requested_size": 0, "state": "inactive", "frames": []})
        if event:
            frames = [{"name": event.call, "filename": event.place, "line": 0}]
            block = {"address": event.address, "size": event.nbytes, "requested_size": event.nbytes}
            blocks.append({**block, "state": "active_allocated", "frames": frames})
            at = event.address + event.nbytes
    used = sum(event.nbytes for event in living)
    return {
        "device": 0, "address": start, "total_size": nbytes, "allocated_size": used, "active_size": used,
        "requested_size": used, "stream": 0, "segment_type": "small" if nbytes <= 2 << 20 else "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip
