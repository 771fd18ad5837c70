from __future__ import annotations

import pytest

from foretrace.report.terminal import print_observation
from tests.report.samples import Told


def shown(words, page, top=10):
    print_observation(Told(words), top, page)
    return page.file.getvalue()


def test_the_headline_names_who_holds_the_others_back(words, page):
    assert "rank 0 holds the others back" in shown(words, page)


def test_several_stragglers_are_named_in_rank_order(words, page):
    words["stragglers"] = [{"rank": r, "held_ms": 1.0, "why": "late"} for r in (6, 0)]
    assert "ranks 0 and 6 hold the others back" in shown(words, page)


def test_without_stragglers_an_idle_device_means_host_bound(words, page):
    words["stragglers"] = []
    assert "host-bound: the device idles 45 % of its time" in shown(words, page)


def test_every_line_fits_eighty_columns_however_long_the_names(words, page):
    words["by_op"][0]["name"] = "aten::" + "x" * 300
    words["critical_path"][0]["name"] = "void " + "y" * 300 + "<float>(int)"
    words["stragglers"][0]["why"] = "z" * 300
    lines = shown(words, page).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("xxx…" in line for line in lines)


@pytest.mark.parametrize("name", ["[red]op[/red]", "[/]", "[bold", "a]b[", ":smile:", "<b>op</b>", "../../etc/passwd"])
def test_hostile_names_are_printed_as_they_are(words, page, name):
    for key in ("by_op", "by_module", "critical_path"):
        words[key][0]["name"] = name
    words["notes"] = [f"about {name}"]
    words["source"] = name
    text = shown(words, page)
    assert text.count(name) == 5


def test_names_cannot_steer_the_terminal(words, page):
    words["by_op"][0]["name"] = "op\x1b[2J\nnext"
    words["source"] = "trace\r\x1b]0;owned\x07"
    words["stragglers"][0]["why"] = "\x9b31m"
    text = shown(words, page)
    assert not set(text) & {"\x1b", "\x07", "\r", "\x9b"}
    assert r"op\x1b[2J\nnext" in text


def test_a_view_with_nothing_to_tell_apart_is_left_out(words, page):
    text = shown(words, page)
    assert "Time by kernel family" not in text
    assert "Time by phase" in text and "(none)" in text.split("Time by module")[1]


def test_only_as_many_rows_as_asked_for_and_the_rest_is_counted(words, page):
    text = shown(words, page, top=5)
    assert "aten::op_4" in text and "aten::op_5" not in text
    assert "… and 7 rows more" in text


def test_a_job_on_the_host_alone_has_no_device_in_its_report(words, page):
    ranks = words["step_ms"]
    words.update(
        device_active_ms=dict.fromkeys(ranks, 0.0),
        device_idle_ms=dict.fromkeys(ranks, 0.0),
        device_span_ms=0.0,
        stragglers=[],
        queue_depth={"mean": 0.0, "max": 0},
    )
    text = shown(words, page)
    assert "all of it on the host" in text
    assert "device ms" not in text and "owner" not in text and "idle" not in text


def test_a_trace_with_nothing_but_a_step_is_shown_without_fuss(words, page):
    empty = {key: type(value)() for key, value in words.items() if isinstance(value, (list, dict))}
    words.update(empty, step_ms={0: 1.0}, critical_path_ms=None, device_span_ms=None, attributed=None, world=1, steps=0)
    words["step"] = None
    assert "the whole trace, 1 rank" in shown(words, page)


def test_of_many_ranks_those_that_wait_least_and_most_are_shown(words, page):
    words["step_ms"] = dict.fromkeys(range(64), 10.0)
    words["wait_ms"] = {rank: float(rank) for rank in range(64)}
    text = shown(words, page)
    assert "16 of 64 ranks" in text
    ranks = text.split("wait least and most")[1].split("Who holds")[0].splitlines()[2:]
    assert [int(line.split()[0]) for line in ranks if line.strip()] == [*range(8), *range(56, 64)]


def test_a_recording_tells_the_plain_step_and_what_watching_cost(words, page):
    words["plain"], words["slowdown"] = {"synced_ms": 9.5, "back_to_back_ms": 8.25}, 1.3125
    text = " ".join(shown(words, page).split())
    assert "9.50 ms with nothing attached" in text
    assert "8.25 ms where the host may run ahead" in text and "1.31 times as long while watched" in text
