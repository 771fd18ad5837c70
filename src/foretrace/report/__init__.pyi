import pathlib
from typing import Literal

from foretrace.report.json import Document as Document
from foretrace.report.json import as_json as as_json
from foretrace.report.notebook import as_html as as_html
from foretrace.report.pages import page_of as page_of
from foretrace.report.pages import write_page as write_page
from foretrace.report.terminal import print_report as print_report

Format = Literal["tables", "json", "csv"]

def show(result: Document, format: Format = ..., html: pathlib.Path | None = ..., top: int | None = ...) -> None: ...
