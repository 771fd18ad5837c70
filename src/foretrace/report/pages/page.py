"""An HTML page: a template, the data of its charts, and the scripts that draw them, in one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace import __version__
from foretrace.output import PAGE, open_output
from foretrace.report.formatting import bytes_, limit_of, ms, percent, short_name
from foretrace.report.json import tidy

if TYPE_CHECKING:
    import jinja2

Chart = dict[str, Any]
"""Data of a chart; ``kind`` names the file in assets/charts that draws it."""

SCRIPTS = ("base.js", "waiting.js", "tables.js")
"""Scripts of a page without charts."""
CHART_SCRIPTS = ("echarts.js", "base.js", "bars.js")
"""Scripts that come first on a page with charts: ECharts is most of its size."""
TIMELINE, TIMELINE_SCRIPTS = "timeline", ("lanes.js", "moves.js")
"""A kind of chart, and the scripts that only it needs."""
STYLES = ("colours.css", "page.css")


@dataclass
class Page:
    """A page before it is written."""

    template: str
    """Its file in report/templates; everything that it is given is escaped."""
    title: str
    charts: dict[str, Chart | None] = field(default_factory=dict)
    """By the id that the template gives their place; None where there is nothing to draw."""
    values: dict[str, Any] = field(default_factory=dict)
    """The other values of the template."""

    def html(self, home: str = "") -> str:
        """The text of the page; ``home`` is where its brand links to, on a page that a server shows."""
        drawn = {name: chart for name, chart in self.charts.items() if chart is not None}
        kinds = sorted({chart["kind"] for chart in drawn.values()})
        first = (*CHART_SCRIPTS, *(TIMELINE_SCRIPTS if TIMELINE in kinds else ()))
        scripts = (*first, *(f"charts/{kind}.js" for kind in kinds), "tables.js") if drawn else SCRIPTS
        theme, script = _asset("theme.js"), _assets(scripts)
        return fragment(
            self.template,
            title=self.title,
            home=home,
            charts=drawn,
            data=_embedded(drawn),
            theme=theme,
            script=script,
            # The browser runs these scripts and nothing that a name might smuggle in.
            allowed=" ".join(map(_digest, (theme, script))),
            style=_assets(STYLES),
            version=__version__,
            **self.values,
        )

    def write(self, path: Path) -> None:
        """Write it, whole or not at all; missing folders are made, and no file but a page is overwritten."""
        with open_output(path, PAGE) as file:
            file.write(self.html().encode())


def fragment(template: str, **values: Any) -> str:
    """The text of a rendered template, without scripts: a notebook is a page of its own."""
    return _environment().get_template(template).render(**values)


def colour_variable(name: str) -> str:
    """The variable of assets/colours.css with the colour of a kernel family, phase or cause.

    >>> colour_variable("sort/index")
    '--of-sort-index'
    """
    return f"--of-{re.sub('[^a-z]+', '-', name)}"


@cache
def colour(name: str) -> str:
    """The same colour on a light background, for a notebook, which has no variables; that of "other" for the rest.

    >>> colour("communication") == colour("exposed transfers"), colour("a lock") == colour("other")
    (True, True)
    """
    all_of_it = re.findall(rf"{colour_variable(name)}: (#\w+|var\(--of-[a-z-]+\));", _asset("colours.css"))
    found = all_of_it[0] if all_of_it else colour("other")
    return found if found.startswith("#") else colour(found.removeprefix("var(--of-").removesuffix(")"))


def _with_code(text: str) -> Any:
    """A text with what stands between backticks as code, escaped.

    >>> _with_code("`foretrace show` <shows>")
    Markup('<code>foretrace show</code> &lt;shows&gt;')
    """
    import markupsafe

    return markupsafe.Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))


@cache
def _environment() -> jinja2.Environment:
    import jinja2
    import markupsafe

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("foretrace.report", "templates"),
        autoescape=True,  # names come from others' files
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"ms": ms, "percent": percent, "bytes": bytes_, "short": short_name, "kind": colour_variable}
    made.filters["limit"] = limit_of
    made.filters["code"] = _with_code
    made.filters["trusted"] = markupsafe.Markup
    return made


def _embedded(charts: dict[str, Chart]) -> str:
    r"""JSON for a script element: nothing in it ends the element.

    >>> _embedded({"a": {"name": "</script>"}})
    '{"a":{"name":"\\u003c/script>"}}'
    """
    return json.dumps(tidy(charts), separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")


@cache
def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _assets(names: tuple[str, ...]) -> str:
    return "\n".join(_asset(name) for name in names)


@cache
def _asset(name: str) -> str:
    return (files("foretrace.report") / "assets" / name).read_text(encoding="utf-8")
