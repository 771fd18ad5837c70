"""Loading traces into a job: files recognised by their content, grouped by rank, and read in parallel.

`FORMATS` is the registry of trace formats.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from glob import has_magic
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from foretrace.files import COMPRESSIONS, gc_paused, read_chunks
from foretrace.formats.kineto.events import CHUNK, SERIAL_CHUNKS
from foretrace.graph import MAX_RANKS, ForetraceError, Graph, Job


class TraceFormat(NamedTuple):
    """A trace format: how its files are recognised, and what reads one of them into a `Graph` for each rank in it."""

    module: str
    reader: str
    """A function of the module, which is imported only if there is such a file."""
    suffixes: tuple[str, ...]
    """Endings of file names that are looked for in folders, without ``.gz`` or what else it is compressed with."""
    key: str = ""
    """Key by which a JSON object of this format is recognised, as a regular expression."""
    item_key: str = ""
    """Key by which a JSON array of this format is recognised, as a regular expression."""
    header: bytes = b""
    """Regular expression for the start of a binary file of this format."""

    def read(self, path: Path) -> list[Graph]:
        """The graphs in a file of this format: most hold one."""
        read: Graph | list[Graph] = getattr(import_module(self.module), self.reader)(path)
        return read if isinstance(read, list) else [read]


PROFILER_TRACE, EXECUTION_TRACE, CHAKRA_TRACE = "profiler trace", "execution trace", "Chakra trace"
FORMATS = {
    PROFILER_TRACE: TraceFormat(
        "foretrace.formats.kineto.read", "read_processes", (".json",), key="traceEvents", item_key="ph"
    ),
    EXECUTION_TRACE: TraceFormat(
        "foretrace.formats.execution_trace", "read_execution_trace", (".json",), key="nodes"
    ),
    # A Chakra file starts with the length of a message that holds a version, or else an attribute with a name;
    # or that is empty, before a node with an id or a name. The length may be a brace: JSON goes on otherwise.
    CHAKRA_TRACE: TraceFormat(
        "foretrace.formats.chakra", "read_chakra", (".et", ".chakra", ".json"),
        key="attr|workload_graph|[cd](trl|ata)(_d|D)eps|durationMicros",
        item_key="attr|[cd](trl|ata)(_d|D)eps|durationMicros",
        header=rb"[\x80-\xff]{0,3}[\x01-\x7f](\x0a[\x01-\x3f][\dv]|[\x0a\x12][\x80-\xff]?[\x01-\x7f]\x0a[\x01-\x3f]\w)"
        rb"|\x00[\x80-\xff]{0,3}[\x01-\x7f][\x08\x12]",
    ),
    "Nsight Systems report": TraceFormat(
        "foretrace.formats.nsight", "read_nsight", (".sqlite", ".sqlite3"), header=rb"SQLite format 3\x00"
    ),
    "rocprofv3 trace": TraceFormat("foretrace.formats.rocprof", "read_rocprof", (".json",), key="rocprofiler-sdk-tool"),
}  # fmt: skip
"""Trace formats by name. If one rank has files of several formats, the first of these is read."""

PACKED = ("", *(compression.suffix for compression in COMPRESSIONS.values()))
SUFFIXES = tuple({f"{suffix}{gz}": "" for known in FORMATS.values() for suffix in known.suffixes for gz in PACKED})
TABLES = (".csv", ".csv.gz", ".yaml", ".yml")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z")
SNIFFED_BYTES = 32 << 20
"""How far into a file the key of its format is searched for."""
GZIP_RATIO = 15
"""How many times smaller a compressed trace usually is."""
MAX_DEPTH = 6
"""How many levels of folders are searched for the one with the traces."""
RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.I)
_NUMBER = re.compile(r"[-_.](\d{1,6})(?:\.[a-z]+)*$", re.I)


class _RankFiles(NamedTuple):
    """The files of one rank by their format, and the rank that their names give."""

    rank: int | None
    files: dict[str, Path]


@gc_paused()
def load_traces(paths: Path | str | Sequence[Path | str], ranks: set[int] | None = None) -> Job:
    """Read traces into a job: a file, a folder, a glob, or several of these; with ``ranks``, only these ranks.

    Files of all `FORMATS` are recognised by their content. If a rank has an execution trace and a profiler trace of
    PyTorch, they are joined: ops get their arguments from the execution trace.
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, (Path, str)) else paths)]
    source = str(given[0]) if len(given) == 1 else f"{given[0]} and {len(given) - 1} more"
    files = [file for path in given for file in _files(path) if ranks is None or _may_be_of(file, ranks)]
    found = _by_rank(_traces(source, files)) if files else []
    graphs = _read([one for one in found if ranks is None or one.rank is None or one.rank in ranks])
    if len(graphs) > 1:
        from foretrace.formats.ranks import align_ranks, check_ranks_known, numbered_by_name

        numbered_by_name(graphs)
    graphs = sorted((g for g in graphs if ranks is None or g.rank in ranks), key=lambda graph: graph.rank)
    if not graphs:
        raise ForetraceError(f"{source} holds no trace of rank {_few(sorted(ranks or ()))}", "Ask for other ranks.")
    if len(graphs) > 1:
        check_ranks_known(graphs)
    if is_guessed := all(graph.world == 1 for graph in graphs):
        for graph in graphs:
            graph.world = graphs[-1].rank + 1
    for graph in graphs:
        if graph.world > MAX_RANKS:
            raise ForetraceError(
                f"{graph.source} says that its job has {graph.world:,} ranks", "Check where the file comes from."
            )
    notes: list[str] = []
    if len(graphs) > 1:
        graphs, notes = align_ranks(graphs)
    job = Job(graphs, source, notes)
    if job.missing and ranks is None:
        word = "rank" if len(job.missing) == 1 else "ranks"
        whole = f"of the {job.world} in the job" + (", which may have more" if is_guessed else "")
        job.notes.append(f"no trace of {word} {_few(job.missing)} {whole}")
    return job


