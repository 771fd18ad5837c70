"""A step in the terminal, measured (`show`) or predicted (`predict`): the answer first, then the tables behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import RenderableType

from foretrace.analysis.report import (
    LATENCY,
    NO_EVENT,
    OWN_MACHINE,
    QUEUED,
    UNRECORDED,
    PathRow,
    StepReport,
    TimeRow,
    bound_by,
    unrecorded_ms,
)
from foretrace.graph.graph import LATE_CLOCK, MISSING_KERNELS, cautions
from foretrace.report.formatting import (
    bytes_,
    figure,
    host_column,
    join_words,
    limit_of,
    money,
    ms,
    ms_range,
    percent,
    plural,
    printable,
    rate,
    short_name,
)
from foretrace.report.terminal import Blocks, Fact, bar, fact_lines, note_lines, record_table, table

SPANS = ("to the end of all that it launches", "from the first rank's start to the last one's end")
"""What the span of a step is: of one rank, and of several."""
OVERHEADS = {
    "T1": "between ops",
    "T2": "op start to first launch",
    "T3": "last launch to op end",
    "T4": "in launch calls",
    "T5": "between launches of an op",
}
WITHOUT_LAUNCHES = {"T1": "between ops", "T2": "inside ops"}
"""Names of the overheads of a step that launches nothing."""
CAUSES = {
    **OVERHEADS,
    "sync": "the host waits for the device",
    "busy wait": "the host polls for the device",
    "latency": "from launch to start, and from kernel to kernel",
    "queued": "launched, and not started",
    "no event": "nothing is recorded",
    "data loading": "the next batch",
    "annotation": "code under a record_function name",
    "python": "between ops",
    "allocation": "of memory, by the driver",
    "lock": "another thread holds it",
    "carried over": "measured, and covered by no model",
}
"""What a device idles for, and what fills a host's time."""
BOUND = {"host": "host-bound", "device": "device-bound", "queue": "work is launched and does not start"}
WAITING_INCLUDED = "waiting included: the other ranks have no trace here"
COVERAGE = {
    "measured": "measured", "model": "modelled", "extrapolated": "extrapolated", "fallback": "by roofline",
    "assumed": "of assumed size",
}  # fmt: skip
"""How the time of a kernel is known."""
OUTSIDE_OPS = 0.05
"""Share of a measured step without any op, from which on it is said how long that is."""
FELT = 1.01
"""Times as long as in a burst: steps that are slower by less are said to keep their time."""
FAMILIES_NAMED, NAME_SHOWN = 3, 60
COSTS_NOTHING = 0.01
"""Share of the step under which a gain is not worth a word."""


def step_blocks(report: StepReport, top: int | None) -> Blocks:
    """The headline and every table that is not empty, of at most ``top`` rows each."""
    yield fact_lines(step_title(report), [*caution_facts(report.notes), *step_facts(report)])
    yield from _predicted_tables(report, top) if report.predicted else _measured_tables(report, top)
    yield from note_lines(other_notes(report.notes))


def step_title(report: StepReport) -> str:
    """What was measured, or what is predicted where."""
    name = report.source or "the step"
    return f"{name} on {where(report)}" if report.predicted else f"{name}: {which_step(report)}"


def where(report: StepReport) -> str:
    """The machine of a predicted step, and the number of ranks.

    >>> where(StepReport(platform="h200", world=4)), where(StepReport(platform="h200"))
    ('h200, 4 ranks', 'h200')
    """
    return f"{report.platform}, {plural(report.world, 'rank')}" if report.world > 1 else f"{report.platform}"


def which_step(report: StepReport) -> str:
    """Which of the source's steps was measured, and of how many ranks.

    >>> from foretrace.analysis.report import RankReport
    >>> which_step(StepReport(ranks=[RankReport(0)], world=2, step="ProfilerStep#3", steps=4))
    'ProfilerStep#3, one of 4 steps, 1 of 2 ranks'
    """
    step = report.step or "the whole trace"
    if report.steps > 1:
        step += f", one of {report.steps} steps"
    seen = len(report.ranks)
    ranks = f"{seen} of {plural(report.world, 'rank')}" if seen < report.world else plural(report.world, "rank")
    return f"{step}, {ranks}"


