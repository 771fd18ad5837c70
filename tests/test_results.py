"""The page of results, and the benchmarks behind it."""

import json
from pathlib import Path

import pytest

from benchmarks.lib import results
from benchmarks.lib.table import keep

BENCHMARKS = sorted(results.RESULTS.glob("*.json"))


def test_the_page_is_what_the_benchmarks_kept():
    assert results.PAGE.read_text() == results.page(), "write it anew: python -m benchmarks.lib.results"


@pytest.mark.parametrize("kept", BENCHMARKS, ids=lambda path: path.stem)
def test_every_result_has_a_benchmark_that_states_its_claim(kept: Path):
    assert json.loads(kept.read_text())["benchmark"] == kept.stem
    assert results.claim(kept.stem).startswith("Claim: ")


def test_a_result_is_kept_with_its_machine_and_becomes_a_table(tmp_path: Path):
    keep("start_up", [{"what": "a | b", "seconds": 0.123456, "holds": True, "details": {"more": 1}}], tmp_path)
    section = results.section(json.loads((tmp_path / "start_up.json").read_text()))
    assert "| what | seconds | holds |" in section
    assert "| a \\| b | 0.1235 | yes |" in section
    assert "cores, Python 3." in section


def test_a_table_of_truth_from_elsewhere_names_the_machine_it_was_measured_on():
    assert "H200" in results.measured_on("replay") and results.measured_on("start_up") == ""
