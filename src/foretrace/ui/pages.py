"""The server's pages: those that commands write, and a list to find them by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock

from foretrace._progress import Progress
from foretrace.analysis.report import OWN_MACHINE, StepReport
from foretrace.api import load, observe, predict
from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.platform.registry import CPU, DEFAULT_PLATFORM, device_files, platform_folders
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
from foretrace.ui.figures import changed_at, figures_of, remember
from foretrace.ui.folder import DOCUMENT, MAX_ITEMS, Folder
from foretrace.whatif.grammar import CHANGES, JOB_CHANGES
from foretrace.whatif.what_if import what_if

Fields = dict[str, str]
"""Fields of an address or a form."""

JOBS_CACHED = 4
"""Jobs that stay in memory, since a page is asked for again with other options; large ones take gigabytes."""
PAGES_CACHED = 16
"""Pages of predictions that are kept with all that they show."""
MEASURE_FIRST = "Measure it first: `foretrace calibrate cpu` does, in a few minutes."


class Work:
    """The work of the server, one thing at a time: reading a large trace takes most of the memory.

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
            self.stage = stage
            try:
                yield partial(setattr, self, "stage")
            finally:
                self.stage = ""


WORK = Work()


class Cache:
    """The last pages that were made, by what they were asked for: equal requests at once make one page.

    >>> cache = Cache(1)
    >>> [cache.page(key, lambda key=key: Page("refusal.html", key)).title for key in ("a", "a", "b")]
    ['a', 'a', 'b']
    >>> list(cache.pages)
    ['b']
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.pages: OrderedDict[Hashable, Page] = OrderedDict()
        self._making: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def page(self, key: Hashable, made: Callable[[], Page]) -> Page:
        """The page of a key; ``made`` makes it where it is not known."""
        with self._lock:
            lock = self._making.setdefault(key, Lock())
        with lock:
            with self._lock:
                if key in self.pages:
                    self.pages.move_to_end(key)
                    return self.pages[key]
            page = made()
            with self._lock:
                self.pages[key] = page
                while len(self.pages) > self.most:
                    self._making.pop(self.pages.popitem(last=False)[0], None)
            return page


CACHE = Cache(PAGES_CACHED)


def listing(folder: Folder, fields: Fields) -> Page:
    """Everything that can be opened."""
    items = folder.items()
    kinds = {
        item.name: document_kind(folder.root / item.name) if item.kind == DOCUMENT else item.kind for item in items
    }
    values = {
        "items": items,
        "kinds": kinds,
        "figures": {item.name: figures_of(folder.root / item.name, item) for item in items},
        "predictable": [item.name for item in items if item.kind != DOCUMENT],
        "comparable": [item.name for item in items if item.kind != DOCUMENT or kinds[item.name] == PREDICTION],
        "most": MAX_ITEMS,
        "root": str(folder.root),
        "platforms": [OWN_MACHINE, *known_platforms()],
        "default_platform": DEFAULT_PLATFORM,
    }
    return Page("listing.html", folder.root.name or str(folder.root), {}, values)


def open_item(folder: Folder, fields: Fields) -> Page:
    """The page of an item: a recording or a trace as it was measured, a document as it was written."""
    name = _required(fields, "what")
    path = folder.path(name)
    made = document_page(path, name)
    if made:
        return checked(made, name)

    def page() -> Page:
        with WORK.on(f"reading {name}") as on_progress:
            job = _job(path)
            on_progress(f"looking at {name}")
            report = observe(job)
            remember(path, report)
            return step_page(report)

    return CACHE.page(("open", path, changed_at(path)), page)


def predict_item(folder: Folder, fields: Fields) -> Page:
    """The prediction of a recording or a trace on a platform, next to what was measured."""
    name, on = _required(fields, "what"), _machine(fields, "on")
    path = _step(folder, name)

    def page() -> Page:
        with WORK.on(f"reading {name}") as on_progress:
            job = _job(path)
            on_progress(f"predicting {name} on {on or OWN_MACHINE}")
            report = predict(job, on)
            on_progress(f"drawing {name}")
            measured = measured_with(report)
            if measured:
                remember(path, measured[0])
            return step_page(report, measured)

    return CACHE.page(("predict", *_asked(path, on)), page)


def compare_items(folder: Folder, fields: Fields) -> Page:
    """Two predictions compared: of one step on two machines, of two steps on one, or any other pair."""
    sides = [(_required(fields, what), _machine(fields, on)) for what, on in (("a", "a_on"), ("b", "b_on"))]
    if sides[0] == sides[1]:
        raise ForetraceError("both sides are the same", "Choose another recording, or another platform.")
    reports, documents = list[StepReport](), list[str]()

    def page() -> Page:
        with WORK.on("reading") as on_progress:
            for name, on in sides:
                on_progress(f"predicting {name} on {on or OWN_MACHINE}")
                document = read_document(folder.path(name))
                if is_prediction(document):
                    documents.append(name)
                    reports.append(read_prediction(document, name))
                else:
                    reports.append(predict(_job(_step(folder, name)), on))
            on_progress("drawing both")
            return checked(drawn, " or ".join(documents)) if documents else drawn()

    def drawn() -> Page:
        return comparison_page(reports[0], reports[1], (sides[0][0], sides[1][0]))

    return CACHE.page(("compare", *(_asked(folder.path(name), on) for name, on in sides)), page)


def form_again(method: str, where: str, fields: Fields, why: str) -> Page | None:
    """The form that led to an error, as it was filled in; None for a request without a form."""
    asked = method == "POST" or fields.get("changes")
    return _form(fields, why) if where == "/whatif" and asked and fields.get("what") else None


def whatif_form(folder: Folder, fields: Fields) -> Page:
    """The what-if form; the answer where the address holds changes, so that it can be shared."""
    _step(folder, _required(fields, "what"))
    return whatif_result(folder, fields) if fields.get("changes") else _form(fields)


def _form(fields: Fields, wrong: str = "") -> Page:
    values = {
        "what": fields["what"],
        "platforms": known_platforms(),
        "chosen": fields.get("on") or DEFAULT_PLATFORM,
        "changes": fields.get("changes", ""),
        "settings": [name for name in CHANGES if name not in JOB_CHANGES],
        "of_jobs": list(JOB_CHANGES),
        "wrong": wrong,
    }
    return Page("whatif.html", f"What if: {fields['what']}", {}, values)


def whatif_result(folder: Folder, fields: Fields) -> Page:
    """A step before and after the changes in the form, one per line."""
    name = _required(fields, "what")
    changes = [line.strip() for line in fields.get("changes", "").splitlines() if line.strip()]
    path, on = _step(folder, name), _platform(fields, "on")

    def page() -> Page:
        with WORK.on(f"reading {name}") as on_progress:
            report = partial(_tell, on_progress, name)
            found = what_if(_job(path), on, changes, on_progress=report)
            on_progress("drawing both")
            return comparison_page(found.before, found.after, (name, ", ".join(found.changes)), found.notes)

    return CACHE.page(("what if", *_asked(path, on), *changes), page)


def _tell(on_progress: Callable[[str], None], name: str, progress: Progress) -> None:
    on_progress(f"{name}: {progress.text}")


def _asked(path: Path, on: str | None) -> tuple[Hashable, ...]:
    """What a prediction depends on: the step and the platform, and when they changed."""
    home = platform_folders().get((on or "").partition(":")[0])
    return path, changed_at(path), on, changed_at(home) if home else 0


PAGES: dict[tuple[str, str], Callable[[Folder, Fields], Page]] = {
    ("GET", "/"): listing,
    ("GET", "/open"): open_item,
    ("GET", "/predict"): predict_item,
    ("GET", "/compare"): compare_items,
    ("GET", "/whatif"): whatif_form,
    ("POST", "/whatif"): whatif_result,
}


def page_at(folder: Folder, method: str, where: str, fields: Fields) -> Page | None:
    """The page at an address; None where there is none."""
    made = PAGES.get((method, where))
    return made(folder, fields) if made else None


def known_platforms() -> list[str]:
    """Platforms that need no measurement first.

    >>> "h200" in known_platforms()
    True
    """
    return sorted({*platform_folders(), *device_files()})


def _step(folder: Folder, name: str) -> Path:
    """The path of a recording or a trace; a document holds no step to predict."""
    path = folder.path(name)
    if document_page(path, name):
        raise ForetraceError(f"{name} is a result of Foretrace, not a step to predict", "Open it from the list.")
    return path


def _required(fields: Fields, name: str) -> str:
    if not fields.get(name):
        raise ForetraceError(f"the address lacks the field {name}", "Go back to the list and choose.")
    return fields[name]


def _machine(fields: Fields, name: str) -> str | None:
    """The platform in a field; None for a job's own machine."""
    return None if fields.get(name, "").strip() == OWN_MACHINE else _platform(fields, name)


def _platform(fields: Fields, name: str) -> str:
    """The platform in a field, by name or scaled as in ``h200:hbm=1.5``: no other folder is read."""
    on = fields.get(name, "").strip() or DEFAULT_PLATFORM
    if on.partition(":")[0] not in known_platforms():
        near = f"Known are: {', '.join(known_platforms())}."
        raise ForetraceError(f"no platform is called {on!r}", near if on != CPU else MEASURE_FIRST)
    return on


def _job(path: Path) -> Job:
    return _loaded(path, changed_at(path))


@lru_cache(JOBS_CACHED)
def _loaded(path: Path, changed: int) -> Job:
    return load(path)