def caution_facts(notes: Iterable[str]) -> list[Fact]:
    """The notes that make figures unreliable, to be read before those.

    >>> caution_facts(["ranks are alike", "the step has no backward: train.py:3"])
    [('caution', '', 'the step has no backward: train.py:3')]
    """
    return [("caution", "", note) for note in dict.fromkeys(cautions(notes))]


def other_notes(notes: Iterable[str]) -> list[str]:
    """The notes that `caution_facts` do not have, each once.

    >>> other_notes(["ranks are alike", "the step has no backward: train.py:3", "ranks are alike"])
    ['ranks are alike']
    """
    noted = list(dict.fromkeys(notes))
    warned = cautions(noted)
    return [note for note in noted if note not in warned]


def step_facts(report: StepReport) -> list[Fact]:
    """The most important figures, the step first."""
    return list(_predicted_facts(report) if report.predicted else _measured_facts(report))


def _iteration_facts(report: StepReport) -> Iterator[Fact]:
    """That a trace without step marks holds many iterations, all of which are taken as one step."""
    if report.iterations is not None:
        each, name = report.iterations, printable(report.iterations.name)
        named = name if len(name) <= NAME_SHOWN else f"{name[: NAME_SHOWN - 1]}…"
        what = f"of {named}, {ms(each.ms)} ms apart: none is marked as a step"
        if not name:
            what = f"times the same launches, {ms(each.ms)} ms apart, steps or layers of one: no step is marked"
        yield "holds", f"{each.count:,}", f"{what}, and all of the trace is taken as one"


def _predicted_facts(report: StepReport) -> Iterator[Fact]:
    likely = f"80 %: {ms(report.low_ms)} – {ms(report.high_ms)}"
    before = sum(rank.launched_before_ms for rank in report.ranks) / max(len(report.ranks), 1)
    other = f"; {ms(before)} ms of it for what was launched before" if before > OUTSIDE_OPS * report.step_ms else ""
    yield "step", f"{ms(report.step_ms)} ms", f"({likely}) {_predicted_limit(report)}{other}"
    yield from _mark_fact(report)
    yield from _iteration_facts(report)
    yield from _other_step_facts(report)
    if report.carried:
        largest, spent = report.carried[0], sum(row.ms for row in report.carried)
        several = ", on several threads at once" if spent > report.step_ms else ""
        mostly = f"of measured host time that no model covers, mostly {largest.cause}{several}"
        yield "gaps", f"{ms(spent)} ms", f"{mostly}; --drop-gaps leaves it out"
    if report.kernels:
        named = ", ".join(f"{row.name} {percent(row.share)}" for row in report.by_family[:FAMILIES_NAMED])
        more = ", …" if len(report.by_family) > FAMILIES_NAMED else ""
        active = f"active in {plural(report.kernels, 'kernel')}: {named}{more}"
        active += f"; {ms(before)} ms of it in others, launched before the step" if before else ""
        yield "device", f"{ms(report.device_active_ms)} ms", active
    if report.exposed_communication_ms or report.hidden_communication_ms:
        hidden = f"exposed; {ms(report.hidden_communication_ms)} ms more overlap with other work"
        hidden += f"; {WAITING_INCLUDED}" * all(rank.wait_ms is None for rank in report.ranks)
        yield "comm", f"{ms(report.exposed_communication_ms)} ms", hidden
    if len(report.ranks) > 1:
        held = held_back(report, "them")
        waits = ms_range(rank.wait_ms for rank in report.ranks)
        yield "waits", waits, f"per rank, for {_others(report)}{held and f'; {held}'}"
        if report.critical_path_ranks:
            total = sum(part.ms for part in report.critical_path)
            yield "path", f"{ms(total)} ms", f"{_path_kinds(report)}; {_path_ranks(report, total)}"
    if report.peak_memory_bytes is not None and report.fits is not None:
        yield "memory", bytes_(report.peak_memory_bytes), f"peak, {memory_verdict(report)}"
        if report.to_fit:
            yield "to fit", "", "; or ".join(report.to_fit)
    if report.mfu is not None and report.tflops_per_second is not None:
        moved = f"; kernels move {rate(report.gbps, 'GB/s')}" if report.gbps else ""
        yield (
            "rate",
            rate(report.tflops_per_second, "TFLOP/s"),
            f"{percent(report.mfu)} of the peak of its dtypes (MFU){moved}",
        )
    yield from _power_facts(report)
    if report.kernels or report.platform != OWN_MACHINE:  # a job of CPUs there is as it was measured
        yield "known", *_coverage(report)


