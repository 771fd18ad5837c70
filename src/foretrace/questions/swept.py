"""What is swept: a step or a job that is read once, and predicted again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from foretrace.api import as_job, script_of, with_fabric
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.platform.platform import Platform
from foretrace.platforms import platform
from foretrace.prediction.predict import step_figures
from foretrace.questions.arranging import Arranging
from foretrace.questions.changes import Change
from foretrace.questions.sweep_keys import Key, key_of, step_digest
from foretrace.questions.sweep_points import Point
from foretrace.questions.whatifs import one_step

Combination = tuple[Change, ...]
Task = tuple[Combination, list[str]]
"""A combination, and the platforms on which it is to be predicted."""


class Subject(NamedTuple):
    """What is swept."""

    what: Graph | Job | str | Path
    """A script is sketched once, and its job sent to all processes that work on it."""
    on: tuple[str, ...]
    fabric: str | None = None
    gpus_per_node: int | None = None
    longest: int = 0
    """The longest sequence that will be asked for."""
    world: int | None = None
    """Ranks of the process group that a script shall find."""
    digest: str = ""
    """Of the files at a path; empty where nobody compares."""

    @property
    def is_script(self) -> bool:
        """Whether it has to be sketched."""
        return not isinstance(self.what, (Graph, Job)) and script_of(self.what) is not None

    def sketched(self) -> Subject:
        """The same with the job of its script, where it is one."""
        if not self.is_script:
            return self
        return self._replace(what=as_job(self.what, self._platforms()[self.on[0]].device.kind, self.world))

    def keyed(self) -> tuple[Subject, dict[str, Key]]:
        """The same with its digest, and what its points depend on: by platform."""
        digest = step_digest(self.what)
        keys = {name: key_of(digest, where, self.gpus_per_node) for name, where in self._platforms().items()}
        return (self if isinstance(self.what, (Graph, Job)) else self._replace(digest=digest)), keys

    def _platforms(self) -> dict[str, Platform]:
        return {name: platform(name, fabric=self.fabric) for name in self.on}


class Swept:
    """A step or a job that is read once, and predicted again and again."""

    def __init__(self, subject: Subject) -> None:
        self._platforms = {name: platform(name, fabric=subject.fabric) for name in subject.on}
        self._per_node = subject.gpus_per_node
        kind = next(iter(self._platforms.values())).device.kind
        job = as_job(subject.what, kind, subject.world)
        if subject.digest and step_digest(subject.what) != subject.digest:
            raise ForetraceError(f"{subject.what} changed while it was swept", "Start the sweep again.")
        self._arranging = Arranging(one_step(job), subject.longest)

    def points(self, combination: Combination, on: Sequence[str]) -> list[Point]:
        """The points of a combination, one for each platform."""
        changes = [str(change) for change in combination]
        try:
            job = self._arranging.by(combination)
        except ForetraceError as error:
            return left_out(combination, on, error)
        points, samples = list[Point](), self._arranging.samples(combination, job)
        for name in on:
            try:
                points.append(self._point(Point(changes, name, job.world, samples=samples), job))
            except ForetraceError as error:
                points += left_out(combination, [name], error)
        return points

    def _point(self, point: Point, job: Job) -> Point:
        """The point of a job, with its figures."""
        where, alone = self._platforms[point.platform], len(job.graphs) == 1 and not job.alike
        try:
            where, _ = with_fabric(where, job, self._per_node)
        except ForetraceError:
            if not alone:  # the collectives of one rank alone may take no time; those of a job may not
                raise
        found, notes = step_figures(job, where, self._per_node)
        exchanges = any(graph.collectives for graph in job.graphs)
        fabric = where.fabric.name if where.fabric and exchanges else None
        return replace(point, fabric=fabric, notes=notes, **found._asdict())


def left_out(combination: Combination, on: Sequence[str], error: ForetraceError) -> list[Point]:
    """The points of a combination that can't be predicted, with the reason: one for each platform."""
    return [Point([str(change) for change in combination], name, error=error.what) for name in on]
