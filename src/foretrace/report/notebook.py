"""A forecast or an observation in a notebook: a few lines and a bar, with no script."""

from __future__ import annotations

from typing import Any

from foretrace.forecast.forecast import Forecast
from foretrace.forecast.observation import Observation
from foretrace.report.forecast import headline_rows
from foretrace.report.headline import observed_rows, which_step
from foretrace.report.pages.charts import parts
from foretrace.report.pages.sheet import fragment, painted

SHOWN = 5


def as_html(what: Forecast | Observation) -> str:
    """What a notebook shows of a forecast or an observation: HTML without scripts, names always text.

    >>> "5.60 ms" in as_html(Forecast(source="train.py", platform="h200", step_ms=5.6, coverage={"model": 1.0}))
    True
    """
    words = what.to_dict()
    if isinstance(what, Observation):
        return _summary(f"{what.source or 'the step'}: {which_step(words)}", list(observed_rows(words)), [], [])
    rows = list(headline_rows(words)) if words["coverage"] else []
    bar = (parts(words) or {"parts": []})["parts"]
    return _summary(f"{what.source or 'the step'} on {what.platform}", rows, bar, words["look_at"][:SHOWN])


def _summary(title: str, rows: list[tuple[str, str, str]], bar: list[Any], look_at: list[Any]) -> str:
    total = sum(piece["ms"] for piece in bar) or 1.0
    pieces = [{**piece, "share": piece["ms"] / total, "colour": painted(piece["name"])} for piece in bar]
    return fragment("summary.html", title=title, rows=rows, bar=pieces, look_at=look_at)
