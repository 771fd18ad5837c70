"""Sharding plans: sentences that read as such, and a page on which every table is listed."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from foretrace.report.formatting import bytes_, ms
from foretrace.report.sharding import plan_blocks, plan_facts, sharding_page
from foretrace.sharding.plan import PlacedTable
from foretrace.sharding.planner import shard
from foretrace.sharding.tables import Table
from tests.narrowing import present

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def plan():
    tables = [Table(f"table {number}{HOSTILE}", 1000 * (number + 1), 64, 4.0) for number in range(6)]
    return shard(tables, 2, on="h200", seconds=0.2).report()


def said(plan, name):
    return next(meaning for row, _, meaning in plan_facts(plan) if row == name)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("lookups", "lookups take 80 % of it"),
        ("exchange", "communication takes 80 % of it"),
        ("dense", "the dense part takes 80 % of it"),
    ],
)
def test_what_holds_the_step_up_is_a_sentence(plan, what, sentence):
    limits = replace(plan.limits, what=what, share=0.8)
    assert said(replace(plan, limits=limits), "step").endswith(sentence)


def test_how_good_the_plan_is_says_by_what(plan):
    assert said(replace(plan, gap=0.25), "search").endswith("by sums of costs, the best plan would be 20 % shorter")
    assert said(replace(plan, gap=1e-9), "search").endswith("by sums of costs, no plan is shorter")
    assert "sums" not in said(replace(plan, gap=None), "search")


def test_a_heuristic_that_is_nearly_as_good_is_not_called_equal(plan, page):
    row = plan.alternatives[0]
    others = [replace(row, slower=slower) for slower in (0.00001, 0.004, 0.184)]
    for block in plan_blocks(replace(plan, alternatives=others), 10):
        page.print(block)
    text = page.file.getvalue()
    assert "<0.1 %" in text and "+0.4 %" in text and "+18 %" in text and "+0%" not in text


def test_each_rank_has_its_lookups_and_what_it_holds(plan):
    loads = present(sharding_page(plan).charts["loads"])
    assert loads["ranks"] == [0, 1] and len(loads["forward"]) == len(loads["bytes"]) == 2
    assert max(f + b for f, b in zip(loads["forward"], loads["backward"])) == pytest.approx(plan.lookup_ms)


def test_this_plan_is_held_against_the_heuristics(plan):
    others = present(sharding_page(plan).charts["alternatives"])
    assert others["rows"][0] == "this plan" and len(others["rows"]) == len(plan.alternatives) + 1


def test_ranks_that_follow_each_other_are_a_range_and_many_others_are_counted(plan):
    ranks = [list(range(64)), [1, 7, 4], list(range(0, 64, 2))]
    placed = {f"t{number}": PlacedTable("row_wise", some) for number, some in enumerate(ranks)}
    text = sharding_page(replace(plan, plan=placed)).html()
    assert all(f"<td>{told}</td>" in text for told in ("0-63", "1, 7, 4", "32 ranks"))


def test_every_table_is_listed_and_its_name_stays_text(plan):
    text = sharding_page(plan).html()
    assert HOSTILE not in text and all(f"table {number}&lt;script" in text for number in range(6))


def test_the_terminal_lists_what_a_table_holds_and_costs(plan):
    cost = plan.table_costs[f"table 0{HOSTILE}"]
    row = next(line for line in printed(plan).splitlines() if line.startswith("table 0<script>"))
    assert " ".join(row.split()).endswith(f"1,000 64 {bytes_(cost.bytes)} {ms(cost.lookup_ms)}")
    assert f"1,000 64 {bytes_(cost.bytes)}" not in " ".join(printed(replace(plan, table_costs={})).split())


def printed(plan):
    written = io.StringIO()
    console = Console(file=written, width=120)
    for block in plan_blocks(plan, None):
        console.print(block)
    return written.getvalue()


def test_hot_rows_have_a_line_of_their_own_and_all_figures_agree(plan, page):
    slowest = max(rank.lookup_ms for rank in plan.ranks)
    skewed = replace(plan, lookup_ms=slowest + 1.25, hot_rows_ms=1.25)
    assert "and 1.25 ms for hot rows, on a rank that is not known" in said(skewed, "lookups")
    for block in plan_blocks(skewed, 1):
        page.print(block)
    assert any("any" in line and "+1.25" in line for line in page.file.getvalue().splitlines())
    assert present(sharding_page(skewed).charts["loads"])["slowest"] == skewed.lookup_ms
    assert "hot rows" not in said(plan, "lookups")
    assert present(sharding_page(plan).charts["loads"])["slowest"] is None


def test_the_page_tells_the_size_of_each_table_and_what_it_costs_its_ranks(plan):
    html = sharding_page(plan).html()
    assert '<td class="n">1,000</td><td class="n">64</td><td class="n">250 KiB</td>' in html
    assert all(one.lookup_ms > 0 for one in plan.table_costs.values())
    for rank in plan.ranks:  # the shards of a rank take what its lookups do, but for what calls have in common
        added = sum(plan.table_costs[name].lookup_ms for name, one in plan.plan.items() if rank.rank in one.ranks)
        assert added == pytest.approx(rank.lookup_ms, rel=0.5)


def test_a_plan_from_before_tables_had_sizes_is_shown_without(plan):
    assert ">rows</th>" not in sharding_page(replace(plan, table_costs={})).html()
