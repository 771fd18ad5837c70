"""Host activities besides ops and launches: data loading, garbage collection, checkpoints, logging, locks, waits.

A profiler trace names such time by annotations, by Python functions where it has stacks, and by runtime calls that
allocate. A host that polls for the device has no event at all: it is seen from a pause that ends with a kernel.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Graph
from foretrace.graph.tables import (
    ANNOTATION,
    FUNCTION,
    LAUNCH,
    OTHER_CALL,
    Floats,
    Ints,
    Longs,
    distinct,
)

DATA_LOADING, BUSY_WAIT, ALLOCATION, ANNOTATED, PYTHON = (
    "data loading", "busy wait", "allocation", "annotation", "python",
)  # fmt: skip
_MEANINGS = (
    (
        DATA_LOADING,
        r"(?i)data_?loader|\b(nvidia\W)?dali\b|(load|next|fetch|get)_?([a-z]+_)?batch\b|"
        r"(?<![a-z])(data|batch)[ _]?(load|fetch|prefetch)(ing)?\b|"
        r"(?<![a-z])(load|fetch|prefetch|get|next)(ing)?[ _](data|(mini)?batch|samples?)\b|"
        r"\bnext\([\w.]*(data|loader|batch|iter)\w*\)",
    ),
    ("garbage collection", r"(?i)\bgc\b|garbage.?collect|<built-in function collect>"),
    (
        "checkpoint",
        r"(?i)torch/serialization\.py|distributed/checkpoint/|\btorch\.save\b|\bModelCheckpoint\b|"
        r"^\W*checkpoint(?!\w*(forward|backward|func|fn\b|wrap|recompute))\w*\W*$|"
        r"(save|saving|write|writing|load|loading)[\w ]*[ _]?checkpoint|checkpoint\w*(_|\W+)(save|write|load)|"
        r"(?<![a-z])(save|saving)[ _](model|weights|state_dict)\b",
    ),
    (
        "logging",
        r"(?i)\blogging\b|^\W*log(s|ger)?\W*$|\blog_(metrics|stats|dict)\b|metrics?:publish|"
        r"\b(wandb|tensorboard|mlflow)\b|<built-in function print>",
    ),
    ("lock", r"\bacquire\b|threading\.py\(\d+\): (wait|join)\b|queue\.py\(\d+\): get\b|\bflock\b"),
    (
        "sleep",
        r"<built-in function sleep>|\btime\.sleep\b|^\W*sleep\W*$|"
        r"\bselectors?\.py\(\d+\): select\b|<built-in method poll\b",
    ),
)
"""What the name of an annotation or a function says, as regular expressions; the first that matches."""
_WORDS = re.compile(
    "data|dali|batch|sample|next|gc|garbage|collect|seriali|checkpoint|sav|log|metric|wandb|tensorboard|mlflow|print|"
    "acquire|wait|join|get|flock|sleep|select|poll"
)
"""One of these is in every name that says something: most names have none, and are done with."""
_ALLOCATES = re.compile(
    r"(cuda|cu|hip|aclrt)\w*"
    r"(Malloc|Free|HostAlloc|HostRegister|ModuleLoad|LibraryLoad|MemCreate|MemMap|MemUnmap|MemSetAccess)"
    r"|(ur|pi|ze)(USM|Mem|ext)\w*(Alloc|Free)"
)
MEANINGS = frozenset(kind for kind, _ in _MEANINGS)
SAY_LITTLE = (ANNOTATED, "lock", "sleep", ALLOCATION)
"""How the host spends its time, not what for: inside something that says this, it has no name of its own."""
_COPIES = re.compile("Memcpy|Memset")
MOST_LAUNCHES = 0.5
"""Share of the step's kernels launched in an annotation from which on it is around the step, whatever its name says."""
LONG_US = 100.0
"""A pause of the host that is shorter is the ordinary time between two ops."""
LAUNCHED_JUST_BEFORE_US = 50.0
"""A host that waits for a kernel has launched it just before."""
POLLED_US, SEEN_BEFORE_US, SEEN_AFTER_US = 500.0, 100.0, 20.0
"""The least pause in which a host polls, and how soon before or after the end of a kernel it goes on: what it polls for
is written just before the end. In shorter pauses a kernel ends at the same time by chance too often."""
AGREEING_SHARE = 0.75
"""Share of the pauses behind kernels of one name that must end with these for the host to wait for them."""


class Activities(NamedTuple):
    """Intervals of host time that have a cause of their own, disjoint on each thread."""

    start: Floats
    end: Floats
    thread: Ints
    cause: Ints
    """Code in the list of causes."""


