"""Claim: the headline of `foretrace show` is true on every published trace: step, active share of the step, exposed
communication, idle time and waits for other ranks within 1 % of what a plain reading of the JSON gives, what the step
is bound by and the largest cause of idle time the same, and 95 % of the idle time has a named cause.

The plain reading knows nothing of Foretrace. The window is the profiler's step mark, or first event to last without
one. In a trace of several steps, where the next step's first launch comes before the step's device work is done, the
host is ahead: then the window is from the end of the device work of the step before to the end of its own, if that is
longer. The device is active where any kernel, copy or memset runs in the window, whichever step launched it.
Communication is exposed where no other work runs beside its kernels; a rank waits from the start of its kernel to that
of the last rank's, where all launch as many. The host limits a step where the device idles for more than 30 % of it; or
for more than 10 %, and the threads that launch wait for it for less time than it idles. Nobody knows what limits a step
in which launched work does not start, where most of that time lies before the first recorded device event. Where the
device idles, the cause is what the thread that launches the next kernel does until it has launched it; what is left is
a launched kernel that does not start. Clocks of devices are moved by the least that lets no kernel start before its
launch.

    python -m benchmarks.claims.accuracy.headlines
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.lib.process import shared
from benchmarks.lib.table import keep

Event = dict[str, Any]
Spans = list[tuple[float, float]]

OFF, HOST_BOUND, BARELY_IDLE, NAMED, SMALL_MS = 0.01, 0.3, 0.1, 0.95, 0.05
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events"}
NO_WORK = re.compile(r"event_(wait|record)")
"""Records of a queue in which its device does nothing."""
RUNTIME = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime", "mtia_runtime"}
HOST = {"cpu_op", "Operator", "user_annotation", "python_function"} | RUNTIME
COMMUNICATES = re.compile(
    r"(?i)nccl|rccl|all_?reduce(?!d)|all_?gather|reduce_?scatter|all_?to_?all|all2all|cross_device_reduce|nvshmem|"
    r"mscclpp|internode|intranode|multimem"
)
NAMES = (
    ("data loading", re.compile(r"(?i)dataloader|load_batch")),
    ("garbage collection", re.compile(r"(?i)\bgc\b|garbage|<built-in function collect>")),
    ("checkpoint", re.compile(r"(?i)save_checkpoint|torch/serialization")),
    ("logging", re.compile(r"(?i)\blogging\b|metrics:publish")),
    ("lock", re.compile(r"(?i)\bacquire of|threading\.py\(\d+\): wait|built-in function sleep|\bflock\b")),
)
CALLS = re.compile(r"(?!autograd::engine|torch::autograd|c10d::barrier)\w+::|record_param_comms")
"""Calls into the dispatcher; what else the profiler files as ops are autograd's nodes around them."""
LAUNCHES = re.compile(r"(cuda|cu|hip)(Ext|Drv)?(Module)?(Launch|Memcpy|Memset|GraphLaunch)")


def union(spans: Spans) -> Spans:
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def clipped(spans: Spans, start: float, end: float) -> Spans:
    return [(max(a, start), min(b, end)) for a, b in spans if a < end and b > start]


class Thread:
    """What a thread does between any two borders of its events: the label of those that it is inside of."""

    def __init__(self, events: list[Event]) -> None:
        events = sorted(events, key=lambda e: (e["ts"], -e["dur"]))
        self.borders = sorted({t for e in events for t in (e["ts"], e["ts"] + e["dur"])})
        self.labels, stack, at = [], [], 0
        for border in self.borders:
            stack = [(end, label) for end, label in stack if end > border]
            while at < len(events) and events[at]["ts"] <= border:
                if events[at]["dur"] > 0:
                    stack.append((events[at]["ts"] + events[at]["dur"], own_label(events[at])))
                at += 1
            self.labels.append(of_stack([label for _, label in stack]))
        if self.labels:
            self.labels[-1] = NOTHING  # after the last event

    def pieces(self, start: float, end: float) -> Iterator[tuple[float, float, str]]:
        at = bisect_right(self.borders, start) - 1
        while start < end:
            until = min(self.borders[at + 1] if at + 1 < len(self.borders) else end, end)
            yield start, until, self.labels[at] if at >= 0 else NOTHING
            start, at = until, at + 1


