"""Pages in a real browser: they load without a complaint, and zoom, hover and filter do what they say."""

from __future__ import annotations

import pytest

import foretrace as ft
from benchmarks.lib.browser import MISSING, chromium, opened
from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import StepReport
from foretrace.graph import Job
from foretrace.prediction.scaling import scaling_curve
from foretrace.report.pages import write_page
from foretrace.report.pages.comparisons import comparison_page
from foretrace.sharding.planner import shard
from foretrace.sharding.tables import Table
from foretrace.whatif.points import Point, Sweep
from tests.report.steps import HOSTILE, rank, sketched

pytestmark = [pytest.mark.browser, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

TIMELINE = "#timeline"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    forecast = ft.predict(sketched(), on="h200")
    write_page(forecast, folder / "forecast.html")
    after = ft.predict(sketched(10), on="h200")
    comparison_page(forecast, after, (HOSTILE, "after")).write(folder / "comparison.html")
    write_page(measure_step(Job([rank(0, 100.0), rank(1, 50.0)], HOSTILE)), folder / "observation.html")
    sizes = [StepReport(HOSTILE, world, "h200", step_ms=4.0, low_ms=3.0, high_ms=6.0) for world in (1, 2, 1024)]
    write_page(scaling_curve(sizes), folder / "scaling.html")
    points = [
        Point([f"batch={8 * n}"], HOSTILE, step_ms=4.0, sample_us=1.0 / n, memory_bytes=n << 30, cost=0.1, fits=n > 1)
        for n in (1, 2, 3)
    ]
    write_page(Sweep(HOSTILE, points, memory_limit=2**31), folder / "sweep.html")
    tables = [Table(f"{HOSTILE} {number}", 1000 * (number + 1), 64, 4.0) for number in range(6)]
    write_page(shard(tables, 2, on="h200", seconds=0.2), folder / "sharding.html")
    return {path.stem: path.as_uri() for path in folder.iterdir()}


@pytest.fixture
def page(browser, files):
    page, complaints = opened(browser, files["forecast"])
    yield page
    assert not complaints
    page.context.close()


def window(page) -> tuple[float, float]:
    box = page.locator(TIMELINE)
    return float(box.get_attribute("data-from")), float(box.get_attribute("data-to"))


def wait_for(page, moved) -> None:
    """Until the window is as it should be; the page itself lets no test's script run."""
    for _ in range(200):
        if moved(*window(page)):
            return
        page.wait_for_timeout(20)
    raise AssertionError(window(page))


def drawn(page) -> int:
    """How much of the timeline is drawn and not dimmed."""
    return int(page.locator(TIMELINE).get_attribute("data-bright"))


@pytest.mark.parametrize("name", ["forecast", "comparison", "observation", "scaling", "sweep", "sharding"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_opens_from_disk_without_a_complaint_and_asks_for_nothing(browser, files, name, theme):
    page, complaints = opened(browser, files[name], theme)
    assert not complaints
    assert page.locator("html").get_attribute("data-theme") == theme
    for chart in page.locator("[data-chart]").all():
        assert chart.locator("canvas").count() == 1 and chart.bounding_box()["height"] > 40
    assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
    page.context.close()


@pytest.mark.parametrize("name", ["forecast", "observation", "sweep"])
def test_it_fits_a_narrow_screen(browser, files, name):
    page, complaints = opened(browser, files[name], width=390, height=800)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390 and not complaints
    page.context.close()


def test_the_switch_turns_the_page_dark(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#theme")
    assert page.locator("html").get_attribute("data-theme") == "dark" and page.evaluate(ground) != light


def test_the_timeline_zooms_by_button_by_wheel_and_by_key(page):
    start, end = window(page)
    page.click("[data-timeline=in]")
    wait_for(page, lambda start, _: start > 0)
    nearer = window(page)
    assert nearer[1] - nearer[0] == pytest.approx((end - start) / 2, rel=0.01)
    page.locator(TIMELINE).hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    wait_for(page, lambda _, end: end < nearer[1])
    page.click("[data-timeline=whole]")
    wait_for(page, lambda start, _: start == 0)
    page.locator(TIMELINE).focus()
    page.keyboard.press("+")
    wait_for(page, lambda start, _: start > 0)


def point_at(page, name: str) -> None:
    """Move the mouse over the first piece whose name begins so."""
    page.locator(TIMELINE).scroll_into_view_if_needed()
    box = page.locator(TIMELINE).bounding_box()
    across, down = page.evaluate(
        """(name) => {
            const { timeline } = document.querySelector("#timeline");
            const one = timeline.drawn.find((piece) => piece.what[0].startsWith(name) && piece.count === 1);
            return timeline.chart.convertToPixel("grid", [(one.start + one.end) / 2, one.row]);
        }""",
        name,
    )
    page.mouse.move(box["x"] + across, box["y"] + down)


def test_pointing_at_a_piece_tells_its_name(page):
    point_at(page, "aten::mm")
    page.wait_for_selector(".tip:has-text('aten::mm')")


def test_a_name_that_is_markup_stays_text_where_it_is_pointed_at(page):
    point_at(page, "mine::<img")
    page.wait_for_selector(".tip:has-text('mine::<img src=x')")
    assert page.locator(".tip img, .tip script").count() == 0


def test_the_timeline_is_filtered_by_name_by_kind_and_by_the_critical_path(page):
    everything = drawn(page)
    page.fill("[data-timeline=filter]", "aten::mm")
    assert 0 < drawn(page) < everything and not page.is_visible("[data-timeline=nothing]")
    page.fill("[data-timeline=filter]", "no such op")
    assert drawn(page) == 0 and page.is_visible("[data-timeline=nothing]")
    page.fill("[data-timeline=filter]", "")
    page.click("[data-timeline=path]")
    assert 0 < drawn(page) < everything
    page.click("[data-timeline=path]")
    page.click(".key button[data-kind='matrix product']")
    assert drawn(page) < everything


def test_tables_are_filtered_and_shown_in_full(page):
    rows = "#ops tbody tr:visible"
    page.fill("input[data-table=ops]", "aten::add")
    assert page.locator(rows).count() == 1
    page.fill("input[data-table=ops]", "")
    assert page.locator(rows).count() == page.locator("#ops tbody tr:not(.rest)").count()


def test_where_the_time_goes_is_shown_from_several_sides(page):
    buttons = page.locator("#goes .tabs button")
    assert buttons.all_text_contents() == ["by phase", "by family", "by module", "by op"]
    for button in buttons.all():
        button.click()
        assert button.get_attribute("aria-pressed") == "true"


def test_the_points_of_a_sweep_are_seen_by_memory_and_by_cost(browser, files):
    page, complaints = opened(browser, files["sweep"])
    memory, cost = page.locator("#front .tabs button").all()
    assert (memory.get_attribute("aria-pressed"), cost.get_attribute("aria-pressed")) == ("true", "false")
    cost.click()
    assert cost.get_attribute("aria-pressed") == "true" and not complaints
    page.context.close()
