"""The pages that the server shows: the same as those in files, and a list to find them by."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import foretrace as ft
from foretrace.forecast.forecast import Forecast
from foretrace.graph import ForetraceError, Job
from foretrace.api import load
from foretrace.platform.folder import HERE, machines, platforms
from foretrace.api import predict
from foretrace.questions.changes import SETS
from foretrace.questions.job_words import OF_JOBS
from foretrace.questions.whatifs import whatif
from foretrace.report.page import measured_beside
from foretrace.report.pages.comparison import comparison_page
from foretrace.report.pages.forecast import forecast_page
from foretrace.report.pages.observation import observation_page
from foretrace.report.pages.sheet import Sheet
from foretrace.ui.document_pages import FORECAST, called, drawn, page_of, words_of
from foretrace.ui.documents import is_forecast, read_forecast
from foretrace.ui.folder import DOCUMENT, MOST, Folder
from foretrace.ui.working import Working

Fields = dict[str, str]
"""What an address or a form says."""

JOBS_KEPT = 4
USUAL = "h200"
OWN = "its own machine"
"""Where a job was measured: hosts and kernels stay as they were."""
MEASURE = f"Measure it first: `foretrace predict RUN --on {HERE}` does, once, in a few minutes."
WORKING = Working()


def listing(folder: Folder, fields: Fields) -> Sheet:
    """Everything that can be opened."""
    items = folder.items()
    kinds = {item.name: called(folder.root / item.name) if item.kind == DOCUMENT else item.kind for item in items}
    words = {
        "items": items,
        "called": kinds,
        "predictable": [item.name for item in items if item.kind != DOCUMENT],
        "comparable": [item.name for item in items if item.kind != DOCUMENT or kinds[item.name] == FORECAST],
        "most": MOST,
        "root": str(folder.root),
        "platforms": [OWN, *known_platforms()],
        "usual": USUAL,
    }
    return Sheet("listing.html", folder.root.name or str(folder.root), {}, words)


def opened(folder: Folder, fields: Fields) -> Sheet:
    """Something as it is: a recording or a trace as it was measured, a document as its page."""
    name = _asked(fields, "what")
    path = folder.path(name)
    made = page_of(path, name)
    if made:
        return drawn(made, name)
    with WORKING.on(f"reading {name}") as told:
        job = _job(path)
        told(f"looking at {name}")
        return observation_page(ft.observe(job))


def predicted(folder: Folder, fields: Fields) -> Sheet:
    """The forecast of a recording or a trace on a platform, beside what was measured."""
    name, on = _asked(fields, "what"), _machine(fields, "on")
    path = _step(folder, name)
    with WORKING.on(f"reading {name}") as told:
        job = _job(path)
        told(f"predicting {name} on {on or OWN}")
        forecast = predict(job, on)
        told(f"drawing {name}")
        return forecast_page(forecast, measured_beside(forecast))


def compared(folder: Folder, fields: Fields) -> Sheet:
    """Two forecasts: of one thing on two machines, of two things on one, or any other pair."""
    sides = [(_asked(fields, what), _machine(fields, on)) for what, on in (("a", "a_on"), ("b", "b_on"))]
    if sides[0] == sides[1]:
        raise ForetraceError("both sides are the same", "Choose another recording, or another platform.")
    forecasts = list[Forecast]()
    with WORKING.on("reading") as told:
        for name, on in sides:
            told(f"predicting {name} on {on or OWN}")
            forecasts.append(_forecast(folder, name, on))
        told("drawing both")

        def page() -> Sheet:
            return comparison_page(forecasts[0], forecasts[1], (sides[0][0], sides[1][0]))

        documents = [name for name, _ in sides if is_forecast(words_of(folder.path(name)))]
        return drawn(page, " or ".join(documents)) if documents else page()


def asking(folder: Folder, fields: Fields) -> Sheet:
    """The form that asks what would become of a step."""
    _step(folder, _asked(fields, "what"))
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
    with WORKING.on(f"reading {name}") as told:
        found = whatif(_job(path), on, changes, told=lambda stage: told(f"{name}: {stage}"))
        told("drawing both")
        return comparison_page(found.before, found.after, (name, ", ".join(found.changes)))


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
    words = words_of(folder.path(name))
    return read_forecast(words, name) if is_forecast(words) else predict(_job(_step(folder, name)), on)


def _step(folder: Folder, name: str) -> Path:
    """The path of something that holds a step to predict; what Foretrace wrote about one does not."""
    path = folder.path(name)
    if page_of(path, name):
        raise ForetraceError(f"{name} is no step but what Foretrace said about one", "Open it from the list.")
    return path


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
        raise ForetraceError(f"no platform is called {on!r}", near if on != HERE else MEASURE)
    return on


def _job(path: Path) -> Job:
    newest = max((file.stat().st_mtime_ns for file in [path, *path.glob("*"), *path.glob("*/*")]), default=0)
    return _loaded(path, newest)


@lru_cache(JOBS_KEPT)
def _loaded(path: Path, changed: int) -> Job:
    return load(path)