@lru_cache(maxsize=4096)
def meaning(name: str) -> str:
    """What an annotation or a Python function is for; empty where its name does not say.

    >>> meaning("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), meaning("## forward ##")
    ('data loading', '')
    >>> meaning("torch/utils/checkpoint.py(243): backward"), meaning("<built-in function collect>")
    ('', 'garbage collection')
    >>> meaning("[pl][profile]get_train_batch"), meaning("accelerate/data_loader.py(564): __iter__")
    ('data loading', 'data loading')
    >>> meaning("managers/scheduler.py(2992): get_next_batch_to_run")
    ''
    """
    if not _WORDS.search(name.lower()):
        return ""
    return next((kind for kind, pattern in _MEANINGS if re.search(pattern, name)), "")


def allocates(call: str) -> bool:
    """Whether a runtime call takes memory from the driver, or gives it back.

    >>> [allocates(name) for name in ("cudaMalloc", "hipFree", "cuMemSetAccess", "urUSMDeviceAlloc", "cudaMemcpyAsync")]
    [True, True, True, True, False]
    """
    return bool(_ALLOCATES.match(call))


class Causes:
    """Distinct causes of host time, each a kind and a name, with codes."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str]] = []
        self._codes: dict[tuple[str, str], int] = {}

    def code(self, kind: str, name: str) -> int:
        """The code of a cause, a new one for a new cause."""
        if (kind, name) not in self._codes:
            self._codes[kind, name] = len(self.items)
            self.items.append((kind, name))
        return self._codes[kind, name]


def host_activities(graph: Graph, causes: Causes) -> Activities:
    """Host time with a cause of its own, whatever ops are inside: what its name says, else an annotation in which
    nothing is launched; and calls that allocate.

    A Python function counts by its name only where it launches nothing: it may be the loop around all of a step. So may
    an annotation that launches most of the step's work.
    """
    table, calls = graph.activities, graph.calls
    launching = _launches_inside(graph, calls.kind == LAUNCH) > 0
    computes = (calls.kind == LAUNCH) & ~calls.names.matching(lambda name: bool(_COPIES.search(name)))[calls.name]
    around = _launches_inside(graph, computes) > MOST_LAUNCHES * max(int(computes.sum()), 1)
    means = [meaning(name) for name in table.names.items]
    says = np.array([bool(meant) for meant in means] or [False])[table.name] if len(table) else np.zeros(0, bool)
    noted = table.kind == ANNOTATION
    rows = np.flatnonzero(np.where(noted, ~launching | (says & ~around), says & ~launching))
    names = [table.names[code] for code in table.name[rows].tolist()]
    kinds = [means[at] or ANNOTATED for at in table.name[rows].tolist()]
    allocate = calls.names.matching(allocates)
    slow = np.flatnonzero((calls.kind == OTHER_CALL) & (calls.end - calls.start >= LONG_US))
    slow = slow[allocate[calls.name[slow]]]
    code = [causes.code(kind, name) for kind, name in zip(kinds, names)]
    code += [causes.code(ALLOCATION, calls.names[name]) for name in calls.name[slow].tolist()]
    found = Activities(
        np.concatenate([table.start[rows], calls.start[slow]]),
        np.concatenate([table.end[rows], calls.end[slow]]),
        np.concatenate([table.thread[rows], calls.thread[slow]]),
        np.array(code, np.int32),
    )
    return _named_once(found, np.isin([*kinds, *[ALLOCATION] * len(slow)], SAY_LITTLE))


def _launches_inside(graph: Graph, launches: NDArray[np.bool_]) -> Longs:
    """How many of some launches each activity has inside it, on its thread."""
    table, calls = graph.activities, graph.calls
    inside = np.zeros(len(table), np.int64)
    for thread in distinct(table.thread):
        rows = np.flatnonzero(table.thread == thread)
        at = np.sort(calls.start[launches & (calls.thread == thread)])
        inside[rows] = np.searchsorted(at, table.end[rows]) - np.searchsorted(at, table.start[rows])
    return inside


def _named_once(found: Activities, says_little: NDArray[np.bool_]) -> Activities:
    """Each moment by the innermost activity whose name says what it is for, of others by the outermost; in order of
    threads and time.
    """
    order = np.lexsort((-found.end, found.start, found.thread))
    pieces: list[tuple[float, float, int]] = []
    open_: list[int] = []  # around each other
    since, thread = 0.0, -1

    def close(until: float) -> None:
        nonlocal since
        while open_ and found.end[open_[-1]] <= until:
            row = open_.pop()
            if found.end[row] > since:
                pieces.append((since, float(found.end[row]), row))
                since = float(found.end[row])

    for row in order.tolist():
        if found.thread[row] != thread:
            close(np.inf)
            since, thread = -np.inf, int(found.thread[row])
        start = float(found.start[row])
        close(start)
        if open_ and says_little[row]:
            continue
        if open_ and start > since:
            pieces.append((since, start, open_[-1]))
        since = max(start, since)
        open_.append(row)
    close(np.inf)
    each = np.array(pieces, np.float64).reshape(-1, 3)
    rows = each[:, 2].astype(np.int64)
    return Activities(each[:, 0], each[:, 1], found.thread[rows], found.cause[rows])


def innermost_names(graph: Graph, causes: Causes, thread: Ints, start: Floats, end: Floats) -> Activities:
    """The innermost annotation or Python function in each part of the pauses of threads."""
    table = graph.activities
    of_thread, cut = {}, np.zeros(len(thread), bool)
    each = [(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))]
    for one in distinct(thread).tolist():
        ours = of_thread[one] = np.flatnonzero(table.thread == one)  # in the order they started: parents come first
        borders = np.sort(np.concatenate([table.start[ours], table.end[ours]]))
        pauses = thread == one
        cut[pauses] = np.searchsorted(borders, end[pauses]) > np.searchsorted(borders, start[pauses], "right")
    for pause, (one, is_cut) in enumerate(zip(thread.tolist(), cut.tolist())):
        ours = of_thread[one]
        if is_cut:
            each.append(_innermost(graph, ours, start[pause], end[pause]))
        elif len(around := ours[(table.start[ours] <= start[pause]) & (table.end[ours] >= end[pause])]):
            each.append((start[pause : pause + 1], end[pause : pause + 1], around[-1:]))
    begins, ends, rows = (np.concatenate(columns) for columns in zip(*each))
    kinds = np.where(table.kind[rows] == FUNCTION, PYTHON, ANNOTATED).tolist()
    names = [table.names[code] for code in table.name[rows].tolist()]
    code = np.array([causes.code(meaning(name) or kind, name) for kind, name in zip(kinds, names)], np.int32)
    return Activities(begins, ends, table.thread[rows], code)


def _innermost(graph: Graph, ours: Longs, start: float, end: float) -> tuple[Floats, Floats, Longs]:
    """The pieces of a pause that activities of its thread fill, and the innermost of these for each."""
    table = graph.activities
    ours = ours[(table.start[ours] < end) & (table.end[ours] > start)]
    borders = distinct(np.clip(np.concatenate([[start, end], table.start[ours], table.end[ours]]), start, end))
    begins, ends = borders[:-1], borders[1:]
    last = np.full(len(begins), -1)
    for row in ours.tolist():
        last[(begins >= table.start[row]) & (ends <= table.end[row])] = row
    known = last >= 0
    return begins[known], ends[known], last[known]


def polled_kernels(graph: Graph, thread: Ints, start: Floats, end: Floats) -> Longs:
    """For each pause of the host, the kernel that it polled for; -1 where it did something else.

    Such a pause begins just after the launch of the kernel, which then starts, and ends as the kernel does; and so do
    most pauses behind kernels of its name.
    """
    kernels, calls = graph.kernels, graph.calls
    polled = np.full(len(start), -1, np.int64)
    long = end - start >= POLLED_US
    launched = np.flatnonzero(kernels.call >= 0)
    launched = launched[np.argsort(calls.start[kernels.call[launched]], kind="stable")]
    for one in distinct(thread[long]):
        rows = np.flatnonzero(long & (thread == one))
        ours = launched[calls.thread[kernels.call[launched]] == one]
        at = np.searchsorted(calls.start[kernels.call[ours]], start[rows], "right") - 1
        rows, last = rows[at >= 0], ours[at[at >= 0]]
        just = start[rows] - calls.end[kernels.call[last]] <= LAUNCHED_JUST_BEFORE_US
        ends_with = (kernels.start[last] >= start[rows] - SEEN_AFTER_US) & (kernels.start[last] < end[rows])
        ahead = kernels.end[last] - end[rows]
        ends_with &= (ahead >= -SEEN_AFTER_US) & (ahead <= SEEN_BEFORE_US)
        polled[rows[just]] = np.where(ends_with, last, -2 - last)[just]
    seen = np.flatnonzero(polled != -1)
    kernel = np.where(polled[seen] >= 0, polled[seen], -2 - polled[seen])
    name = kernels.name[kernel]
    agree = np.bincount(name, polled[seen] >= 0, len(kernels.names)) / np.maximum(
        np.bincount(name, minlength=len(kernels.names)), 1
    )
    waits = (polled[seen] >= 0) & (agree[name] >= AGREEING_SHARE)
    polled[seen[~waits]] = -1
    return polled