def _mark_fact(report: StepReport) -> Iterator[Fact]:
    """That a step is not as long as its mark on the host.

    >>> list(_mark_fact(StepReport(step_ms=10.0, mark_ms=2.0)))
    [('mark', '2.00 ms', 'on the host, which runs ahead: the step is from device end to device end')]
    """
    if report.mark_ms is not None and abs(report.step_ms - report.mark_ms) > COSTS_NOTHING * report.step_ms:
        about = "on the host, which runs ahead: the step is from device end to device end"
        yield "mark", f"{ms(report.mark_ms)} ms", about


def _span_fact(report: StepReport) -> Iterator[Fact]:
    """That the device work of a measured step takes longer than its mark, where no other step tells how long a loop
    takes.
    """
    longest = max((rank.device_span_ms for rank in report.ranks), default=0.0)
    alone = report.steps == 1 and report.step is not None
    if alone and longest > (1 + COSTS_NOTHING) * report.step_ms:
        about = "from the step's first device work to its last: in a loop, its device decides how long it takes"
        yield "span", f"{ms(longest)} ms", about


def _other_step_facts(report: StepReport) -> Iterator[Fact]:
    """What else may be called the time of a predicted step."""
    if report.profiling_ms and report.profiling_ms > COSTS_NOTHING * report.step_ms:
        least = report.step_ms - report.profiling_ms
        without = f"; without one it takes {ms(least)} ms or more" * (least > 0)
        about = f"of it may be the profiler's: the profiled step is what is predicted{without}"
        yield "profiled", f"{ms(report.profiling_ms)} ms", about
    if report.span_ms and report.span_ms != report.step_ms:
        yield "span", f"{ms(report.span_ms)} ms", SPANS[len(report.ranks) > 1]
    if report.step_ms_back_to_back is not None:
        yield "next", f"{ms(report.step_ms_back_to_back)} ms", "from step to step, without a sync in between"


def _power_facts(report: StepReport) -> Iterator[Fact]:
    if report.power_w is not None and report.energy_j is not None:
        likely = f"(80 %: {figure(report.energy_low_j)} – {figure(report.energy_high_j)})"
        spent = f"{figure(report.energy_j)} J a step {likely}"
        yield "power", f"{report.power_w:.0f} W", f"a GPU while steps are repeated{_sustained(report)}; {spent}"
    if report.price_of_1000 is not None:
        yield "price", money(report.price_of_1000), "for 1,000 steps"


def _sustained(report: StepReport) -> str:
    """What the power limit makes of the step time, where that is felt."""
    longer = report.sustained_ms or report.period_ms
    if longer <= FELT * report.period_ms:
        return ""
    return f", at {ms(longer)} ms a step: the power limit allows no less"


