"""Suites that stand for a fleet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lib.suite_methods import METHODS
from foretrace.errors import ForetraceError
from foretrace.fleet.adding import add_recordings
from foretrace.fleet.mix import FAMILY, mix_of
from foretrace.fleet.record import KernelGroup, NamedMs, StepRecord
from foretrace.fleet.selection import choose, exchange, largest_error, weights_of
from foretrace.fleet.store import Store, to_table
from foretrace.fleet.suite import find_drift, make_suite, parse_budget
from foretrace.replay import Choices

FAMILIES = ("matrix product", "convolution", "attention", "lookup", "norm")
RECORDING = Path(__file__).parents[1] / "data/h200/dlrm_default_b512"


def made(number: int, shares: np.ndarray, hours: float) -> StepRecord:
    """A recording whose device time has these shares."""
    groups = [
        KernelGroup("forward", family, f"aten::{family}", "float32", "", float(10 * share), 5, 1.0, 1.0, 1.0)
        for family, share in zip(FAMILIES, shares)
    ]
    return StepRecord(
        id=f"{number:04d}", name=f"job{number}", step_ms=12.0, active_ms=10.0, idle_ms=2.0, kernel_ms=10.0,
        kernels=groups, idle=[NamedMs("T1", 2.0)], gpu_hours=hours, memory_bytes=10**10,
    )  # fmt: skip


def varied(count: int, seed: int = 0, tilt: float = 0.0) -> list[StepRecord]:
    draw = np.random.default_rng(seed)
    shares = draw.dirichlet(np.array([1.0 + tilt, 1.0, 1.0, 1.0, 0.5]), count)
    return [
        made(number, one, float(hours)) for number, (one, hours) in enumerate(zip(shares, draw.pareto(1.5, count) + 1))
    ]


def test_a_suite_has_the_mix_of_the_fleet():
    mix = mix_of(to_table(varied(60)))
    chosen, weights = choose(mix, 6)
    assert len(chosen) == 6 and (weights >= 0).all()
    assert mix.off_by_family(mix.target, weights @ mix.per_hour[chosen]) < 0.01
    assert largest_error(mix, chosen, weights) < 0.02


def test_it_is_closer_than_what_the_literature_does_and_than_one_number():
    mix = mix_of(to_table(varied(60, seed=3)))

    def off(name):
        chosen, weights = METHODS[name](mix, 5)
        return mix.off_by_family(mix.target, weights @ mix.per_hour[chosen])

    ours = off("exchange")
    assert all(ours < off(name) for name in METHODS if name not in ("exchange", "integer program"))


def test_the_same_fleet_has_the_same_suite():
    mix = mix_of(to_table(varied(50)))
    assert choose(mix, 5)[0] == choose(mix, 5)[0]


def test_no_more_members_than_recordings():
    mix = mix_of(to_table(varied(3)))
    assert choose(mix, 8)[0] == [0, 1, 2]


def test_a_fleet_that_moves_needs_few_exchanges():
    before = mix_of(to_table(varied(80, seed=1)))
    chosen, _ = choose(before, 8)
    moved = varied(80, seed=1)
    heavy = next(one for one in moved if one.kernels[3].ms > 6)
    heavy.gpu_hours = sum(one.hours for one in moved) / 2
    after = mix_of(to_table(moved))
    new = exchange(after, chosen, 0.03, 4)
    assert len(set(new) - set(chosen)) <= 4
    assert largest_error(after, new, weights_of(after, new)) < 0.03


def test_a_suite_is_written_as_benchmarks_and_explained(tmp_path):
    store = Store.open(tmp_path / "fleet", create=True)
    add_recordings(store, [str(RECORDING)], {"gpu_hours": "7"}, workers=1)
    suite = make_suite(store, tmp_path / "suite", size=1)
    (member,) = suite.members
    assert (tmp_path / "suite" / member.folder / "run.py").is_file()
    assert member.hours == pytest.approx(7.0) and suite.off < 1e-6
    assert "stands for 7 h, 7 of them its own" in member.why
    written = json.loads((tmp_path / "suite" / "suite.json").read_text())
    assert written["suite"] == [{"what": member.folder, "weight": pytest.approx(7.0)}]
    assert not find_drift(store, tmp_path / "suite").moved


def test_an_obfuscated_suite_has_no_names(tmp_path):
    store = Store.open(tmp_path / "fleet", create=True)
    add_recordings(store, [str(RECORDING)], workers=1)
    make_suite(store, tmp_path / "suite", size=1, choices=Choices(obfuscate=True))
    for path in (tmp_path / "suite").rglob("*"):
        assert "dlrm" not in path.name and "fleet" not in path.name
        if path.is_file() and "harness" not in path.parts:
            text = path.read_text(errors="replace")
            assert "dlrm" not in text.lower() and str(tmp_path) not in text, path


def test_an_original_that_is_gone_says_so(tmp_path, traces):
    store = Store.open(tmp_path / "fleet", create=True)
    folder = traces(one=20.0)
    add_recordings(store, [str(folder)], workers=1)
    (folder / "one" / "trace.json").unlink()
    (folder / "one").rmdir()
    with pytest.raises(ForetraceError, match=r"is not at .*--copy"):
        make_suite(store, tmp_path / "suite", size=1)
    assert not (tmp_path / "suite").exists()


def test_drift_names_what_to_exchange(tmp_path):
    store = Store.open(tmp_path / "fleet", create=True)
    store.add(varied(40, seed=5))
    store.merge()
    suite = make_suite(store, None, size=5)
    file = tmp_path / "suite.json"
    file.write_text(json.dumps({"suite": [], **suite.to_dict()}))
    assert not find_drift(store, file).moved
    newcomers = [made(100 + number, np.array([0.0, 0.0, 0.1, 0.9, 0.0]), 200.0) for number in range(3)]
    store.add(newcomers)
    drift = find_drift(store, file)
    assert drift.moved and drift.after < drift.largest and len(drift.enter) == len(drift.leave) <= 4
    with pytest.raises(ForetraceError, match="is no suite of a fleet"):
        find_drift(store, Path(__file__))


def test_figures_of_a_mix_are_hours():
    mix = mix_of(to_table(varied(10)))
    families = mix.target[mix.places(FAMILY)]
    assert families.sum() == pytest.approx(mix.hours.sum() * 10 / 12)


@pytest.mark.parametrize("text", ["soon", "0 min", "10", ""])
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(ForetraceError, match="is no budget"):
        parse_budget(text)


def test_a_budget_decides_how_many_members_there_are(tmp_path):
    store = Store.open(tmp_path / "fleet", create=True)
    store.add(varied(40, seed=5))
    few, more = (make_suite(store, None, budget_s=seconds) for seconds in (60.0, 600.0))
    assert few.seconds <= 60 and len(few.members) == 2 < len(more.members)
    with pytest.raises(ForetraceError, match="no member runs within this budget"):
        make_suite(store, None, budget_s=1.0)
