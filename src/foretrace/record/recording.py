"""Reading a recording: the calls of the structure step, with the times and kernels of the light profile.

Compiled kernels launch device work without being dispatcher calls; their tensors come from the execution trace.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.formats.execution_trace import read_execution_trace
from foretrace.formats.join import match_ops
from foretrace.formats.kineto import read_kineto
from foretrace.formats.ranks import align_clocks
from foretrace.graph import Collective, ForetraceError, Graph, Job, Op, OpTable, Storage, Tensor, Value
from foretrace.graph.calls import collectives_of
from foretrace.graph.op import COMPILED_REGION
from foretrace.graph.programs import compilation_notes
from foretrace.graph.tables import LAUNCH, Ints, distinct
from foretrace.record import folder as files

PROGRAM_ANNOTATION = "## Call CompiledFxGraph"


def load_recording(path: str | Path, ranks: Collection[int] | None = None) -> Job:
    """The job that a recording holds.

    Parameters
    ----------
    path
        The recording's folder.
    ranks
        Ranks to read; all by default.
    """
    path = Path(path)
    world = files.read_world(path)
    folders = {int(found.name[5:]): found for found in path.glob("rank-*") if found.name[5:].isdecimal()}
    chosen = sorted(set(folders) if ranks is None else set(folders) & set(ranks))
    if not chosen:
        there = ", ".join(map(str, sorted(folders))) or "none"
        raise ForetraceError(f"{path} holds no rank that was asked for", f"Those it holds: {there}.")
    profiles = {rank: profile for rank in chosen if (profile := _profile(folders[rank]))}
    step = _median_step(list(profiles.values()))
    graphs = [read_rank(folders[rank], profiles.get(rank), step) for rank in chosen]
    for graph in graphs:
        if graph.world > 1 and graph.world != world:
            raise ForetraceError(
                f"{graph.source} is of a job of {graph.world} ranks, and {path} of one of {world}",
                "Give the ranks of one recording only.",
            )
        graph.world = world
    graphs, notes = align_clocks(graphs)
    job = Job(graphs, str(path), notes)
    if job.missing and ranks is None:
        were = "was" if len(job.missing) == 1 else "were"
        job.notes.append(f"{len(job.missing)} of the {job.world} ranks {were} not recorded")
    return job


def _profile(path: Path) -> Graph | None:
    profile = path / files.PROFILE
    return read_kineto(profile) if profile.exists() else None


def _median_step(profiles: list[Graph]) -> str:
    """The profiled step of median length over all ranks, without the first, which includes the profiler's start."""
    lengths: dict[str, float] = {}
    for profile in profiles:
        steps = sorted(profile.steps, key=lambda step: step.start)
        for step in steps[1:] or steps:
            lengths[step.name] = lengths.get(step.name, 0.0) + step.ms
    return sorted(lengths, key=lambda name: lengths[name])[(len(lengths) - 1) // 2] if lengths else ""


def read_rank(path: Path, profile: Graph | None, step: str) -> Graph:
    """One rank of a recording as a graph, at the times of one step of its profile."""
    facts = files.read_rank(path)
    ops = files.read_ops(path)
    programs = files.read_programs(path)
    if path.name != f"rank-{facts.rank}":
        raise ForetraceError(f"{path} is a recording of rank {facts.rank}", f"Name the folder rank-{facts.rank} again.")
    structure = Graph(
        ops=OpTable.of(ops),
        rank=facts.rank,
        world=facts.world,
        device=facts.device,
        source=str(path),
        storages=files.read_storages(path, len(ops)),
        indices=files.read_indices(path, ops),
        contents=files.read_contents(path, ops),
        programs=programs,
        settings=facts.settings,
        collectives=collectives_of(ops, facts.groups),
        groups=facts.groups,
        unprofiled=facts.plain,
        profiling_overhead=facts.slowdown,
        notes=compilation_notes(programs, facts.compiled),
    )
    if profile is None:
        return structure
    span = next((span for span in profile.steps if span.name == step), None)
    if span is None:
        raise ForetraceError(f"{path / files.PROFILE} holds no {step or 'step'}", "Record the job again.")
    return with_times(structure, profile.between(span.start, span.end), _compiled(path), facts.compiled.get("kernels"))


def _compiled(path: Path) -> Graph | None:
    """The execution trace of a step with compiled regions."""
    trace = path / files.EXECUTION_TRACE
    return read_execution_trace(trace) if trace.exists() else None


def _work_of(op: Op, known: Any) -> dict[str, Value]:
    """What is known of a kernel of this name with as many tensors."""
    count = len(op.tensors)
    for found in known if isinstance(known, list) else ():
        match found:
            case {"accessed": list(accessed)} if len(accessed) == count:
                return dict(found)
    return {}


def with_times(structure: Graph, profile: Graph, compiled: Graph | None = None, kernels: Any = None) -> Graph:
    """The structure's calls at the profile's times, with its runtime calls and kernels.

    A compiled kernel, which launches device work without a dispatcher call, becomes an op of its own, with its tensors
    from the execution trace ``compiled``, and with what ``kernels`` has of its source. So does the work of gloo's
    threads for a collective.
    """
    found = match_ops(structure.ops, profile.ops)
    _match_launchers(found, structure.ops, profile)
    owner = _owners(found, profile)
    works = _host_works(profile)
    extra = np.concatenate([works, _launchers_without_owner(owner, profile)])
    owner[extra] = len(structure.ops) + np.arange(len(extra))
    owner = _inherited(owner, profile.ops.parent)

    _match_programs(found, structure.ops, profile)
    launchers = [profile.ops[int(row)] for row in extra]
    if compiled is not None:
        launchers = with_traced_arguments(launchers, structure, compiled)
    for op in launchers if isinstance(kernels, dict) else ():
        op.kwargs = op.kwargs | _work_of(op, kernels.get(op.name))
    ops, order = _timed(structure.ops, found, profile, extra, launchers)
    ops.kind = np.concatenate([structure.ops.kind, profile.ops.kind[extra]])[order]
    place = np.empty(len(order) + 1, np.int32)
    place[order] = np.arange(len(order))
    place[-1] = -1  # so that "no op" stays no op
    storages = {number: _moved(storage, place, len(structure.ops)) for number, storage in structure.storages.items()}

    calls, kernels = replace(profile.calls), replace(profile.kernels)
    calls.op, kernels.op = (place[owner[t.op]] if len(owner) else t.op for t in (calls, kernels))
    moved = [replace(indices, op=int(place[indices.op])) for indices in structure.indices]
    dispatched = found[[not op.is_side_call for op in structure.ops]]
    matched = float((dispatched >= 0).mean()) if len(dispatched) else 1.0
    return replace(
        structure,
        ops=ops,
        calls=calls,
        kernels=kernels,
        storages=storages,
        indices=moved,
        collectives=_collectives(structure.collectives, kernels.op, place, len(structure.ops) + np.arange(len(works))),
        origin_ns=profile.origin_ns,
        steps=profile.steps,
        activities=profile.activities,
        profiler_events=np.sort(
            np.concatenate([t for table in (profile.ops, profile.calls) for t in (table.start, table.end)])
        ),
        notes=[*structure.notes, f"{100 * matched:.1f} % of the recorded calls found in the profile"],
    )


def _moved(storage: Storage, place: Ints, calls: int) -> Storage:
    """The storage with birth and death at the new rows of the calls; after the last call stays after the last."""
    death = len(place) - 1 if storage.death == calls else int(place[storage.death])
    return replace(storage, birth=int(place[storage.birth]), death=death)


def _owners(found: Ints, profile: Graph) -> Ints:
    """For each row of the profile (and one past the end for "none") the structure's op it is; -1 elsewhere."""
    owner = np.full(len(profile.ops) + 1, -1, np.int32)
    owner[found[found >= 0]] = np.flatnonzero(found >= 0)
    return owner


def _match_launchers(found: Ints, structure: OpTable, profile: Graph) -> None:
    """Match rows that launch kernels and were not found with calls of their name that were not either, in order.

    Under ``torch.func`` a profile has each call several times, nested, and those that rules for batches make in one.
    """
    ops, names = profile.ops, [structure.names[code] for code in structure.name.tolist()]
    missing = {names[place] for place in np.flatnonzero(found < 0).tolist()}
    for row in _launchers_without_owner(_owners(found, profile), profile).tolist():
        if (name := ops.names[ops.name[row]]) not in missing:
            continue
        known = np.flatnonzero(found >= 0)
        known = known[ops.thread[found[known]] == ops.thread[row]]
        after = known[found[known] < row].max(initial=-1)
        before = known[found[known] > row].min(initial=len(names))
        alike = [place for place in range(after + 1, before) if found[place] < 0 and names[place] == name]
        if alike:
            found[alike[0]] = row


def _match_programs(found: Ints, structure: OpTable, profile: Graph) -> None:
    """Match calls of compiled programs with the annotations that PyTorch opens around each of them."""
    if not len(structure) or not len(profile.ops):
        return
    marks = np.flatnonzero(structure.names.matching(COMPILED_REGION.__eq__)[structure.name])
    names = profile.ops.names.matching(lambda name: name.startswith(PROGRAM_ANNOTATION))
    rows = np.flatnonzero(names[profile.ops.name])
    if len(marks) == len(rows):
        found[marks] = rows


def _count_program_calls(calls: Sequence[Op]) -> None:
    """Set how many calls a compiled program makes, now that its generated kernels are among them.

    The mark itself takes no time: that is its calls'.
    """
    for place, mark in enumerate(calls):
        if mark.name != COMPILED_REGION or not mark.end_us > mark.start_us:
            continue
        inside = 0
        for op in calls[place + 1 :]:
            if not op.start_us < mark.end_us:
                break
            inside += not op.is_side_call
        mark.args, mark.end_us = (inside, *mark.args[1:]), mark.start_us


def _launchers_without_owner(owner: Ints, profile: Graph) -> NDArray[np.intp]:
    """Rows of the profile that launch kernels and belong to no call of the structure."""
    launching = profile.calls.op[(profile.calls.kind == LAUNCH) & (profile.calls.op >= 0)]
    rows: NDArray[np.intp] = distinct(launching).astype(np.intp)
    return rows[_inherited(owner, profile.ops.parent)[rows] < 0]


def _host_works(profile: Graph) -> NDArray[np.intp]:
    """Rows of the profile in which gloo's threads ran a collective: the calls themselves return at once."""
    names = profile.ops.names
    rows = [c.op for c in profile.collectives if c.kernel < 0 and names[profile.ops.name[c.op]].startswith("gloo:")]
    return np.array(sorted(rows), np.intp)


def _inherited(owner: Ints, parents: Ints) -> Ints:
    """Owners, where a row without one inherits its parent's: parents come first."""
    result = owner.tolist()
    for row, parent in enumerate(parents.tolist()):
        if result[row] < 0 and parent >= 0:
            result[row] = result[parent]
    return np.array(result, np.int32)


def _timed(
    structure: OpTable, found: Ints, profile: Graph, extra: NDArray[np.intp], launchers: list[Op]
) -> tuple[OpTable, NDArray[np.intp]]:
    """The structure's ops and the extra ones at the profile's times, and the previous row of each.

    A call that the profile does not show (a stream's wait, a resize) stands at the end of the call before it, or at
    the start of the first one it shows.
    """
    rows = np.concatenate([found, extra]).astype(np.int64)
    shown = rows >= 0
    count = len(structure)
    start = np.where(shown, profile.ops.start[rows], np.nan) if len(profile.ops) else np.full(len(rows), np.nan)
    end = np.where(shown, profile.ops.end[rows], np.nan) if len(profile.ops) else start.copy()
    thread = np.where(shown, profile.ops.thread[rows], 0) if len(profile.ops) else np.zeros(len(rows), np.int32)
    seen, hidden = np.flatnonzero(shown[:count]), np.flatnonzero(~shown[:count])
    if len(seen):
        before = np.searchsorted(seen, hidden) - 1
        neighbour = seen[np.maximum(before, 0)]
        start[hidden] = end[hidden] = np.where(before < 0, start[neighbour], end[neighbour])
        thread[hidden] = thread[neighbour]

    calls = [*structure, *launchers]
    for op, begins, ends, lane in zip(calls, start, end, thread):
        op.start_us, op.end_us, op.thread, op.parent = float(begins), float(ends), int(lane), -1
    order = np.argsort(start, kind="stable")
    ordered = [calls[row] for row in order]
    _count_program_calls(ordered)
    return OpTable.of(ordered), order


def _collectives(planned: list[Collective], kernel_op: Ints, place: Ints, works: NDArray[np.intp]) -> list[Collective]:
    """The structure's collectives with the kernels, or the rows of gloo's threads, that ran them."""
    kernel_of = {int(op): row for row, op in reversed(list(enumerate(kernel_op)))}
    # Gloo has other names for some collectives, but runs them in order.
    rows = [place[row] for row in (works if len(works) == len(planned) else (c.op for c in planned))]
    return [replace(c, op=int(row), kernel=kernel_of.get(int(row), -1)) for c, row in zip(planned, rows)]


def with_traced_arguments(launchers: Sequence[Op], structure: Graph, trace: Graph) -> list[Op]:
    """The launchers with the arguments of those of the same name, in order, in an execution trace.

    The trace numbers storages differently: those that calls of the structure also use get the structure's numbers, so
    that cache hits of a kernel are known.
    """
    wanted = {op.name for op in launchers}
    known: defaultdict[str, deque[Op]] = defaultdict(deque)
    for row, code in enumerate(trace.ops.name):
        if trace.ops.names[code] in wanted:
            known[trace.ops.names[code]].append(trace.ops[row])
    number = _renumbered(structure, trace)
    return [_with_arguments(op, known[op.name].popleft(), number) if known[op.name] else op for op in launchers]


def _renumbered(structure: Graph, trace: Graph) -> Callable[[int], int]:
    """Map from the trace's storage ids to the structure's; storages that only the trace has come after those."""
    numbers: dict[int, int] = {-1: -1}
    rows = match_ops(structure.ops, trace.ops).tolist()
    for mine, row in zip(structure.ops, rows):
        if row >= 0:
            pairs = zip([*mine.tensors, *mine.produced], [*(theirs := trace.ops[row]).tensors, *theirs.produced])
            numbers |= {there.storage: here.storage for here, there in pairs if here.shape == there.shape}
    unused = count(max(structure.storages, default=-1) + 1)

    def number(storage: int) -> int:
        if storage not in numbers:
            numbers[storage] = next(unused)
        return numbers[storage]

    return number


def _with_arguments(op: Op, found: Op, number: Callable[[int], int]) -> Op:
    def moved(value: Value) -> Value:
        if isinstance(value, Tensor):
            return replace(value, id=-1, storage=number(value.storage))
        return [moved(item) for item in value] if isinstance(value, list) else value

    args, outputs = (tuple(moved(value) for value in values) for values in (found.args, found.outputs))
    return replace(op, args=args, kwargs=found.kwargs, outputs=outputs)
