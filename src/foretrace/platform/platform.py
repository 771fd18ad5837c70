"""A platform: a device, a host and a fabric, measured apart and combined freely; on disk, a folder.

| file | holds |
| --- | --- |
| ``platform.json`` | name, date, provenance and versions (`About`) |
| ``device.json``, ``host.json``, ``fabric.json`` | the parts, as many as were measured |
| ``models/`` | fitted kernel models; in ``models/prior`` those of another GPU that they are a difference to |
| ``ratios/`` | of a platform made of published tables: ratios to the calibrated GPU |
| ``raw/`` | the measurements that the parts were fitted on (`foretrace.platform.measurements`) |
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.errors import ForetraceError
from foretrace.platform.device import Device
from foretrace.platform.host import Host
from foretrace.platform.typed_json import PositiveInt, read_as, read_object, write

if TYPE_CHECKING:
    from foretrace.platform.fabric import Fabric
    from foretrace.platform.hypothetical import CrossDeviceScaling
    from foretrace.platform.stack import Stack

FORMAT = "foretrace platform"
VERSION = 3
"""Of all files but ``raw/``; it counts up when files or models of earlier versions can't be read any more."""
ABOUT, DEVICE, HOST, FABRIC, MODELS, RAW = "platform.json", "device.json", "host.json", "fabric.json", "models", "raw"
RATIOS = "ratios"
INDEX = f"{MODELS}/index.json"
"""By kernel family: number of measurements, kind of model, errors on held-out calls."""
PRIOR, PRIOR_FILE = "prior", "prior.json"
"""Folder in that of the models with what they are a difference to (`foretrace.platform.prior`), and the file in it."""
EXACT = f"{MODELS}/exact.json.gz"
"""Calls of steps that were timed exactly as the step makes them."""


@dataclass(frozen=True)
class About:
    """Name, date, provenance and versions of a platform: its ``platform.json``."""

    name: str
    made: str
    """Day of the latest measurement."""
    provenance: str
    versions: dict[str, str]
    """Of torch, CUDA, the driver and whatever else the times depend on."""
    format: str = FORMAT
    version: PositiveInt = VERSION


@dataclass(frozen=True)
class Platform:
    """The costs of a machine: host time of ops, device time of kernels, time of collectives.

    >>> h200 = Platform.named("h200")
    >>> h200.device.sms, h200.fabric is None
    (132, True)
    """

    name: str
    device: Device
    host: Host
    fabric: Fabric | None
    """None where no collective was measured."""
    folder: Path
    """Folder of the fitted kernel models."""
    about: About
    cross_device: CrossDeviceScaling | None = None
    """How times of the kernel models are scaled to the device, where they were fitted on another one."""
    stack: Stack | None = None
    """The software that it is taken to run, where that is not the calibration's own."""
    step_share: float = 1.0
    """How much of a model the priced steps are: calls of a large model take longer, where few of its blocks are priced
    too."""

    @property
    def models(self) -> Path:
        """The folder of the fitted kernel models."""
        return self.folder / MODELS

    @classmethod
    def read(cls, path: str | Path, host: Host | None = None) -> Platform:
        """Read a platform's folder; an error names what is missing, damaged or of another version, and what to do.

        A host that is given replaces the folder's own, which may then be missing.
        """
        folder = Path(path)
        about = read_about(folder)
        return cls(
            name=about.name,
            device=read_device(folder),
            host=host or read_host(folder),
            fabric=read_fabric(folder) if (folder / FABRIC).exists() else None,
            folder=folder,
            about=about,
        )

    @classmethod
    def named(cls, name: str | Path) -> Platform:
        """A platform by name or folder, as `foretrace.platform.registry.load_platform` finds it.

        >>> Platform.named("a100").cross_device.source.name
        'h200'
        """
        from foretrace.platform.registry import load_platform  # which imports this module

        return load_platform(name)

    def scaled(self, **factors: float) -> Platform:
        """A hypothetical platform: this one with parts of it several times as fast, or as large.

        Parameters
        ----------
        factors
            By part: ``hbm``, memory bandwidth; ``compute``, peak rates; ``clock``, peak rates and clock; ``cache`` and
            ``memory``, their sizes; ``host``; ``nvlink``, links inside a node; ``network``, links between nodes.

        >>> Platform.named("h200").scaled(hbm=1.5).device.memory_gbps
        7200.0
        """
        from foretrace.platform.hypothetical import scaled_platform  # which imports this module

        return scaled_platform(self, factors)

    def having(self, host: Host | None = None, fabric: Fabric | None = None) -> Platform:
        """This platform with another host or fabric.

        >>> from foretrace.platform.fabric import Fabric
        >>> h200 = Platform.named("h200")
        >>> h200.having(fabric=Fabric("ours", (), "made up")).fabric.name
        'ours'
        """
        return replace(self, host=host or self.host, fabric=fabric or self.fabric)


