"""A real browser for benchmarks, tests and pictures: Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any


def _starts(program: str) -> bool:
    """Whether it runs: where Chromium comes as a snap, its name may stand for a hint on how to get it."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(_starts, filter(None, map(shutil.which, NAMES))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
MISSING = None if CHROMIUM and find_spec("playwright") else "no Chromium, or no Playwright to drive it"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that is closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def opened(
    browser: Any, address: str, theme: str = "light", width: int = 1280, height: int = 900
) -> tuple[Any, list[str]]:
    """A page that is drawn, and the list in which its complaints gather."""
    page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme).new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda asked: None if asked.url == address else complaints.append(f"asks for {asked.url}"))
    page.goto(address)
    page.wait_for_selector("html[data-drawn]")
    return page, complaints
