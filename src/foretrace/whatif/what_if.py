"""What-ifs: a step or a job as it is and as it would be, both predicted, and the difference explained by op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from foretrace._progress import OnProgress, Progress
from foretrace.analysis.collective_matching import seen_by_all
from foretrace.analysis.compare import StepDifference, compare_steps
from foretrace.analysis.report import NotebookDocument, StepReport, plain
from foretrace.api import as_job, launched_world, predict
from foretrace.errors import parse_size
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.graph.execution_traces import lacks_overloads
from foretrace.graph.graph import chosen_step, cut_to_step
from foretrace.graph.op import COMPILED_REGION, GENERATED_KERNELS
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.platform.registry import load_platform
from foretrace.prediction.gaps import with_host_gaps
from foretrace.prediction.notes import recorded_notes
from foretrace.transforms.resize.batch_sequence import other_batch_notes
from foretrace.transforms.step import flatten, require_arguments
from foretrace.whatif.changes import EditedJob, JobChanges
from foretrace.whatif.fitting import with_largest_batch
from foretrace.whatif.grammar import JOB_CHANGES, LARGEST, RESIZABLE, Change, listed, read_changes
from foretrace.whatif.recomputation import NOTHING_RECOMPUTED, is_budget, with_least_recomputation

UNSEEN = (
    "which work waits for which collective is known from the profile only: in the changed step more communication may "
    "be exposed"
)
COMPARED = "both sides are predicted by the platform's models, also where the step was measured"
CARRIED_AS_IT_WAS = "measured host time that no model covers is the same on both sides; more samples may load longer"
STRANGE_SAMPLES = 1.5
"""Samples of another batch take as long as before, or less the more there are, up to so many times."""


@dataclass
class WhatIf(NotebookDocument):
    """Two predictions, before and after some changes.

    >>> WhatIf(["batch=64"], StepReport(step_ms=2.0), StepReport(step_ms=1.0)).speedup
    2.0
    """

    changes: list[str]
    before: StepReport
    after: StepReport
    notes: list[str] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """How many times as fast a step is."""
        return self.before.step_ms / self.after.step_ms if self.after.step_ms else 0.0

    @cached_property
    def difference(self) -> StepDifference:
        """What changes, op by op."""
        was, now = (None if s.unrecorded_launches else s.device_active_ms for s in (self.before, self.after))
        found = compare_steps(self.before, self.after)
        return replace(found, after=", ".join(self.changes), device_active_ms=(was, now))

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``foretrace whatif --json``."""
        return {
            "source": self.before.source,
            "platform": self.after.platform,
            "changes": self.changes,
            "speedup": round(self.speedup, 4),
            "sample_us": [plain(side.sample_us) for side in (self.before, self.after)],
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "difference": self.difference.to_dict(),
            "notes": self.notes,
        }


def what_if(
    what: Graph | Job | str | Path,
    on: Platform | str | Path = "h200",
    changes: Iterable[Change | str] | str = (),
    step: str | None = None,
    world: int | None = None,
    parallel: Iterable[Change | str] | str = (),
    fabric: Fabric | Platform | str | Path | None = None,
    gpus_per_node: int | None = None,
    drop_gaps: bool = False,
    on_progress: OnProgress = lambda progress: None,
    **sets: object,
) -> WhatIf:
    """What becomes of a step's time if the step is changed, or the job whose ranks do it.

    Parameters
    ----------
    what
        A sketch, a loaded recording or trace, or its path, or that of a script, as in `foretrace.predict`. Of a job,
        all ranks that have a graph are changed and predicted together.
    on
        A platform, its name, or its folder.
    changes
        Changes as texts, ``"rows:tables.3=1000"``. Those of a step are made in their order, then the step is shared
        between ranks, then comes what is set of their exchange.
    step
        Which step of a trace that holds several.
    world
        Predict a job of so many ranks that all do the same; before and after.
    parallel
        How ranks share the step of one before anything is changed: ``["data=8", "tensor=2"]``.
    fabric, gpus_per_node
        What joins the ranks, as in `foretrace.predict`.
    drop_gaps
        Leave out measured host time that no model covers, as in `foretrace.predict`; else both sides have it.
    on_progress
        Called with how far it is.
    sets
        More changes by name: ``batch=64, dtype="bf16"``.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> x = Tensor((64, 1024), "float32", "cuda:0", (1024, 1), id=0, storage=0)
    >>> y = Tensor((64, 1024), "float32", "cuda:0", (1024, 1), id=1, storage=1)
    >>> relu = Op("aten::relu", (x,), outputs=(y,), overload="default", phase="forward")
    >>> found = what_if(Graph(OpTable.of([relu])), batch=65536)
    >>> found.after.device_active_ms > 10 * found.before.device_active_ms
    True
    """
    read = read_changes([*listed(changes), *(f"{name}={value}" for name, value in sets.items())])
    if not read:
        raise ForetraceError("nothing is to be changed", "Say what, as in --set batch=64.")
    world = launched_world(what) if world is None else world
    already = read_changes([*listed(parallel), *([f"world={world}"] if world is not None else [])])
    # Contradictions are refused before minutes of sketching.
    shared = any(JobChanges.of(side).parallelism for side in (already, [*already, *read]))
    where = load_platform(on, fabric=fabric)
    anew = [change for change in read if change.name == "compile"]
    rest = [change for change in read if change.name != "compile"]
    edits_step = any(change.name not in JOB_CHANGES for change in rest)

    def job_of(compile: str | None = None) -> Job:
        job = as_job(what, where.device.kind, None if shared else world, compile, programs=edits_step)
        return one_step(job, step, drop_gaps)

    on_progress(Progress("reading"))
    jobs = [job_of()]
    for change in anew:
        on_progress(Progress(f"sketching it with {change}"))
        jobs.append(job_of(change.value))
    notes = [*recorded_notes(jobs[0]), *_comparison_notes(jobs[0], edits_step)]
    if edits_step:
        # An edited step holds its calls alone, without what a profile shows of them: then neither does the other.
        jobs = [replace(job, graphs=[flatten(graph) for graph in job.graphs]) for job in jobs]
        if any(change.name in RESIZABLE for change in rest):  # refused before anything is predicted
            require_arguments(list(jobs[0].graphs[0].ops), jobs[0].graphs[0].source)
    batches = [change.value for change in rest if change.name == "batch"]
    recorded = _recorded_batch(batches)
    notes += other_batch_notes(jobs[0].graphs[0], recorded)
    edits = [EditedJob(job, recorded=recorded, on_stage=lambda stage: on_progress(Progress(stage))) for job in jobs]
    notes += edits[-1].batch_notes(rest)
    asked, rest = rest, _with_what_fits(edits[-1], [*already, *rest], where, on_progress)[len(already) :]
    read = [*anew, *rest]
    notes += [NOTHING_RECOMPUTED] if len(rest) < len(asked) else []

    def predicted(edited: EditedJob, side: Sequence[Change], words: str) -> StepReport:
        made = edited.by(side)
        on_progress(Progress(f"predicting it {words}"))
        report = predict(made, where, kernels="model", gpus_per_node=gpus_per_node, drop_gaps=drop_gaps)
        return replace(report, samples=edited.samples(side, made))

    before = predicted(edits[0], already, "as it is")
    after = predicted(edits[-1], [*already, *rest], "as it would be")
    if strange := strange_batch(before.samples, after.samples, before.step_ms, after.step_ms):
        after.notes.append(strange)
    if after.carried and any(change.name in ("batch", "seq") for change in rest):
        notes.append(CARRIED_AS_IT_WAS)
    notes += fusion_notes(jobs[-1]) if anew else []
    return WhatIf([str(change) for change in read], before, after, notes)


