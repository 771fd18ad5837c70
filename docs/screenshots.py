"""Photograph a page, light and dark: python docs/screenshots.py PAGE.html docs/page [SECTION]"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.lib.browser import chromium, opened

WIDTH, HEIGHT = 1180, 1500


def main(page: str, picture: str, section: str | None = None) -> None:
    """Write picture-light.png and picture-dark.png: what a reader sees first, or the section of that id."""
    with chromium() as browser:
        for theme in ("light", "dark"):
            shown, _ = opened(browser, Path(page).resolve().as_uri(), theme, WIDTH, HEIGHT)
            (shown.locator(f"#{section}") if section else shown).screenshot(path=f"{picture}-{theme}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
