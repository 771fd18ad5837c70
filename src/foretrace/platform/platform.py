"""A platform: a host, a device and a fabric, measured apart and combined freely."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.graph import ForetraceError
from foretrace.platform import folder as files
from foretrace.platform.device import Device
from foretrace.platform.folder import About
from foretrace.platform.host import Host

if TYPE_CHECKING:
    from foretrace.platform.carry import Carry
    from foretrace.platform.fabric import Fabric

MEASURED = "h200"
"""The platform whose times are carried over to devices that nobody measured."""


@dataclass(frozen=True)
class Platform:
    """What a step costs on a machine: the time of ops on the host, of kernels on the device, of exchanges in between.

    >>> h200 = Platform.named("h200")
    >>> h200.device.sms, h200.fabric is None
    (132, True)
    """

    name: str
    device: Device
    host: Host
    fabric: Fabric | None
    """None where nothing was measured between ranks."""
    folder: Path
    """Where the device's fitted models are."""
    about: About
    carry: Carry | None = None
    """How the models' times become the device's, where they were fitted on another one."""

    @property
    def models(self) -> Path:
        """The folder of the device's fitted models."""
        return self.folder / files.MODELS

    @classmethod
    def read(cls, path: str | Path, host: Host | None = None) -> Platform:
        """The platform in a folder; what is damaged, missing or of another version is named, with what to do.

        Parameters
        ----------
        path
            The folder.
        host
            Taken in the place of the folder's own, which then need not have one.
        """
        folder = Path(path)
        about = files.read_about(folder)
        return cls(
            name=about.name,
            device=read_device(folder),
            host=host or read_host(folder),
            fabric=read_fabric(folder) if (folder / files.FABRIC).exists() else None,
            folder=folder,
            about=about,
        )

    @classmethod
    def named(cls, name: str | Path) -> Platform:
        """A platform that comes with Foretrace, one of the user's own, or one in a folder; or a GPU by its description.

        >>> Platform.named("a100").carry.source.name
        'h200'
        """
        if files.is_described_only(name):
            return cls.carried(Device.named(str(name)), cls.read(files.find(MEASURED)))
        return cls.read(files.find(name))

    @classmethod
    def carried(cls, device: Device, measured: Platform) -> Platform:
        """A device that nobody measured, with the models and the host of a platform that was.

        Parameters
        ----------
        device
            As its maker describes it, with what others published of it.
        measured
            Whose times are carried over.
        """
        from foretrace.platform.carry import Carry

        about = replace(
            measured.about,
            name=device.name,
            made="",
            provenance=f"nobody calibrated it: kernel times are carried over from {measured.name}, so is the host",
        )
        published = device.measured
        known = replace(
            measured.device.measured,
            memory_gbps=published.memory_gbps,
            tflops=published.tflops,
            provenance="; ".join(filter(None, [published.provenance, f"gap, latency and queue as on {measured.name}"])),
        )
        return replace(
            measured,
            name=device.name,
            device=replace(device, measured=known),
            fabric=None,
            about=about,
            carry=Carry.over(measured.device, device),
        )

    def scaled(self, **factors: float) -> Platform:
        """The same platform with parts of it so many times as fast, or as large.

        Parameters
        ----------
        factors
            By part: ``hbm``, the rate of its memory; ``compute``, its peak rates; ``clock``, those and the clock;
            ``cache`` and ``memory``, their sizes; ``host``; ``nvlink``, links inside a node; ``network``, those
            between nodes.

        >>> Platform.named("h200").scaled(hbm=1.5).device.memory_gbps
        7200.0
        """
        from foretrace.platform.scaling import scaled  # here, since scaling is about platforms

        return scaled(self, factors)

    def having(self, host: Host | None = None, fabric: Fabric | None = None) -> Platform:
        """The same device with another host or fabric.

        >>> from foretrace.platform.fabric import Fabric
        >>> h200 = Platform.named("h200")
        >>> h200.having(fabric=Fabric("ours", (), "made up")).fabric.name
        'ours'
        """
        return replace(self, host=host or self.host, fabric=fabric or self.fabric)


def read_device(folder: Path) -> Device:
    """The device of a platform, with its models."""
    if not (folder / files.DEVICE).exists():
        raise _unmeasured(folder, "device")
    if not (folder / files.MODELS).is_dir():
        raise ForetraceError(
            f"{folder} has no {files.MODELS}/: its measurements were not fitted",
            f"`foretrace calibrate fit --out {folder}` does that; it needs `pip install 'foretrace[fit]'`.",
        )
    return Device.read(folder / files.DEVICE)


def read_host(folder: Path) -> Host:
    """The host of a platform."""
    if not (folder / files.HOST).exists():
        raise _unmeasured(folder, "host")
    return Host.read(folder / files.HOST)


def read_fabric(folder: Path) -> Fabric:
    """The fabric of a platform that must have one."""
    if not (folder / files.FABRIC).exists():
        raise _unmeasured(folder, "fabric")
    from foretrace.platform.fabric import Fabric  # who predicts one rank does without

    return Fabric.read(folder / files.FABRIC)


_INSTEAD = {
    "device": "",
    "host": "; or take another platform's (--host)",
    "fabric": "; or take another platform's, or a shipped one (--fabric)",
}


def _unmeasured(folder: Path, part: str) -> ForetraceError:
    return ForetraceError(
        f"{folder} has no {part}.json: its {part} was not measured",
        f"`foretrace calibrate {part} --out {folder}` on its machine does that{_INSTEAD[part]}.",
    )