def memory_verdict(report: StepReport) -> str:
    """Whether a predicted step fits on its device, and by how much.

    >>> memory_verdict(StepReport(fits=True, memory_bytes=8 << 30, reserved_memory_bytes=3 << 30))
    "fits in the device's 8 GiB; PyTorch reserves 3 GiB"
    >>> memory_verdict(StepReport(fits=False, memory_bytes=8 << 30, memory_margin_bytes=-(1 << 30)))
    "does NOT fit in the device's 8 GiB: 1 GiB missing"
    >>> memory_verdict(StepReport(fits=True, memory_bytes=8 << 30, reserved_memory_bytes=9 << 30))
    "fits in the device's 8 GiB; PyTorch would reserve 9 GiB if there were more"
    """
    capacity, margin = f"the device's {bytes_(report.memory_bytes)}", report.memory_margin_bytes
    if report.fits and (report.peak_memory_bytes or 0) > (report.memory_bytes or math.inf):
        capacity += " where convolutions do without workspaces"
    reserved = f"; PyTorch reserves {bytes_(report.reserved_memory_bytes)}" if report.reserved_memory_bytes else ""
    if report.fits and (report.reserved_memory_bytes or 0) > (report.memory_bytes or math.inf):
        reserved = f"; PyTorch would reserve {bytes_(report.reserved_memory_bytes)} if there were more"
    if not report.fits:
        return f"does NOT fit in {capacity}{f': {bytes_(-margin)} missing' if margin and margin < 0 else ''}{reserved}"
    if report.memory_verdict == "tight":
        left = f"{bytes_(max(margin or 0, 0))} left, less than the prediction may be off"
        return f"fits in {capacity}, but tight: {left}{reserved}"
    return f"fits in {capacity}{reserved}"


def _exposed_part(report: StepReport, waited_ms: float) -> str:
    """How much of the ranks' mean wait no other work hides, where that is not nearly all of it."""
    waits = [wait for rank in report.ranks if (wait := rank.communication.exposed_wait_ms) is not None]
    exposed_ms = sum(waits) / len(waits) if waits else waited_ms
    return f", {ms(exposed_ms)} ms of it exposed" if exposed_ms < 0.9 * waited_ms else ""


def _measured_facts(report: StepReport) -> Iterator[Fact]:
    ranks, unprofiled = report.ranks, report.unprofiled
    if report.timed:
        yield "step", ms_range(rank.step_ms for rank in ranks), _measured_limit(report)
        yield from _mark_fact(report)
        yield from _span_fact(report)
    else:
        yield "step", "unknown", "the trace has no times: add the profiler trace of the same step"
    yield from _iteration_facts(report)
    if unprofiled and unprofiled.synced_ms:
        ahead = f", {ms(unprofiled.back_to_back_ms)} ms back to back" if unprofiled.back_to_back_ms else ""
        overhead = report.profiling_overhead
        longer = f"{overhead:.2f} times as long" if overhead > 1.01 else "no longer"
        taken = f"with a sync per step{ahead}; the profiled step takes {longer}"
        yield "unprofiled", ms_range([unprofiled.synced_ms]), taken
    if report.device_span_ms:
        waits = [rank.communication.wait_ms for rank in ranks]
        known = [wait for wait in waits if wait is not None]
        waited, step_ms = sum(known) / len(known) if known else 0.0, _mean_step_ms(report)
        exposed = report.exposed_communication_ms
        about = f"active, {percent(report.device_active_ms / step_ms if step_ms else 0.0)} of the step"
        about += f"; {ms(exposed)} ms of it exposed communication" if exposed else ""
        least = "at least " * (len(known) < len(ranks) or bool(report.missing))
        about += f"; {least}{ms(waited)} ms waiting for other ranks{_exposed_part(report, waited)}" if waited else ""
        yield "device", f"{ms(report.device_active_ms)} ms", about
    yield from _communication_facts(report)
    if report.critical_path_ms:
        path = _path_kinds(report)
        if report.critical_path_ms > 1.01 * report.step_ms > 0:
            path += "; to the end of all that the step launched"
        outside = report.step_ms - report.critical_path_ms
        if len(ranks) == 1 and outside > OUTSIDE_OPS * report.step_ms:
            path += f"; {ms(outside)} ms of the step lie before or after it"
        if len(ranks) > 1 and report.critical_path_ranks:
            path += f"; {_path_ranks(report, report.critical_path_ms)}"
        yield "path", f"{ms(report.critical_path_ms)} ms", path
    if report.peak_memory_bytes is not None:
        peaks = [rank for rank in ranks if rank.peak_memory_bytes is not None]
        about = "peak" if len(peaks) == 1 else "peak of the fullest rank"
        if unprofiled and unprofiled.peak_memory_bytes:
            about += f"; the allocator says {bytes_(unprofiled.peak_memory_bytes)}"
        yield "memory", bytes_(report.peak_memory_bytes), about
    if report.device_span_ms:
        before = sum(rank.launched_before_ms for rank in ranks) / len(ranks)
        mean = ", mean over ranks" if len(ranks) > 1 else ""
        launched = f"; {ms(before)} ms of the step were launched before the trace began{mean}" if before else ""
        yield "known", percent(report.attributed), f"of the device time is attributed to an op{launched}"


