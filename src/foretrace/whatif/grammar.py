"""Changes as a user writes them: ``--set batch=64``, ``--set rows:tables.3=1000000``, ``--parallel data=8,sharded``.

One grammar for both options: `STEP_CHANGES` are made to the step of each rank, `JOB_CHANGES` to how ranks share it. To
add a change of the step, write the transform in `foretrace.transforms` and name it in `STEP_CHANGES`. One of the job is
named in `PARALLELISM` if it is an option of `parallelize`; else in `JOB_CHANGES`, with a field of `JobChanges` and its
place in `EditedJob.by` (``changes``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from foretrace.errors import ForetraceError, parse_size, unknown_name
from foretrace.graph import MAX_RANKS, Graph
from foretrace.transforms.fusion.ddp_buckets import parse_bucket_size
from foretrace.transforms.fusion.fuse import fuse, parse_fusion
from foretrace.transforms.numerics import autocast, dtype, parse_autocast_dtype, parse_dtype
from foretrace.transforms.parallel.schedules import CONTEXT_KINDS, SCHEDULES
from foretrace.transforms.resize.tables import pooling, table_dim, table_rows
from foretrace.transforms.resize.width import heads, width
from foretrace.transforms.structure.attention import attention, check_attention
from foretrace.transforms.structure.checkpointing import checkpointing
from foretrace.transforms.structure.depth import depth
from foretrace.transforms.structure.insert_remove import check_insertable, insert, without
from foretrace.transforms.structure.optimizer import optimizer, parse_optimizer

SWITCHES = {"on": True, "off": False}


class StepChange(NamedTuple):
    """A change that is made to the step of each rank."""

    transform: Callable[..., Graph]
    """From the graph, the value and, where it is of a part of the step, its name, to the changed graph."""
    check: Callable[[str], object] | None = None
    """What refuses a value that makes no sense; None for a size."""
    sized: bool = False
    """Whether the value is a size."""
    of_part: bool = False
    """Whether it may be of some tables, layers or calls only, as in ``rows:tables.3=1000``."""
    part_example: str = ""
    """An example, where the part has to be named."""
    repeatable: bool = False
    """Whether several make sense: the value says of what they are."""


COMPILE = ("on", "reduce-overhead", "off")
"""Whether a script's models are compiled: by default, with CUDA graphs, not at all."""


def check_compile(text: str) -> None:
    """Refuse what is no way to compile."""
    if text not in COMPILE:
        raise ForetraceError(f"compile={text} makes no sense", f"Write one of {', '.join(COMPILE)}.")


def _sketched_anew(graph: Graph, value: str) -> Graph:
    """A script is sketched anew before all other changes (`what_if`); anything else stays as it was recorded."""
    raise ForetraceError(
        f"compile={value} needs a script that is sketched anew for it",
        "Give the script, as in foretrace whatif train.py --set compile=on; sweeps can't do it.",
    )


STEP_CHANGES: dict[str, StepChange] = {
    "rows": StepChange(table_rows, sized=True, of_part=True),
    "dim": StepChange(table_dim, sized=True),
    "pooling": StepChange(pooling, sized=True, of_part=True),
    "width": StepChange(width, sized=True, of_part=True, part_example="a layer, as in width:top.0=512"),
    "heads": StepChange(heads, sized=True),
    "depth": StepChange(depth, sized=True),
    "compile": StepChange(_sketched_anew, check_compile),
    "dtype": StepChange(lambda graph, name: dtype(graph, parse_dtype(name)), parse_dtype),
    "autocast": StepChange(autocast, parse_autocast_dtype),
    "optimizer": StepChange(optimizer, parse_optimizer),
    "attention": StepChange(attention, check_attention),
    "checkpoint": StepChange(checkpointing, str, repeatable=True),
    "fuse": StepChange(fuse, parse_fusion, repeatable=True),
    "without": StepChange(without, str, repeatable=True),
    "insert": StepChange(insert, check_insertable, of_part=True, part_example="a call, as in insert:addmm@mlp.0=gelu"),
}
RESIZABLE = ("batch", "seq", "hidden")
"""Sizes that are found once in a step and set to any value; they may name the recorded one, as in ``batch=64/16``."""
LARGEST = "max"
"""The value of ``batch`` that stands for the largest one that fits on the device."""

AUTO = "auto"
BUDGET = re.compile(r"auto|\d{1,9}(\.\d{1,9})?(GB|GiB|MB|MiB)")
"""Values of ``checkpoint`` that stand for the least recomputation that fits: on the device, or in so much memory."""


def parse_count(text: str) -> int:
    """A number of ranks, or of parts."""
    found = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0
    if not 1 <= found <= MAX_RANKS:
        raise ForetraceError(f"{text!r} is no number of ranks or parts", f"Write 1 to {MAX_RANKS:,}.")
    return found


def parse_switch(text: str) -> bool:
    """Whether something is on."""
    if text not in SWITCHES:
        raise ForetraceError(f"{text!r} is neither on nor off", "Write on, or off.")
    return SWITCHES[text]


def parse_context_kind(text: str) -> str:
    """How context parallel ranks share attention."""
    if text not in CONTEXT_KINDS:
        raise unknown_name("context_kind", text, CONTEXT_KINDS)
    return text


