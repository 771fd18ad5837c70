"""`foretrace shard` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.platform.fabric import Curve, Fabric
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import read_plan
from foretrace.sharding.tables import read_tables

RECORDING = Path(__file__).parents[1] / "data" / "h200" / "dlrm_default_b512"
WORDS = ("step_ms", "low_ms", "high_ms", "plan", "ranks", "alternatives")


@pytest.fixture
def tables(tmp_path):
    path = tmp_path / "tables.csv"
    lines = [f"t{n},{1000 * (n + 1)},{32 * (1 + n % 2)},{1 + n}" for n in range(12)]
    path.write_text("\n".join(["name,rows,dim,pooling", *lines]) + "\n")
    return path


def test_a_plan_is_found_and_written(foretrace, tables, tmp_path):
    out = tmp_path / "plan.json"
    ran = foretrace("shard", tables, "--world", 4, "--on", "h200", "--json", "--out", out)
    assert ran.code == 0, ran.err
    words = json.loads(ran.out)
    assert all(word in words for word in WORDS)
    assert 0 < words["low_ms"] < words["step_ms"] < words["high_ms"]
    assert len(words["ranks"]) == 4 and len(words["alternatives"]) == 8
    plan = read_plan(out, read_tables(tables), Ranks(4))
    assert words["plan"]["t3"] == {"kind": plan[3].kind, "ranks": list(plan[3].ranks)}


def test_tables_say_what_limits_the_step(foretrace, tables):
    ran = foretrace("shard", tables, "--world", 2, "--kernels", "tbe", "--sent-as", "bf16")
    assert ran.code == 0, ran.err
    for said in ("ranks of h200", "Ranks, the slowest first", "Against the heuristics", "size-greedy"):
        assert said in ran.out


def test_the_tables_of_a_recording_are_placed_with_its_dense_part(foretrace):
    ran = foretrace("shard", RECORDING, "--world", 4, "--json")
    assert ran.code == 0, ran.err
    words = json.loads(ran.out)
    assert words["tables"] == 8 and words["batch"] == 512
    assert words["dense_ms"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory", "0.0001"], "fits on no rank"),
        (["--fabric", "nowhere"], "no fabric is called"),
        (["--memory", "-1"], "can't have -1.0 GB"),
        (["--batch", "99999999999999999"], "a batch can't have 99,999,999,999,999,999 samples"),
    ],
)
def test_impossible_options_are_refused_in_one_line(foretrace, tables, options, said):
    ran = foretrace("shard", tables, "--world", 2, *options)
    assert ran.code == 2
    assert said in ran.err and ran.err.count("\n") == 1


def test_more_ranks_than_a_node_has_gpus_are_refused(foretrace, tables):
    ran = foretrace("shard", tables, "--world", 16, "--fabric", "h200-nvswitch", "--per-node", 16)
    assert ran.code == 2
    assert "a node of fabric h200-nvswitch has 8 GPUs, not 16" in ran.err


def test_a_world_that_the_fabric_cannot_hold_is_refused(foretrace, tables, tmp_path):
    pair = Fabric("pair", (Curve("all_to_all", 2, 1, 10.0, 100.0, 1.0, ((1024.0, 1.0),), 0.02),), "made up")
    pair.write(tmp_path / "pair.json")
    assert foretrace("shard", tables, "--world", 2, "--fabric", tmp_path / "pair.json", "--json").code == 0
    ran = foretrace("shard", tables, "--world", 8, "--fabric", tmp_path / "pair.json")
    assert ran.code == 2
    assert "pair was not measured between nodes, and 8 ranks are on 4" in ran.err


def test_a_file_that_is_no_list_and_no_step_is_refused(foretrace, tmp_path):
    path = tmp_path / "tables.txt"
    path.write_text("name,rows,dim\nusers,1000,64\n")
    ran = foretrace("shard", path, "--world", 2)
    assert ran.code == 2 and "Lists of tables end in .csv" in ran.err and ran.err.count("\n") == 1


def test_a_wrong_line_is_named(foretrace, tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim\na,100,64\nb,0,64\n")
    ran = foretrace("shard", path, "--world", 2)
    assert ran.code == 2
    assert "line 3: table b has 0 rows" in ran.err


def test_names_cannot_steer_the_terminal(foretrace, tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim\n\x1b[31mred,100,64\n[bold]b[/],100,64\n")
    ran = foretrace("shard", path, "--world", 2)
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out and "[bold]b[/]" in ran.out
