"""Draw the beginning of what `foretrace show PATH` prints: python docs/picture.py PATH docs/show.svg"""

from __future__ import annotations

import io
import re
import sys
from itertools import islice
from pathlib import Path

from rich.console import Console

import foretrace as ft
from foretrace.report.headline import headline
from foretrace.report.sections import sections

TABLES, ROWS = 4, 6


def main(path: str, picture: str) -> None:
    """Write an SVG of the headline and the first tables."""
    words = ft.observe(ft.load(path)).to_dict()
    words["source"] = Path(path).name
    console = Console(record=True, width=80, file=io.StringIO(), highlight=False)
    console.print(headline(words))
    for table in islice(sections(words, ROWS), TABLES):
        console.print()
        console.print(table)
    svg = console.export_svg(title=f"foretrace show {words['source']}")
    # The picture fetches no font from elsewhere: what the reader's machine calls monospace will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, ", "")
    Path(picture).write_text(svg)


if __name__ == "__main__":
    main(*sys.argv[1:])
