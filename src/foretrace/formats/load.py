"""Others' traces, whatever they are: one file, the folder of a rank, or a whole job."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from glob import has_magic
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from foretrace.files import gc_paused, read_chunks
from foretrace.formats.kineto.events import ALONE, CHUNK
from foretrace.formats.kineto.read import NO_SHAPES
from foretrace.formats.ranks import EPOCH_FROM_NS, grouped_alike, on_one_clock
from foretrace.formats.workers import shared_out
from foretrace.graph import MAX_RANKS, ForetraceError, Graph, Job

_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.I)
_NUMBER = re.compile(r"[-_.](\d{1,6})(?:\.[a-z]+)*$", re.I)
USUAL_RATIO = 15
"""How many times a trace shrinks when gzipped."""
CLOCKS_DIFFER_S = 60.0
"""No two hosts of a job have clocks further apart than this."""


@dataclass
class _Rank:
    """The files that tell about one rank, and the rank as their names give it."""

    number: int | None
    files: dict[str, Path]


@gc_paused()
def load(paths: Path | str | Sequence[Path | str], ranks: set[int] | None = None) -> Job:
    """Read traces into a job: a file, a folder, a glob, or several of these; only the given ranks where there are any.

    Profiler traces, PyTorch execution traces and Chakra traces are told apart by what is in them. An execution trace
    beside the profiler trace of the same rank gives its ops their arguments.
    """
    asked = [Path(path) for path in ([paths] if isinstance(paths, (Path, str)) else paths)]
    source = str(asked[0]) if len(asked) == 1 else f"{asked[0]} and {len(asked) - 1} more"
    files = [file for path in asked for file in _files(path) if ranks is None or _may_be_of(file, ranks)]
    found = _by_rank(_traces(source, files)) if files else []
    graphs = _graphs([rank for rank in found if ranks is None or rank.number is None or rank.number in ranks])
    graphs = sorted((g for g in graphs if ranks is None or g.rank in ranks), key=lambda graph: graph.rank)
    if not graphs:
        raise ForetraceError(f"{source} holds no trace of rank {_few(sorted(ranks or ()))}", "Ask for other ranks.")
    if all(graph.world == 1 for graph in graphs):
        for graph in graphs:
            graph.world = graphs[-1].rank + 1
    _refuse_mixed(graphs)
    graphs, said = grouped_alike(graphs)
    graphs, notes = on_one_clock(graphs)
    job = Job(graphs, source, [*said, *notes])
    if job.missing and ranks is None:
        word = "rank" if len(job.missing) == 1 else "ranks"
        job.notes.append(f"no trace of {word} {_few(job.missing)} of the {job.world} in the job")
    return job


def trace_files(path: Path | str) -> list[Path]:
    """The files that are read of a path: traces alone, whatever lies beside them."""
    return [file for file, _ in _traces(str(path), _files(Path(path)))]


def _may_be_of(path: Path, ranks: set[int]) -> bool:
    """Whether a file may be of one of the ranks: one whose name says otherwise is not even opened."""
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
        if not found:
            raise ForetraceError(f"{path} holds no traces (*.json, *.json.gz, *.et)", "Name the folder with the files.")
        return found
    if not has_magic(str(path)) or path.exists():
        return [path]
    root = Path(path.anchor)
    found = sorted(root.glob(str(path.relative_to(root))))
    if not found:
        raise ForetraceError(f"no file matches {path}", "Check the pattern.")
    return [file for match in found for file in (_files(match) if match.is_dir() else [match])]


def _traces(source: str, files: list[Path]) -> list[tuple[Path, str]]:
    """The files that are traces, and what each is; other files may lie among them."""
    traces = [(file, kind) for file in dict.fromkeys(files) if (kind := kind_of(file))]
    if not traces:
        raise ForetraceError(
            f"{files[0] if len(files) == 1 else source} is no trace that Foretrace reads",
            "Give a trace of torch.profiler, an execution trace of PyTorch or a Chakra trace.",
        )
    return traces


def _by_rank(files: list[tuple[Path, str]]) -> list[_Rank]:
    """Files that belong together: one of each kind in a folder, with the same rank in their names or none."""
    together: dict[tuple[Path, int | None], list[tuple[Path, str]]] = defaultdict(list)
    for path, kind in files:
        together[path.parent, rank_in_name(path, alone=len(files) == 1)].append((path, kind))
    ranks = []
    for (_, number), members in together.items():
        by_kind = {kind: path for path, kind in members}
        if len(by_kind) == len(members):
            ranks.append(_Rank(number, by_kind))
        else:
            ranks += [_Rank(number, {kind: path}) for path, kind in members]
    return ranks


def rank_in_name(path: Path, alone: bool = False) -> int | None:
    """The rank in the name of a file, or of the folder around it; None where there is none.

    Without the word rank, the last number in the name is taken, unless the file is ``alone``.

    >>> [rank_in_name(Path(p)) for p in ("rank3.kineto.json.gz", "rank-7/et.json", "trace_12.json", "a.json")]
    [3, 7, 12, None]
    """
    found = _RANK.search(path.name) or _RANK.search(path.parent.name)
    if not found and not alone:
        found = _NUMBER.search(path.name)
    return int(found[1]) if found else None


def _graphs(ranks: list[_Rank]) -> list[Graph]:
    """Small files are read several at once; large ones one by one, since each of them keeps all cores busy."""
    if any(_unpacked_bytes(file) > ALONE * CHUNK for rank in ranks for file in rank.files.values()):
        return [_graph(rank) for rank in ranks]
    return shared_out(_graph, ranks)


def _unpacked_bytes(path: Path) -> int:
    """About how many."""
    return path.stat().st_size * (USUAL_RATIO if path.suffix == ".gz" else 1)


def _graph(rank: _Rank) -> Graph:
    files = rank.files
    kind = next(kind for kind in READERS if kind in files)
    graph = read(kind, files[kind])
    if kind == PROFILE and EXECUTION in files:
        graph = _with_arguments(graph, files[EXECUTION])
    # a profiler trace of many ranks says which it is; an execution trace seldom does
    if rank.number is not None and (graph.world == 1 or (PROFILE not in files and rank.number < graph.world)):
        graph.rank = rank.number
    return graph


def _with_arguments(profile: Graph, execution_trace: Path) -> Graph:
    from foretrace.formats.join import join

    graph = join(read(EXECUTION, execution_trace), profile)
    graph.notes = [note for note in graph.notes if note != NO_SHAPES]
    return graph


def _refuse_mixed(graphs: list[Graph]) -> None:
    """Refuse traces that can't be of one job."""
    for graph in graphs:
        if graph.world > MAX_RANKS:
            raise ForetraceError(
                f"{graph.source} says that its job has {graph.world:,} ranks", "Check where the file comes from."
            )
    for one, other in pairwise(graphs):
        if one.rank == other.rank:
            what = f"{one.source} and {other.source} are both of rank {one.rank}"
        elif one.world != other.world:
            what = f"{one.source} is of a job of {one.world} ranks, {other.source} of one of {other.world}"
        else:
            continue
        raise ForetraceError(what, "Give the traces of one job only, one a rank.")
    if all(graph.origin_ns > EPOCH_FROM_NS for graph in graphs):
        _refuse_far_apart(graphs)