def _communication_facts(report: StepReport) -> Iterator[Fact]:
    ranks, transfer = report.ranks, sum(report.transfer_ms.values())
    count = plural(sum(row.count for row in report.collectives), "collective")
    if report.collectives and not report.timed:
        yield "comm", count, "whose times are unknown"
    elif report.collectives and len(ranks) > 1 and any(rank.wait_ms is not None for rank in ranks):
        waits = ms_range(rank.wait_ms for rank in ranks)
        unseen = f", waits for {plural(len(report.missing), 'rank')} without a trace included" * bool(report.missing)
        both = [(rank.wait_ms or 0.0, rank.communication.wait_ms) for rank in ranks]
        hosts = sum(wait - of_device for wait, of_device in both if of_device is not None) / len(both)
        unseen += f"; on hosts for {ms(hosts)} ms of it, mean over ranks" * (hosts > COSTS_NOTHING * report.step_ms)
        yield "waits", waits, f"per rank, for {_others(report)}; {count}, {ms(transfer)} ms of transfer{unseen}"
    elif spent := _mean_communication_ms(report) or transfer:
        each = WAITING_INCLUDED
        if len(ranks) > 1:
            each = "a rank, waiting included: nothing of it is matched across ranks"
        elif report.collectives and ranks[0].wait_ms is not None:
            each = f"{count} of one rank alone"
        yield "comm", f"{ms(spent)} ms", each


def _others(report: StepReport) -> str:
    """Which ranks are waited for, and of how many it is unknown how long they wait."""
    unknown = sum(rank.wait_ms is None for rank in report.ranks)
    return (
        "others"
        + " that have a trace" * bool(report.missing)
        + f", of {plural(unknown, 'rank')} unknown" * bool(unknown)
    )


def _predicted_limit(report: StepReport) -> str:
    """What limits a predicted step: the host or the device."""
    if report.unrecorded_launches:
        return f"its {report.unrecorded_launches:,} launches have no kernels in the trace"
    if not report.kernels:
        return "all of it on the host"
    if len(report.ranks) > 1 and report.platform != OWN_MACHINE and not report.span_ms:
        return SPANS[True]
    return f"{_bound(report, report.device_active_ms + report.device_idle_ms)} of it"


def _measured_limit(report: StepReport) -> str:
    """What limits a measured step: some ranks, the host or the device."""
    held, mean = held_back(report, "the others"), _mean_step_ms(report)
    if held:
        return f"{held}; {_bound(report, mean)} of it" if report.device_active_ms else held
    if not report.device_span_ms and not report.device_active_ms:
        unseen = report.unrecorded_launches
        return f"its {unseen:,} launches have no kernels in the trace" if unseen else "no device work is recorded in it"
    return f"{_bound(report, mean)} of it{_mostly(report)}"


