"""The prior of a calibration: models of a GPU's kernels before any of them is measured on it.

It is another platform's kernel models, and how their times are scaled to this GPU. A platform that was calibrated from
a prior keeps a copy of both in ``models/prior``: it needs nothing but its own folder.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from foretrace import __version__
from foretrace.errors import ForetraceError
from foretrace.platform.device import Device
from foretrace.platform.hypothetical import CrossDeviceScaling, neighbour_scaling, uncalibrated_platform
from foretrace.platform.platform import PRIOR_FILE, Platform
from foretrace.platform.registry import REFERENCE, load_platform
from foretrace.platform.typed_json import Positive, read_as, write

RATIO_FOLDER = "ratios-"
"""How the names of folders of ratios begin, beside `PRIOR_FILE`."""
AUTO, NONE = "auto", "none"
"""Choices beside the name of a platform."""


@dataclass(frozen=True)
class ScalingStep:
    """A `CrossDeviceScaling` as a file holds it, without its base."""

    source: Device
    gemm: Positive
    no_tensor_cores: Positive
    memory: Positive
    issue: Positive
    start: Positive
    spread: float
    least_spread: float
    ratio_gemm: Positive
    attention: Positive = 1.0
    attention_tile_us: float = 0.0
    ratios: str = ""
    """Name of the folder of its ratios, beside the file."""


@dataclass(frozen=True)
class PriorRecord:
    """A prior as its file holds it."""

    name: str
    foretrace: str
    """The version that made the models."""
    cuda_runtime: int
    scaling: tuple[ScalingStep, ...]
    """From this GPU back to the one whose models they are; none where it is the same GPU."""

    @property
    def words(self) -> str:
        """The prior as text."""
        return f"{self.name}, scaled" if self.scaling else self.name


@dataclass(frozen=True)
class Prior:
    """Kernel models of another platform, and how their times are scaled to a device."""

    name: str
    """The platform."""
    models: Path
    scaling: CrossDeviceScaling | None
    """None where the platform's device is the same one."""
    cuda_runtime: int = 0
    """The CUDA runtime of this machine, as in `Graph`."""
    foretrace: str = __version__

    @classmethod
    def of(cls, platform: Platform, device: Device, cuda_runtime: int = 0) -> Prior:
        """A platform as the prior of a device.

        >>> h200 = Device.named("h200")
        >>> Prior.of(Platform.named("h100"), h200).scaling.source.name, Prior.of(Platform.named("h200"), h200).scaling
        ('h100', None)
        """
        known = platform.cross_device
        same = platform.device.matches == device.matches
        scaling = known if same else neighbour_scaling(platform, device)
        return cls(platform.name, platform.models, scaling, cuda_runtime)

    @property
    def outdated(self) -> bool:
        """Whether another version of Foretrace made it: its models may have other features."""
        return self.foretrace != __version__

    def write(self, folder: Path) -> None:
        """Copy the models and what they are scaled by."""
        folder.mkdir(parents=True)
        for path in self.models.iterdir():
            if path.name == PRIOR_FILE or path.name.startswith(RATIO_FOLDER):
                continue  # of a copy, which is written anew
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, folder / path.name)
        steps: list[ScalingStep] = []
        scaling = self.scaling
        while scaling:
            ratios = f"{RATIO_FOLDER}{len(steps)}" if scaling.ratios else ""
            if scaling.ratios:
                shutil.copytree(scaling.ratios, folder / ratios)
            shared = {field.name: getattr(scaling, field.name) for field in fields(ScalingStep)}
            steps.append(ScalingStep(**{**shared, "ratios": ratios}))
            scaling = scaling.base
        write(folder / PRIOR_FILE, asdict(PriorRecord(self.name, self.foretrace, self.cuda_runtime, tuple(steps))))

    @classmethod
    def read(cls, folder: Path) -> Prior | None:
        """The copy that `write` made in a folder; None where there is none."""
        if not (folder / PRIOR_FILE).is_file():
            return None
        found = read_as(PriorRecord, folder / PRIOR_FILE)
        scaling = None
        for step in reversed(found.scaling):
            if step.ratios != Path(step.ratios).name:
                raise ForetraceError(f"{folder / PRIOR_FILE} names a folder elsewhere", "Calibrate it anew.")
            shared = {field.name: getattr(step, field.name) for field in fields(ScalingStep)}
            scaling = CrossDeviceScaling(
                **{**shared, "ratios": folder / step.ratios if step.ratios else None}, base=scaling
            )
        return cls(found.name, folder, scaling, found.cuda_runtime, found.foretrace)


def prior_platform(name: str, device: Device) -> Platform | None:
    """The platform that a device's prior is made of, by name or folder; None for ``none``, and for a CPU.

    ``auto`` is what `foretrace predict` knows of the device without a calibration: its own platform where one is
    shipped, else one that is scaled from the nearest GPU with measurements or published tables.

    >>> a10 = Device.named("a10")
    >>> prior_platform("auto", a10).cross_device.source.name, prior_platform("none", a10)
    ('l40s', None)
    """
    if name == NONE or (name == AUTO and device.runs_on_host):
        return None
    if name != AUTO:
        platform = load_platform(name, host=REFERENCE)
        if platform.device.kind != device.kind:
            raise ForetraceError(
                f"{name} is a {platform.device.kind} platform, this device is a {device.kind}",
                "Name the platform of a GPU, or leave --prior out.",
            )
        return platform
    reference = load_platform(REFERENCE)
    if device.matches == reference.device.matches:
        return reference
    return uncalibrated_platform(device, reference)
