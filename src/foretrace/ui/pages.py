"""The server's pages: those that commands write, and a list to find them by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock

from foretrace.analysis.report import StepReport
from foretrace.api import load, observe, predict
from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.platform.folder import HERE, machines, platforms
from foretrace.questions.changes import SETS
from foretrace.questions.job_words import OF_JOBS
from foretrace.questions.whatifs import whatif
from foretrace.report.pages.comparisons import comparison_page
from foretrace.report.pages.page import Page
from foretrace.report.pages.step import measured_with, step_page
from foretrace.ui.documents import (
    PREDICTION,
    checked,
    document_kind,
    document_page,
    is_prediction,
    read_document,
    read_prediction,
)
from foretrace.ui.folder import DOCUMENT, MAX_ITEMS, Folder

Fields = dict[str, str]
"""Fields of an address or a form."""

JOBS_CACHED = 4
DEFAULT_PLATFORM = "h200"
OWN_MACHINE = "its own machine"
"""Where a job was measured: hosts and kernels stay as they were."""
MEASURE_FIRST = f"Measure it first: `foretrace predict RUN --on {HERE}` does, once, in a few minutes."


class Work:
    """What the server is doing, one thing at a time: reading a large trace takes most of the memory.

    >>> work = Work()
    >>> with work.on("reading run") as on_progress:
    ...     on_progress("predicting run on h200")
    ...     work.stage
    'predicting run on h200'
    >>> work.stage
    ''
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.stage = ""
        """What is being done; empty where nothing is."""

    @contextmanager
    def on(self, stage: str) -> Iterator[Callable[[str], None]]:
        """Work that begins with this stage, once earlier requests are done; what it yields sets the next stage."""
        with self._lock:
            self._set(stage)
            try:
                yield self._set
            finally:
                self._set("")

    def _set(self, stage: str) -> None:
        self.stage = stage


WORK = Work()


def listing(folder: Folder, fields: Fields) -> Page:
    """Everything that can be opened."""
    items = folder.items()
    kinds = {
        item.name: document_kind(folder.root / item.name) if item.kind == DOCUMENT else item.kind for item in items
    }
    values = {
        "items": items,
        "called": kinds,
        "predictable": [item.name for item in items if item.kind != DOCUMENT],
        "comparable": [item.name for item in items if item.kind != DOCUMENT or kinds[item.name] == PREDICTION],
        "most": MAX_ITEMS,
        "root": str(folder.root),
        "platforms": [OWN_MACHINE, *known_platforms()],
        "usual": DEFAULT_PLATFORM,
    }
    return Page("listing.html", folder.root.name or str(folder.root), {}, values)


def opened(folder: Folder, fields: Fields) -> Page:
    """Something as it is: a recording or a trace as it was measured, a document as its page."""
    name = _asked(fields, "what")
    path = folder.path(name)
    made = document_page(path, name)
    if made:
        return checked(made, name)
    with WORK.on(f"reading {name}") as on_progress:
        job = _job(path)
        on_progress(f"looking at {name}")
        return step_page(observe(job))


def predicted(folder: Folder, fields: Fields) -> Page:
    """The forecast of a recording or a trace on a platform, beside what was measured."""
    name, on = _asked(fields, "what"), _machine(fields, "on")
    path = _step(folder, name)
    with WORK.on(f"reading {name}") as on_progress:
        job = _job(path)
        on_progress(f"predicting {name} on {on or OWN_MACHINE}")
        report = predict(job, on)
        on_progress(f"drawing {name}")
        return step_page(report, measured_with(report))


def compared(folder: Folder, fields: Fields) -> Page:
    """Two forecasts: of one thing on two machines, of two things on one, or any other pair."""
    sides = [(_asked(fields, what), _machine(fields, on)) for what, on in (("a", "a_on"), ("b", "b_on"))]
    if sides[0] == sides[1]:
        raise ForetraceError("both sides are the same", "Choose another recording, or another platform.")
    reports = list[StepReport]()
    with WORK.on("reading") as on_progress:
        for name, on in sides:
            on_progress(f"predicting {name} on {on or OWN_MACHINE}")
            reports.append(_prediction(folder, name, on))
        on_progress("drawing both")

        def page() -> Page:
            return comparison_page(reports[0], reports[1], (sides[0][0], sides[1][0]))

        documents = [name for name, _ in sides if is_prediction(read_document(folder.path(name)))]
        return checked(page, " or ".join(documents)) if documents else page()


