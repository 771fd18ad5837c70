"""PyTorch's flight-recorder dumps of a hung job: which rank of which collective all others wait for.

A dump is a pickle, or JSON, for each rank: the last collectives of each process group, and how far each got. Pickles
run code when they are loaded by others; here only containers, numbers and texts are read.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import reprlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from foretrace.analysis.report import NotebookDocument
from foretrace.errors import ForetraceError
from foretrace.files import read_bounded, read_error
from foretrace.graph import MAX_RANKS

MAX_BYTES = 1 << 28
"""A dump has a few thousand collectives of a few kilobytes."""
DONE = "completed"
LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")
"""Functions of torch.jit by which its pickles write lists of one type."""
_RANK = re.compile(r"(\d+)(?:\.\w+)?$")


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = 16


@dataclass(slots=True)
class StuckCollective:
    """A collective that some ranks wait in."""

    group: str
    members: list[int]
    number: int
    """Of the group's collectives."""
    kind: str
    sizes: str
    waiting: list[int]
    """Ranks that called it and are not done."""
    missing: list[int]
    """Ranks that have not called it."""
    differing: dict[int, str]
    """Ranks that called another one under the same number, and what."""


@dataclass(slots=True)
class StuckRank:
    """A rank that others wait for."""

    rank: int
    why: str


@dataclass
class Hang(NotebookDocument):
    """Why a job hangs."""

    source: str
    ranks: list[int]
    """Those that left a dump."""
    world: int
    culprits: list[StuckRank]
    """Ranks that others wait for and that wait for no rank themselves."""
    collectives: list[StuckCollective]
    """Those that are not done, the earliest first."""
    notes: list[str] = field(default_factory=list)


class _PlainUnpickler(pickle._Unpickler):
    """Reads containers, numbers and texts, and refuses everything that would run code.

    It is the unpickler in Python: the one in C takes as much memory as the numbers in a damaged file say.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        """The function that a pickle names: those of torch.jit that make lists, as harmless ones of our own."""
        if module == "torch.jit._pickle" and name in LISTS:
            return list
        if module == "torch.jit._pickle" and name == "restore_type_tag":
            return lambda value, tag: value
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse data from outside the file."""
        raise pickle.UnpicklingError("it refers to data outside")


def read_dump(path: Path) -> dict[str, Any]:
    """The contents of one rank's dump."""
    try:
        data = read_bounded(path, MAX_BYTES, "a flight-recorder dump")
        text = data.lstrip()[:1] == b"{"
        dump = json.loads(data) if text else _PlainUnpickler(io.BytesIO(data)).load()
    except OSError as error:
        raise read_error(path, error) from None
    except Exception as error:  # a pickle may raise anything
        raise ForetraceError(
            f"{path} is no flight-recorder dump ({type(error).__name__}: {str(error)[:120]})",
            "Give files that TORCH_NCCL_DUMP_ON_TIMEOUT=1 wrote, one a rank.",
        ) from None
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise ForetraceError(f"{path} is no flight-recorder dump: it has no entries", "Give the file of a rank.")
    return dump


def find_hang(paths: Sequence[Path]) -> Hang:
    """Which collective a job hangs in, and which ranks the others wait for.

    Parameters
    ----------
    paths
        Dumps, one a rank, named by their ranks (``nccl_trace_rank_3``); or folders of them.
    """
    files = [file for path in paths for file in _dumps(path)]
    by_rank: dict[int, _Rank] = {}
    for file in files:
        found = _RANK.search(file.name)
        if found is None:
            raise ForetraceError(f"the name of {file} does not say its rank", "Rename it, as in nccl_trace_rank_3.")
        if int(found[1]) in by_rank:
            raise ForetraceError(f"rank {found[1]} has two dumps", "Give one a rank.")
        by_rank[int(found[1])] = _Rank(int(found[1]), read_dump(file), str(file))
    groups: dict[str, list[int]] = {}
    for rank in by_rank.values():
        for name, members in rank.groups.items():
            groups.setdefault(name, sorted({*members, *groups.get(name, [])}))
        for name, _ in rank.calls:
            groups.setdefault(name, [])
    for name, members in groups.items():
        if not members:
            members += sorted(rank for rank, one in by_rank.items() if any(key[0] == name for key in one.calls))
    stuck = sorted(_stuck(by_rank, groups), key=lambda pair: pair[0])
    collectives = [one for _, one in stuck]
    world = 1 + max([*by_rank, *(member for members in groups.values() for member in members)], default=0)
    absent = sorted({member for members in groups.values() for member in members} - by_rank.keys())
    return Hang(
        source=", ".join(map(str, paths))[:200],
        ranks=sorted(by_rank),
        world=world,
        culprits=_culprits(collectives, by_rank),
        collectives=collectives,
        notes=[f"no dump of rank {', '.join(map(str, absent[:8]))}{' and more' * (len(absent) > 8)}"] if absent else [],
    )


