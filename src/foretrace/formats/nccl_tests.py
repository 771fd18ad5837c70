"""Reading the tables that nccl-tests and rccl-tests print: the time of a collective at each message size.

A log holds one table or several. Each begins with the settings (``# nThread 1 nGpus 8 ...``), names the ranks with
their machines, and then has a line per size. The collective is named in the line that announces the test, in the
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
"""mpirun's prefix of each line."""
MAX_LOG_BYTES = 64 << 20
"""A table has a hundred lines: no set of tests prints this much."""
MAX_BYTES, MAX_US = 1 << 50, 1e12
"""More bytes than any message has, and more microseconds than any collective takes."""


@dataclass
class NcclTable:
    """One run of one test."""

    kind: str
    """As in `foretrace.graph.Collective`; empty if the log does not name it."""
    hosts: list[str] = field(default_factory=list)
    """The machine of each rank."""
    device: str = ""
    rows: list[tuple[int, float]] = field(default_factory=list)
    """Bytes and microseconds, out of place: as PyTorch calls collectives."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        """Number of machines."""
        return len(set(self.hosts))


def read_nccl_tests(path: Path) -> list[NcclTable]:
    """The tables of a log, in order; a log without tables is refused."""
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
    kind = collective_kind(path.stem)
    table = NcclTable(kind)
    column = 0
    for line in (_PREFIX.sub("", line) for line in lines):
        if test := _TEST.search(line):
            kind = collective_kind(test[1]) or kind
        if _SETTINGS.search(line):
            yield table
            table = NcclTable(kind)
        elif rank := _RANK.search(line):
            table.hosts.append(rank[1])
            table.device = rank[2]
        elif _COLUMNS.search(line):
            words = line.replace("#", " ", 1).split()
            column = words.index("time") if "time" in words else 0
        elif column and _ROW.match(line):
            table.rows += _row(line.split(), column)
    yield table


def _row(cells: list[str], column: int) -> list[tuple[int, float]]:
    try:
        size, us = int(cells[0]), float(cells[column])
    except (ValueError, IndexError):
        return []  # an incomplete line
    return [(size, us)] if 0 < size <= MAX_BYTES and 0 < us <= MAX_US else []


def _check(table: NcclTable, path: Path) -> None:
    if not table.kind:
        known = "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast"
        raise ForetraceError(f"{path} does not name its collective", f"Put its name into the file's: one of {known}.")
    if table.ranks < 2:
        raise ForetraceError(f"{path} names {table.ranks} ranks", "A fabric needs a test with at least two.")