def parse_schedule(text: str) -> str:
    """A pipeline schedule."""
    if text not in SCHEDULES:
        raise unknown_name("schedule", text, SCHEDULES)
    return text


PARALLELISM: dict[str, Callable[[str], int | bool | str]] = {
    **dict.fromkeys(("data", "tensor", "pipeline", "context", "experts", "microbatches", "chunks"), parse_count),
    **dict.fromkeys(("sharded", "sequence", "mixed", "tables", "zero1"), parse_switch),
    "schedule": parse_schedule,
    "context_kind": parse_context_kind,
}
"""How ranks share the step of one, and what reads the value: the options of `foretrace.parallelize`."""
JOB_CHANGES: dict[str, Callable[[str], Any]] = {
    **PARALLELISM,
    "world": parse_count,
    "buckets": parse_bucket_size,
    "overlap": parse_switch,
}
"""All changes of a job, and what reads the value."""
CHANGES = (*RESIZABLE, *STEP_CHANGES, *JOB_CHANGES)
PARALLEL = (*PARALLELISM, "overlap", "bucket_mb")
"""What ``--parallel`` takes; ``bucket_mb`` is ``buckets`` by its former name."""
PARALLEL_EXAMPLE = "For instance: --parallel data=8,tensor=2,pipeline=4,microbatches=16."


@dataclass(frozen=True)
class Change:
    """One change: what, of which part, to what.

    >>> str(Change.read("rows:tables.3=1000"))
    'rows:tables.3=1000'
    """

    name: str
    value: str
    where: str = ""

    @classmethod
    def read(cls, text: str) -> Change:
        """The change that a text like ``batch=64`` says; refuses one that makes no sense."""
        key, equals, value = (part.strip() for part in text.partition("="))
        name, colon, where = key.partition(":")
        if not equals or not value or (colon and not where):
            raise ForetraceError(f"{text!r} is no change", "Write what to set to what, as in batch=64.")
        if name not in CHANGES:
            raise unknown_name("setting", name, CHANGES)
        change = STEP_CHANGES.get(name)
        if change and change.sized and "/" in value:
            raise ForetraceError(
                f"{name} needs no recorded value", f"Write {key}={value.partition('/')[0]}: the step shows what it was."
            )
        if change and change.part_example and not where:
            raise ForetraceError(f"{text!r} does not name a part of the step", f"Name {change.part_example}.")
        if where and not (change and change.of_part):
            raise ForetraceError(f"{name} is of the whole step", f"Write {name}={value}.")
        if name in JOB_CHANGES:
            JOB_CHANGES[name](value)
        elif change and change.check:
            change.check(value)
        else:
            largest = name == "batch" and value.partition("/")[0] == LARGEST
            parse_size(name, value.replace(LARGEST, "1", 1) if largest else value)
        return cls(name, value, where)

    def __str__(self) -> str:
        return f"{self.name}{':' if self.where else ''}{self.where}={self.value}"


def read_changes(changes: Iterable[Change | str] | str) -> list[Change]:
    """Changes, or one; texts are read. Refuses two that set the same, of which the second would undo the first.

    >>> read_changes(["batch=64", "batch=32"])
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: batch is set twice. Leave batch=64 or batch=32 out.
    """
    read = [change if isinstance(change, Change) else Change.read(change) for change in listed(changes)]
    first: dict[tuple[str, str, str], Change] = {}
    for change in read:
        # batch=64/16 and batch=8/4 are of different things.
        before = first.setdefault((change.name, change.where, change.value.partition("/")[2]), change)
        if before is not change and not (change.name in STEP_CHANGES and STEP_CHANGES[change.name].repeatable):
            name = f"{change.name}{':' if change.where else ''}{change.where}"
            raise ForetraceError(f"{name} is set twice", f"Leave {before} or {change} out.")
    return read


def listed(changes: Iterable[Change | str] | str) -> list[Change | str]:
    """Changes in a list; a single text need not be in one."""
    return [changes] if isinstance(changes, str) else list(changes)


def read_parallel(text: str) -> list[Change]:
    """The changes that the text of ``--parallel`` says; a switch may stand alone.

    >>> [str(change) for change in read_parallel("data=8,sharded,bucket_mb=100")]
    ['data=8', 'sharded=on', 'buckets=100']
    """
    found: dict[str, Change] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, equals, value = word.partition("=")
        if name not in PARALLEL:
            raise ForetraceError(f"--parallel knows no {name!r}", f"It knows {', '.join(PARALLEL)}.")
        if name in found:
            raise ForetraceError(f"--parallel says {name} twice", "Say each once.")
        switch = JOB_CHANGES.get(name) is parse_switch
        if not equals and not switch:
            raise ForetraceError(f"--parallel {word}: {name} needs a value", PARALLEL_EXAMPLE)
        try:
            found[name] = Change.read(f"{'buckets' if name == 'bucket_mb' else name}={value if equals else 'on'}")
        except ForetraceError as error:
            raise ForetraceError(f"--parallel {word}: {error.what}", PARALLEL_EXAMPLE) from None
    if not found:
        raise ForetraceError("--parallel says nothing", PARALLEL_EXAMPLE)
    return list(found.values())
