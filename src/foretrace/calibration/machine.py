"""Calibrating this machine: measure its parts into a platform's folder, mostly where models are worst, and fit them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from foretrace._progress import OnProgress, Progress
from foretrace.calibration.device_facts import CEILINGS, DEVICE_FILE, DeviceFacts, describe_device
from foretrace.calibration.fitting import KEPT, can_fit, fit
from foretrace.cost_models.kernels.families import DRAWN, case_number
from foretrace.cost_models.kernels.families.compiled import COMPILED
from foretrace.errors import ForetraceError
from foretrace.platform.host import Host
from foretrace.platform.measurements.cases import EXACT, case_key
from foretrace.platform.measurements.fabric import FABRIC_FILE
from foretrace.platform.measurements.kernels import read_all
from foretrace.platform.platform import HOST, MODELS, PRIOR, RAW, read_host
from foretrace.platform.prior import AUTO, NONE, Prior
from foretrace.platform.registry import CPU, REFERENCE, find_platform
from foretrace.processes import temporary_folder

if TYPE_CHECKING:
    from foretrace.calibration.timing.kernels import MeasuredFamily
    from foretrace.cost_models.kernels.prior import PriorModels
    from foretrace.graph import Graph
    from foretrace.platform.device import Device

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SHARES = {"fabric": 1.0, "device": 8.0, "host": 2.0}
"""The parts in the order they are measured, and how the minutes are split among them."""
MEASURED = 0.8
"""Share of the minutes that is measured in, where models are fitted in the rest."""
ROUND_SECONDS = 120.0
"""After so long the models are fitted in between, to see where the next minutes are spent best."""
FIRST_SHARES = {name: math.sqrt(family.share) for name, family in DRAWN.items()}
"""Shares of the time before errors are known: more even than the families' own, so that each can be fitted."""
UNFITTED = 3.0
"""A family with too few measurements to be fitted counts as if its error were so many times the mean."""
PRIOR_CASES = 32
"""Cases of a family that a prior is asked about before any is measured."""
COMPILED_SHARE = 0.05
"""Share of the time for kernels that torch.compile makes."""
COMPILED_SECONDS = 200.0
"""What it takes to compile and measure as many of them as a model needs: with less, none is."""
REPLAY_SHARE = 0.5
"""Of the time for the calls of a step, the share in which they are timed in its order."""
ERROR_WIDTH = 120
"""Characters of a call's error in a note: PyTorch writes pages."""
NOISY_REPEATS = 0.5
"""Range of the repeats of a step's calls, as a share of their time, from which a note says so."""
THROTTLED = 0.1
"""Drift of the reference GEMM from which a note says so."""
SPOILT = 2.0
"""Drift of the reference GEMM, without its slowest and fastest tenth, from which nothing is kept: the times depend
more on other load than on the device."""


