"""A platform by name, put together from parts of several; the machine at hand is measured on first use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Fabric
from foretrace.platform.folder import HERE, find, platforms, read_about, user_folder
from foretrace.platform.host import Host
from foretrace.platform.platform import Platform, read_fabric, read_host

if TYPE_CHECKING:
    from foretrace.calibrating import Stage, Told

FIRST_MINUTES = 3.0
"""How long the machine at hand is measured."""


def platform(
    on: Platform | str | Path = "h200",
    host: Host | Platform | str | Path | None = None,
    fabric: Fabric | Platform | str | Path | None = None,
    told: Told | None = None,
) -> Platform:
    """A platform, with the host or the fabric of another one where that is asked for.

    Parameters
    ----------
    on
        A platform, its name or its folder. ``cpu`` is the CPU of this machine: it is measured, for some minutes, when
        it is asked for the first time, and kept for the user.
    host, fabric
        The part itself; or the platform whose part it is, by name or folder: it need not have the others. A fabric also
        by a name of its own, as `foretrace platform list` shows them, or by its file.
    told
        Told how far the measuring is, where there is some.

    >>> slow = platform("h200", host="h200")
    >>> slow.device.name
    'h200'
    >>> platform("h200", fabric="h100-8x").fabric.name
    'h100-8x'
    """
    base = on if isinstance(on, Platform) else Platform.read(_folder(on, told))
    return base.having(
        host=host if host is None or isinstance(host, Host) else _host(host, told),
        fabric=fabric if fabric is None or isinstance(fabric, Fabric) else _fabric(fabric, told),
    )


def _host(of: Platform | str | Path, told: Told | None) -> Host:
    return of.host if isinstance(of, Platform) else read_host(_checked(_folder(of, told)))


def _fabric(of: Platform | str | Path, told: Told | None) -> Fabric:
    if isinstance(of, Platform):
        if of.fabric is None:
            raise ForetraceError(f"{of.name} has no fabric", "Name a platform whose fabric was measured.")
        return of.fabric
    path = Path(of)
    if str(of) in (HERE, *platforms()) or path.is_dir():
        return read_fabric(_checked(_folder(of, told)))
    return Fabric.read(path) if path.is_file() else Fabric.named(str(of))


def _checked(folder: Path) -> Path:
    read_about(folder)  # one of another version is refused
    return folder


def _folder(on: str | Path, told: Told | None) -> Path:
    return _here(told) if str(on) == HERE and HERE not in platforms() else find(on)


def _here(told: Told | None) -> Path:
    """The folder of the machine at hand, just measured."""
    from foretrace.calibrating import calibrate
    from foretrace.fitting import require_fitter

    require_fitter()
    folder = user_folder() / HERE

    def quiet(stage: Stage) -> None:
        pass

    said = f"measuring the CPU of this machine for {FIRST_MINUTES:g} minutes, this once; it is kept in {folder}"
    print(f"foretrace: {said}", file=sys.stderr)
    for note in calibrate(folder, ("device", "host"), FIRST_MINUTES, on=HERE, told=told or quiet).notes:
        print(f"foretrace: {note}", file=sys.stderr)
    return folder
