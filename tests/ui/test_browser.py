"""The server in a real browser: the list leads to pages, and forms are answered."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.lib.browser import MISSING, chromium
from foretrace.analysis.report import StepReport
from foretrace.graph import Job
from foretrace.report.json import as_json
from foretrace.ui import pages
from foretrace.ui.folder import Folder
from foretrace.ui.server import Server
from tests.narrowing import present
from tests.report.steps import sketched

AXE = find_spec("axe_playwright_python")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.json").write_text("{}")
    monkeypatch.setattr(pages, "load", lambda path: Job([sketched(4)], "sketch"))
    with Server(Folder(tmp_path)) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        page = browser.new_page()
        page.goto(server.address)
        yield page
        page.close()
        server.shutdown()


def test_long_work_says_what_it_does_and_for_how_long(page):
    page.route("**/predict*", lambda asked: asked.fulfill(status=204))  # stays on the page, as while it is worked on
    assert page.locator("#waiting").is_hidden()
    page.click("text=predict >> nth=0")
    page.wait_for_selector("#waiting:text-matches('Predicting run … [1-9][0-9]* s')")
    with pages.WORK.on("drawing run"):
        page.wait_for_selector("#waiting:has-text(' s: drawing run')")
    page.evaluate("dispatchEvent(new Event('pageshow'))")  # as for who comes back
    assert page.locator("#waiting").is_hidden()


def test_a_change_that_makes_no_sense_leaves_the_form_as_it_was(page):
    page.click("text=what if")
    page.fill("textarea[name=changes]", "colour=red")
    page.click("text=Predict both")
    assert "colour" in page.inner_text("[role=alert]") and page.input_value("textarea") == "colour=red"


def test_from_the_list_to_a_what_if_and_back(page):
    page.click("text=what if")
    page.fill("textarea[name=changes]", "dtype=fp32")
    page.click("text=Predict both")
    page.wait_for_selector("html[data-drawn]")
    assert "dtype=fp32" in page.inner_text("h1") and page.locator("#by_op canvas").count() == 1
    page.click("a.brand")
    page.click("text=predict >> nth=0")
    page.wait_for_selector("html[data-drawn]")
    assert page.locator("#timeline canvas").count() == 1


@pytest.mark.skipif(AXE is None, reason="axe-core is not installed")
@pytest.mark.parametrize("address", ["", "whatif?what=run", "open?what=nothing"])
def test_the_servers_own_pages_are_accessible(page, address):
    page.goto(page.url + address)
    page.evaluate((Path(str(present(AXE).origin)).parent / "axe.min.js").read_text())
    found = page.evaluate("axe.run()")["violations"]
    assert [(one["id"], one["nodes"][0]["target"]) for one in found if one["impact"] in ("serious", "critical")] == []


def test_the_list_is_sorted_by_its_columns(page, tmp_path):
    (tmp_path / "a.json").write_text(as_json(StepReport(platform="h200", step_ms=2.0, coverage={"model": 1.0})))
    page.reload()
    page.click("#items th button >> nth=0")
    assert page.locator("#items td.name").all_text_contents() == ["a.json", "run"]
    assert page.locator("#items th").first.get_attribute("aria-sort") == "ascending"
