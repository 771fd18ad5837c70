"""Finding platforms, devices and fabrics: by name, folder or file, or put together from parts of several.

Names are looked up among the shipped platforms (``data/shipped``), then among the user's own (`user_platforms`). A GPU
that only has a description (``data/devices``, or a file of the user's) becomes a hypothetical platform, with kernel
times scaled from the H200.
"""

from __future__ import annotations

import os
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.errors import ForetraceError, check_path
from foretrace.platform.device import DEVICES, Device
from foretrace.platform.host import Host
from foretrace.platform.platform import (
    ABOUT,
    DEVICE,
    FABRIC,
    HOST,
    MODELS,
    RATIOS,
    Platform,
    read_about,
    read_fabric,
    read_host,
)

if TYPE_CHECKING:
    from foretrace.platform.fabric import Fabric

SHIPPED = Path(__file__).parent / "data" / "shipped"
DEFAULT_PLATFORM = "h200"
"""The platform of a prediction that names none."""
CPU = "cpu"
"""The CPU of this machine: a platform of the user's own, which `foretrace calibrate cpu` makes."""
REFERENCE = "h200"
"""The platform whose kernel times are scaled to devices that were not calibrated."""


def load_platform(
    on: Platform | str | Path = DEFAULT_PLATFORM,
    host: Host | Platform | str | Path | None = None,
    fabric: Fabric | Platform | str | Path | None = None,
) -> Platform:
    """A platform by name or folder, with the host or the fabric of another one where that is asked for.

    Parameters
    ----------
    on
        A platform, its name or its folder. ``cpu`` is the CPU of this machine, once `foretrace calibrate cpu` has
        measured it. A GPU that has a description and was not calibrated, as ``a100`` or by its file ``gpu.json``, has
        its kernel times scaled from the ``h200``. ``h200:hbm=1.5,host=2`` is hypothetical: parts of it are so many
        times as fast, as in `Platform.scaled`.
    host, fabric
        The part itself; or the platform whose part it is, by name or folder: it need not have the other parts, and the
        platform that is given a part need not have its own. A fabric also by a name that `foretrace platform list`
        shows, or by its file.

    >>> load_platform("h200", host="h200").device.name
    'h200'
    >>> load_platform("h200", fabric="h100-8x").fabric.name
    'h100-8x'
    """
    name, factors = (on, {}) if isinstance(on, Platform) else split_factors(str(on))
    name = name if isinstance(name, Platform) else as_spelled(name)
    other_host = host if host is None or isinstance(host, Host) else _find_host(host)
    base = name if isinstance(name, Platform) else _find(name, other_host)
    whole = base.having(other_host, None if fabric is None else find_fabric(fabric))
    return whole.scaled(**factors) if factors else whole


def as_spelled(name: str) -> str:
    """The name of a platform or a GPU in its own spelling, whichever case it is written in; anything else as it is.

    >>> as_spelled("H200"), as_spelled("A100-40GB"), as_spelled("mine")
    ('h200', 'a100-40gb', 'mine')
    """
    if name == name.lower() or Path(name).exists():
        return name
    return next((known for known in (CPU, *platform_folders(), *device_files()) if known.lower() == name.lower()), name)


def split_factors(on: str) -> tuple[str, dict[str, float]]:
    """A platform's name, and the factors after its colon; a folder's name may have a colon too.

    >>> split_factors("h200:hbm=1.5")
    ('h200', {'hbm': 1.5})
    """
    name, _, factors = on.rpartition(":")
    if not name:
        return on, {}
    from foretrace.platform.hypothetical import PARTS, read_factors  # here: few names have factors

    scaled = ("=" in factors or factors.partition(",")[0] in PARTS) and not Path(on).is_dir()
    return (name, read_factors(factors)) if scaled else (on, {})


def _find(name: str, host: Host | None) -> Platform:
    described = is_described_only(name)
    folder = None if described else find_platform(name)
    if folder and not is_imported(folder):
        return Platform.read(folder, host)
    from foretrace.platform.hypothetical import uncalibrated_platform

    reference = Platform.read(find_platform(REFERENCE), host)
    if folder is None:
        device = Device.named(name) if name in device_files() else Device.read(Path(name))
        return uncalibrated_platform(device, reference)
    about = read_about(folder)
    made = uncalibrated_platform(Device.read(folder / DEVICE), reference, folder / RATIOS)
    own_host = read_host(folder) if host is None and (folder / HOST).exists() else made.host
    fabric = read_fabric(folder) if (folder / FABRIC).exists() else None
    return replace(made, name=about.name, about=about, host=own_host, fabric=fabric)