class Trace:
    """One rank's trace, read plainly."""

    def __init__(self, path: Path) -> None:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", errors="replace") as file:
            loaded = json.load(file)
        events = [e for e in (loaded["traceEvents"] if isinstance(loaded, dict) else loaded) if e.get("ph") == "X"]
        scale = 1e-3 if any(e.get("ts", 0) > 1e17 for e in events[:100]) else 1.0
        # Older files count from the epoch by themselves.
        self.origin = int(loaded.get("baseTimeNanoseconds", 0)) / 1e3 if isinstance(loaded, dict) else 0.0
        self.events = [{**e, "ts": float(e["ts"]) * scale, "dur": float(e.get("dur", 0)) * scale} for e in events]
        self.device = [e for e in self.events if e.get("cat") in DEVICE and not NO_WORK.match(e["name"])]
        self.host = [e for e in self.events if e.get("cat") in HOST]
        marks = [e for e in self.host if re.match(r"ProfilerStep#\d+$", e["name"])]
        self.steps = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in marks}
        by_thread = defaultdict(list)
        for event in self.host:
            by_thread[event["pid"], event["tid"]].append(event)
        self.threads = {key: Thread(some) for key, some in by_thread.items()}
        runtime = [e for e in self.host if e["cat"] in RUNTIME]
        self.launch = {e["args"].get("correlation"): e for e in runtime if e.get("args", {}).get("correlation")}
        self._align()
        launches = Counter((e["pid"], e["tid"]) for e in runtime if LAUNCHES.match(e["name"]))
        self.launching = [key for key, _ in launches.most_common()]

    def _align(self) -> None:
        """Move the clock of each device by the least that lets none of its work start before its launch."""
        early: dict[Any, float] = defaultdict(float)
        for event in self.device:
            launch = self.launch.get(event["args"].get("correlation"), event)
            early[event["pid"]] = max(early[event["pid"]], launch["ts"] - event["ts"])
        for event in self.device:
            event["ts"] += early[event["pid"]]

    def window(self, step: str | None) -> tuple[float, float]:
        if step is not None:
            return self.steps[step]
        every = self.host + self.device
        return min(e["ts"] for e in every), max(e["ts"] + e["dur"] for e in every)

    def paced(self, step: str | None) -> tuple[float, float]:
        """The window, or that of the device where it falls behind the host."""
        start, end = self.window(step)
        if step is None or len(self.steps) == 1:
            return start, end
        last = not any(begin >= end for begin, _ in self.steps.values())
        launches = [(self.launch.get(e["args"].get("correlation"), {"ts": 0.0})["ts"], e) for e in self.device]
        first = min((ts for ts, _ in launches if start <= ts < end), default=start)
        following = end + first - start if last else min((ts for ts, _ in launches if ts >= end), default=end)
        own = [e for ts, e in launches if start <= ts < end]
        done = max((e["ts"] + e["dur"] for e in own), default=end)
        if done <= following:
            return start, end
        before = [e["ts"] + e["dur"] for ts, e in launches if ts < start and e["ts"] < done]
        begins = max([min(e["ts"] for e in own), *before])
        return (begins, done) if done - begins > end - start else (start, end)

    def headline(self, step: str | None) -> dict[str, Any]:
        start, end = self.paced(step)
        spans = [(e["ts"], e["ts"] + e["dur"], bool(COMMUNICATES.search(e["name"]))) for e in self.device]
        busy = union(clipped([(a, b) for a, b, _ in spans], start, end))
        compute = union(clipped([(a, b) for a, b, talks in spans if not talks], start, end))
        causes = self.causes(busy, start, end)
        step_ms, active = (end - start) / 1e3, length(busy) / 1e3
        idle = step_ms - active
        waits = "queue" if causes["launched"] / 1e3 > idle / 2 else "host"
        busy_host = waits == "host" and idle > BARELY_IDLE * step_ms and self.host_ms(start, end) > active
        bound = None if not spans else "device" if idle <= HOST_BOUND * step_ms and not busy_host else waits
        if bound == "queue" and (min(a for a, _, _ in spans) - start) / 1e3 > idle / 2:
            bound = None
        return {
            "step_ms": step_ms,
            "active_ms": active,
            "exposed_ms": (length(busy) - length(compute)) / 1e3,
            "bound": bound,
            "cause": causes.most_common(1)[0][0] if causes else None,
            "causes": {name: ms / 1e3 for name, ms in causes.most_common()},
            "named": 1 - causes[NOTHING] / 1e3 / idle if idle > SMALL_MS else 1.0,
        }

    def host_ms(self, start: float, end: float) -> float:
        """Milliseconds in which no thread that launches waits, in a sync or in a copy that returns when it is done."""
        waits = [e for e in self.host if own_label(e) == "sync"]
        for copy in self.device:
            call = self.launch.get(copy.get("args", {}).get("correlation"))
            if call and "emcpy" in copy["name"] and call["ts"] + call["dur"] >= copy["ts"] + copy["dur"]:
                waits.append(call)
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in waits if (e["pid"], e["tid"]) in self.launching]
        return (end - start - length(union(clipped(spans, start, end)))) / 1e3

    def causes(self, busy: Spans, start: float, end: float) -> Counter[str]:
        """Microseconds of idle time by what the launching thread does."""
        found: Counter[str] = Counter()
        begins = sorted((e["ts"], e["args"].get("correlation")) for e in self.device)
        times = [ts for ts, _ in begins]
        gaps = list(zip([start, *(b for _, b in busy)], [*(a for a, _ in busy), end]))
        for since, until in gaps:
            if until <= since:
                continue
            at = bisect_left(times, until)
            launch = self.launch.get(begins[at][1]) if at < len(begins) else None
            key = (launch["pid"], launch["tid"]) if launch else (self.launching or [None])[0]
            launched = min(max(launch["ts"] + launch["dur"], since), until) if launch else until
            found["launched"] += until - launched
            self.host_pieces(key, since, launched, found)
        return Counter({name: us for name, us in found.items() if us > 0})

    def host_pieces(self, key: Any, start: float, end: float, found: Counter[str]) -> None:
        """Add what a thread does, and where it does nothing that is recorded, what another launching thread does."""
        others = [other for other in (key, *self.launching) if other in self.threads]
        for begin, until, label in self.threads[others[0]].pieces(start, end) if others else ():
            if label not in (BETWEEN, NOTHING):
                found[label] += until - begin
                continue
            for since, to, several in self._at_once(others[1:], begin, until):
                found[next((one for one in several if one not in (BETWEEN, NOTHING)), label)] += to - since
        if not others:
            found[NOTHING] += end - start

    def _at_once(self, keys: list[Any], start: float, end: float) -> Iterator[tuple[float, float, list[str]]]:
        borders = {start, end}
        for key in keys:
            of = self.threads[key].borders
            borders.update(of[bisect_right(of, start) : bisect_right(of, end)])
        inside = sorted(borders)
        for since, to in pairwise(inside):
            yield since, to, [next(self.threads[k].pieces(since, to))[2] for k in keys]


