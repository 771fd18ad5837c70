"""What would save a fleet hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.api import load, predict
from foretrace.errors import ForetraceError
from foretrace.fleet.adding import add_recordings
from foretrace.fleet.record import KernelGroup, NamedMs, StepRecord
from foretrace.fleet.response import COMPONENTS
from foretrace.fleet.store import Store, to_table
from foretrace.fleet.whatif import FleetResponse, fleet_whatif, host_factors, kernel_ms_on
from foretrace.platform.registry import load_platform

RECORDING = Path(__file__).parents[1] / "data/h200/dlrm_default_b512"


def path(**ms: float) -> list[float]:
    row = [0.0] * len(COMPONENTS)
    for name, spent in ms.items():
        row[COMPONENTS.index(name.replace("_", " "))] = spent
    return row


def made(number: int, hours: float, *paths: list[float], **more) -> StepRecord:
    group = KernelGroup("forward", "matrix product", "aten::mm", "float32", "", 6.0, 6, 1.0, 1.0, least_ms=3.0)
    step = max(map(sum, paths))
    return StepRecord(
        id=str(number), name=str(number), step_ms=step, active_ms=6.0, kernel_ms=6.0, kernels=[group],
        response=list(paths), gpu_hours=hours, launches=10, **more,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "fleet", create=True)


def saved(store, kind, what, **options):
    found = fleet_whatif(store, **options)
    return next(row.hours for row in found.savings if row.kind == kind and row.what == what)


def test_a_faster_family_saves_hours_only_where_it_is_critical(store):
    bound_by_device, bound_by_host = [path(T1=2.0, matrix_product=6.0)], [path(T1=8.0), path(matrix_product=6.0)]
    store.add([made(1, 10.0, *bound_by_device), made(2, 100.0, *bound_by_host)])
    assert saved(store, "a tenth faster", "matrix product") == pytest.approx(10 * 0.6 / 8)
    assert saved(store, "host", "hosts twice as fast") == pytest.approx(10 * 1 / 8 + 100 * 2 / 8)


def test_steps_that_were_profiled_understate_what_faster_kernels_save(tmp_path, traces):
    store = Store.open(tmp_path / "profiled", create=True)
    add_recordings(store, [str(traces(one=20.0))], workers=1)
    assert any(
        note.startswith("1 of 1 recordings were only timed under a profiler") for note in fleet_whatif(store).notes
    )


def test_kernels_at_their_roofline_take_what_the_device_could(store):
    store.add([made(1, 10.0, path(T1=2.0, matrix_product=6.0))])
    assert saved(store, "at the roofline", "all kernels") == pytest.approx(10 * 3 / 8)
    assert saved(store, "at the roofline", "aten::mm") == pytest.approx(10 * 3 / 8)


def test_equal_ranks_end_stragglers(store):
    store.add([made(1, 10.0, path(communication=10.0), balanced_ms=7.0), made(2, 5.0, path(T1=1.0))])
    assert saved(store, "stragglers", "all ranks equally fast") == pytest.approx(3.0)
    assert saved(store, "communication", "all of it hidden") == pytest.approx(10.0)


def test_hosts_are_compared_op_by_op(store):
    def hosts(us):
        return [NamedMs("aten::mm", us * 10 / 1e3, 10), NamedMs("aten::add", us * 40 / 1e3, 20)]

    records = [made(number, 1.0, path(T1=4.0), host_ops=hosts(us)) for number, us in enumerate((5.0, 10.0, 20.0))]
    factors = host_factors(FleetResponse(to_table(records)))
    assert factors == pytest.approx([0.5, 1.0, 2.0])
    store.add(records)
    assert saved(store, "host", "hosts as fast as the fastest") > 0.9


def test_hours_are_of_a_week_and_cost_money(store):
    store.add([made(1, 10.0, path(T1=4.0), made="2026-10-01"), made(2, 10.0, path(T1=4.0), made="2026-10-16")])
    found = fleet_whatif(store, price=2.0)
    assert found.weeks == 3 and found.hours == pytest.approx(20 / 3)
    twice = next(row for row in found.savings if row.what == "hosts twice as fast")
    assert twice.hours == pytest.approx(10 / 3) and twice.dollars == pytest.approx(20 / 3)


@pytest.mark.parametrize("platform", ["a100", "b200"])
def test_kernels_on_another_device_are_close_to_a_prediction_of_the_original(store, platform):
    add_recordings(store, [str(RECORDING)], workers=1)
    fleet = FleetResponse(store.table())
    there = kernel_ms_on(fleet, load_platform(platform))
    assert float(there.sum()) == pytest.approx(predict(load(RECORDING), platform).kernel_ms, rel=0.12)


def test_a_change_of_what_is_not_critical_saves_nothing_at_all(tmp_path):
    fleet = Store.open(tmp_path / "one", create=True)
    add_recordings(fleet, [str(RECORDING)], workers=1)
    # Its host takes many times as long as its device.
    assert saved(fleet, "a tenth faster", "matrix product") == pytest.approx(0.0, abs=1e-12)


def test_an_empty_store_says_what_to_do(store):
    with pytest.raises(ForetraceError, match="holds no recording"):
        fleet_whatif(store)
