"""Gradients shared beside the backward that makes them, or all of them behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from foretrace.graph.graph import Graph
from foretrace.transforms.ddp import Place, SharedStep
from foretrace.transforms.parallel.draft import Line


def overlap(graph: Graph, on: bool) -> Graph:
    """The step with each bucket of gradients sent as soon as it is full; or with all sent when backward is done.

    Parameters
    ----------
    graph
        The step of a rank that shares its gradients in buckets, as DistributedDataParallel does.
    on
        Whether they go out beside backward.
    """
    step = SharedStep(graph)
    if on:
        return step.written(_beside(step), "gradients are shared beside backward, each bucket when it is full")
    return step.written(_behind(step), "gradients are shared when backward is done, and not beside it")


def _behind(step: SharedStep) -> Iterator[tuple[Place, Line]]:
    """Every bucket waits until the last one is full."""
    sent = {bucket.row: (max(bucket.row, step.filled), 1) for bucket in step.buckets}
    return _moved(step, sent)


def _beside(step: SharedStep) -> Iterator[tuple[Place, Line]]:
    """Gradients are brought to their bucket when they are whole; the last one sends it."""
    places: dict[int, Place] = {}
    for bucket in step.buckets:
        for share in bucket.shares:
            places[share.fill] = _whole(step, share.fill, share.gradient.storage)
        last = max(bucket.shares, key=lambda share: places[share.fill])
        places[bucket.row] = (places[last.fill][0], 1 if places[last.fill][1] == 0 else 2)
    return _moved(step, places)


def _moved(step: SharedStep, places: dict[int, Place]) -> Iterator[tuple[Place, Line]]:
    """The calls of a step, some of them elsewhere."""
    for row, line in enumerate(step.lines):
        place = places.get(row, (row, 0))
        # A call that moves takes nothing with it of what happened where it stood.
        yield place, line if place == (row, 0) else replace(line, row=-1)


def _whole(step: SharedStep, fill: int, gradient: int) -> Place:
    """Where a gradient is whole: the last call of backward that makes it, where it is not there already."""
    if step.ops[fill].phase == "backward" and step.ops[fill].node:
        return fill, 0
    made = [row for row in range(fill) if any(t.storage == gradient for t in step.ops[row].produced)]
    return (max(made), 1) if made else (fill, 0)