BETWEEN, NOTHING = "between ops", "nothing recorded"


@cache
def by_name(name: str) -> str:
    return next((label for label, pattern in NAMES if pattern.search(name)), "")


def own_label(event: Event) -> str:
    """What an event says of the time inside it; empty where it says nothing."""
    name = event["name"]
    if event["cat"] in RUNTIME:
        return "sync" if "Synchronize" in name else "launch calls" if LAUNCHES.match(name) else ""
    if name.startswith("ProfilerStep"):
        return ""
    return by_name(name) or ("inside ops" if event["cat"] in ("cpu_op", "Operator") and CALLS.match(name) else "")


def of_stack(labels: list[str]) -> str:
    """What a stack of events is: the outermost that has a meaning of its own, else the innermost."""
    for label in labels:
        if label not in ("", "sync", "launch calls", "inside ops"):
            return label
    return next((label for label in reversed(labels) if label in ("sync", "launch calls")), "") or (
        "inside ops" if "inside ops" in labels else BETWEEN
    )


def traces() -> Iterator[tuple[str, Path, list[Path]]]:
    """Name, what show is given, and the profiler trace of each rank."""
    public, h200 = shared("public"), shared("traces/h200")
    for file in [*sorted((public / "wild").glob("*.json.gz")), *sorted((public / "single_rank").glob("*.gz"))]:
        if "_et." not in file.name:
            yield file.name.split(".")[0], file, [file]
    for folder in ("wild/torchrec_4xV100", "wild/sglang_decode_8xB200"):
        yield folder.split("/")[1], public / folder, sorted((public / folder).glob("*.json.gz"))
    for folder in ("dlrm_8xV100", "megatron_tp8_8xA100", "megatron_tp2_2xV100"):
        yield folder, public / folder, sorted((public / folder).glob("*.kineto.json.gz"))
    for case in sorted(h200.iterdir()):
        yield case.name, case, [case / "kineto.json.gz"]