@dataclass
class Outcome:
    """The result of a calibration: what was measured, and notes for the user."""

    families: list[MeasuredFamily] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def calibrate(
    out: Path,
    parts: Collection[str] = tuple(SHARES),
    minutes: float = 10.0,
    on: str | None = None,
    families: Sequence[str] = (),
    like: Graph | None = None,
    on_progress: OnProgress = lambda progress: None,
    until: float | None = None,
    prior: str = NONE,
) -> Outcome:
    """Measure parts of this machine into a platform's folder, and fit them.

    Stopped and begun again, it goes on with what is there. What is measured while other load spoils it is not kept.

    Parts are ``device``, ``host`` and ``fabric``; a fabric among others is left out where no torchrun started this
    process. The device is one like ``cuda:1`` or ``cpu``, or the first GPU. Of kernels all ``families`` are measured,
    or those named; with ``like`` exactly the calls of that step, and no families. With ``until``, a time of the
    monotonic clock, some of the minutes are left for fitting, which is done by then; else that takes as long as it
    takes. With a ``prior`` (``auto``, or the name of a platform) kernel models start from those of another GPU, and the
    platform can be used from when its device is known, before any kernel is measured.
    """
    measured = [
        part for part in SHARES if part in parts and (part != "fabric" or _rank() is not None or len(parts) == 1)
    ]
    if until is not None:
        minutes *= MEASURED
    seconds = {part: 60 * minutes * SHARES[part] / sum(SHARES[one] for one in measured) for part in measured}
    outcome, raw = Outcome(), out / RAW
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler logs each of its thousands of starts and stops
    if "fabric" in measured:
        from foretrace.calibration.timing.collectives import measure_collectives

        measure_collectives(raw / FABRIC_FILE, seconds["fabric"], on_progress)
    if not is_first_rank():
        return outcome  # the other ranks were needed for the fabric only
    with exclusive(out):
        if "device" in measured:
            with _undone_if_spoilt(raw, outcome):
                measure_device(raw, on, outcome, on_progress)
                if prior != NONE:
                    _start_from(prior, out, "host" in measured, on_progress)
                if like:
                    measure_step_calls(raw, on, seconds["device"], like, outcome, on_progress)
                else:
                    measure_kernels(raw, on, seconds["device"], families, outcome, on_progress)
            outcome.notes += _disturbances(outcome, out)
        if "host" in measured:
            measure_host(raw, on, seconds["host"], outcome, on_progress)
        chosen = KEPT if prior == AUTO else prior
        outcome.notes += fit(out, parts=measured, on_progress=on_progress, anew=False, until=until, prior=chosen)
    return outcome


def _start_from(prior: str, out: Path, with_host: bool, on_progress: OnProgress) -> None:
    """Make a platform of a prior alone, with the host that comes with Foretrace until one is measured; of a CPU none,
    which no prior is known of."""
    if prior == AUTO and DeviceFacts.read(out / RAW).kind == CPU:
        return
    if not (out / MODELS).is_dir() or prior != AUTO:
        fit(out, parts=("device",), on_progress=on_progress, anew=False, prior=prior)
    if with_host and not (out / HOST).is_file():
        host = read_host(find_platform(REFERENCE))
        replace(host, provenance=f"not measured here: that of {REFERENCE}").write(out / HOST)


def calibrate_host(seconds: float = 60.0, on: str | None = None) -> Host:
    """The host of this machine, measured for some seconds: ``ft.load_platform("h200", host=ft.calibrate_host())``.

    Parameters
    ----------
    seconds
        How long; at least one round over all small steps is made.
    on
        The device that the host drives, like ``cuda:1`` or ``cpu``; the first GPU where there is one.
    """
    with temporary_folder() as folder:
        calibrate(folder / "this host", ("host",), seconds / 60, on)
        return read_host(folder / "this host")


def is_first_rank() -> bool:
    """Whether this process is the first rank of a torchrun, or was not started by one."""
    return not _rank()


def _rank() -> int | None:
    """The rank of this process in a torchrun; None where there is no torchrun."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder, which is made if needed: two calibrations at once would disturb each other, and repeat cases."""
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise ForetraceError(
            f"another calibration is at work in {folder}", "Wait until it is done, or give another --out folder."
        ) from None
    except OSError:  # some file systems have no locks
        pass
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def _undone_if_spoilt(raw: Path, outcome: Outcome) -> Iterator[None]:
    """Remove from the measurements what is measured meanwhile, where other load spoils it."""
    from foretrace.calibration.timing.kernels import reference_drift, typical_drift

    facts = raw / DEVICE_FILE
    sizes, known = {path: path.stat().st_size for path in raw.glob("*")}, facts.read_bytes() if facts.exists() else b""
    yield
    if typical_drift(outcome.families) <= SPOILT:
        return
    for path in raw.glob("*"):
        if path not in sizes:
            path.unlink()
        elif path.suffix == ".gz":
            os.truncate(path, sizes[path])
    if known:
        facts.write_bytes(known)
    worst = 1 + reference_drift(outcome.families)
    raise ForetraceError(
        f"the device was busy or throttled: the reference GEMM took up to {worst:,.1f} times as long; "
        "nothing that was measured now is kept",
        "Run the same command again when it is idle.",
    )


