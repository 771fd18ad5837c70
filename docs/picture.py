"""Draw the beginning of what `foretrace show PATH` prints: python docs/picture.py PATH docs/show.svg"""

from __future__ import annotations

import io
import re
import sys
from itertools import islice
from pathlib import Path

from rich.console import Console

import foretrace as ft
from foretrace.report.step import step_blocks

TABLES, ROWS = 4, 6


def main(path: str, picture: str) -> None:
    """Write an SVG of the headline and the first tables."""
    report = ft.observe(ft.load(path))
    report.source = Path(path).name
    console = Console(record=True, width=80, file=io.StringIO(), highlight=False)
    for number, block in enumerate(islice(step_blocks(report, ROWS), 1 + TABLES)):
        if number:
            console.print()
        console.print(block)
    svg = console.export_svg(title=f"foretrace show {report.source}")
    # The picture fetches no font from elsewhere: what the reader's machine calls monospace will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, ", "")
    Path(picture).write_text(svg)


if __name__ == "__main__":
    main(*sys.argv[1:])