def read_device(folder: Path) -> Device:
    """The device of a platform, which must have kernel models."""
    path = _part(folder, "device")
    if not (folder / MODELS).is_dir():
        raise ForetraceError(
            f"{folder} has no {MODELS}/: its measurements were not fitted",
            f"`foretrace calibrate fit --out {folder}` does that; it needs `pip install 'foretrace[fit]'`.",
        )
    return Device.read(path)


def read_host(folder: Path) -> Host:
    """The host of a platform."""
    return Host.read(_part(folder, "host", "; or take another platform's (--host)"))


def read_fabric(folder: Path) -> Fabric:
    """The fabric of a platform."""
    path = _part(folder, "fabric", "; or take another platform's, or a shipped one (--fabric)")
    from foretrace.platform.fabric import Fabric  # here: a step of one rank needs none

    return Fabric.read(path)


def _part(folder: Path, part: str, instead: str = "") -> Path:
    """The file of a part, which must be there."""
    path = folder / f"{part}.json"
    if not path.exists():
        raise ForetraceError(
            f"{folder} has no {part}.json: its {part} was not measured",
            f"`foretrace calibrate {part} --out {folder}` on its machine does that{instead}.",
        )
    return path


def read_about(folder: Path) -> About:
    """Read ``platform.json``; another format version is refused, with the command that makes the platform anew."""
    path = folder / ABOUT
    if not path.is_file() and any((folder / RAW).glob("*")):
        raise ForetraceError(
            f"{folder} was measured, and not fitted yet",
            f"`foretrace calibrate fit --out {folder}` fits what is there.",
        )
    if not path.is_file():
        raise ForetraceError(
            f"{folder} is not a platform: it has no {ABOUT}",
            "Name one that `foretrace platform list` shows, or a folder that `foretrace calibrate --out` wrote.",
        )
    fields = read_object(path)
    version = fields.get("version")
    if fields.get("format") == FORMAT and isinstance(version, int) and version != VERSION:
        newer = "A newer Foretrace made it: `pip install --upgrade foretrace`."
        raise ForetraceError(
            f"{folder} is of format version {version}, this Foretrace reads version {VERSION}",
            newer if version > VERSION else _how_to_remake(folder),
        )
    about = read_as(About, path, f"Restore it. {_how_to_remake(folder)}")
    if about.format != FORMAT:
        raise ForetraceError(f"{path}: the field 'format' holds {about.format!r}", f"It should be {FORMAT!r}.")
    return about


def write_about(folder: Path, about: About) -> None:
    """Write ``platform.json``."""
    write(folder / ABOUT, asdict(about))


def _how_to_remake(folder: Path) -> str:
    """How to make a platform's files anew: from its measurements where it has them, else on its machine."""
    if (folder / RAW).is_dir():
        return f"`foretrace calibrate fit --out {folder}` makes it anew from its measurements, without the machine."
    return f"It keeps no measurements: `foretrace calibrate --out {folder}` on its machine measures it again."


def check_out(folder: Path) -> None:
    """Refuse to write a platform into a folder of other files, or where no folder can be made.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> check_out(folder); _ = (folder / "job.json").write_text("{}"); check_out(folder)
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: ...
    """
    if not folder.is_dir():
        if folder.exists():
            raise ForetraceError(
                f"{folder} is no folder but a file",
                "--out names a folder, which is made: give a new one, or an empty one.",
            )
        from foretrace.output import check_writable  # most who read a platform write none

        check_writable(folder)
        return
    here = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if here and not here & {ABOUT, RAW}:
        raise ForetraceError(
            f"{folder.resolve()} holds something else than a platform ({sorted(here)[0]})",
            "Give an empty or a new folder as --out, or one that an earlier calibration wrote.",
        )


def lacks_models(folder: Path) -> bool:
    """Whether a platform has a device, but neither kernel models, a prior's among them, nor exactly timed calls."""
    known = (folder / EXACT, folder / MODELS / PRIOR / PRIOR_FILE)
    has_models = any((folder / MODELS).glob("*.npz")) or any(path.is_file() for path in known)
    return (folder / DEVICE).is_file() and not has_models
