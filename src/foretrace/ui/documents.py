"""JSON files that Foretrace wrote, read back into typed records, and their pages.

Anyone may have edited such a file: a value that does not have its field's type is reported, never drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from foretrace.analysis.report import Communication, RankReport, StepReport
from foretrace.errors import ForetraceError
from foretrace.platform.typed_json import FieldError
from foretrace.prediction.scaling import Scaling
from foretrace.report.json import decode
from foretrace.report.pages.comparisons import comparison_page, scaling_page, sweep_page
from foretrace.report.pages.page import Page
from foretrace.report.pages.step import step_page
from foretrace.report.sharding import sharding_page
from foretrace.sharding.plan import PlanReport
from foretrace.ui.folder import DOCUMENT, MAX_DOCUMENT_BYTES, MAX_ITEMS
from foretrace.whatif.points import Sweep

T = TypeVar("T")
Fields = dict[str, Any]
"""Fields of a JSON document."""

VALUE_SHOWN = 60
"""Characters of a wrong value in a message."""
PREDICTION = "prediction"


@dataclass(slots=True)
class _RankFields(RankReport):
    """A rank as ``foretrace predict --json`` writes it."""

    communication_ms: float = 0.0
    exposed_communication_ms: float = 0.0

    def __post_init__(self) -> None:
        self.communication = Communication(self.communication_ms, exposed_ms=self.exposed_communication_ms)


@dataclass(slots=True)
class _Ranks:
    """The fields of a prediction that have other types in its JSON."""

    ranks: list[_RankFields]
    wait_ms: dict[int, float | None]


def read_prediction(document: Fields, name: str) -> StepReport:
    """The report that ``foretrace predict --json`` wrote; unknown fields are passed over."""
    each = _decode(_Ranks, {"ranks": [], "wait_ms": {}, **document}, name)
    report = _decode(StepReport, {key: value for key, value in document.items() if key != "ranks"}, name)
    report.platform = report.platform or ""
    report.ranks = list(each.ranks)
    return report


def _decode(kind: type[T], document: Fields, name: str) -> T:
    try:
        return decode(kind, document)
    except FieldError as error:
        shown = repr(document.get(error.field))
        shown = shown if len(shown) <= VALUE_SHOWN else f"{shown[:VALUE_SHOWN]}…"
        raise ForetraceError(f"{name} is damaged: the field {error.field!r} holds {shown}", "Write it again.") from None


def _whatif_page(document: Fields, name: str) -> Page:
    before, after = (read_prediction(document[side], name) for side in ("before", "after"))
    notes = document.get("notes")
    said = list(map(str, notes)) if isinstance(notes, list) else []
    return comparison_page(before, after, ("before", ", ".join(map(str, document["changes"]))), said)


def is_prediction(document: Fields) -> bool:
    """Whether `foretrace predict --json` wrote it.

    >>> is_prediction({"step_ms": 1.0, "platform": "h200", "coverage": {}}), is_prediction({"traceEvents": []})
    (True, False)
    """
    return {"step_ms", "platform", "coverage"} <= document.keys()


def _is_sweep(document: Fields) -> bool:
    return isinstance(document.get("points"), list) and {"source", "best", "memory_limit"} <= document.keys()


def _is_whatif(document: Fields) -> bool:
    both = isinstance(document.get("before"), dict) and isinstance(document.get("after"), dict)
    return both and "changes" in document


DOCUMENTS: dict[str, tuple[Callable[[Fields], bool], Callable[[Fields, str], Page]]] = {
    "sharding plan": (
        lambda document: {"step_ms", "plan", "ranks"} <= document.keys(),
        lambda document, name: sharding_page(_decode(PlanReport, document, name)),
    ),
    "sweep": (_is_sweep, lambda document, name: sweep_page(_decode(Sweep, document, name))),
    "what-if": (_is_whatif, _whatif_page),
    "scaling curve": (
        lambda document: isinstance(document.get("scaling"), list),
        lambda document, name: scaling_page(_decode(Scaling, {**document, "rows": document["scaling"]}, name)),
    ),
    PREDICTION: (is_prediction, lambda document, name: step_page(read_prediction(document, name))),
}
"""What Foretrace writes as JSON: how each is recognized, and what makes its page of its fields and the file's name."""


def document_page(path: Path, name: str) -> Callable[[], Page] | None:
    """What makes the page of a document; None for any other file."""
    document = read_document(path)
    page = next((page for is_one, page in DOCUMENTS.values() if is_one(document)), None)
    return page and (lambda: page(document, name))


def document_kind(path: Path) -> str:
    """What a document is, in a word or two."""
    try:
        return _kind(path, path.stat().st_mtime_ns)
    except OSError:  # it may just have been removed
        return DOCUMENT


@lru_cache(MAX_ITEMS)
def _kind(path: Path, changed: int) -> str:
    document = read_document(path)
    return next((name for name, (is_one, _) in DOCUMENTS.items() if is_one(document)), DOCUMENT)


def read_document(path: Path) -> Fields:
    """The fields of a JSON document; none of any other file, a trace maybe."""
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > MAX_DOCUMENT_BYTES:
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def checked(made: Callable[[], Page], name: str) -> Page:
    """The page of a document; one that can't be drawn is reported as damaged."""
    try:
        page = made()
        page.html()
    except ForetraceError:
        raise
    except Exception as error:
        raise ForetraceError(f"{name} is damaged ({type(error).__name__}: {error})", "Write it again.") from None
    return page