def _mean_communication_ms(report: StepReport) -> float:
    each = [rank.communication.communication_ms for rank in report.device_ranks]
    return sum(each) / len(each) if each else 0.0


def _mean_step_ms(report: StepReport) -> float:
    """Of the ranks that the figures of devices are means over."""
    return sum(rank.step_ms for rank in report.device_ranks) / len(report.device_ranks)


def _mostly(report: StepReport) -> str:
    """What the device idles for most, where that is worth a word; and how long for what limits the step, if the longest
    cause is another.

    >>> _mostly(StepReport(bound="host", idle_causes={"queued": 2.0, "T2": 1.5, "T3": 1.0}))
    ', 2.50 ms for the host and 2.00 ms for queued'
    """
    if not report.idle_causes or report.bound == "device":
        return ""
    if report.bound is None and report.idle_causes.get(NO_EVENT, 0.0) > report.device_idle_ms / 2:
        inside = next((row.name for row in report.idle if row.cause == NO_EVENT), "")
        return f"; most of that time {f'the host is only {inside}' if inside else 'has no events of the host'}"
    if report.bound is None and (unseen := unrecorded_ms(report.idle, report.device_idle_ms)):
        return f", {ms(unseen)} ms {UNRECORDED}, perhaps with earlier work"
    if report.bound is None:
        late = any(note.startswith(LATE_CLOCK) for note in report.notes)
        return ", and the clocks of host and device differ" if late else ", and kernels are missing"
    cause, spent = next(iter(report.idle_causes.items()))
    meaning = f" ({_causes(report)[cause]})" if cause in OVERHEADS else ""
    longest = f"{ms(spent)} ms for {cause}{meaning}"
    starting = sum(report.idle_causes.get(name, 0.0) for name in (QUEUED, LATENCY))
    if (report.bound == "queue") == (cause in (QUEUED, LATENCY)):
        return f", {longest}"
    if report.bound == "queue":
        return f", {ms(starting)} ms from launch to start and {longest}"
    host = sum(report.idle_causes.values()) - starting - report.idle_causes.get(NO_EVENT, 0.0)
    return f", {ms(host)} ms for the host and {longest}"


def _causes(report: StepReport) -> dict[str, str]:
    """What causes of idle time mean: without any op, T1 is the time between launches.

    >>> from foretrace.analysis.report import HostOverhead
    >>> _causes(StepReport())["T1"], _causes(StepReport(overheads={"T2": HostOverhead(count=1)}))["T1"]
    ('between launches', 'between ops')
    """
    ops = report.overheads.get("T2")
    return CAUSES if ops and ops.count else {**CAUSES, "T1": "between launches"}


def _bound(report: StepReport, step_ms: float) -> str:
    idle = report.device_idle_ms
    bound = report.bound or bound_by(step_ms, idle, report.idle_causes)
    idles = f"device idle {percent(idle / step_ms if step_ms else 0.0)}"
    if report.limiting is not None:
        idles = f"device of rank {report.limiting.rank} idle {percent(report.limiting.idle_share)}"
    missing = any(note.startswith(MISSING_KERNELS) for note in report.notes)
    if report.bound is None and (bound == "queue" or (bound == "host" and missing)):
        return f"what limits it is unknown: no device work is recorded in {percent(idle / step_ms)}"
    return f"{BOUND[bound]}: {idles}" if bound else idles


