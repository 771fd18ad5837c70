"""Plans on disk, and what is refused of them."""

import json
from dataclasses import replace

import pytest

from foretrace.graph import ForetraceError
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import Placement, read_plan, write_plan
from foretrace.sharding.planner import shard
from foretrace.sharding.tables import Table

TABLES = [Table("a", 1000, 64), Table("b", 1000, 32)]
FOUR = Ranks(4)
PLAN = (Placement("column_wise", (1, 3)), Placement("row_wise", (0, 1, 2, 3)))


def test_a_plan_is_read_as_it_was_written(tmp_path):
    write_plan(PLAN, TABLES, FOUR, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json", TABLES, FOUR) == PLAN
    assert read_plan(str(tmp_path / "plan.json"), TABLES, FOUR) == PLAN


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a": {"kind": "diagonal", "ranks": [0]}}, "sharded 'diagonal'"),
        ({"a": {"kind": "table_wise", "ranks": [7]}}, "lies on rank 7"),
        ({"a": {"kind": "row_wise", "ranks": [0, 1]}}, "can't be sharded row_wise on 2 of 4"),
        ({"a": {"kind": "table_wise", "ranks": []}}, "rank none"),
        ({"a": 5}, "is no plan"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(tmp_path, change, said):
    path = tmp_path / "plan.json"
    write_plan(PLAN, TABLES, FOUR, path)
    words = json.loads(path.read_text())
    path.write_text(json.dumps({**words, "plan": {**words["plan"], **change}}))
    with pytest.raises(ForetraceError, match=said):
        read_plan(path, TABLES, FOUR)


def test_a_plan_for_other_tables_is_refused(tmp_path):
    write_plan(PLAN, TABLES, FOUR, tmp_path / "plan.json")
    with pytest.raises(ForetraceError, match="nothing of table c"):
        read_plan(tmp_path / "plan.json", [*TABLES, Table("c", 10, 16)], FOUR)


def test_folders_are_made_for_a_plan(tmp_path):
    write_plan(PLAN, TABLES, FOUR, tmp_path / "absent" / "plan.json")
    assert read_plan(tmp_path / "absent" / "plan.json", TABLES, FOUR) == PLAN


def test_a_plan_can_not_be_written_into_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ForetraceError, match="can't be written"):
        write_plan(PLAN, TABLES, FOUR, tmp_path / "file" / "plan.json")


@pytest.mark.parametrize("ranks", [Ranks(0), Ranks(2, batch=0), Ranks(2, per_node=0), Ranks(2, sent_as="fp64")])
def test_ranks_that_cannot_be_are_refused(ranks):
    with pytest.raises(ForetraceError):
        ranks.check()


@pytest.mark.parametrize(
    "text",
    [
        '{"plan": {"a": {"kind": "table_wise", "ranks": [Infinity]}}}',
        '{"plan": {"a": {"kind": "table_wise", "ranks": [NaN]}}}',
        '{"plan": {"a": {"kind": "table_wise", "ranks": [1e999]}}}',
        '{"plan": {"a": {"kind": "table_wise", "ranks": ["x"]}}}',
        '{"plan": ' + "[" * 100_000,
        '{"plan": ' + "9" * 5000 + "}",
        "\x1f\ufffd",
        "[]",
        "",
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ForetraceError, match=r"plan\.json is no plan") as refused:
        read_plan(tmp_path / "plan.json", [Table("a", 9, 16)], Ranks(2))
    assert "\n" not in str(refused.value)


def test_a_rank_of_400_digits_is_on_none(tmp_path):
    (tmp_path / "plan.json").write_text('{"plan": {"a": {"kind": "table_wise", "ranks": [1%s]}}}' % ("0" * 400))
    with pytest.raises(ForetraceError, match="There are 2 ranks"):
        read_plan(tmp_path / "plan.json", [Table("a", 9, 16)], Ranks(2))


def test_a_plan_without_end_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ForetraceError, match="is a device"):
        read_plan("/dev/zero", [Table("a", 9, 16)], Ranks(2))
    monkeypatch.setattr("foretrace.sharding.plan.MAX_PLAN_BYTES", 100)
    (tmp_path / "plan.json").write_text(" " * 101)
    with pytest.raises(ForetraceError, match="too large for a plan"):
        read_plan(tmp_path / "plan.json", [Table("a", 9, 16)], Ranks(2))


def test_a_file_that_holds_no_plan_is_not_replaced_by_one(tmp_path):
    (tmp_path / "tables.csv").write_text("name,rows,dim\n")
    with pytest.raises(ForetraceError, match="is not a sharding plan that Foretrace wrote"):
        write_plan((Placement("table_wise", (1,)),), [Table("a", 9, 16)], Ranks(2), tmp_path / "tables.csv")
    assert (tmp_path / "tables.csv").read_text() == "name,rows,dim\n"


def test_hot_rows_are_the_part_of_the_lookups_that_no_rank_shows():
    rows, whole = (
        Table("r", 10_000_000, 64, 20, optimizer="adam", zipf=1.05),
        Table("w", 1000, 64, kinds=("table_wise",)),
    )
    for tables, hot in (([replace(rows, kinds=("row_wise",)), whole], True), ([whole] * 2, False)):
        found = shard(tables, world=4, batch=1024)
        fields = found.to_dict()
        slowest = max(rank["lookup_ms"] for rank in fields["ranks"])
        assert (fields["hot_rows_ms"] > 0.01 * slowest) == hot
        assert fields["lookup_ms"] == pytest.approx(slowest + fields["hot_rows_ms"])
        mean = sum(rank["lookup_ms"] for rank in fields["ranks"]) / 4
        assert fields["limits"]["balance"] == pytest.approx(mean / fields["lookup_ms"])