def measure_device(raw: Path, on: str | None, outcome: Outcome, on_progress: OnProgress) -> None:
    """Measure the ceilings of the device and write its facts; note why it should not be measured now."""
    from foretrace.calibration.timing.device import device_facts, find_device, health_problems
    from foretrace.calibration.timing.kernels import measure_ceilings

    device = find_device(on)
    outcome.notes += health_problems(device)
    on_progress(Progress("warming up"))
    measure_ceilings(raw, device)
    device_facts(device).write(raw)


def measure_kernels(
    raw: Path, on: str | None, seconds: float, families: Sequence[str], outcome: Outcome, on_progress: OnProgress
) -> None:
    """Measure kernel families, and kernels that torch.compile makes."""
    from foretrace.calibration.timing.compiled_kernels import can_compile, measure_compiled
    from foretrace.calibration.timing.device import find_device

    device = find_device(on)
    drawn = [name for name in families or DRAWN if name != COMPILED]
    compiled = seconds * COMPILED_SHARE if drawn else seconds
    if not (COMPILED in families or (not families and compiled > COMPILED_SECONDS and can_compile(device))):
        compiled = 0.0
    if drawn:
        _measure_in_rounds(raw, device, seconds - compiled, drawn, outcome, on_progress)
    if compiled:
        on_progress(Progress("compiling", 0.0, compiled))
        outcome.families.append(measure_compiled(raw, device, compiled / 60, on_progress))


def _measure_in_rounds(
    raw: Path, device: Any, seconds: float, families: Sequence[str], outcome: Outcome, on_progress: OnProgress
) -> None:
    """Measure kernel families in rounds: after each, those with large errors get more of the time."""
    from foretrace.calibration.timing.kernels import measure_families
    from foretrace.calibration.timing.workers import Workers, workers_for

    rounds = max(1, round(seconds / ROUND_SECONDS)) if can_fit() else 1
    begun = time.monotonic()

    def over_all_rounds(progress: Progress) -> None:
        on_progress(progress._replace(done=time.monotonic() - begun, of=seconds))

    known = _prior_models(raw)
    shares = shares_by_error(prior_errors(device.type, *known)) if known else FIRST_SHARES
    with Workers(device, workers_for(device, _slowly_planned_seconds(families, seconds))) as workers:
        for left in range(rounds, 0, -1):
            if left < rounds:
                over_all_rounds(Progress("looking where the models are worst"))
                shares = shares_by_error(held_out_errors(raw, known))
            minutes = max(0.0, seconds - (time.monotonic() - begun)) / left / 60
            found = measure_families(raw, device, minutes, families, over_all_rounds, shares=shares, workers=workers)
            _add(outcome.families, found)
    unmeasured = [one.family for one in outcome.families if not one.cases + one.failed]
    if unmeasured:
        which = ", ".join(unmeasured) if len(unmeasured) < len(families) else "any family"
        outcome.notes.append(f"there was no time for {which}: measure longer")


def _slowly_planned_seconds(families: Sequence[str], seconds: float) -> float:
    """How many of the seconds go to families whose kernels libraries plan slowly."""
    planned = sum(FIRST_SHARES[name] for name in families if DRAWN[name].slow_to_plan)
    return seconds * planned / sum(FIRST_SHARES[name] for name in families)


def _add(total: list[MeasuredFamily], more: list[MeasuredFamily]) -> None:
    """Add the calls, failures and seconds of a round to the outcome."""
    known = {one.family: one for one in total}
    for one in more:
        if one.family in known:
            known[one.family].add(one)
        else:
            total.append(one)


def _prior_models(raw: Path) -> tuple[PriorModels, Device] | None:
    """The prior of the platform that measurements belong to, and the device as far as it is known."""
    prior = Prior.read(raw.parent / MODELS / PRIOR)
    if prior is None:
        return None
    from foretrace.cost_models.kernels.prior import PriorModels

    return PriorModels.of(prior), _device_so_far(raw)


def _device_so_far(raw: Path) -> Device:
    return describe_device(DeviceFacts.read(raw), read_all(raw, CEILINGS), "here")


