"""Results as text, JSON, HTML pages and notebook cells. `show` does what the commands' output options say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretrace._lazy import lazy_exports

if TYPE_CHECKING:
    from foretrace.report.json import Document

__getattr__, __dir__ = lazy_exports(__name__)

Format = Literal["tables", "json", "csv"]
"""What results are printed as."""


def show(result: Document, format: Format = "tables", html: Path | None = None, top: int | None = None) -> None:
    """Print a result as tables of at most ``top`` rows, as JSON or as CSV; write its page, where a file is named."""
    if html is not None:
        from foretrace.report.pages import write_page

        write_page(result, html)
    if format == "json":
        from foretrace.report.json import as_json

        print(as_json(result))
    elif format == "csv":
        from foretrace.report.json import as_csv

        print(as_csv(result), end="")
    else:
        from foretrace.report.terminal import print_report

        print_report(result, top)
