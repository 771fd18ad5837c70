"""The pages of what Foretrace wrote as JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from foretrace.forecast.jobs.scaling import Scaling
from foretrace.graph import ForetraceError
from foretrace.report.pages.comparison import comparison_page
from foretrace.report.pages.forecast import forecast_page
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
from foretrace.ui.folder import DOCUMENT, MOST, SMALL


def _whatif_page(words: Words, name: str) -> Sheet:
    before, after = (read_forecast(words[side], name) for side in ("before", "after"))
    return comparison_page(before, after, ("before", ", ".join(map(str, words["changes"]))))


def _curve_page(words: Words, name: str) -> Sheet:
    return scaling_page(
        Scaling(words.get("source", ""), words.get("platform", ""), words["scaling"], words.get("notes", []))
    )


FORECAST = "forecast"
DOCUMENTS: dict[str, tuple[Callable[[Words], bool], Callable[[Words, str], Sheet]]] = {
    "sharding plan": (is_plan, lambda words, name: sharding_page(words)),
    "sweep": (is_sweep, lambda words, name: sweep_page(words)),
    "what-if": (is_whatif, _whatif_page),
    "scaling curve": (is_curve, _curve_page),
    FORECAST: (is_forecast, lambda words, name: forecast_page(read_forecast(words, name))),
}
"""What Foretrace writes as JSON: how each is told, and what makes its page of its words and the file's name."""


def page_of(path: Path, name: str) -> Callable[[], Sheet] | None:
    """What makes the page of a document; None for what is none."""
    words = words_of(path)
    page = next((page for is_one, page in DOCUMENTS.values() if is_one(words)), None)
    return page and (lambda: page(words, name))


def called(path: Path) -> str:
    """What a document is, in a word or two."""
    try:
        return _told_apart(path, path.stat().st_mtime_ns)
    except OSError:  # it may just have been taken away
        return DOCUMENT


@lru_cache(MOST)
def _told_apart(path: Path, changed: int) -> str:
    words = words_of(path)
    return next((name for name, (is_one, _) in DOCUMENTS.items() if is_one(words)), DOCUMENT)


def words_of(path: Path) -> Words:
    """Those of a JSON document; none of anything else."""
    small = path.suffix == ".json" and path.is_file() and path.stat().st_size <= SMALL
    return (read_words(path) if small else None) or {}


def drawn(made: Callable[[], Sheet], name: str) -> Sheet:
    """The page of a document, whose words anybody may have changed."""
    try:
        sheet = made()
        sheet.html()
    except ForetraceError:
        raise
    except Exception as error:
        raise ForetraceError(f"{name} is damaged ({type(error).__name__}: {error})", "Write it again.") from None
    return sheet
