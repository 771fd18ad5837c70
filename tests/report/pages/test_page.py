from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from foretrace.graph import ForetraceError
from foretrace.report.pages.page import Page, _asset
from tests.narrowing import present

HOSTILE = "</script><script>alert(1)</script>"


@pytest.fixture
def page() -> str:
    charts: dict[str, dict[str, Any] | None] = {"a": {"kind": "stacked", "name": HOSTILE}}
    return Page("refusal.html", HOSTILE, charts, {"heading": "no", "why": HOSTILE}).html()


def test_what_a_name_holds_never_ends_the_data(page):
    data = present(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL))[1]
    assert json.loads(data)["a"]["name"] == HOSTILE
    assert HOSTILE not in page


def test_the_browser_may_run_the_pages_own_scripts_and_nothing_else(page):
    allowed = present(re.search(r"script-src ([^;]*);", page))[1].split()
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 2 and allowed == [f"'sha256-{digest}'" for digest in digests]


def test_a_page_loads_nothing(page):
    outside_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""\b(src|href)=["']?(https?:)?//""", outside_scripts)
    assert "default-src 'none'" in page


def test_folders_around_a_page_are_made(tmp_path):
    Page("refusal.html", "t", {}, {"heading": "h", "why": "w"}).write(tmp_path / "new" / "folder" / "page.html")
    assert (tmp_path / "new" / "folder" / "page.html").read_text().startswith("<!doctype html>")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ForetraceError, match=r"page\.html can't be written"):
        Page("refusal.html", "t", {}, {"heading": "h", "why": "w"}).write(tmp_path / "file" / "page.html")


def luminance(colour: str) -> float:
    """As WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_what_charts_draw_stands_out_from_the_page_and_its_words_more(theme):
    kinds, styles = (
        re.findall(r":root(?:\[data-theme=\"dark\"\])? \{(.*?)\n\}", _asset(name), re.DOTALL)[theme]
        for name in ("colours.css", "page.css")
    )
    tokens = dict(re.findall(r"--([a-z]+): (#\w{6});", styles))
    for word in ("ink", "quiet", "accent", "good", "bad"):
        assert contrast(tokens[word], tokens["ground"]) >= 4.5, word
    for kind, colour in re.findall(r"--of-([a-z-]+): (#\w{6});", kinds):
        assert kind == "idle" or contrast(colour, tokens["ground"]) >= 3, kind  # idle is nothing