def prior_errors(kind: str, models: PriorModels, device: Device) -> dict[str, float]:
    """How unsure a prior is of each family: the mean range of the times of some cases."""
    from foretrace.calibration.timing.kernels import MAX_ELEMENTS

    found = {}
    for name, family in DRAWN.items():
        cases = [case_number(name, number, MAX_ELEMENTS[kind], kind) for number in range(PRIOR_CASES)]
        found[name] = models.uncertainty(family, cases, device)
    return found


def held_out_errors(raw: Path, known: tuple[PriorModels, Device] | None = None) -> dict[str, float]:
    """Errors by family on held-out measurements, of models fitted on what is measured so far."""
    from foretrace.cost_models.kernels.fitting import estimated_errors

    return estimated_errors(raw, known[1] if known else _device_so_far(raw), known[0] if known else None)


def shares_by_error(errors: Mapping[str, float]) -> dict[str, float]:
    """Shares of the time in proportion to the families' own shares and their errors."""
    average = sum(errors.values()) / len(errors) if errors else 1.0
    return {name: family.share * errors.get(name, UNFITTED * average) for name, family in DRAWN.items()}


def measure_step_calls(
    raw: Path, on: str | None, seconds: float, step: Graph, outcome: Outcome, on_progress: OnProgress
) -> None:
    """Measure each distinct call of a step that does something: on a CPU in the order of the step, then one by one.

    Calls that were measured one by one before are left out.
    """
    from foretrace.calibration import step_calls
    from foretrace.calibration.timing.device import find_device, is_gpu
    from foretrace.calibration.timing.timer import REFUSALS, error_line

    device, began = find_device(on), time.monotonic()
    cases = step_calls.step_cases(step, device.type)
    if not is_gpu(device):
        on_progress(Progress("replaying the step", 0.0, seconds))
        try:
            times = step_calls.time_replay(step, seconds * REPLAY_SHARE)
            replayed = step_calls.add_measurements(step_calls.measurements_by_case(times, cases), raw, device)
            replayed.seconds = time.monotonic() - began
            outcome.families.append(replayed)
        except REFUSALS as error:  # the step does not hold what a replay needs, or does not fit into memory
            outcome.notes.append(f"calls are timed one by one: {_short(error_line(error))}")
    left = max(seconds - (time.monotonic() - began), 1.0)
    each = {case_key(case): case for case in {id(case): case for case in cases.values()}.values()}
    alone = step_calls.measure_cases(each.values(), raw, device, left / 60, on_progress)
    _add(outcome.families, [alone])
    if alone.failed:
        outcome.notes.append(f"calls that can't be made here: {alone.failed:,}, as {_short(alone.problem)}")


def _short(problem: str) -> str:
    return shorten(problem, ERROR_WIDTH, placeholder=" …")


def _disturbances(outcome: Outcome, out: Path) -> list[str]:
    """Notes where other load may have used the device: calls took longer at one time than at another."""
    from foretrace.calibration.timing.kernels import reference_drift

    found = []
    if (drift := reference_drift(outcome.families)) > THROTTLED:
        found.append(f"the reference GEMM took up to {1 + drift:,.1f} times as long")
    spread = max((done.spread or 0.0 for done in outcome.families if done.family == EXACT), default=0.0)
    if spread > NOISY_REPEATS:
        found.append(f"repeats of a call lie {100 * spread:.0f} % apart")
    return [f"the device was busy or throttled: {what}. {_measure_again(out)}" for what in found]


def _measure_again(out: Path) -> str:
    """Advice on measurements that are kept, and not as good as they could be: new ones would be added to them."""
    return f"To measure it again when it is idle, remove {out} first, or give another --out"


def measure_host(raw: Path, on: str | None, seconds: float, outcome: Outcome, on_progress: OnProgress) -> None:
    """Measure the host time of calls."""
    from foretrace.calibration.host import measure
    from foretrace.calibration.timing.device import find_device

    on_progress(Progress("host", 0.0, seconds))
    done = measure.measure_host(raw, seconds / 60, on_progress, find_device(on))
    if done.noisy:
        outcome.notes.append(
            f"other load kept the host busy: repeats of a step lie {100 * done.spread:.0f} % apart. "
            f"{_measure_again(raw.parent)}"
        )
