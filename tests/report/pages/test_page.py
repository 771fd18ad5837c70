from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from foretrace.graph import ForetraceError
from foretrace.report.pages.page import Page
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
