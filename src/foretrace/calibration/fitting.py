"""Fitting a platform: from raw measurements to its files, without the machine, so that old measurements stay of use."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foretrace import __version__
from foretrace._progress import OnProgress, Progress
from foretrace.calibration.device_facts import CEILINGS, DEVICE_FILE, DeviceFacts, describe_device
from foretrace.cost_models.kernels.families import FAMILIES
from foretrace.errors import ForetraceError
from foretrace.platform.device import Device, Measured
from foretrace.platform.fabric import Fabric
from foretrace.platform.measurements.fabric import FABRIC_FILE, read_fabric_runs
from foretrace.platform.measurements.host import HOST_FILE, read_host_runs
from foretrace.platform.measurements.journal import exists
from foretrace.platform.measurements.kernels import SUFFIX, read_all
from foretrace.platform.platform import DEVICE, FABRIC, HOST, INDEX, MODELS, PRIOR, RAW, About, read_about, write_about
from foretrace.platform.prior import AUTO, Prior, prior_platform
from foretrace.platform.typed_json import write

RAW_FILES = {"device": DEVICE_FILE, "host": HOST_FILE, "fabric": FABRIC_FILE}
"""By part: the file among the measurements that shows that it was measured."""
VERSIONS = {"torch": "torch", "cuda": "cuda", "cudnn": "cudnn", "driver": "driver_version"}
"""Versions that a platform states, and their names among the facts of a machine."""
FITTERS = ("lightgbm", "sklearn", "scipy", "torch")
"""Packages that models are fitted with: an extra, since only calibrations need them."""
KEPT = "kept"
"""Stands for the prior that a platform was calibrated from, if any."""
INSTALL = "pip install 'foretrace[fit]'"


def can_fit() -> bool:
    """Whether kernel models can be fitted here."""
    return all(find_spec(name) for name in FITTERS)


def require_fitter() -> None:
    """Refuse where kernel models can't be fitted."""
    if not can_fit():
        raise ForetraceError("the packages that models are fitted with are not installed", f"`{INSTALL}`.")


def measured_parts(raw: Path) -> list[str]:
    """The parts of a platform that were measured."""
    return [part for part, file in RAW_FILES.items() if (raw / file).is_file()]


def fit(
    folder: Path,
    raw: Path | None = None,
    parts: Collection[str] = tuple(RAW_FILES),
    on_progress: OnProgress = lambda progress: None,
    anew: bool = True,
    until: float | None = None,
    prior: str = KEPT,
) -> list[str]:
    """Make the files of a platform from its measurements; stopped before it is done, it leaves the models as they were.

    Measurements are the platform's own, or of the folder ``raw``. Where not all is fitted ``anew``, models without new
    measurements stay. With ``until``, a time of the monotonic clock, it is done by then. The ``prior`` of kernel models
    is the one that the platform was calibrated from; or the platform of that name, ``auto`` or ``none``
    (`foretrace.platform.prior`). Returns notes for the user.
    """
    raw = raw or folder / RAW
    raw = raw / RAW if (raw / RAW).is_dir() else raw
    measured = measured_parts(raw)
    if not measured:
        raise ForetraceError(f"{raw} holds no measurements", f"`foretrace calibrate --out {folder}` makes some.")
    folder.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    for part in sorted((part for part in measured if part in parts), key="device".__eq__):  # takes what time is left
        on_progress(Progress(f"fitting the {part}"))
        if part == "device":
            notes = fit_device(raw, folder, on_progress, anew, until, prior)
        elif part == "host":
            fit_host(raw, folder)
        else:
            fit_fabric(raw, folder)
    write_about(folder, _about(folder, [_machine(raw, part) for part in measured]))
    return notes


def _about(folder: Path, machines: list[dict[str, Any]]) -> About:
    latest = max(machines, key=lambda machine: str(machine.get("made", "")))
    known = {name: str(latest[fact]) for name, fact in VERSIONS.items() if latest.get(fact)}
    return About(
        name=folder.resolve().name,
        made=str(latest.get("made", ""))[:10],
        provenance=f"measured on {latest.get('device', 'an unnamed device')}",
        versions={"foretrace": __version__, **known},
    )


def _machine(raw: Path, part: str) -> dict[str, Any]:
    """Facts about the machine from when a part was measured last."""
    if part == "device":
        return dict(DeviceFacts.read(raw).machine)
    machine: dict[str, Any] = _runs(raw, part)[-1].machine
    return machine


def _runs(raw: Path, part: str) -> list[Any]:
    """What was measured of a host or a fabric, one run after the other."""
    path = raw / RAW_FILES[part]
    runs: list[Any] = (read_host_runs if part == "host" else read_fabric_runs)(path)
    if not runs:
        raise ForetraceError(f"{path} holds nothing", "Remove it, and measure again.")
    return runs


