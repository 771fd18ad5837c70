"""A forecast as a page: one file that opens from disk and loads nothing."""

from __future__ import annotations

from pathlib import Path

from foretrace.forecast.forecast import Forecast
from foretrace.graph import ForetraceError
from foretrace.report.forecast import CAUSES, headline_rows
from foretrace.report.names import short
from foretrace.report.numbers import bytes_, ms, percent
from foretrace.report.strips import COLUMNS, WAITING, strips

TEMPLATE = Path(__file__).parent / "forecast.html"
ROWS = 30


def write_page(forecast: Forecast, path: Path) -> None:
    """Write the page of a forecast; names stay text whatever they hold."""
    try:
        path.write_text(page(forecast), encoding="utf-8")
    except OSError as error:
        raise ForetraceError(
            f"{path} can't be written ({error.strerror})", "Name a file in a folder that exists."
        ) from None


def page(forecast: Forecast) -> str:
    """The page's text.

    >>> "<h1>train.py on h200</h1>" in page(Forecast(source="train.py", platform="h200"))
    True
    """
    import jinja2

    # Everything a template is given is escaped: names come from others' files.
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"ms": ms, "percent": percent, "short": short, "bytes": bytes_}
    words = forecast.to_dict()
    lanes = strips(forecast.timeline, forecast.step_ms * 1e3) if forecast.timeline is not None else []
    kinds = sorted({piece.what for lane in lanes for piece in lane.pieces})
    return made.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        words=words,
        headline=list(headline_rows(words)) if words["coverage"] else [],
        lanes=lanes,
        columns=COLUMNS,
        colours={kind: _colour(place, len(kinds), kind) for place, kind in enumerate(kinds)},
        causes=CAUSES,
        rows=ROWS,
    )


def _colour(place: int, count: int, kind: str) -> str:
    """Hues as far apart as they can be; waiting is grey."""
    return "hsl(0 0% 65%)" if kind == WAITING else f"hsl({round(360 * place / count)} 60% 55%)"