def _comparison_notes(job: Job, edits_step: bool) -> list[str]:
    """What a comparison of a measured job with a changed one rests on."""
    measured = any(graph.unprofiled.synced_ms or len(graph.kernels) for graph in job.graphs)
    unseen = edits_step and any(graph.collectives and lacks_overloads(list(graph.ops)) for graph in job.graphs)
    return [COMPARED] * measured + [UNSEEN] * unseen


def _recorded_batch(batches: Iterable[str]) -> int | None:
    """The recorded number of samples, where a change of the batch states it, as 64/16 does."""
    stated = (parse_size("batch", value.replace(LARGEST, "1", 1))[1] for value in batches)
    return next(filter(None, stated), None)


def _with_what_fits(
    edited: EditedJob, changes: list[Change], platform: Platform, on_progress: OnProgress
) -> list[Change]:
    """The changes with the largest batch, or the least recomputation, that fits in the place of what asks for it."""
    if any(change.name == "batch" and change.value.startswith(LARGEST) for change in changes):
        on_progress(Progress("finding the largest batch that fits"))
        changes = with_largest_batch(edited, changes, platform.device)
    if any(is_budget(change) for change in changes):
        on_progress(Progress("finding the least recomputation that fits"))
        changes = with_least_recomputation(edited, changes, platform)
    return changes


def fusion_notes(job: Job) -> list[str]:
    """What became of a step that is compiled: its programs and their generated kernels."""
    ops = job.graphs[0].ops
    programs = [op for op in ops if op.name == COMPILED_REGION]
    if not programs:
        return []
    kernels = sum(op.name.startswith(GENERATED_KERNELS) for op in ops)
    others = sum(value for op in programs for value in op.args[:1] if isinstance(value, int)) - kernels
    return [f"compiled: {len(programs)} programs with {kernels} generated kernels and {others} calls of PyTorch"]


def strange_batch(old: int | None, new: int | None, before_ms: float, after_ms: float) -> str | None:
    """A caution where a step does not take as long as one of so many more samples would: what was resized is probably
    not the batch.

    >>> strange_batch(32, 64, 10.0, 480.0)
    'the batch may be another: with 64 instead of 32 samples the step takes 48 times as long; state it with --batch-was'
    >>> strange_batch(32, 64, 10.0, 18.0), strange_batch(None, 64, 10.0, 480.0)
    (None, None)
    """
    if not old or not new or old == new or not before_ms or not after_ms:
        return None
    more, longer = new / old, after_ms / before_ms
    if min(1.0, more) / STRANGE_SAMPLES <= longer <= max(1.0, more) * STRANGE_SAMPLES:
        return None
    return (
        f"the batch may be another: with {new:,} instead of {old:,} samples the step takes {longer:.2g} times as long; "
        "state it with --batch-was"
    )


def one_step(job: Job, step: str | None = None, drop_gaps: bool = False) -> Job:
    """The job cut to one of its steps, with measured host time that no model covers unless that shall be left out."""
    name = chosen_step(job, step)
    graphs, _ = seen_by_all([cut_to_step(graph, name)[0] for graph in job.graphs], leave_out=False)
    return replace(job, graphs=graphs if drop_gaps else [with_host_gaps(graph) for graph in graphs])
