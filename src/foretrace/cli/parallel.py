"""``--parallel data=8,tensor=2,…``: how many ranks shall share a step, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretrace.api import DEFAULT_PLATFORM, read
from foretrace.graph import ForetraceError, Job
from foretrace.platforms import platform
from foretrace.transforms.parallel.parallelize import ParallelConfig, parallelize

if TYPE_CHECKING:
    from foretrace._progress import OnProgress

NUMBERS = ("data", "tensor", "pipeline", "experts", "microbatches", "chunks")
FLAGS = ("overlap", "sequence", "sharded", "mixed", "tables")
KNOWN = (*NUMBERS, *FLAGS, "schedule", "bucket_mb")


def shared(what: str, words: str, on: str | None, on_progress: OnProgress) -> Job:
    """The job that the step of one rank becomes.

    Parameters
    ----------
    what
        A recording, a trace or a script, as for `foretrace predict`.
    words
        Options of `foretrace.parallelize`, with commas between them: ``data=8,tensor=2,sharded``.
    on
        The platform that a script shall find itself on.
    on_progress
        Called with how far the measuring is, where that was never measured.
    """
    ways = options(words)
    ParallelConfig(**ways)  # refuses what contradicts itself, before minutes of sketching
    job = read(what, platform(on or DEFAULT_PLATFORM, on_progress=on_progress).device.kind)
    return parallelize(job, **ways)


def options(words: str) -> dict[str, Any]:
    """What the words say.

    >>> options("data=8,schedule=interleaved,sharded")
    {'data': 8, 'schedule': 'interleaved', 'sharded': True}
    """
    found: dict[str, Any] = {}
    for word in filter(None, (word.strip() for word in words.split(","))):
        name, given, value = word.partition("=")
        if name not in KNOWN:
            raise ForetraceError(f"--parallel knows no {name!r}", f"It knows {', '.join(KNOWN)}.")
        if bool(given) == (name in FLAGS):
            raise ForetraceError(
                f"--parallel {word}: {name} {'takes no value' if given else 'needs a value'}", _EXAMPLE
            )
        if name in found:
            raise ForetraceError(f"--parallel says {name} twice", "Say each once.")
        found[name] = True if name in FLAGS else _read(name, value)
    if not found:
        raise ForetraceError("--parallel says nothing", _EXAMPLE)
    return found


def as_changes(words: str) -> list[str]:
    """The same words as changes that `foretrace whatif` can set.

    >>> as_changes("data=8,sharded,bucket_mb=100")
    ['data=8', 'sharded=on', 'buckets=100']
    """
    found = options(words)
    if "bucket_mb" in found:
        found["buckets"] = f"{found.pop('bucket_mb'):g}"
    return [f"{name}={'on' if name in FLAGS else value}" for name, value in found.items()]


def _read(name: str, value: str) -> int | float | str:
    if name == "schedule":
        return value
    try:
        return int(value) if name in NUMBERS else float(value)
    except ValueError:
        raise ForetraceError(f"--parallel {name}={value}: {value!r} is no number", _EXAMPLE) from None


_EXAMPLE = "For instance: --parallel data=8,tensor=2,pipeline=4,microbatches=16."
