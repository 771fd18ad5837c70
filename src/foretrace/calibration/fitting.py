"""From raw measurements to the files of a platform: no machine is needed, so that old measurements stay of use."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foretrace import __version__
from foretrace.cost_models.kernels.families import FAMILIES
from foretrace.graph import ForetraceError
from foretrace.platform import fabric_measurements, host_measurements
from foretrace.platform.device import Device, Measured
from foretrace.platform.device_facts import DEVICE_FILE, DeviceFacts, describe
from foretrace.platform.fabric import Fabric
from foretrace.platform.fabric_measurements import FABRIC_FILE
from foretrace.platform.files import write
from foretrace.platform.folder import DEVICE, FABRIC, HOST, INDEX, MODELS, RAW, About, read_about, write_about
from foretrace.platform.host_measurements import HOST_FILE
from foretrace.platform.journal import exists
from foretrace.platform.measurements import SUFFIX
from foretrace.platform.rates import CEILINGS, read_all

Told = Callable[[str], None]

RAW_FILES = {"device": DEVICE_FILE, "host": HOST_FILE, "fabric": FABRIC_FILE}
"""Of each part, the file that is among the measurements where it was measured."""
VERSIONS = {"torch": "torch", "cuda": "cuda", "cudnn": "cudnn", "driver": "driver_version"}
"""Versions that a platform states, and what a machine calls them."""
FITTERS = ("lightgbm", "sklearn", "scipy", "torch")
"""What models are fitted with: an extra, since only who calibrates needs it."""
INSTALL = "pip install 'foretrace[fit]'"


def can_fit() -> bool:
    """Whether models of kernels can be fitted here."""
    return all(find_spec(name) for name in FITTERS)


def require_fitter() -> None:
    """Say what is missing where they cannot."""
    if not can_fit():
        raise ForetraceError("what models are fitted with is not installed", f"`{INSTALL}`.")


def measured_parts(raw: Path) -> list[str]:
    """The parts of a platform that were measured.

    >>> measured_parts(Path("nowhere"))
    []
    """
    return [part for part, file in RAW_FILES.items() if (raw / file).is_file()]


def fit(
    folder: Path,
    raw: Path | None = None,
    parts: Collection[str] = tuple(RAW_FILES),
    told: Told = lambda words: None,
    anew: bool = True,
) -> list[str]:
    """Make the files of a platform from its measurements.

    Stopped before it is done, it leaves the models as they were.

    Parameters
    ----------
    folder
        The platform's.
    raw
        The measurements', or that of a platform which keeps some; the platform's own where it is left out.
    parts
        ``device``, ``host``, ``fabric``: those that were measured are fitted.
    told
        Told what is being fitted.
    anew
        Whether all is fitted; else models that nothing was measured for since they were fitted are left as they are.

    Returns
    -------
    What is left to do, for the reader.
    """
    raw = raw or folder / RAW
    raw = raw / RAW if (raw / RAW).is_dir() else raw
    measured = measured_parts(raw)
    if not measured:
        raise ForetraceError(f"{raw} holds no measurements", f"`foretrace calibrate --out {folder}` makes some.")
    folder.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    for part in (part for part in measured if part in parts):
        told(f"fitting the {part}")
        if part == "device":
            notes = fit_device(raw, folder, told, anew)
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
    """What the machine said of itself when a part was measured last."""
    if part == "device":
        return dict(DeviceFacts.read(raw).machine)
    runs = _host_runs(raw) if part == "host" else _fabric_runs(raw)
    return runs[-1].machine


def _host_runs(raw: Path) -> list[host_measurements.HostRun]:
    return _some(host_measurements.read_runs(raw / HOST_FILE), raw / HOST_FILE)


def _fabric_runs(raw: Path) -> list[fabric_measurements.FabricRun]:
    return _some(fabric_measurements.read_runs(raw / FABRIC_FILE), raw / FABRIC_FILE)


def _some(runs: list[Any], path: Path) -> list[Any]:
    if not runs:
        raise ForetraceError(f"{path} holds nothing", "Remove it, and measure again.")
    return runs


def fit_device(raw: Path, folder: Path, told: Told, anew: bool) -> list[str]:
    """Describe a device by what it says of itself and by the best it was seen to do; fit the models of its kernels."""
    device = describe(DeviceFacts.read(raw), read_all(raw, CEILINGS, "matrix", "copies"), folder.resolve().name)
    notes = _fit_kernels(raw, folder, device, told, anew) if can_fit() else [_how_to_fit_later(folder)]
    write(folder / DEVICE, asdict(device))
    return notes


def _how_to_fit_later(folder: Path) -> str:
    way = f"`{INSTALL}`, then `foretrace calibrate fit --out {folder}`, here or elsewhere"
    return f"the models of kernels were not fitted, since what they are fitted with is not installed: {way}"


def _fit_kernels(raw: Path, folder: Path, device: Device, told: Told, anew: bool) -> list[str]:
    from foretrace.cost_models.kernels.fitting import fit_models

    before = None if anew else _models_for(device, folder)
    with _replaced(folder / MODELS) as models:
        index = fit_models(raw, device, models, told, before)
        write(models / Path(INDEX).name, index)
    few = [name for name in FAMILIES if exists(raw / f"{name}{SUFFIX}") and name not in index]
    return [f"too little was measured to fit {', '.join(few)}: measure longer"] if few else []


def _models_for(device: Device, folder: Path) -> Path | None:
    """The models of a platform, where this Foretrace fitted them for this very device."""
    try:
        before, by = Device.read(folder / DEVICE), read_about(folder).versions.get("foretrace")
    except ForetraceError:
        return None
    alike = replace(before, measured=Measured()) == replace(device, measured=Measured())
    return folder / MODELS if alike and by == __version__ else None


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, that takes the place of another once it is complete."""
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
    """Fit what calls cost on the host."""
    from foretrace.cost_models.host.fitting import fit_host as fit_runs

    fit_runs(_host_runs(raw), folder.resolve().name).write(folder / HOST)


def fit_fabric(raw: Path, folder: Path) -> None:
    """Fit a curve to each kind of collective, and how ranks slow each other."""
    from foretrace.cost_models.collectives.contention import fit_overlap, fit_oversubscription
    from foretrace.cost_models.collectives.curves import fit_curves

    runs = _fabric_runs(raw)
    exchanges = [exchange for run in runs for exchange in run.exchanges]
    sources = dict.fromkeys(run.machine.get("provenance", "") for run in runs)
    before = folder / FABRIC
    links = Fabric.read(before).links if before.is_file() else None  # measuring again does not change them
    shared = fit_oversubscription(exchanges), fit_overlap(exchanges)
    Fabric(folder.resolve().name, fit_curves(exchanges), "; ".join(sources), links, *shared).write(folder / FABRIC)
