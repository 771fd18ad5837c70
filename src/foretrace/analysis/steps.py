"""The steps of a trace: which one is shown, and what belongs to it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from foretrace.graph import ForetraceError, Graph, Job, Span
from foretrace.graph.tables import KernelTable, Longs


def chosen_step(job: Job, step: str | None) -> str | None:
    """The step asked for, else the one of median length; None where the ranks have none in common."""
    lengths = [{span.name: span.ms for span in graph.steps} for graph in job.graphs]
    common = [name for name in (lengths[0] if lengths else {}) if all(name in rank for rank in lengths)]
    if step is None:
        ordered = sorted(common, key=lambda name: sum(rank[name] for rank in lengths))
        return ordered[(len(ordered) - 1) // 2] if ordered else None
    if step not in common:
        has = f"It has {', '.join(common)}." if common else "It marks no steps: leave the step out to see all of it."
        raise ForetraceError(f"{job.source} has no step {step}", has)
    return step


def cut_to_step(graph: Graph, step: str | None) -> tuple[Graph, Graph]:
    """What was called in a step with the kernels it launched, and the same with what ran before those on the device.

    In a trace of one step, kernels launched before the trace began are counted as the step's: they ran in its time.
    In a trace of several they belong to the step before, and matter only for what the step's own had to wait for.
    """
    span = next((span for span in graph.steps if span.name == step), None)
    if span is None:
        return graph, graph
    cut = graph.between(span.start, span.end)
    earlier = _launched_before(graph, span)
    if len(graph.steps) == 1:
        cut = replace(cut, kernels=_with_rows(cut.kernels, graph.kernels, earlier))
        return cut, cut
    running = earlier[graph.kernels.end[earlier] > span.start]
    kernels = _with_rows(cut.kernels, graph.kernels, running)
    kernels.start = np.maximum(kernels.start, span.start)
    return cut, replace(cut, kernels=kernels)


def _launched_before(graph: Graph, span: Span) -> Longs:
    return np.flatnonzero(np.append(graph.calls.start, -np.inf)[graph.kernels.call] < span.start)


def _with_rows(cut: KernelTable, whole: KernelTable, rows: Longs) -> KernelTable:
    """Kernels of a step and after them, so that their rows stay, more of the whole trace's, without a launch."""
    more = whole.rows(rows)
    more.call[:], more.op[:] = -1, -1
    columns = {
        f.name: np.concatenate([getattr(cut, f.name), getattr(more, f.name)]) for f in fields(cut) if f.name != "names"
    }
    return KernelTable(**columns, names=cut.names)
