"""Claim: no damaged trace ends `foretrace show` or `foretrace predict` in a traceback or a hang. 2,000 copies of the
published wild traces, each cut, with fields deleted, types swapped, numbers too large, NaN or nested junk in them, end
in a report or in one line with an advice.

Copies are made of pieces of the traces, so that each takes a fraction of a second; the random numbers are seeded, and
`--seed` makes others.

    python -m benchmarks.claims.accuracy.mutated_traces [--count 2000] [--seed 0] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import random
import shutil
import signal
import sys
import tarfile
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from benchmarks.lib.process import shared
from benchmarks.lib.table import keep
from foretrace.cli.app import BUG, run
from foretrace.formats.chakra import schema

EVENTS = 400
"""Events or nodes of a trace that are kept."""
LIMIT_S, WALL_LIMIT_S = 60, 600
"""No copy is so large that reading it should take as long: it hangs. The first is time of the processor, which does not
depend on what else the machine does."""
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**70, -(2**63), 1e308, 0.5, float("nan"), float("inf"), "", "x", "1e999",
    "\ud800", [], {}, [[[[[]]]]], {"a": {"b": [1, {"c": None}]}}, [None] * 50, "\x00\x1b[2J", "nccl", "ProfilerStep#1",
)  # fmt: skip
SUBCOMMANDS = (
    ["show"], ["show", "--json"], ["predict", "--on", "h200", "--kernels", "measured"], ["show"], ["predict"],
    ["predict", "--on", "h200"], ["show"],
)  # fmt: skip
Mutation = Callable[[random.Random, Any], Any]


def places(value: Any, found: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    found = [] if found is None else found
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        places(inner, found)
    return found


def delete_fields(rng: random.Random, trace: Any) -> Any:
    for container, key in rng.sample(everywhere := places(trace), min(len(everywhere), rng.randint(1, 12))):
        with contextlib.suppress(KeyError, IndexError):
            del container[key]
    return trace


def delete_a_key_everywhere(rng: random.Random, trace: Any) -> Any:
    everywhere = places(trace)
    gone = rng.choice([key for _, key in everywhere if isinstance(key, str)] or [""])
    for container, key in everywhere:
        if key == gone:
            container.pop(key, None)
    return trace


def swap_types(rng: random.Random, trace: Any) -> Any:
    for container, key in rng.sample(everywhere := places(trace), min(len(everywhere), rng.randint(1, 12))):
        with contextlib.suppress(KeyError, IndexError):
            container[key] = rng.choice(JUNK)
    return trace


def swap_a_key_everywhere(rng: random.Random, trace: Any) -> Any:
    everywhere = places(trace)
    wanted, junk = rng.choice([key for _, key in everywhere if isinstance(key, str)] or [""]), rng.choice(JUNK)
    for container, key in everywhere:
        if key == wanted and rng.random() < 0.7:
            container[key] = junk
    return trace


def repeat_and_shuffle(rng: random.Random, trace: Any) -> Any:
    for container, key in places(trace)[:20]:
        if isinstance(container[key], list) and len(container[key]) > 10:
            container[key] = container[key] + rng.sample(container[key], rng.randint(1, len(container[key])))
            rng.shuffle(container[key])
    return trace


def scale_numbers(rng: random.Random, trace: Any) -> Any:
    factor = rng.choice([-1, 0, 1e-9, 1e6, 1e15, 2**40])
    wanted = rng.choice(
        ["ts", "dur", "id", "correlation", "stream", "tid", "External id", "grid", "parent", "ctrl_deps"]
    )
    for container, key in places(trace):
        if key == wanted and isinstance(container[key], (int, float)):
            container[key] = container[key] * factor
    return trace


def cut(rng: random.Random, text: bytes) -> bytes:
    return text[: rng.randint(1, len(text))]


def change_bytes(rng: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(rng.randint(1, 30)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def remove_or_repeat_a_piece(rng: random.Random, text: bytes) -> bytes:
    start = rng.randrange(len(text))
    end = min(len(text), start + rng.randint(1, 3000))
    return text[:start] + text[end:] if rng.random() < 0.5 else text[:end] + text[start:]


def insert_junk(rng: random.Random, text: bytes) -> bytes:
    junk = rng.choice(
        [b"NaN", b"[" * 5000, b'{"a":' * 3000, b"\x00" * 50, b"1" * 400, b"\xff\xfe", b'"', b"}]", b"-Infinity"]
    )
    at = rng.randrange(len(text))
    return text[:at] + junk + text[at:]


OF_TREES: tuple[Mutation, ...] = (
    delete_fields, delete_a_key_everywhere, swap_types, swap_a_key_everywhere, repeat_and_shuffle, scale_numbers,
)  # fmt: skip
OF_BYTES: tuple[Mutation, ...] = (cut, change_bytes, remove_or_repeat_a_piece, insert_junk)


def sources(wild: Path, folder: Path) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """The wild traces: their names, and the files of each."""
    with tarfile.open(wild / "chakra_feeder.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    for path in sorted(wild.iterdir()):
        files = sorted(path.iterdir())[:3] if path.is_dir() else [path]
        if path.name.endswith(".tar.gz"):
            files = sorted(folder.rglob("*.et"))
        pieces = [(file.name.removesuffix(".gz"), piece(file)) for file in files]
        yield path.name.partition(".")[0], pieces
        if path.name.startswith("chakra"):
            yield "chakra_json", [(f"{name}.json", as_json(text)) for name, text in pieces]


def piece(file: Path) -> bytes:
    """The first and some of the last events of a file, or all of a small binary one."""
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    if file.suffix == ".et":
        return b"".join(framed_messages(text)[: 2 * EVENTS])
    loaded = json.loads(text)
    for key in ("traceEvents", "nodes"):
        if key in loaded:
            loaded[key] = some_of(loaded[key])
    return json.dumps(loaded).encode()


def framed_messages(text: bytes) -> list[bytes]:
    """The messages of a Chakra file, each with its length in front."""
    found, at = [], 0
    while at < len(text):
        size = shift = 0
        begin, more = at, True
        while more:
            size, more = size | (text[at] & 0x7F) << shift, text[at] >= 0x80
            at, shift = at + 1, shift + 7
        at += size
        found.append(text[begin:at])
    return found


def as_json(text: bytes) -> bytes:
    """A Chakra file as MLCommons' tool writes it in JSON: there, fields can be changed."""
    metadata, *nodes = schema.unframed(text)
    parsed = [schema.GlobalMetadata.FromString(metadata), *map(schema.Node.FromString, nodes)]
    return json.dumps([MessageToDict(message) for message in parsed]).encode()


