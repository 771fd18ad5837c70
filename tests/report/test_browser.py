"""Pages in a real browser: they load without a complaint, and zoom, hover and filter do what they say."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

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
from tests.narrowing import present
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


def test_the_wheel_alone_scrolls_the_page(page):
    before = window(page)
    page.locator(TIMELINE).hover()
    top = page.evaluate("scrollY")
    page.mouse.wheel(0, 200)
    wait_for(page, lambda *_: page.evaluate("scrollY") > top)
    assert window(page) == before


def test_a_finger_on_the_timeline_scrolls_the_page(browser, files):
    page, complaints = opened(browser, files["forecast"])
    assert page.evaluate("getComputedStyle(document.querySelector('#timeline')).touchAction") == "pan-y"
    page.context.close()
    assert not complaints


def test_the_keys_of_perfetto_zoom_and_move(page):
    end = window(page)[1]
    page.locator(TIMELINE).focus()
    page.keyboard.press("w")
    wait_for(page, lambda start, _: start > 0)
    start, stop = window(page)
    page.keyboard.press("d")
    wait_for(page, lambda left, right: left > start and right > stop)
    page.keyboard.press("a")
    wait_for(page, lambda left, right: left == pytest.approx(start) and right == pytest.approx(stop))
    page.keyboard.press("s")
    wait_for(page, lambda left, right: right - left > stop - start)
    page.keyboard.press("Home")
    wait_for(page, lambda left, right: (left, right) == (0, end))


def drag(page, start: float, end: float, key: str = "") -> None:
    """Drag over the lanes, from one share of their width to another."""
    page.locator(TIMELINE).scroll_into_view_if_needed()
    box = page.locator(TIMELINE).bounding_box()
    at = [(box["x"] + 78 + share * (box["width"] - 90), box["y"] + 20) for share in (start, end)]
    page.mouse.move(*at[0])
    if key:
        page.keyboard.down(key)
    page.mouse.down()
    page.mouse.move(*at[1], steps=4)
    page.mouse.up()
    if key:
        page.keyboard.up(key)


SELECTED = "[data-timeline=selected]"


def test_a_span_is_selected_by_dragging_and_added_up(page):
    before, end = window(page), window(page)[1]
    drag(page, 0.25, 0.75)
    text = page.inner_text(SELECTED)
    assert "device busy" in text and "matrix product" in text and "FLOP" in text and window(page) == before
    assert page.is_visible(".span")
    page.keyboard.press("f")
    wait_for(page, lambda left, right: right - left == pytest.approx(end / 2, rel=0.05))
    page.keyboard.press("Escape")
    assert not page.is_visible(SELECTED) and not page.is_visible(".span")


def test_with_ctrl_dragging_zooms_and_with_shift_it_moves(page):
    end = window(page)[1]
    drag(page, 0.25, 0.75, "Control")
    wait_for(page, lambda left, right: right - left == pytest.approx(end / 2, rel=0.05))
    left, _ = window(page)
    drag(page, 0.75, 0.5, "Shift")
    wait_for(page, lambda start, _: start > left)
    assert not page.is_visible(SELECTED)


def test_the_sum_of_the_whole_step_is_that_of_its_kernels(page):
    page.locator(TIMELINE).focus()
    page.keyboard.press("m")
    kernels = page.evaluate(
        "document.querySelector('#timeline').timeline.all[0].lanes.filter((lane) => lane.device)[0].start.length"
    )
    assert f"{kernels} kernels" in page.inner_text(SELECTED)


def test_a_clicked_interval_tells_what_is_known_of_it(page):
    drag(page, 0.2, 0.3, "Control")
    wait_for(page, lambda start, _: start > 0)
    point_at(page, "aten::mm")
    page.mouse.down()
    page.mouse.up()
    text = page.inner_text(SELECTED)
    assert "aten::mm" in text and "bfloat16 1024×1024, 1024×1024" in text and "in net." in text


def test_matches_are_counted_and_gone_through(page):
    page.fill("[data-timeline=filter]", "aten::mm")
    count = page.locator("[data-timeline=count]")
    assert count.inner_text().endswith(" found")
    page.locator("[data-timeline=filter]").press("Enter")
    assert count.inner_text().startswith("1 of ") and "aten::mm" in page.inner_text(SELECTED)
    page.click("[data-timeline=next]")
    assert count.inner_text().startswith("2 of ")
    page.locator("[data-timeline=filter]").press("Shift+Enter")
    assert count.inner_text().startswith("1 of ")


def test_a_link_keeps_the_view(browser, page):
    drag(page, 0.25, 0.5, "Control")
    page.fill("[data-timeline=filter]", "aten::add")
    page.wait_for_url("**#line&view=*find=*")
    again, complaints = opened(browser, page.url.partition("#")[0])
    again.goto(page.url)
    again.reload()
    wait_for(again, lambda start, end: (start, end) == pytest.approx(window(page), abs=1e-3))
    assert again.input_value("[data-timeline=filter]") == "aten::add" and not complaints
    again.context.close()


def test_an_address_that_makes_no_sense_shows_the_whole_step(browser, files):
    page, complaints = opened(browser, files["forecast"])
    page.evaluate("location.hash = '#line&view=9e9-1&span=x-<b>&show=constructor&hide=%F0'")
    page.wait_for_timeout(300)
    assert window(page)[0] == 0 and not complaints
    page.context.close()


def test_an_early_rank_says_for_whom_it_waits(browser, files):
    page, complaints = opened(browser, files["observation"])
    page.fill("[data-timeline=filter]", "ncclDevKernel")
    page.locator("[data-timeline=filter]").press("Enter")
    assert "waits for rank 0" in page.inner_text(SELECTED) and not complaints
    page.context.close()


def test_an_op_of_a_table_is_found_in_the_timeline(page):
    page.locator("#ops button.find").filter(has_text="aten::add").first.click()
    assert page.input_value("[data-timeline=filter]") == "aten::add"
    assert "aten::add" in page.inner_text(SELECTED)


def test_tables_are_sorted_by_any_column_with_mouse_and_keyboard(page):
    cells = "#ops tbody tr:not(.rest) td:nth-child({})"
    head = page.locator("#ops thead th").filter(has_text="calls")
    head.locator("button").click()
    calls = [int(text.replace(",", "")) for text in page.locator(cells.format(4)).all_text_contents()]
    assert head.get_attribute("aria-sort") == "descending" and calls == sorted(calls, reverse=True)
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("#ops thead th button").first.click()
    names = page.locator(cells.format(1)).all_text_contents()
    assert names == sorted(names, key=str.lower) and head.get_attribute("aria-sort") is None


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


AXE = find_spec("axe_playwright_python")


@pytest.mark.skipif(AXE is None, reason="axe-core is not installed")
@pytest.mark.parametrize("name", ["forecast", "comparison", "observation", "scaling", "sweep", "sharding"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_is_accessible(browser, files, name, theme):
    page, _ = opened(browser, files[name], theme)
    page.evaluate((Path(str(present(AXE).origin)).parent / "axe.min.js").read_text())
    found = page.evaluate("axe.run()")["violations"]
    page.context.close()
    assert [(one["id"], one["nodes"][0]["target"]) for one in found if one["impact"] in ("serious", "critical")] == []


def test_charts_say_what_they_show_to_who_does_not_see_them(page):
    label = page.locator("#parts").get_attribute("aria-label")
    assert label.startswith("the step as one bar: device computes ") and " ms" in label
    assert "at most " in page.locator("#memory").get_attribute("aria-label")


def test_the_first_stop_of_the_tab_key_leads_past_the_head_of_the_page(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"


def test_the_points_of_a_sweep_are_seen_by_memory_and_by_cost(browser, files):
    page, complaints = opened(browser, files["sweep"])
    memory, cost = page.locator("#front .tabs button").all()
    assert (memory.get_attribute("aria-pressed"), cost.get_attribute("aria-pressed")) == ("true", "false")
    cost.click()
    assert cost.get_attribute("aria-pressed") == "true" and not complaints
    page.context.close()
