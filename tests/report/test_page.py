from __future__ import annotations

from html.parser import HTMLParser

import pytest

from foretrace.forecast.forecast import Forecast
from foretrace.graph import ForetraceError, Graph, Op, OpTable
from foretrace.report.page import page, write_page

HOSTILE = "<script>alert(1)</script>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]


@pytest.fixture
def forecast() -> Forecast:
    ops = [Op(HOSTILE, phase="forward", start_us=0.0, end_us=500.0), Op("aten::mm", start_us=600.0, end_us=900.0)]
    row = {"name": HOSTILE, "device_ms": 0.5, "host_ms": 0.5, "count": 1, "share": 0.5}
    part = {"what": "T2", "name": HOSTILE, "rank": 0, "ms": 0.5, "share": 0.5}
    return Forecast(
        source=HOSTILE,
        platform="h200",
        step_ms=1.0,
        coverage={"measured": 0.0, "model": 1.0, "fallback": 0.0},
        critical_path=[part],
        by_op=[row, row],
        notes=[HOSTILE],
        timeline=Graph(OpTable.of(ops)),
    )


def test_a_page_loads_nothing_and_runs_nothing(forecast):
    tags = Tags()
    tags.feed(page(forecast))
    assert not tags.addresses
    assert {"script", "link", "img", "iframe"}.isdisjoint(tags.names)


def test_names_with_html_in_them_stay_text(forecast):
    text = page(forecast)
    assert HOSTILE not in text and "&lt;script&gt;" in text


def test_the_timeline_is_drawn(forecast):
    text = page(forecast)
    assert "thread 0" in text and ">forward<" in text


def test_a_file_that_cannot_be_written_is_named(forecast, tmp_path):
    with pytest.raises(ForetraceError, match="can't be written"):
        write_page(forecast, tmp_path / "nowhere" / "page.html")
    write_page(forecast, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