def _dumps(path: Path) -> list[Path]:
    if not path.exists():
        raise ForetraceError(f"{path} does not exist", "Check the path.")
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file() and _RANK.search(file.name))
    if not found:
        raise ForetraceError(f"{path} holds no dump", "Name the folder with the files of all ranks.")
    return found


@dataclass(slots=True)
class _Call:
    kind: str
    sizes: str
    state: str
    created_ns: int


class _Rank:
    """The dump of one rank, parsed."""

    def __init__(self, rank: int, dump: dict[str, Any], source: str) -> None:
        self.rank = rank
        self.groups: dict[str, list[int]] = {}
        self.calls: dict[tuple[str, int], _Call] = {}
        try:
            for number, about in _items(dump.get("pg_config")):
                name = _text(about.get("name", number))
                self.groups[name] = _members(about.get("ranks"))
            for entry in dump["entries"]:
                if not entry.get("is_p2p"):
                    self._add(entry)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ForetraceError(
                f"{source} does not hold what a dump should ({type(error).__name__}: {error})", "Leave it out."
            ) from None

    def _add(self, entry: dict[str, Any]) -> None:
        group = entry.get("process_group") or [entry.get("pg_name", entry.get("pg_id", 0))]
        name = _text(group[0] if isinstance(group, (list, tuple)) else group)
        number = int(entry.get("collective_seq_id", entry.get("seq_id", -1)))
        self.calls[name, number] = _Call(
            kind=_text(entry.get("profiling_name", "?")).rpartition(":")[2],
            sizes=_text(entry.get("input_sizes", ""))[:80],
            state=_text(entry.get("state", "")),
            created_ns=int(entry.get("time_created_ns", 0)),
        )

    def last(self, group: str) -> int:
        """The number of the group's last collective that the rank called; -1 for none."""
        return max((number for name, number in self.calls if name == group), default=-1)


def _text(value: Any) -> str:
    """The text of a value: of a list its first items, since a small pickle may hold one of endless length."""
    return value if isinstance(value, str) else _SHORT.repr(value)


def _items(config: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    return config.items() if isinstance(config, dict) else ()


def _members(ranks: Any) -> list[int]:
    """Ranks of a group, which dumps write as a list or as its text."""
    members = json.loads(ranks) if isinstance(ranks, str) and ranks.strip() else ranks or []
    found = sorted(int(member) for member in members)
    if found and not 0 <= found[0] <= found[-1] < MAX_RANKS:
        raise ValueError(f"a group of rank {found[-1]}")
    return found


def _stuck(by_rank: dict[int, _Rank], groups: dict[str, list[int]]) -> Iterator[tuple[int, StuckCollective]]:
    """The first collective of each group that is not done on all ranks, and when it was first called."""
    for group, members in groups.items():
        numbers = sorted({number for rank in by_rank.values() for name, number in rank.calls if name == group})
        for number in numbers:
            calls = {rank: one.calls[group, number] for rank, one in by_rank.items() if (group, number) in one.calls}
            waiting = sorted(rank for rank, call in calls.items() if call.state != DONE)
            # Only the last collectives are kept: one that is not there was done, unless it comes after all that are.
            missing = sorted(
                rank
                for rank in members
                if rank not in calls and (rank not in by_rank or by_rank[rank].last(group) < number)
            )
            if not waiting:
                continue
            kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
            for rank, call in calls.items():
                kinds[call.kind, call.sizes].append(rank)
            usual = max(kinds, key=lambda kind: (len(kinds[kind]), kind))
            differing = {
                rank: f"{kind} {sizes}" for (kind, sizes), ranks in kinds.items() if kind != usual[0] for rank in ranks
            }
            yield (
                min(call.created_ns for call in calls.values()),
                StuckCollective(group, members, number, *usual, waiting, missing, differing),
            )
            break


def _culprits(collectives: Sequence[StuckCollective], by_rank: dict[int, _Rank]) -> list[StuckRank]:
    """Ranks that others wait for: those that wait in no collective themselves, or that called another one."""
    waiting = {rank for one in collectives for rank in one.waiting}
    found: dict[int, str] = {}
    for one in collectives:
        for rank, instead in one.differing.items():
            found.setdefault(rank, f"called {instead} as number {one.number} of group {one.group}, others {one.kind}")
        for rank in one.missing:
            if rank not in by_rank:
                found.setdefault(rank, f"left no dump, and did not come to {one.kind} number {one.number}")
            elif rank not in waiting:
                last = by_rank[rank].last(one.group)
                before = f"after number {last}" if last >= 0 else "in this group"
                found.setdefault(
                    rank, f"never called {one.kind} number {one.number} of group {one.group}: nothing {before}"
                )
    if not found and collectives and not any(one.missing for one in collectives):
        first = collectives[0]
        for rank in first.waiting:
            if len(first.waiting) < len(first.members):
                found[rank] = f"called {first.kind} number {first.number}, which is done on the other ranks"
    return [StuckRank(rank, why) for rank, why in sorted(found.items())]