def held_back(report: StepReport, others: str) -> str:
    """Which ranks hold the others back, and what that costs the step; empty where none does.

    >>> from foretrace.analysis.report import Straggler
    >>> late = [Straggler(6, 1.0, ""), Straggler(0, 1.0, "")]
    >>> held_back(StepReport(stragglers=late, step_ms=9.0, straggler_gain_ms=0.5), "them")
    'ranks 0 and 6 hold them back: 0.500 ms to gain'
    >>> held_back(StepReport(stragglers=late[:1], step_ms=9.0, straggler_gain_ms=0.0), "them")
    'rank 6 comes last, which makes the step no longer'
    >>> held_back(StepReport(stragglers=late[:1], step_ms=9.0, straggler_gain_ms=0.0, missing=[3]), "them")
    'of the ranks with a trace, rank 6 comes last, which makes the step no longer'
    """
    ranks = sorted(straggler.rank for straggler in report.stragglers)
    if not ranks:
        return ""
    several, gain = len(ranks) > 1, report.straggler_gain_ms
    named = f"{'of the ranks with a trace, ' * bool(report.missing)}rank{'s' * several} {join_words(ranks)}"
    if gain is not None and gain < COSTS_NOTHING * report.step_ms:
        return f"{named} come{'s' * (not several)} last, which makes the step no longer"
    held = f"{named} hold{'s' * (not several)} {others} back"
    return held if gain is None else f"{held}: {ms(gain)} ms to gain"


def _path_kinds(report: StepReport) -> str:
    """What the critical path goes through, the longest first."""
    kinds: dict[str, float] = {}
    for part in report.critical_path:
        kind = "host" if part.what in OVERHEADS else part.what
        kinds[kind] = kinds.get(kind, 0.0) + part.share
    largest = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{what} {percent(share)}" for what, share in largest if share > 0.005)