def _refuse_far_apart(graphs: list[Graph]) -> None:
    """Refuse traces that were not taken at once: minutes apart, or one after the other and of different steps."""
    windows = sorted((_window(graph), i) for i, graph in enumerate(graphs))
    for (earlier, i), (later, j) in pairwise(windows):
        one, other = graphs[i], graphs[j]
        gap_s = (later[0] - earlier[1]) / 1e9
        steps, other_steps = ({step.name for step in graph.steps} for graph in (one, other))
        if gap_s > CLOCKS_DIFFER_S or (gap_s > 0 and steps and other_steps and not steps & other_steps):
            raise ForetraceError(
                f"{other.source} starts {gap_s:,.1f} s after {one.source} ends", "Give the traces of one job only."
            )


def _window(graph: Graph) -> tuple[float, float]:
    """First start and last end, in nanoseconds since the epoch."""
    tables = [table for table in (graph.ops, graph.calls, graph.kernels) if len(table)]
    first, last = min(float(table.start.min()) for table in tables), max(float(table.end.max()) for table in tables)
    return graph.origin_ns + first * 1e3, graph.origin_ns + last * 1e3


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown


# --- was formats.kinds: What others' traces are, told by what is in them, and what reads each kind.

PROFILE, EXECUTION, CHAKRA = "profiler trace", "execution trace", "Chakra trace"
READERS = {
    PROFILE: ("foretrace.formats.kineto.read", "read_kineto"),
    EXECUTION: ("foretrace.formats.execution_trace.read", "read_execution_trace"),
    CHAKRA: ("foretrace.formats.chakra", "read_chakra"),
}
"""The module and the function that read each kind, the one to prefer first: imported once such a file is there."""
SUFFIXES = (".json", ".json.gz", ".et", ".et.gz", ".chakra", ".chakra.gz")
"""How the names of files in a folder end that may be traces."""
_KEYS = ((re.compile(rb'"traceEvents"\s*:'), PROFILE), (re.compile(rb'"nodes"\s*:'), EXECUTION))
_SNIFFED = 32 << 20
"""How far into a file we look for the key that tells what it is."""
_CHAKRA_START = re.compile(
    rb"[\x80-\xff]{0,3}[\x01-\x7f](\x0a[\x01-\x3f][\x20-\x7e]|\x12[\x80-\xff]?[\x01-\x7f]\x0a)", re.DOTALL
)


def read(kind: str, path: Path) -> Graph:
    """The graph in a file of a kind."""
    module, function = READERS[kind]
    graph: Graph = getattr(import_module(module), function)(path)
    return graph


def kind_of(path: Path) -> str | None:
    """What a file is: a profiler trace, an execution trace, a Chakra trace; None for something else."""
    seen = b""
    for piece in read_chunks(path):
        seen += piece
        text = seen.removeprefix(b"\xef\xbb\xbf").lstrip()
        if text.startswith(b"["):
            return PROFILE if b'"ph"' in text or not text.lstrip(b"[").strip(b" \t\r\n]") else None
        if not text.startswith(b"{"):
            return CHAKRA if _chakra_like(seen) else None
        keys = [(found.start(), kind) for key, kind in _KEYS if (found := key.search(text))]
        if keys:
            return min(keys)[1]
        if len(seen) > _SNIFFED:
            break
    return CHAKRA if _chakra_like(seen) else None


def _chakra_like(start: bytes) -> bool:
    """A Chakra file starts with the length of a message that holds a version or else an attribute with a name."""
    return bool(_CHAKRA_START.match(start))