def plain_waits(ranks: list[Trace], step: str | None) -> list[float] | None:
    """Milliseconds that each rank waits for others: from its start to that of the last rank, of the n-th collective
    that the step launches on each, on devices and on hosts (gloo). None where ranks launch different numbers of them.
    """
    found: list[list[list[tuple[float, float]]]] = []
    for rank in ranks:
        start, end = rank.window(step)
        talks = [e for e in rank.device if COMMUNICATES.search(e["name"])]
        launched = [(e, rank.launch.get(e["args"].get("correlation"), e)["ts"]) for e in talks]
        spans = [sorted((e["ts"], e["ts"] + e["dur"]) for e, ts in launched if step is None or start <= ts < end)]
        hosts = [e for e in rank.host if e["name"].startswith("gloo:") and start <= e["ts"] < end]
        found.append([*spans, sorted((e["ts"], e["ts"] + e["dur"]) for e in hosts)])
    if len({tuple(map(len, spans)) for spans in found}) != 1:
        return None
    waits: list[Spans] = [[] for _ in ranks]
    for each in zip(*found):
        for same in zip(*each):
            last = max(a + rank.origin for (a, _), rank in zip(same, ranks))
            for mine, (a, b), rank in zip(waits, same, ranks):
                mine += [(a, min(last - rank.origin, b))] if last > a + rank.origin else []
    return [length(union(mine)) / 1e3 for mine in waits]


COARSE = {
    "T1": "between ops", "annotation": "between ops", "python": "between ops", "T2": "inside ops", "T3": "inside ops",
    "T5": "inside ops", "T4": "launch calls", "latency": "launched", "queued": "launched", "busy wait": "sync",
    "allocation": "inside ops", "communication": "inside ops", "no event": "nothing recorded",
}  # fmt: skip
"""The plain reading's words for causes that show tells apart more finely."""


def held(name: str, given: Path, files: list[Path]) -> Iterator[dict[str, Any]]:
    """Show's headline against the plain reading, rank by rank."""
    import foretrace as ft

    said = ft.observe(ft.load(given)).to_dict()
    read = [Trace(file) for file in files]
    waits = plain_waits(read, said["step"]) if len(read) > 1 else None
    for place, (number, trace) in enumerate(zip(said["step_ms"], read)):
        plain = trace.headline(said["step"])
        idle = plain["step_ms"] - plain["active_ms"] if trace.device else 0.0
        figures = {
            "step": (said["step_ms"][number], plain["step_ms"]),
            "active": (said["device_active_ms"][number], plain["active_ms"]),
            "exposed": (said["overlap"][number]["exposed_ms"], plain["exposed_ms"]),
            "idle": (said["device_idle_ms"][number], idle),
        }
        if waits is not None:
            figures["wait"] = said["wait_ms"][number], waits[place]
        causes: Counter[str] = Counter()
        for cause, ms in said["ranks"][number].get("idle_causes", {}).items():
            causes[COARSE.get(cause, cause)] += ms
        cause = causes.most_common(1)[0][0] if causes else None
        # Two causes that are as long as each other are both the largest.
        same = (
            cause == plain["cause"]
            or abs(plain["causes"].get(str(cause), 0) / max(plain["causes"].values(), default=1) - 1) < 0.1
        )
        yield {
            "trace": name,
            "rank": number,
            **{key: round(one, 3) for key, (one, _) in {"wait": (0.0, 0.0), **figures}.items()},
            "off %": round(
                100 * max(abs(a - b) / max(b, SMALL_MS, 0.01 * plain["step_ms"]) for a, b in figures.values()), 2
            ),
            "bound": said["ranks"][number].get("bound"),
            "plain bound": plain["bound"],
            "cause": cause,
            "plain cause": plain["cause"],
            "same": same if idle > SMALL_MS and plain["active_ms"] else None,
            "named %": round(100 * (1 - causes["nothing recorded"] / idle), 1) if idle > SMALL_MS and causes else None,
            "plain named %": round(100 * plain["named"], 1),
        }


def holds(row: dict[str, Any]) -> bool:
    named = row["named %"] is None or row["named %"] >= min(100 * NAMED, row["plain named %"] - 1)
    return row["off %"] <= 100 * OFF and row["bound"] == row["plain bound"] and row["same"] in (True, None) and named


def main() -> int:
    rows = [{**row, "true": holds(row)} for one in traces() for row in held(*one)]
    keep("headlines", rows)
    return int(not all(row["true"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