def fit_device(
    raw: Path, folder: Path, on_progress: OnProgress, anew: bool, until: float | None = None, prior: str = KEPT
) -> list[str]:
    """Describe a device by its facts and its best measured rates, and fit its kernel models."""
    facts = DeviceFacts.read(raw)
    device = describe_device(facts, read_all(raw, CEILINGS, "matrix", "copies"), folder.resolve().name)
    known = find_prior(prior, folder, device, facts)
    later = (
        "kernel models were not fitted, since the packages for it are not installed: "
        f"`{INSTALL}`, then `foretrace calibrate fit --out {folder}`, here or elsewhere"
    )
    if can_fit() or not _has_kernels(raw):
        notes = _fit_kernels(raw, folder, device, on_progress, anew, until, known)
    else:
        notes = [later]
    write(folder / DEVICE, asdict(device))
    return notes


def find_prior(name: str, folder: Path, device: Device, facts: DeviceFacts) -> Prior | None:
    """The prior of a platform's kernel models: the one that it was calibrated from, or what a name stands for.

    The copy of one that an older Foretrace made is replaced by the platform that has its name now.
    """
    kept = Prior.read(folder / MODELS / PRIOR)
    if name == KEPT and kept is None:
        return None
    if kept and (name == KEPT or name in (AUTO, kept.name)):
        if not kept.outdated:
            return kept
        name = kept.name
    platform = prior_platform(name, device)
    return Prior.of(platform, device, cuda_runtime(facts.machine.get("cuda", ""))) if platform else None


def cuda_runtime(version: str) -> int:
    """A version of CUDA as traces state it; 0 where it is unknown.

    >>> cuda_runtime("12.4"), cuda_runtime("")
    (12040, 0)
    """
    numbers = [int(part) for part in version.split(".")[:2] if part.isdecimal()]
    return 1000 * numbers[0] + 10 * numbers[1] if len(numbers) == 2 else 0


def _has_kernels(raw: Path) -> bool:
    return any(exists(raw / f"{name}{SUFFIX}") for name in FAMILIES)


def _fit_kernels(
    raw: Path,
    folder: Path,
    device: Device,
    on_progress: OnProgress,
    anew: bool,
    until: float | None,
    prior: Prior | None,
) -> list[str]:
    from foretrace.cost_models.kernels.fitting import fit_models

    before = None if anew else _models_for(device, folder, prior)
    with _replaced(folder / MODELS) as models:
        index = fit_models(raw, device, models, on_progress, before, until, prior)
        write(models / Path(INDEX).name, index)
    few = [name for name in FAMILIES if exists(raw / f"{name}{SUFFIX}") and name not in index]
    if few and prior:
        return [f"too little was measured of {', '.join(few)}: their times are those of {prior.name}, scaled"]
    return [f"too little was measured to fit {', '.join(few)}: measure longer"] if few else []


def _models_for(device: Device, folder: Path, prior: Prior | None) -> Path | None:
    """The models of a platform, where this version of Foretrace fitted them for the same device and prior.

    A prior's times are scaled by the rates that were measured of the device: they must be the same.
    """
    try:
        before, by = Device.read(folder / DEVICE), read_about(folder).versions.get("foretrace")
        kept = Prior.read(folder / MODELS / PRIOR)
    except ForetraceError:
        return None
    if prior is None and kept is None:
        before, device = (replace(each, measured=Measured()) for each in (before, device))
    same = (kept.name, kept.foretrace) == (prior.name, prior.foretrace) if kept and prior else kept is prior
    return folder / MODELS if before == device and same and by == __version__ else None


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """An empty folder to fill; it replaces another one once it is complete."""
    unfinished = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)  # a process that was killed may have left one
    unfinished.mkdir()
    try:
        yield unfinished
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def fit_host(raw: Path, folder: Path) -> None:
    """Fit the host time of calls."""
    from foretrace.cost_models.host.fitting import fit_host as fit_runs

    fit_runs(_runs(raw, "host"), folder.resolve().name).write(folder / HOST)


def fit_fabric(raw: Path, folder: Path) -> None:
    """Fit a curve to each kind of collective, and how ranks on a CPU slow each other down."""
    from foretrace.cost_models.collectives.contention import fit_overlap, fit_oversubscription
    from foretrace.cost_models.collectives.curves import fit_curves

    runs = _runs(raw, "fabric")
    collectives = [one for run in runs for one in run.collectives]
    sources = dict.fromkeys(run.machine.get("provenance", "") for run in runs)
    before = folder / FABRIC
    links = Fabric.read(before).links if before.is_file() else None  # measuring again does not change them
    shared = fit_oversubscription(collectives), fit_overlap(collectives)
    Fabric(folder.resolve().name, fit_curves(collectives), "; ".join(sources), links, *shared).write(folder / FABRIC)