def is_imported(folder: Path) -> bool:
    """Whether a platform was made of published tables alone."""
    return (folder / RATIOS).is_dir() and not (folder / MODELS).is_dir()


def _find_host(of: Platform | str | Path) -> Host:
    if isinstance(of, Platform):
        return of.host
    check_path(of, "host")
    of = as_spelled(str(of))
    if is_described_only(str(of)):
        raise ForetraceError(
            f"{of} has no host: it was not calibrated, only its GPU is described",
            "Name a platform that was calibrated, as h200.",
        )
    return read_host(_checked(find_platform(of)))


def folder_of_device(driver_name: str) -> Path | None:
    """The platform that a device was calibrated as; None for one that was not.

    >>> folder_of_device("NVIDIA H200").name, folder_of_device("Tesla T4")
    ('h200', None)
    """
    device = Device.matching(driver_name)
    return platform_folders().get(device.name) if device else None


def find_fabric(of: Fabric | Platform | str | Path) -> Fabric:
    """A fabric by its name, by its file, or by the platform that it belongs to.

    >>> find_fabric("v100-8x").gpus_per_node
    8
    """
    from foretrace.platform.fabric import Fabric

    if isinstance(of, Fabric):
        return of
    if isinstance(of, Platform):
        if of.fabric is None:
            raise ForetraceError(f"{of.name} has no fabric", "Name a platform whose fabric was measured.")
        return of.fabric
    check_path(of, "fabric")
    of = as_spelled(str(of))
    path = Path(of)
    if str(of) == CPU and CPU not in platform_folders():
        raise ForetraceError(
            "collectives between processes of this machine were not measured",
            "Start `foretrace calibrate fabric --out DIR` with torchrun, and name DIR (--fabric).",
        )
    if str(of) in platform_folders() or path.is_dir():
        return read_fabric(_checked(find_platform(of)))
    return Fabric.read(path) if path.is_file() else Fabric.named(str(of))


def _checked(folder: Path) -> Path:
    read_about(folder)  # refuses other format versions
    return folder


def find_platform(name: str | Path) -> Path:
    """The folder of a platform by its name; or the folder itself."""
    known = platform_folders()
    if str(name) in known:
        return known[str(name)]
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if str(name) == CPU:
        raise ForetraceError(
            "the CPU of this machine was not calibrated",
            "`foretrace calibrate cpu` measures it in some minutes, and keeps it under that name.",
        )
    names = sorted({CPU, *known, *device_files()})
    if path.exists() and not path.is_dir():
        raise ForetraceError(
            f"{name} is no platform: one is a folder, or a GPU's file that ends in .json",
            f"Name one of those, or one of these: {', '.join(names)}.",
        )
    near = get_close_matches(str(name), names, n=3)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ForetraceError(
        f"no platform is called {str(name)!r}, and no folder or file is there",
        f"{meant}Known are: {', '.join(names)}. `foretrace calibrate --out my-platform` measures this machine.",
    )


def user_platforms() -> Path:
    """The folder of the user's own platforms, which are found by name."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "foretrace" / "platforms"


def platform_folders() -> dict[str, Path]:
    """The folders of all platforms that have a name, shipped ones and the user's own."""
    homes = (user_platforms(), SHIPPED)  # of two with the same name, the shipped one: it is the same everywhere
    return {path.name: path for home in homes for path in sorted(home.glob("*")) if (path / ABOUT).is_file()}


def device_files() -> dict[str, Path]:
    """The files of all shipped device descriptions, by name."""
    return {path.stem: path for path in sorted(DEVICES.glob("*.json"), key=lambda path: path.stem)}


def is_described_only(name: str | Path) -> bool:
    """Whether a name is that of a device with a description, or such a file, and of no platform.

    >>> is_described_only("a100"), is_described_only("h200")
    (True, False)
    """
    described = str(name) in device_files() or (str(name).endswith(".json") and Path(name).is_file())
    return described and str(name) not in platform_folders() and not Path(name).is_dir()