def trace_files(path: Path | str) -> list[Path]:
    """The traces that `load_traces` reads from a path, without the other files there."""
    return [file for file, _ in _traces(str(path), _files(Path(path)))]


def format_of(path: Path) -> str | None:
    """The name of a file's format in `FORMATS`, from its content; None for something else."""
    seen = b""
    for chunk in read_chunks(path):
        if not seen and (name := _binary_format(chunk)):
            return name
        seen += chunk
        text = seen.removeprefix(b"\xef\xbb\xbf").lstrip()
        if text.startswith(b"["):
            return _format_of_array(text)
        if not text.startswith(b"{"):
            break
        first, end = None, len(text)  # of the keys, the one that comes first
        for name, known in FORMATS.items():
            key = re.compile(rb'"(?:%b)"\s*:' % known.key.encode())
            if known.key and (match := key.search(text, 0, end)):
                first, end = name, match.start()
        if first:
            return first
        if len(seen) > SNIFFED_BYTES:
            break
    return None


def _binary_format(start: bytes) -> str | None:
    headers = ((name, known.header) for name, known in FORMATS.items() if known.header)
    return next((name for name, header in headers if re.match(header, start, re.DOTALL)), None)


def _format_of_array(text: bytes) -> str | None:
    empty = not text.lstrip(b"[").strip(b" \t\r\n]")
    keys = ((name, known.item_key) for name, known in FORMATS.items() if known.item_key)
    return next((name for name, key in keys if empty or re.search(rb'"(?:%b)"' % key.encode(), text)), None)


def rank_in_name(path: Path, alone: bool = False) -> int | None:
    """The rank in the name of a file, or of the folder around it; None for none.

    Without the word rank, the last number in the name is taken, unless the file is ``alone``.

    >>> [rank_in_name(Path(p)) for p in ("rank3.kineto.json.gz", "rank-7/et.json", "trace_12.json", "a.json")]
    [3, 7, 12, None]
    """
    found = RANK_IN_NAME.search(path.name) or RANK_IN_NAME.search(path.parent.name)
    if not found and not alone:
        found = _NUMBER.search(path.name)
    return int(found[1]) if found else None


def _may_be_of(path: Path, ranks: set[int]) -> bool:
    """Whether a file may be of one of the ranks: a file named after another rank is not even opened."""
    number = rank_in_name(path, alone=True)
    return number is None or number in ranks


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        if (path / "run.py").is_file() and (path / "harness").is_dir():
            raise ForetraceError(
                f"{path} is a benchmark: it runs a step, and holds no trace of one",
                f"Run it: foretrace replay {path}. Or name the recording that it was made of.",
            )
        inside = [*path.glob("*"), *path.glob("*/*")]
        found = sorted(file for file in inside if file.name.lower().endswith(SUFFIXES) and file.is_file())
        return found or _deeper_files(path)
    if not has_magic(str(path)) or path.exists():
        return [path]
    root = Path(path.anchor)
    found = sorted(root.glob(str(path.relative_to(root))))
    if not found:
        raise ForetraceError(f"no file matches {path}", "Check the pattern.")
    return [file for match in found for file in (_files(match) if match.is_dir() else [match])]


