"""`foretrace fleet` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fleet.test_flight_recorder import call, dumps
from tests.fleet.test_stragglers import log

RECORDING = Path(__file__).parents[1] / "data/h200/dlrm_default_b512"


@pytest.fixture
def store(tmp_path, foretrace):
    path = tmp_path / "mine"
    assert foretrace("fleet", "add", path, RECORDING, "--label", "gpu_hours=40", "--workers", 1).code == 0
    return path


def test_a_fleet_is_added_once(foretrace, store):
    again = json.loads(foretrace("fleet", "add", store, RECORDING, "--json").out)
    assert (again["added"], again["there"], again["broken"]) == (0, 1, [])


def test_show_prints_tables_json_and_a_page(foretrace, store, tmp_path):
    shown = foretrace("fleet", "show", store, "--html", tmp_path / "fleet.html")
    assert "GPU hours" in shown.out and "By kernel family" in shown.out
    assert json.loads(foretrace("fleet", "show", store, "--json").out)["recordings"] == 1
    assert '"kind":"hours"' in (tmp_path / "fleet.html").read_text()
    assert "# by_family" in foretrace("fleet", "show", store, "--csv").out


def test_many_hours_are_written_out_on_the_page(foretrace, store, tmp_path):
    foretrace("fleet", "add", store, RECORDING, "--label", "gpu_hours=39136", "--relabel")
    foretrace("fleet", "show", store, "--html", tmp_path / "fleet.html")
    assert '<td class="n">39,136</td>' in (tmp_path / "fleet.html").read_text()


def test_a_suite_is_chosen_written_and_held_against_the_fleet(foretrace, store, tmp_path):
    out = tmp_path / "suite"
    made = json.loads(foretrace("fleet", "suite", store, "--out", out, "--size", 1, "--json").out)
    assert made["off"] == 0 and len(made["members"]) == len(list(out.glob("*/run.py"))) == 1
    assert "still represents the fleet" in foretrace("fleet", "drift", store, out).out
    assert "is there already" in foretrace("fleet", "suite", store, "--out", out, "--size", 1).err


def test_what_would_save_hours_is_ranked(foretrace, store):
    found = json.loads(foretrace("fleet", "whatif", store, "--on", "b200", "--price", 2, "--weeks", 4, "--json").out)
    saved = [row["hours"] for row in found["savings"]]
    assert found["hours"] == 10 and saved == sorted(saved, reverse=True)
    assert all(row["dollars"] == pytest.approx(2 * row["hours"], abs=1e-3) for row in found["savings"])
    assert "hosts take 2 times as long" in foretrace("fleet", "whatif", store, "--slow-host", 2, "--csv").out


def test_stragglers_are_shown_with_a_heat_map(foretrace, tmp_path):
    shown = foretrace("fleet", "stragglers", log(tmp_path / "spans.csv", {(1, 0): 3.0}), "--html", tmp_path / "s.html")
    assert "rank 1 (stage 0, data 1)" in shown.out and '"kind":"heat"' in (tmp_path / "s.html").read_text()


def test_a_hang_is_explained(foretrace, tmp_path):
    waits = [call(2, "scheduled")]
    folder = dumps(tmp_path / "d", {0: waits, 1: waits, 2: [call(1)], 3: waits})
    shown = foretrace("fleet", "hang", folder)
    assert "never called all_reduce number 2" in shown.out
    assert json.loads(foretrace("fleet", "hang", folder, "--json").out)["culprits"][0]["rank"] == 2


def test_bad_input_is_one_line(foretrace, store, tmp_path):
    bad = tmp_path / "labels.csv"
    bad.write_text("recording,gpu_hours\nx,0\n")
    for arguments, why in (
        (("add", store, RECORDING, "--labels", bad), "gpu_hours can't be '0'"),
        (("add", store, RECORDING, "--label", "team"), "is no label"),
        (("add", store, tmp_path / "none"), "does not exist"),
        (("show", tmp_path / "none"), "there is no store"),
        (("show", store, "--where", "tema=x"), "there is no label"),
        (("suite", store, "--out", tmp_path / "s", "--budget", "soon"), "is no budget"),
        (("suite", store, "--out", tmp_path / "s", "--size", 2, "--budget", "9 s"), "leave out --size"),
        (("drift", store, tmp_path / "none"), "does not exist"),
        (("hang", tmp_path / "none"), "does not exist"),
        (("whatif", store, "--weeks", "nan"), "--weeks: nan is no number"),
    ):
        done = foretrace("fleet", *arguments)
        assert done.code == 2 and why in done.err and done.err.count("\n") == 1, done.err