def some_of(events: list[Any]) -> list[Any]:
    """Events of every category, those of devices with their launches, and some calls of each step with those around."""
    device = [e for e in events if e.get("cat") in ("kernel", "Kernel", "gpu_memcpy", "mtia_ccp_events")]
    device = device[:: len(device) // (EVENTS // 4) + 1]
    launched = {e.get("args", {}).get("correlation") for e in device}
    calls = [
        e for e in events if "runtime" in str(e.get("cat")).lower() and e.get("args", {}).get("correlation") in launched
    ]
    marks = [e for e in events if str(e.get("name")).startswith(("ProfilerStep", "[pytorch", "gloo", "nccl", "c10d"))]
    begins = [at for at, event in enumerate(events) if str(event.get("name")).startswith("ProfilerStep")]
    inside = [event for at in begins[:4] for event in events[max(at - EVENTS // 4, 0) : at + EVENTS // 4]]
    taken = {id(event): event for event in [*events[:EVENTS], *marks[:50], *calls, *device, *events[-50:], *inside]}
    by_id = {event["id"]: event for event in events if "ctrl_deps" in event}
    for around in [event for event in taken.values() if "ctrl_deps" in event]:
        while (around := by_id.get(around["ctrl_deps"])) is not None and id(around) not in taken:
            taken[id(around)] = around
    return [event for event in events if id(event) in taken]


def mutated(rng: random.Random, text: bytes) -> tuple[str, bytes]:
    """A damaged copy, and what was done."""
    if rng.random() < 0.6:
        with contextlib.suppress(ValueError, RecursionError):
            how = rng.choice(OF_TREES)
            return how.__name__, json.dumps(how(rng, json.loads(text))).encode(errors="replace")
    how = rng.choice(OF_BYTES)
    return how.__name__, how(rng, text)


class HangError(BaseException):
    """The time is over; no subcommand takes it for a bug of its own."""


def ending(read: Callable[[], str]) -> str:
    """How a reader ends: as it says itself, or with a bug or a hang."""

    def hangs(number: int, frame: object) -> None:
        raise HangError

    timers = ((signal.ITIMER_REAL, signal.SIGALRM, WALL_LIMIT_S), (signal.ITIMER_VIRTUAL, signal.SIGVTALRM, LIMIT_S))
    for timer, number, seconds in timers:
        signal.signal(number, hangs)
        signal.setitimer(timer, seconds)
    try:
        return read()
    except HangError:
        return "hang"
    except BaseException:  # whatever escapes is what is looked for
        traceback.print_exc()
        return "bug"
    finally:
        for timer, *_ in timers:
            signal.setitimer(timer, 0)


def outcome(arguments: list[str]) -> str:
    """How a subcommand ends: report, refused, bug or hang."""

    def subcommand() -> str:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = run()
        return "bug" if code == BUG or "Traceback" in said.getvalue() else "report" if code == 0 else "refused"

    sys.argv = ["foretrace", *arguments]
    return ending(subcommand)


def main() -> int:
    """Mutate, run and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where copies that end badly are put")
    options = parser.parse_args()
    rng, found, by_trace = random.Random(options.seed), [], {}
    with tempfile.TemporaryDirectory() as scratch:
        known = list(sources(shared("public/wild"), Path(scratch) / "feeder"))
        for number in range(options.count):
            name, files = rng.choice(known)
            folder = Path(scratch) / "copy"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            which = rng.randrange(len(files))
            how = ""
            for place, (file, text) in enumerate(files):
                if place == which:
                    how, text = mutated(rng, text)
                (folder / file).write_bytes(text)
            subcommand = rng.choice(SUBCOMMANDS)
            ended = outcome([subcommand[0], str(folder if len(files) > 1 else folder / files[0][0]), *subcommand[1:]])
            by_trace.setdefault(name, Counter())[ended] += 1
            if ended in ("bug", "hang"):
                found.append((number, name, how, " ".join(subcommand), ended))
                print(*found[-1], flush=True)
                if options.keep:
                    shutil.copytree(folder, options.keep / f"{number}-{name}-{how}", dirs_exist_ok=True)
    ends = ("report", "refused", "bug", "hang")
    rows = [{"trace": name, "copies": sum(c.values()), **{end: c[end] for end in ends}} for name, c in by_trace.items()]
    total = sum(by_trace.values(), Counter())
    keep("mutated_traces", [*rows, {"trace": "all", "copies": options.count, **{end: total[end] for end in ends}}])
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