def _deeper_files(path: Path) -> list[Path]:
    """The files of the one folder further down that has traces; several may be of several jobs, and are refused."""
    for depth in range(3, MAX_DEPTH + 1):
        folders: dict[Path, list[Path]] = defaultdict(list)
        for file in sorted(path.glob("/".join("*" * depth))):
            if file.name.lower().endswith(SUFFIXES) and file.is_file():
                folders[file.parent].append(file)
        having = [folder for folder, files in folders.items() if any(map(format_of, files))]
        if len(having) == 1:
            return folders[having[0]]
        if having:
            named = f"{', '.join(map(str, having[:3]))}{' and others' if len(having) > 3 else ''}"
            raise ForetraceError(
                f"{path} holds no traces; folders further down do: {named}",
                "Name one of these; or several, if they are of one job: foretrace show 'run/*/*/*/'.",
            )
    raise ForetraceError(
        f"{path} holds no traces, nor does any folder in it (*.json, *.json.gz, *.et, *.sqlite)",
        "Name the folder with the files, or several: foretrace show 'run/*/*/'.",
    )


def _traces(source: str, files: list[Path]) -> list[tuple[Path, str]]:
    """The files that are traces, each with its format; other files may lie among them."""
    traces = [(file, name) for file in dict.fromkeys(files) if (name := format_of(file))]
    if not traces:
        advice = f"Give a file of torch.profiler, or another of these: {', '.join(FORMATS)}."
        if files[0].name.endswith(TABLES):
            advice = (
                f"A list of embedding tables is for `foretrace shard {files[0]} --world N`, a table of step times for "
                f"`foretrace check-table {files[0]}`."
            )
        if files[0].suffix in (".nsys-rep", ".qdrep"):
            advice = f"Export it: nsys export --type sqlite {files[0].name}, and give the file that this writes."
        if files[0].name.endswith(ARCHIVES):
            advice = "It is an archive: unpack it, and give what it holds."
        if files[0].suffix == ".py":
            advice = f"It is a script: foretrace predict {files[0]} predicts it, foretrace record records a run of it."
        raise ForetraceError(f"{files[0] if len(files) == 1 else source} is no trace that Foretrace reads", advice)
    return traces


def _by_rank(traces: list[tuple[Path, str]]) -> list[_RankFiles]:
    """Files that belong together: one of each format in a folder, with the same rank in their names or none."""
    by_rank: dict[tuple[Path, int | None], list[tuple[Path, str]]] = defaultdict(list)
    for path, name in traces:
        by_rank[path.parent, rank_in_name(path, alone=len(traces) == 1)].append((path, name))
    ranks = []
    for (_, number), members in by_rank.items():
        by_format = {name: path for path, name in members}
        if len(by_format) == len(members):
            ranks.append(_RankFiles(number, by_format))
        else:
            ranks += [_RankFiles(number, {name: path}) for path, name in members]
    return ranks


def _read(ranks: list[_RankFiles]) -> list[Graph]:
    """Small files are read several at once; large ones one by one, since each of them keeps all cores busy."""
    large = any(_unpacked_bytes(file) > SERIAL_CHUNKS * CHUNK for rank in ranks for file in rank.files.values())
    if large or len(ranks) < 2:
        return [graph for rank in ranks for graph in _graphs(rank)]
    from foretrace.formats.workers import parallel_map

    return [graph for graphs in parallel_map(_graphs, ranks) for graph in graphs]


def _unpacked_bytes(path: Path) -> int:
    """Approximate size of a file's contents."""
    return path.stat().st_size * (GZIP_RATIO if path.suffix in PACKED[1:] else 1)


def _graphs(rank: _RankFiles) -> list[Graph]:
    """The graph of a rank, or those of all ranks whose traces were merged into one file."""
    files = rank.files
    name = next(name for name in FORMATS if name in files)
    graph, *others = FORMATS[name].read(files[name])
    if others:
        return [graph, *others]
    if name == PROFILER_TRACE and EXECUTION_TRACE in files:
        from foretrace.formats.join import join_traces

        graph = join_traces(FORMATS[EXECUTION_TRACE].read(files[EXECUTION_TRACE])[0], graph)
    # A profiler trace of several ranks says which rank it is; an execution trace seldom does.
    if rank.rank is not None and (graph.world == 1 or (PROFILER_TRACE not in files and rank.rank < graph.world)):
        graph.rank = rank.rank
    return [graph]


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