def asking(folder: Folder, fields: Fields) -> Page:
    """The form that asks what would become of a step."""
    _step(folder, _asked(fields, "what"))
    return _form(fields)


def again(method: str, where: str, fields: Fields, why: str) -> Page | None:
    """The form that was answered with an error, as it was filled in; None where no form was."""
    return _form(fields, why) if (method, where) == ("POST", "/whatif") and fields.get("what") else None


def _form(fields: Fields, wrong: str = "") -> Page:
    values = {
        "what": fields["what"],
        "platforms": known_platforms(),
        "chosen": fields.get("on") or DEFAULT_PLATFORM,
        "changes": fields.get("changes", ""),
        "settings": [name for name in SETS if name not in OF_JOBS],
        "of_jobs": list(OF_JOBS),
        "wrong": wrong,
    }
    return Page("whatif.html", f"What if: {fields['what']}", {}, values)


def changed(folder: Folder, fields: Fields) -> Page:
    """A step before and after the changes that the form asks for, one a line."""
    name = _asked(fields, "what")
    changes = [line.strip() for line in fields.get("changes", "").splitlines() if line.strip()]
    path, on = _step(folder, name), _platform(fields, "on")
    with WORK.on(f"reading {name}") as on_progress:
        found = whatif(_job(path), on, changes, on_progress=lambda stage: on_progress(f"{name}: {stage}"))
        on_progress("drawing both")
        return comparison_page(found.before, found.after, (name, ", ".join(found.changes)))


ANSWERS: dict[tuple[str, str], Callable[[Folder, Fields], Page]] = {
    ("GET", "/"): listing,
    ("GET", "/open"): opened,
    ("GET", "/predict"): predicted,
    ("GET", "/compare"): compared,
    ("GET", "/whatif"): asking,
    ("POST", "/whatif"): changed,
}


def answer(folder: Folder, method: str, where: str, fields: Fields) -> Page | None:
    """The page at an address; None where there is none."""
    made = ANSWERS.get((method, where))
    return made(folder, fields) if made else None


def known_platforms() -> list[str]:
    """Names of the machines that can be predicted on without measuring anything first.

    >>> "h200" in known_platforms()
    True
    """
    return sorted({*platforms(), *machines()})


def _prediction(folder: Folder, name: str, on: str | None) -> StepReport:
    document = read_document(folder.path(name))
    return read_prediction(document, name) if is_prediction(document) else predict(_job(_step(folder, name)), on)


def _step(folder: Folder, name: str) -> Path:
    """The path of something that holds a step to predict; what Foretrace wrote about one does not."""
    path = folder.path(name)
    if document_page(path, name):
        raise ForetraceError(f"{name} is no step but what Foretrace said about one", "Open it from the list.")
    return path


def _asked(fields: Fields, name: str) -> str:
    if not fields.get(name):
        raise ForetraceError(f"the address does not say {name}", "Go back to the list and choose.")
    return fields[name]


def _machine(fields: Fields, name: str) -> str | None:
    """A platform's name; None for a job's own machine."""
    return None if fields.get(name, "").strip() == OWN_MACHINE else _platform(fields, name)


def _platform(fields: Fields, name: str) -> str:
    """A platform by its name alone, or scaled as in ``h200:hbm=1.5``: no folder elsewhere is read."""
    on = fields.get(name, "").strip() or DEFAULT_PLATFORM
    if on.partition(":")[0] not in known_platforms():
        near = f"Known are: {', '.join(known_platforms())}."
        raise ForetraceError(f"no platform is called {on!r}", near if on != HERE else MEASURE_FIRST)
    return on


def _job(path: Path) -> Job:
    newest = max((file.stat().st_mtime_ns for file in [path, *path.glob("*"), *path.glob("*/*")]), default=0)
    return _loaded(path, newest)


@lru_cache(JOBS_CACHED)
def _loaded(path: Path, changed: int) -> Job:
    return load(path)