def _path_ranks(report: StepReport, total_ms: float) -> str:
    """On which ranks the critical path lies.

    >>> _path_ranks(StepReport(critical_path_ranks={0: 6.0, 5: 2.0}), 8.0)
    '75 % on rank 0, 25 % on rank 5'
    """
    longest = sorted(report.critical_path_ranks.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{percent(part / total_ms)} on rank {rank}" for rank, part in longest)


def _coverage(report: StepReport) -> tuple[str, str]:
    """How the device time is known, the largest share first."""
    shares = sorted(report.coverage.items(), key=lambda item: -item[1])
    known = [(percent(share), COVERAGE[how]) for how, share in shares if round(share, 4) > 0]
    if not known:
        return "–", "the step gives the device nothing to do"
    (figure, how), *others = known
    return figure, ", ".join([f"of the device time is {how}", *(f"{share} {word}" for share, word in others)])


def _predicted_tables(report: StepReport, top: int | None) -> Blocks:
    several = len(report.ranks) > 1
    if several:
        from foretrace.report.ranks import rank_table, straggler_tables, waits_table

        yield rank_table(report)
        yield from straggler_tables(report)
        if report.waits_for:
            yield waits_table(report, top)
    if report.look_at:
        rows = [
            [percent(op.share), ms(op.ms), limit_of(op.mostly), short_name(op.name), op.phase,
             f"{op.calls:,}", f"{op.launches:,}"]
            for op in report.look_at
        ]  # fmt: skip
        columns = ["share", "ms", "<mostly", "<op…", "<phase", "calls", "launches"]
        yield table("Look at these first: they take most of the critical path", columns, rows, top)
    if report.device_idle_ms and report.kernels:
        yield _idle_causes(report)
    if report.critical_path:
        yield _critical_path(report, top, with_rank=several)
    for what, times in (("kernel family", report.by_family), ("op", report.by_op), ("phase", report.by_phase)):
        if len(times) > 1:
            yield _time_by(what, times, top, on_device=bool(report.kernels))


def _measured_tables(report: StepReport, top: int | None) -> Blocks:
    has_times = report.timed
    several, known = len(report.ranks) > 1, has_times or report.peak_memory_bytes is not None
    if several or report.collectives or report.stragglers:
        from foretrace.report.ranks import collective_table, rank_table, straggler_tables

        if (several and known) or (has_times and report.collectives):
            yield rank_table(report)
        yield from straggler_tables(report)
        if report.collectives:
            yield collective_table(report, top)
    if report.idle:
        yield _idle_table(report, top)
    if report.critical_path:
        yield _critical_path(report, top)
    if any(row.ms for row in report.overheads.values()):
        yield _overheads(report)
    for what, times in (
        ("op", report.by_op),
        ("kernel family", report.by_family),
        ("phase", report.by_phase),
        ("module", report.by_module),
    ):
        if len(times) > 1:
            yield _time_by(what, times, top, bool(report.device_span_ms)) if has_times else _calls_by(what, times, top)


def _critical_path(report: StepReport, top: int | None, with_rank: bool = True) -> RenderableType:
    columns: dict[str, Callable[[PathRow], str]] = {
        "share": lambda part: percent(part.share),
        "ms": lambda part: ms(part.ms),
        "rank": lambda part: "all" if part.rank is None else str(part.rank),
        "<what": lambda part: part.what,
        "<name…": lambda part: short_name(part.name),
    }
    if not with_rank:
        del columns["rank"]
    return record_table("Critical path: only what is on it shortens the step", columns, report.critical_path, top)


def _overheads(report: StepReport) -> RenderableType:
    title = "Host time, mean over ranks" if len(report.ranks) > 1 else "Host time"
    depth = report.queue_depth
    if depth.max:
        title += f"; {depth.mean:.1f} kernels queued on average, {depth.max:.0f} at most"
    rows = []
    shown = dict(OVERHEADS if report.device_span_ms else WITHOUT_LAUNCHES)
    more = sorted(report.overheads.keys() - OVERHEADS.keys(), key=lambda kind: -report.overheads[kind].ms)
    shown["T1"] = _causes(report)["T1"] if report.device_span_ms else shown["T1"]
    for kind, meaning in [*shown.items(), *((kind, CAUSES.get(kind, "")) for kind in more)]:
        spent = report.overheads[kind]
        figures = [ms(spent.ms), f"{spent.count:.0f}", ms(spent.mean_us), percent(spent.share)]
        rows.append([kind, meaning, *figures, bar(spent.share)])
    return table(title, ["<", "<overhead", "ms", "count", "mean us", "share", "<"], rows)


def _idle_table(report: StepReport, top: int | None) -> RenderableType:
    """What a measured step's device idles for, by cause and name."""
    causes = _causes(report)
    rows = [
        [percent(row.share), ms(row.ms), row.cause, short_name(row.name) or causes.get(row.cause, "")]
        for row in report.idle
    ]
    title = f"Why the device idles {ms(report.device_idle_ms)} ms of the step: what the launching thread does"
    return table(title, ["share", "ms", "<cause", "<name…"], rows, top)


def _idle_causes(report: StepReport) -> RenderableType:
    idle = report.device_idle_ms
    rows = [
        [kind, CAUSES.get(kind, ""), ms(spent), percent(spent / idle), bar(spent / idle)]
        for kind, spent in sorted(report.idle_causes.items(), key=lambda item: -item[1])
        if round(spent, 4) > 0
    ]
    return table(f"Why the device idles {ms(idle)} ms: what it waits for", ["<", "<", "ms", "share", "<"], rows)


def _time_by(what: str, rows: Sequence[TimeRow], top: int | None, on_device: bool) -> RenderableType:
    columns: dict[str, Callable[[TimeRow], str]] = {
        f"<{what}…": lambda row: short_name(row.name) or "(none)",
        "device ms": lambda row: ms(row.device_ms),
        host_column(what, on_device): lambda row: ms(row.host_ms),
        "count": lambda row: f"{row.count:.0f}",
        "share": lambda row: percent(row.share),
        "<": lambda row: bar(row.share),
    }
    if not on_device:
        del columns["device ms"]
    return record_table(f"Time by {what}", columns, rows, top)


def _calls_by(what: str, rows: Sequence[TimeRow], top: int | None) -> RenderableType:
    """What a step without times calls, the most often first."""
    often = sorted(rows, key=lambda row: (-row.count, row.name))
    cells = [[short_name(row.name) or "(none)", f"{row.count:,}"] for row in often]
    return table(f"Calls by {what}", [f"<{what}…", "count"], cells, top)
