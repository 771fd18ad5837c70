"""Several processes in one profiler trace, as tools that merge the traces of ranks write them: each is a rank.

Host events carry the number of their process, device events that of their device. Which process a device belongs to is
shown by a label that both numbers share (``[TP03] 1201`` and ``[TP03] 0``), by the number itself where device events
carry that of their process (as Foretrace writes jobs for Perfetto), else by the correlation ids of launches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np

from foretrace.formats.kineto.columns import Columns
from foretrace.graph import Graph
from foretrace.graph.tables import distinct

MERGED = "several processes are taken for one rank: "
"""How the note begins on processes that can't be told apart."""
LAUNCHED = 0.5
"""Share of a device's work that the process which it belongs to has launched; the trace may lack the other launches."""
_LABEL = re.compile(r"(.*\D)\d+$", re.DOTALL)
_NUMBER = re.compile(r"\d+")

Group = tuple[set[Any], set[Any]]
"""Numbers of a process and of its devices."""


def split_processes(columns: Columns) -> tuple[list[Columns], list[str]]:
    """The columns of each of several processes that launch work; and a note if they stay one."""
    pids, hosts = columns.pids, columns.hosts
    groups = _labelled(hosts, pids, columns) or _same_number(hosts, columns) or _launching(hosts, pids, columns)
    if not groups:
        return [columns], [f"{MERGED}which of {len(hosts)} processes launched what is unknown"]
    if len(groups) == 1:
        return [columns], []
    return [_only(columns, pids, *group) for group in groups], []


def as_ranks(graphs: list[Graph]) -> list[Graph]:
    """The processes of one file as the ranks of a job.

    >>> from foretrace.graph import OpTable
    >>> [graph.rank for graph in as_ranks([Graph(OpTable.of([])), Graph(OpTable.of([]))])]
    [0, 1]
    """
    if len(graphs) > 1:
        for number, graph in enumerate(graphs):
            graph.rank, graph.world = number, max(graph.world, len(graphs))
        graphs[0].notes.append(f"the file holds {len(graphs)} processes: each is shown as a rank, in their order there")
    return graphs


def _labelled(hosts: list[Any], pids: list[Any], columns: Columns) -> list[Group]:
    """Processes and devices by the label before their numbers; none where one has no label, or all have the same."""
    groups: dict[str, Group] = defaultdict(lambda: (set(), set()))
    for place, numbers in enumerate((pids, list(columns.device_pids))):
        for pid in numbers:
            if not (label := _LABEL.match(str(pid))):
                return []
            groups[label[1]][place].add(pid)
    found = [group for group in groups.values() if group[0].intersection(hosts)]
    found = found if len(found) > 1 else []
    return sorted(found, key=lambda group: [int(n) for n in _NUMBER.findall(min(map(str, group[0])))])


def _same_number(hosts: list[Any], columns: Columns) -> list[Group]:
    """Each process with the device work of its own number; none where a device has a number of its own."""
    return [({pid}, {pid}) for pid in hosts] if {*columns.device_pids} == {*hosts} else []


def _launching(hosts: list[Any], pids: list[Any], columns: Columns) -> list[Group]:
    """Each process with the devices whose work it alone can have launched; none where that is unknown."""
    groups: dict[Any, Group] = {pid: ({pid}, set()) for pid in hosts}
    process = np.array([hosts.index(pid) if pid in hosts else -1 for pid in pids])[columns.calls["thread"]]
    ids = [distinct(columns.calls["correlation"][process == place]) for place in range(len(hosts))]
    for pid, code in columns.device_pids.items():
        correlation = columns.device["correlation"][columns.device["process"] == code]
        correlation = correlation[correlation != 0]
        counts = [int(np.isin(correlation, some).sum()) for some in ids]
        launched = [host for host, count in zip(hosts, counts) if count > LAUNCHED * len(correlation)]
        if len(launched) != 1:
            return []
        groups[launched[0]][1].add(pid)
    return [group for group in groups.values() if group[1] or not columns.device.count]


def _only(columns: Columns, pids: list[Any], hosts: set[Any], devices: set[Any]) -> Columns:
    threads = np.array([pid in hosts for pid in pids])
    work = np.array([pid in devices for pid in columns.device_pids], bool)
    return columns.of_processes(threads, work)
