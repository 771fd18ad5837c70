"""Tables that nccl-tests and rccl-tests print: how long a collective took at each message size.

A log holds one table or several; each begins with the settings (``# nThread 1 nGpus 8 ...``), names the ranks with
their machines, and then gives a line per size. What collective it was is in the line that announces the test, or in the
command before it, or in the file's name.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from foretrace.files import read_bounded, read_error
from foretrace.graph import ForetraceError
from foretrace.graph.operators import collective_kind

_TEST = re.compile(r"\b(\w+?)_perf\b")
_SETTINGS = re.compile(r"nThread\s+\d+\s+nGpus\s+\d+")
_RANK = re.compile(r"Rank\s+\d+\s.*\bon\s+(\S+)\s+device\s+\d+\s+\[[^]]*\]\s+(.+?)\s*$")
_COLUMNS = re.compile(r"\bsize\s+count\s+type\b.*\btime\b")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s")
_PREFIX = re.compile(r"^\[\d+,\d+\]<std\w+>:")
"""What mpirun puts before each line."""
MAX_LOG_BYTES = 64 << 20
"""A table has a hundred lines: no set of tests prints this much."""
MAX_BYTES, MAX_US = 1 << 50, 1e12
"""What no message holds, and what no collective takes."""


@dataclass
class NcclTable:
    """One run of one test."""

    kind: str
    """As in `foretrace.graph.Collective`; empty where the log does not say."""
    hosts: list[str] = field(default_factory=list)
    """The machine of each rank."""
    device: str = ""
    rows: list[tuple[int, float]] = field(default_factory=list)
    """Bytes and microseconds, out of place: as PyTorch calls collectives."""

    @property
    def ranks(self) -> int:
        """How many took part."""
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        """On how many machines."""
        return len(set(self.hosts))


def read_nccl_tests(path: Path) -> list[NcclTable]:
    """The tables of a log, in order; a log without any is refused."""
    try:
        text = read_bounded(path, MAX_LOG_BYTES, "a log of nccl-tests").decode("utf-8", "replace")
    except OSError as error:
        raise read_error(path, error) from None
    except (EOFError, zlib.error) as error:
        raise ForetraceError(f"{path} is not a sound gzip file ({error})", "Copy it again.") from None
    tables = [table for table in _tables(text.splitlines(), path) if table.rows]
    if not tables:
        raise ForetraceError(f"{path} holds no table of nccl-tests", "Give what all_reduce_perf and the like print.")
    for table in tables:
        _check(table, path)
    return tables


def _tables(lines: list[str], path: Path) -> Iterator[NcclTable]:
    told = collective_kind(path.stem)
    table = NcclTable(told)
    place = 0
    for line in (_PREFIX.sub("", line) for line in lines):
        if test := _TEST.search(line):
            told = collective_kind(test[1]) or told
        if _SETTINGS.search(line):
            yield table
            table = NcclTable(told)
        elif rank := _RANK.search(line):
            table.hosts.append(rank[1])
            table.device = rank[2]
        elif _COLUMNS.search(line):
            place = line.replace("#", " ", 1).split().index("time")
        elif place and _ROW.match(line):
            table.rows += _row(line.split(), place)
    yield table


def _row(cells: list[str], place: int) -> list[tuple[int, float]]:
    try:
        size, us = int(cells[0]), float(cells[place])
    except (ValueError, IndexError):
        return []  # cut off
    return [(size, us)] if 0 < size <= MAX_BYTES and 0 < us <= MAX_US else []


def _check(table: NcclTable, path: Path) -> None:
    if not table.kind:
        known = "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast"
        raise ForetraceError(
            f"{path} does not say which collective it is of", f"Put its name into the file's: one of {known}."
        )
    if table.ranks < 2:
        raise ForetraceError(f"{path} names {table.ranks} ranks", "A fabric needs a test of two at least.")
