"""Plans in the terminal: sentences that read as such."""

from __future__ import annotations

import pytest

from foretrace.report.sharding import sharding_rows
from foretrace.report.terminal import print_sharding
from foretrace.sharding.planner import shard
from foretrace.sharding.tables import Table
from tests.report.samples import Told


@pytest.fixture(scope="module")
def words():
    tables = [Table(f"table {number}", 1000 * (number + 1), 64, 4.0) for number in range(6)]
    return shard(tables, 2, on="h200", seconds=0.2).to_dict()


def said(words, name):
    return next(meaning for row, _, meaning in sharding_rows(words) if row == name)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("lookups", "lookups take 80 % of it"),
        ("exchange", "the exchange takes 80 % of it"),
        ("dense", "the dense part takes 80 % of it"),
    ],
)
def test_what_holds_the_step_up_is_a_sentence(words, what, sentence):
    limits = words["limits"] | {"what": what, "share": 0.8}
    assert said(words | {"limits": limits}, "step").endswith(sentence)


def test_how_good_the_plan_is_says_by_what(words):
    assert said(words | {"gap": 0.25}, "search").endswith(
        "by plain sums of costs the best plan there is would be 20 % shorter"
    )
    assert said(words | {"gap": 1e-9}, "search").endswith("by plain sums of costs no plan is shorter")
    assert "sums" not in said(words | {"gap": None}, "search")


def test_a_heuristic_that_is_nearly_as_good_is_not_called_equal(words, page):
    row = words["alternatives"][0]
    others = [row | {"slower": slower} for slower in (0.00001, 0.004, 0.184)]
    print_sharding(Told(words | {"alternatives": others}), 10, page)
    text = page.file.getvalue()
    assert "<0.1 %" in text and "+0.4 %" in text and "+18 %" in text and "+0%" not in text
