"""A page: a template, the data of its charts as JSON, and all that draws them, in one file that loads nothing."""

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
from foretrace.formats.output import PAGE, replaced
from foretrace.report.json import tidy
from foretrace.report.names import short
from foretrace.report.numbers import bytes_, ms, percent

if TYPE_CHECKING:
    import jinja2

Chart = dict[str, Any]
"""What a chart is drawn from; ``kind`` names the file in assets/charts that draws it."""

PLAIN = ("base.js", "waiting.js", "tables.js")
DRAWING = ("echarts.js", "base.js", "bars.js", "lanes.js")
"""Scripts of a page without charts, and what comes first on one with: the charts' program is most of its weight."""
STYLES = ("colours.css", "page.css")


@dataclass
class Sheet:
    """A page before it is written."""

    template: str
    """Its file in report/templates; everything that it is given is escaped."""
    title: str
    charts: dict[str, Chart | None] = field(default_factory=dict)
    """By the id that the template gives their place; None for one that there is nothing to draw of."""
    words: dict[str, Any] = field(default_factory=dict)
    """What else the template tells."""

    def html(self, home: str = "") -> str:
        """The text of the page; ``home`` is where its name leads to, for one that a server shows."""
        drawn = {name: chart for name, chart in self.charts.items() if chart is not None}
        theme, script = _asset("theme.js"), _assets(_scripts(drawn) if drawn else PLAIN)
        return fragment(
            self.template,
            title=self.title,
            home=home,
            charts=drawn,
            data=_embedded(drawn),
            theme=theme,
            script=script,
            # The browser is told what may run: these scripts, and nothing that a name might smuggle in.
            allowed=" ".join(map(_digest, (theme, script))),
            style=_assets(STYLES),
            version=__version__,
            **self.words,
        )

    def write(self, path: Path) -> None:
        """Write it; the file is whole or not there, and folders around it are made. Only a page is replaced by one."""
        with replaced(path, PAGE) as file:
            file.write(self.html().encode())


def _scripts(drawn: dict[str, Chart]) -> tuple[str, ...]:
    """Those that draw these charts, in order."""
    kinds = sorted({chart["kind"] for chart in drawn.values()})
    return (*DRAWING, *(f"charts/{kind}.js" for kind in kinds), "tables.js")


def fragment(template: str, **words: Any) -> str:
    """The text of a filled-in template. A notebook, which is somebody else's page, takes it without the scripts."""
    return _environment().get_template(template).render(**words)


def kind(name: str) -> str:
    """The variable of assets/colours.css that holds the colour of a kind of thing.

    >>> kind("sort/index")
    '--of-sort-index'
    """
    return f"--of-{re.sub('[^a-z]+', '-', name)}"


@cache
def painted(name: str) -> str:
    """Its colour on light ground, for who has no variables: a notebook.

    >>> painted("communication") == painted("exposed transfers")
    True
    """
    (colour,) = re.findall(rf"{kind(name)}: (#\w+|var\(--of-[a-z-]+\));", _asset("colours.css"))[:1]
    return colour if colour.startswith("#") else painted(colour.removeprefix("var(--of-").removesuffix(")"))


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
    made.filters |= {"ms": ms, "percent": percent, "bytes": bytes_, "short": short, "kind": kind}
    made.filters["ours"] = markupsafe.Markup
    return made


def _embedded(charts: dict[str, Chart]) -> str:
    r"""JSON that can stand in a page: nothing in it ends the element around it.

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
