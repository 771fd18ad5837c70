"""A platform by name, put together from parts of several; the machine at hand is measured on first use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.errors import check_path
from foretrace.graph import ForetraceError
from foretrace.platform.folder import HERE, find, is_described_only, platforms, read_about, user_folder
from foretrace.platform.host import Host
from foretrace.platform.platform import Platform, read_fabric, read_host

if TYPE_CHECKING:
    from foretrace._progress import OnProgress, Progress
    from foretrace.platform.fabric import Fabric
    from foretrace.platform.summary import OnPaper, Summary

FIRST_MINUTES = 3.0
"""How long the machine at hand is measured."""


def platform(
    on: Platform | str | Path = "h200",
    host: Host | Platform | str | Path | None = None,
    fabric: Fabric | Platform | str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Platform:
    """A platform, with the host or the fabric of another one where that is asked for.

    Parameters
    ----------
    on
        A platform, its name or its folder. ``cpu`` is the CPU of this machine: it is measured, for some minutes, when
        it is asked for the first time, and kept for the user. A GPU that has a description and that nobody measured,
        as ``a100``, has its times carried over from the ``h200``. ``h200:hbm=1.5,host=2`` is one with parts of it so
        many times as fast, as in `Platform.scaled`.
    host, fabric
        The part itself; or the platform whose part it is, by name or folder: it need not have the others, and the
        platform that is given one need not have its own. A fabric also by a name of its own, as
        `foretrace platform list` shows them, or by its file.
    on_progress
        Called with how far the measuring is, where there is some.

    >>> slow = platform("h200", host="h200")
    >>> slow.device.name
    'h200'
    >>> platform("h200", fabric="h100-8x").fabric.name
    'h100-8x'
    """
    name, factors = (on, {}) if isinstance(on, Platform) else _with_factors(str(on))
    driven_by = host if host is None or isinstance(host, Host) else _host(host, on_progress)
    base = name if isinstance(name, Platform) else _named(name, driven_by, on_progress)
    whole = base.having(driven_by, None if fabric is None else fabric_named(fabric))
    return whole.scaled(**factors) if factors else whole


def summary_of(name: str) -> Summary | OnPaper:
    """What is known of a platform, of as many parts as were measured; or of one on paper.

    >>> summary_of("h200:hbm=1.5").to_dict()["device"]["memory_gbps"]
    7200.0
    """
    from foretrace.platform.summary import OnPaper, Summary

    plain, factors = _with_factors(name)
    return OnPaper(platform(name)) if factors or is_described_only(plain) else Summary.named(name)


def _with_factors(on: str) -> tuple[str, dict[str, float]]:
    """A platform's name, and by how much its parts are scaled: what follows a colon, which folders may have too."""
    name, _, said = on.rpartition(":")
    if not name:
        return on, {}
    from foretrace.platform.scaling import PARTS, read_factors

    scaled = ("=" in said or said.partition(",")[0] in PARTS) and not Path(on).is_dir()
    return (name, read_factors(said)) if scaled else (on, {})


def _named(on: str, host: Host | None, on_progress: OnProgress | None) -> Platform:
    return Platform.named(on) if is_described_only(on) else Platform.read(_folder(on, on_progress), host)


def _host(of: Platform | str | Path, on_progress: OnProgress | None) -> Host:
    if isinstance(of, Platform):
        return of.host
    check_path(of, "host")
    if is_described_only(str(of)):
        raise ForetraceError(
            f"{of} has no host: nobody measured it, a description of its GPU is all there is",
            "Name a platform that was calibrated, as h200.",
        )
    return read_host(_checked(_folder(of, on_progress)))


def fabric_named(of: Fabric | Platform | str | Path) -> Fabric:
    """A fabric by its own name, by its file, or by the platform whose it is.

    >>> fabric_named("v100-8x").gpus_per_node
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
    path = Path(of)
    if str(of) == HERE and HERE not in platforms():
        raise ForetraceError(
            "nobody measured what joins the processes of this machine",
            "Start `foretrace calibrate fabric --out DIR` with torchrun, and name DIR (--fabric).",
        )
    if str(of) in platforms() or path.is_dir():
        return read_fabric(_checked(find(of)))
    return Fabric.read(path) if path.is_file() else Fabric.named(str(of))


def _checked(folder: Path) -> Path:
    read_about(folder)  # one of another version is refused
    return folder


def _folder(on: str | Path, on_progress: OnProgress | None) -> Path:
    return _here(on_progress) if str(on) == HERE and HERE not in platforms() else find(on)


def _here(on_progress: OnProgress | None) -> Path:
    """The folder of the machine at hand, just measured."""
    from foretrace.calibrating import calibrate
    from foretrace.fitting import require_fitter

    require_fitter()
    folder = user_folder() / HERE

    def quiet(stage: Progress) -> None:
        pass

    said = f"measuring the CPU of this machine for {FIRST_MINUTES:g} minutes, this once; it is kept in {folder}"
    print(f"foretrace: {said}", file=sys.stderr)
    for note in calibrate(folder, ("device", "host"), FIRST_MINUTES, on=HERE, told=on_progress or quiet).notes:
        print(f"foretrace: {note}", file=sys.stderr)
    return folder
