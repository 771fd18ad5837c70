from __future__ import annotations

import pytest

from foretrace.report.pages.sharding import sharding_page
from foretrace.sharding.planner import shard
from foretrace.sharding.tables import Table

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def words():
    tables = [Table(f"table {number}{HOSTILE}", 1000 * (number + 1), 64, 4.0) for number in range(6)]
    return shard(tables, 2, on="h200", seconds=0.2).to_dict()


def test_each_rank_has_its_lookups_and_what_it_holds(words):
    loads = sharding_page(words).charts["loads"]
    assert loads["ranks"] == [0, 1] and len(loads["forward"]) == len(loads["bytes"]) == 2
    assert max(f + b for f, b in zip(loads["forward"], loads["backward"])) == pytest.approx(words["lookup_ms"])


def test_this_plan_is_held_against_the_heuristics(words):
    others = sharding_page(words).charts["alternatives"]
    assert others["rows"][0] == "this plan" and len(others["rows"]) == len(words["alternatives"]) + 1


def test_ranks_that_follow_each_other_are_a_range_and_many_others_are_counted(words):
    ranks = [list(range(64)), [1, 7, 4], list(range(0, 64, 2))]
    plan = {f"t{number}": {"kind": "row_wise", "ranks": some} for number, some in enumerate(ranks)}
    text = sharding_page({**words, "plan": plan}).html()
    assert all(f"<td>{told}</td>" in text for told in ("0-63", "1, 7, 4", "32 ranks"))


def test_every_table_is_listed_and_its_name_stays_text(words):
    text = sharding_page(words).html()
    assert HOSTILE not in text and all(f"table {number}&lt;script" in text for number in range(6))
