"""The pages that the server shows: the same as those in files, and a list to find them by."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import Lock

import foretrace as ft
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.jobs.scaling import Scaling
from foretrace.graph import ForetraceError, Job
from foretrace.loading import load
from foretrace.platform.folder import HERE, machines, platforms
from foretrace.predicting import predict
from foretrace.questions.changes import SETS
from foretrace.questions.job_words import OF_JOBS
from foretrace.questions.whatifs import whatif
from foretrace.report.page import measured_beside
from foretrace.report.pages.comparison import comparison_page
from foretrace.report.pages.forecast import forecast_page
from foretrace.report.pages.observation import observation_page
from foretrace.report.pages.scaling import scaling_page
from foretrace.report.pages.sharding import sharding_page
from foretrace.report.pages.sheet import Sheet
from foretrace.report.pages.sweep import sweep_page
from foretrace.ui.documents import (
    Words,
    is_curve,
    is_forecast,
    is_plan,
    is_sweep,
    is_whatif,
    read_forecast,
    read_words,
)
from foretrace.ui.folder import MOST, SMALL, Folder

Fields = dict[str, str]
"""What an address or a form says."""

JOBS_KEPT = 4
USUAL = "h200"
OWN = "its own machine"
"""Where a job was measured: hosts and kernels stay as they were."""
_working = Lock()
"""Traces are read and predicted one at a time: a large one takes all the memory there is room for."""


def listing(folder: Folder, fields: Fields) -> Sheet:
    """Everything that can be opened."""
    choices = [OWN, *known_platforms()]
    words = {"items": folder.items(), "most": MOST, "root": str(folder.root), "platforms": choices, "usual": USUAL}
    return Sheet("listing.html", folder.root.name or str(folder.root), {}, words)


def opened(folder: Folder, fields: Fields) -> Sheet:
    """Something as it is: a recording or a trace as it was measured, a document as its page."""
    name = _asked(fields, "what")
    path = folder.path(name)
    made = _document(path, name)
    if made:
        return _drawn(made, name)
    with _working:
        return observation_page(ft.observe(_job(path)))


def _document(path: Path, name: str) -> Callable[[], Sheet] | None:
    """What makes the page of a document; None for what is none."""
    words = _words(path)
    if is_plan(words):
        return lambda: sharding_page(words)
    if is_sweep(words):
        return lambda: sweep_page(words)
    if is_whatif(words):
        return lambda: comparison_page(read_forecast(words["before"], name), read_forecast(words["after"], name))
    if is_curve(words):
        curve = Scaling(words.get("source", ""), words.get("platform", ""), words["scaling"], words.get("notes", []))
        return lambda: scaling_page(curve)
    return (lambda: forecast_page(read_forecast(words, name))) if is_forecast(words) else None


def predicted(folder: Folder, fields: Fields) -> Sheet:
    """The forecast of a recording or a trace on a platform, beside what was measured."""
    path, on = _step(folder, _asked(fields, "what")), _machine(fields, "on")
    with _working:
        forecast = predict(_job(path), on)
        return forecast_page(forecast, measured_beside(forecast))


def compared(folder: Folder, fields: Fields) -> Sheet:
    """Two forecasts: of one thing on two machines, of two things on one, or any other pair."""
    sides = [(_asked(fields, what), _machine(fields, on)) for what, on in (("a", "a_on"), ("b", "b_on"))]
    if sides[0] == sides[1]:
        raise ForetraceError("both sides are the same", "Choose another recording, or another platform.")
    with _working:
        before, after = (_forecast(folder, name, on) for name, on in sides)
        return comparison_page(before, after, (sides[0][0], sides[1][0]))


def asking(folder: Folder, fields: Fields) -> Sheet:
    """The form that asks what would become of a step."""
    folder.path(_asked(fields, "what"))
    return _form(fields)


def again(method: str, where: str, fields: Fields, why: str) -> Sheet | None:
    """The form that was answered with an error, as it was filled in; None where no form was."""
    return _form(fields, why) if (method, where) == ("POST", "/whatif") and fields.get("what") else None


def _form(fields: Fields, wrong: str = "") -> Sheet:
    words = {
        "what": fields["what"],
        "platforms": known_platforms(),
        "chosen": fields.get("on") or USUAL,
        "changes": fields.get("changes", ""),
        "settings": [name for name in SETS if name not in OF_JOBS],
        "of_jobs": list(OF_JOBS),
        "wrong": wrong,
    }
    return Sheet("whatif.html", f"What if: {fields['what']}", {}, words)


def changed(folder: Folder, fields: Fields) -> Sheet:
    """A step before and after the changes that the form asks for, one a line."""
    name = _asked(fields, "what")
    changes = [line.strip() for line in fields.get("changes", "").splitlines() if line.strip()]
    path, on = _step(folder, name), _platform(fields, "on")
    with _working:
        told = whatif(_job(path), on, changes)
        return comparison_page(told.before, told.after, (name, ", ".join(told.changes)))


ANSWERS: dict[tuple[str, str], Callable[[Folder, Fields], Sheet]] = {
    ("GET", "/"): listing,
    ("GET", "/open"): opened,
    ("GET", "/predict"): predicted,
    ("GET", "/compare"): compared,
    ("GET", "/whatif"): asking,
    ("POST", "/whatif"): changed,
}


def answer(folder: Folder, method: str, where: str, fields: Fields) -> Sheet | None:
    """The page at an address; None where there is none."""
    made = ANSWERS.get((method, where))
    return made(folder, fields) if made else None


def known_platforms() -> list[str]:
    """Names of the machines that can be predicted on without measuring anything first.

    >>> "h200" in known_platforms()
    True
    """
    return sorted({*platforms(), *machines()})


def _forecast(folder: Folder, name: str, on: str | None) -> Forecast:
    words = _words(folder.path(name))
    return read_forecast(words, name) if is_forecast(words) else predict(_job(_step(folder, name)), on)


def _step(folder: Folder, name: str) -> Path:
    """The path of something that holds a step to predict; what Foretrace wrote about one does not."""
    path = folder.path(name)
    if _document(path, name):
        raise ForetraceError(f"{name} is no step but what Foretrace said about one", "Open it from the list.")
    return path


def _words(path: Path) -> Words:
    """Those of a JSON document; none of anything else."""
    small = path.suffix == ".json" and path.is_file() and path.stat().st_size <= SMALL
    return (read_words(path) if small else None) or {}


def _drawn(made: Callable[[], Sheet], name: str) -> Sheet:
    """The page of a document, whose words anybody may have changed."""
    try:
        sheet = made()
        sheet.html()
    except ForetraceError:
        raise
    except Exception as error:
        raise ForetraceError(f"{name} is damaged ({type(error).__name__}: {error})", "Write it again.") from None
    return sheet


def _asked(fields: Fields, name: str) -> str:
    if not fields.get(name):
        raise ForetraceError(f"the address does not say {name}", "Go back to the list and choose.")
    return fields[name]


def _machine(fields: Fields, name: str) -> str | None:
    """A platform's name; None for a job's own machine."""
    return None if fields.get(name, "").strip() == OWN else _platform(fields, name)


def _platform(fields: Fields, name: str) -> str:
    """A platform by its name alone, or scaled as in ``h200:hbm=1.5``: no folder elsewhere is read."""
    on = fields.get(name, "").strip() or USUAL
    if on.partition(":")[0] not in known_platforms():
        near = f"Known are: {', '.join(known_platforms())}."
        raise ForetraceError(f"no platform is called {on!r}", near if on != HERE else f"Measure it first. {near}")
    return on


def _job(path: Path) -> Job:
    newest = max((file.stat().st_mtime_ns for file in [path, *path.glob("*"), *path.glob("*/*")]), default=0)
    return _loaded(path, newest)


@lru_cache(JOBS_KEPT)
def _loaded(path: Path, changed: int) -> Job:
    return load(path)
