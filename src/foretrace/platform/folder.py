"""Where platforms lie, and what each says of itself.

A platform is a folder: ``platform.json`` says what it is and how it was made; ``device.json``, ``host.json`` and
``fabric.json`` hold its parts, as many of them as were measured; ``models/`` holds the fitted kernel models, and
``raw/`` the measurements they were fitted on.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.output import check_writable
from foretrace.platform.device import MACHINES
from foretrace.platform.typed_json import PositiveInt, read_as, read_object, write

FORMAT = "foretrace platform"
VERSION = 3
"""Of everything in the folder but ``raw/``: it counts up where files or models of before can no longer be read."""
ABOUT, DEVICE, HOST, FABRIC, MODELS, RAW = "platform.json", "device.json", "host.json", "fabric.json", "models", "raw"
INDEX = f"{MODELS}/index.json"
"""By family: how many measurements its model was fitted on, and how far it misses others."""

EXACT = f"{MODELS}/exact.json.gz"
"""Calls of steps that were timed as they are."""

SHIPPED = Path(__file__).parent / "data" / "shipped"
HERE = "cpu"
"""The machine at hand without its GPUs: measured when it is first asked for."""


@dataclass(frozen=True)
class About:
    """What a platform says of itself."""

    name: str
    made: str
    """The day of its latest measurement."""
    provenance: str
    versions: dict[str, str]
    """Of torch, CUDA, the driver and whatever else the times depend on."""
    format: str = FORMAT
    version: PositiveInt = VERSION


def user_folder() -> Path:
    """Where a user's own platforms are found by name.

    >>> user_folder().parts[-2:]
    ('foretrace', 'platforms')
    """
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "foretrace" / "platforms"


def platforms() -> dict[str, Path]:
    """The folders of all platforms that have a name: those that come with Foretrace, and the user's own.

    >>> "h200" in platforms()
    True
    """
    homes = (user_folder(), SHIPPED)  # of two with the same name, the shipped one: it is the same everywhere
    return {path.name: path for home in homes for path in sorted(home.glob("*")) if (path / ABOUT).is_file()}


def machines() -> dict[str, Path]:
    """The files of all devices whose makers' descriptions come with Foretrace.

    >>> {"h200", "a100"} <= machines().keys()
    True
    """
    return {path.stem: path for path in sorted(MACHINES.glob("*.json"), key=lambda path: path.stem)}


def is_described_only(what: str | Path) -> bool:
    """Whether a name is that of a device which has a description, and of no platform.

    >>> is_described_only("a100"), is_described_only("h200")
    (True, False)
    """
    return str(what) in machines() and str(what) not in platforms() and not Path(what).is_dir()


def find(what: str | Path) -> Path:
    """The folder of a platform by its name, or the folder itself.

    >>> find("h200") == SHIPPED / "h200"
    True
    """
    named = platforms().get(str(what))
    if named:
        return named
    path = Path(what).expanduser()
    if path.is_dir():
        return path
    if str(what) == HERE:
        raise ForetraceError(
            "cpu is the machine at hand, and was not measured yet",
            "It is at first use, as in `foretrace predict … --on cpu`; or measure it longer: "
            "`foretrace calibrate all --on cpu --out my-cpu`.",
        )
    known = sorted({HERE, *platforms(), *machines()})
    near = get_close_matches(str(what), known, n=3)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ForetraceError(
        f"no platform is called {str(what)!r}, and no folder is there",
        f"{meant}Known are: {', '.join(known)}. `foretrace calibrate --out my-platform` measures the machine at hand.",
    )


def check_out(folder: Path) -> None:
    """Refuse to write a platform among files that are not a platform's, or where no folder can be.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> check_out(folder); _ = (folder / "job.json").write_text("{}"); check_out(folder)
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: ...
    """
    if not folder.is_dir():
        if folder.exists():
            raise ForetraceError(f"{folder} is no folder", "Give an empty or a new folder as --out.")
        check_writable(folder)
        return
    here = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if here and not here & {ABOUT, RAW}:
        raise ForetraceError(
            f"{folder.resolve()} holds something else than a platform ({sorted(here)[0]})",
            "Give an empty or a new folder as --out, or one that an earlier calibration wrote.",
        )


def lacks_models(folder: Path) -> bool:
    """Whether a platform has a device, and nothing that says what kernels take on it.

    >>> lacks_models(SHIPPED / "h200")
    False
    """
    has_models = any((folder / MODELS).glob("*.npz")) or (folder / EXACT).is_file()
    return (folder / DEVICE).is_file() and not has_models


def read_about(folder: Path) -> About:
    """What a platform says of itself; one of another format version is refused with the way to read or remake it."""
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
    facts = read_object(path)
    version = facts.get("version")
    if facts.get("format") == FORMAT and isinstance(version, int) and version != VERSION:
        newer = "A newer Foretrace made it: `pip install --upgrade foretrace`."
        raise ForetraceError(
            f"{folder} is of format version {version}, this Foretrace reads version {VERSION}",
            newer if version > VERSION else _way_back(folder),
        )
    about = read_as(About, path, f"Restore it. {_way_back(folder)}")
    if about.format != FORMAT:
        raise ForetraceError(f"{path}: the field 'format' holds {about.format!r}", f"It should be {FORMAT!r}.")
    return about


def write_about(folder: Path, about: About) -> None:
    """Write what a platform says of itself.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> write_about(folder, About("mine", "2026-11-15", "measured here", {"torch": "2.11"}))
    >>> read_about(folder).name
    'mine'
    """
    write(folder / ABOUT, asdict(about))


def _way_back(folder: Path) -> str:
    """How to make a platform's files anew: without its machine where the measurements are kept."""
    if (folder / RAW).is_dir():
        return f"`foretrace calibrate fit --out {folder}` makes it anew from its measurements, without the machine."
    return f"It keeps no measurements: `foretrace calibrate --out {folder}` on its machine measures it again."
