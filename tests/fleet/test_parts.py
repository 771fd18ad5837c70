"""Parts of recordings as members of suites."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from foretrace.analysis.measure import measure_step
from foretrace.api import load
from foretrace.fleet.adding import add_recordings, reduce_recording
from foretrace.fleet.mix import FAMILY, Mix, mix_of
from foretrace.fleet.parts import PartTimes
from foretrace.fleet.record import PartRecord, StepRecord
from foretrace.fleet.response import SETTINGS
from foretrace.fleet.selection import Choice, choose, choose_with_parts, largest_error
from foretrace.fleet.store import Store, to_table
from foretrace.fleet.suite import find_drift, make_suite, part_selection
from foretrace.replay import Choices
from foretrace.replay.generate.choices import select
from foretrace.transforms.step import call_rows
from tests.cli.samples import step_of_two_ops
from tests.fleet.test_suite import RECORDING, made


@pytest.fixture(autouse=True)
def short_parts(monkeypatch) -> None:
    """The step at hand is shorter than what is worth a benchmark."""
    monkeypatch.setattr("foretrace.fleet.parts.SHORTEST_MS", 0.0)


@pytest.fixture
def record(monkeypatch) -> StepRecord:
    """The step with all its parts, those too that read indices of calls outside of them."""
    monkeypatch.setattr("foretrace.fleet.parts.BY_CONTENTS", ())
    return reduce_recording(str(RECORDING))


def phases(record: StepRecord) -> list[PartRecord]:
    return [part for part in record.parts if part.phase]


def test_the_phases_have_the_device_time_of_the_step(record):
    assert [part.name for part in phases(record)] == ["forward", "backward", "optimizer"]
    assert sum(sum(part.ms) for part in phases(record)) == pytest.approx(record.kernel_ms, rel=1e-3)
    for part in phases(record):
        assert {record.kernels[place].phase for place in part.groups} == {part.phase}


def test_ranges_have_a_quarter_of_the_device_time_each(record):
    ranges = [part for part in record.parts if part.first]
    assert len(ranges) == 4
    assert sum(sum(part.ms) for part in ranges) == pytest.approx(record.kernel_ms, rel=1e-3)
    assert all(0.15 < sum(part.ms) / record.kernel_ms < 0.35 for part in ranges)


def test_a_part_that_reads_indices_of_calls_outside_of_it_is_none():
    left = reduce_recording(str(RECORDING)).parts
    # The backward pass of the interaction puts gradients where the forward pass has looked for them.
    assert [part.name for part in left if part.phase] == ["forward", "optimizer"]


def test_parts_with_little_device_time_are_none(monkeypatch):
    monkeypatch.setattr("foretrace.fleet.parts.SHORTEST_MS", 0.5)
    assert reduce_recording(str(RECORDING)).parts == []


def test_a_part_takes_no_longer_than_the_step_and_no_less_than_its_kernels(record):
    for part in record.parts:
        assert part.active_ms <= part.step_ms <= record.step_ms * 1.001
        assert 0 < part.memory_bytes <= record.memory_bytes
        assert len(part.settings_ms) == len(SETTINGS)


def test_parts_are_the_calls_that_their_benchmark_takes():
    job = load(str(RECORDING))
    workings = measure_step(job).workings
    assert workings is not None
    step, graph = PartTimes(workings), job.graphs[0]
    rows = call_rows(graph)
    ops = [graph.ops[row] for row in rows]
    for part in step.cuts():
        taken = {rows[place] for place in select(ops, part_selection(part))}
        ours = set(step.rows[step.calls(part)].tolist())
        assert ours <= taken and all(graph.ops[row].is_side_call for row in taken - ours)


def test_a_part_does_not_wait_for_what_ran_before_it(tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps(step_of_two_ops("aten::mm", 5000.0)))
    workings = measure_step(load(tmp_path / "trace.json")).workings
    assert workings is not None
    step = PartTimes(workings)
    *_, last = step.cuts()
    whole, alone = step.ms(PartRecord("all"), {})[0], step.ms(last, {})[0]
    assert alone < 1.0 < 5.0 < whole


def halved(record: StepRecord, place: int) -> StepRecord:
    """The record with two parts: one kernel group, and the others."""
    groups = range(len(record.kernels))
    parts = [
        PartRecord(
            name, phase=name, step_ms=1.2 * sum(record.kernels[one].ms for one in inside),
            active_ms=sum(record.kernels[one].ms for one in inside), memory_bytes=record.memory_bytes,
            settings_ms=[1.2 * sum(record.kernels[one].ms for one in inside)] * len(SETTINGS),
            groups=list(inside), ms=[record.kernels[one].ms for one in inside],
        )
        for name, inside in (("forward", [place]), ("backward", [one for one in groups if one != place]))
    ]  # fmt: skip
    return replace(record, parts=parts)


def mixed() -> Mix:
    draw = np.random.default_rng(2)
    records = [made(number, draw.dirichlet(np.ones(5)), 1.0) for number in range(12)]
    return mix_of(to_table([halved(one, number % 5) for number, one in enumerate(records)]))


def test_parts_have_no_hours_and_bring_a_suite_closer():
    mix = mixed()
    assert mix.whole == 12 and len(mix.ids) == 36 and mix.hours[12:].sum() == 0
    assert mix.per_hour[12:, mix.places(FAMILY)].sum(axis=1) == pytest.approx(1 / 1.2)
    alone, together = choose(mix.without_parts(), 3), choose_with_parts(mix, 3)
    assert any(place >= 12 for place in together[0])
    assert largest_error(mix, *together) < largest_error(mix, *alone) / 2


def test_whole_recordings_are_taken_where_they_are_enough():
    records = [halved(made(number, np.full(5, 0.2), 1.0), 0) for number in range(4)]
    chosen, _ = choose_with_parts(mix_of(to_table(records)), 2)
    assert all(place < 4 for place in chosen)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_part_is_written_as_a_benchmark_of_its_own_and_found_again(tmp_path, monkeypatch, hidden):
    store = Store.open(tmp_path / "fleet", create=True)
    add_recordings(store, [str(RECORDING)], workers=1)

    def forward(mix: Mix, size: int) -> Choice:
        return [mix.parts.index("forward")], np.array([1.0])

    monkeypatch.setattr("foretrace.fleet.suite.choose_with_parts", forward)
    suite = make_suite(store, tmp_path / "suite", size=1, choices=Choices(obfuscate=hidden))
    (member,) = suite.members
    assert member.part == ("#0" if hidden else "forward") and member.why.startswith("stands for 1 h, 0 of them its own")
    calls = (tmp_path / "suite" / member.folder / "step.py").read_text()
    assert "def forward" in calls and "def backward" not in calls
    drift = find_drift(store, tmp_path / "suite")
    assert not drift.notes and drift.moved and drift.largest == suite.largest
