"""Jobs of several ranks, on their own machine and on a platform."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import PairWait, StepReport
from foretrace.analysis.report_fields import predicted_fields
from foretrace.api import predict
from foretrace.cost_models.kernels.roofline import MEASURED, MODEL
from foretrace.formats.load import load_traces
from foretrace.graph import Collective, ForetraceError, Graph, Job, KernelTable, Op, OpTable, Span, Tensor
from foretrace.graph.graph import MISSING_DEVICES
from foretrace.graph.tables import COLLECTIVE
from foretrace.platform import Platform
from foretrace.platform.fabric import Curve, Fabric
from foretrace.prediction.fabric_choice import fabric_of
from foretrace.prediction.overrides import RankOverrides
from foretrace.prediction.predict import predict_on_own_machine, predict_on_platform
from foretrace.prediction.scaling import at_world
from foretrace.report.step import step_facts
from tests.analysis.builders import Call, Orphan, all_reduce, doing, job, launch, rank, sync, wait_event
from tests.narrowing import present

TAKES = 30.0
"""Microseconds of a collective on the fabric below, whatever its size."""


@pytest.fixture
def fabric() -> Fabric:
    curves = tuple(
        Curve(kind, ranks, 1, TAKES, 1e6, 1.0, ((64.0, 1.0),), 0.05)
        for kind in ("all_reduce", "send") for ranks in (2, 4, 8)
    )  # fmt: skip
    return Fabric("by hand", curves, "made up")


def one_rank(host: float, number: int = 0, transfer: float = 50.0, wait: float = 0.0) -> Graph:
    """A slow or a fast host, a kernel, an all_reduce that waited and transferred, a kernel that needs its result."""
    begins = host + 5.0
    ends = begins + 20.0 + wait + transfer
    return rank(
        Call("aten::mm", 0, host), launch(host - 5, host, (begins, begins + 20)),
        Call("c10d::allreduce_", host, host + 10), wait_event(host + 2),
        all_reduce(host + 4, host + 8, (begins + 20, ends)),
        wait_event(host + 12), Call("aten::add", host + 15, host + 25),
        launch(host + 18, host + 22, (ends + 1, ends + 11)),
        number=number, world=2,
    )  # fmt: skip


def two_ranks() -> Job:
    return job(one_rank(100.0, wait=300.0), one_rank(400.0, number=1))


def test_transfers_come_from_the_fabric_and_waits_from_the_simulation(fabric: Fabric) -> None:
    forecast = predict_on_own_machine(two_ranks(), fabric)
    # The late rank: 400 of host, 5 of latency, 20 of kernel; then the transfer, a gap of 1 and the last kernel.
    assert forecast.step_ms == pytest.approx((400 + 5 + 20 + TAKES + 1 + 10) / 1e3, rel=1e-3)
    assert forecast.by_rank("wait_ms") == {0: pytest.approx(0.3), 1: 0.0}
    assert forecast.waits_for[0] == PairWait(rank=0, waits_for=1, ms=pytest.approx(0.3), count=1)
    assert forecast.stragglers[0].rank == 1
    assert forecast.critical_path_ranks[1] > forecast.step_ms * 0.8


def test_a_collective_of_unknown_size_takes_as_long_as_it_was_measured_to(fabric: Fabric) -> None:
    measured = two_ranks()
    for graph in measured.graphs:
        (one,) = graph.collectives
        one.nbytes, one.us = 0, float(graph.kernels.end[one.kernel] - graph.kernels.start[one.kernel])
    forecast = predict_on_own_machine(measured, fabric)
    # The early rank's kernel ran for 350 us, the late rank's, which waited for none, for 50.
    assert forecast.step_ms == pytest.approx((400 + 5 + 20 + 50 + 1 + 10) / 1e3, rel=1e-3)
    assert "the size of 1 of 1 collectives is unknown: they take as measured" in forecast.notes
    assert forecast.coverage["measured"] == 1.0
    assert all((sources == MEASURED).all() for sources in present(forecast.workings).sources)


def test_transfers_that_the_fabric_prices_are_not_measured(fabric: Fabric) -> None:
    forecast = predict_on_own_machine(two_ranks(), fabric)
    assert 0.0 < forecast.coverage["measured"] < 1.0
    assert forecast.coverage["measured"] + forecast.coverage["model"] == pytest.approx(1.0)
    h200 = replace(Platform.named("h200"), fabric=fabric)
    for report in (forecast, predict_on_platform(two_ranks(), h200, "measured")):
        graph, sources = present(report.workings).graphs[0], present(report.workings).sources[0]
        assert (sources == np.where(graph.kernels.kind == COLLECTIVE, MODEL, MEASURED)).all()


def test_communication_of_one_rank_on_its_own_machine_is_part_of_what_was_measured() -> None:
    forecast = predict_on_own_machine(Job([one_rank(100.0)]))
    assert forecast.coverage["measured"] == 1.0
    assert (present(forecast.workings).sources[0] == MEASURED).all()


def test_a_job_that_was_measured_is_never_refused_as_one_that_hangs() -> None:
    one, other = one_rank(100.0, wait=300.0), one_rank(400.0, number=1)
    other.collectives[0].kind = "all_gather"
    square = Tensor((64, 64), "float32", "cuda:0")
    for graph in (one, other):
        graph.ops.detail = [replace(op, args=(square, square)) for op in graph.ops].__getitem__
    forecast = predict_on_platform(job(one, other), replace(Platform.named("h100"), fabric=Fabric.named("h100-8x")))
    assert forecast.by_rank("wait_ms") == {0: 0.0, 1: 0.0}
    assert any("1 on rank 0, 1 on rank 1 collectives" in note for note in forecast.notes)


def test_a_measured_job_is_simulated_to_what_was_measured_where_its_fabric_fits(fabric: Fabric) -> None:
    measured = job(one_rank(100.0, wait=300.0, transfer=TAKES), one_rank(400.0, number=1, transfer=TAKES))
    seen, forecast = measure_step(measured), predict_on_own_machine(measured, fabric)
    assert forecast.device_span_ms == pytest.approx(seen.device_span_ms, rel=1e-3)
    assert forecast.by_rank("wait_ms")[0] == pytest.approx(seen.by_rank("wait_ms")[0], rel=1e-3)


def test_in_another_world_no_rank_is_given_the_host_of_another() -> None:
    with pytest.raises(ForetraceError, match="host of the first one"):
        predict(two_ranks(), world=4, host_of={1: 0})


def test_ranks_begin_and_end_within_the_step_and_shares_are_of_all_of_it(fabric: Fabric) -> None:
    forecast = predict_on_own_machine(two_ranks(), fabric)
    assert min(row.start_ms for row in forecast.ranks) == 0.0
    assert max(row.start_ms + row.step_ms for row in forecast.ranks) == pytest.approx(forecast.step_ms)
    assert [row.share * forecast.step_ms for row in forecast.look_at] == pytest.approx(
        [row.ms for row in forecast.look_at]
    )


def test_a_rank_with_the_host_of_another_is_as_fast_as_that_one(fabric: Fabric) -> None:
    forecast = predict_on_own_machine(two_ranks(), fabric, overrides=RankOverrides(host_of={1: 0}))
    assert forecast.step_ms == pytest.approx((100 + 5 + 20 + TAKES + 1 + 10) / 1e3, rel=1e-3)
    said = " ".join(forecast.notes)
    assert "assumed, not measured" in said and "call by call" in said and "without these assumptions" in said


def test_a_slower_host_holds_all_ranks_up(fabric: Fabric) -> None:
    slower = predict_on_own_machine(two_ranks(), fabric, overrides=RankOverrides(slow_host={1: 1.5}))
    assert slower.step_ms == pytest.approx(predict_on_own_machine(two_ranks(), fabric).step_ms + 0.5 * 0.4, rel=1e-3)
    assert slower.by_rank("wait_ms")[0] == pytest.approx(0.3 + 0.5 * 0.4, rel=1e-2)


def test_what_is_supposed_of_a_rank_that_is_not_there_is_refused(fabric: Fabric) -> None:
    for wrong in (RankOverrides(slow_host={2: 1.5}), RankOverrides(host_of={0: 9})):
        with pytest.raises(ForetraceError, match="there is no rank"):
            predict_on_own_machine(two_ranks(), fabric, overrides=wrong)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_factors_that_make_no_sense_are_refused_before_there_is_a_job(wrong: float) -> None:
    with pytest.raises(ForetraceError, match="host of rank 1"):
        RankOverrides(slow_host={1: wrong})
    with pytest.raises(ForetraceError, match="link of rank 1"):
        RankOverrides(slow_link={1: wrong})
    with pytest.raises(ForetraceError, match="5 times its speed"):
        RankOverrides(slow_link={0: 5.0})


def test_device_time_that_nothing_explains_is_kept_and_told(fabric: Fabric) -> None:
    stalled = one_rank(400.0, number=1)
    stalled.kernels.start[-1] += 500.0
    stalled.kernels.end[-1] += 500.0
    forecast = predict_on_own_machine(job(one_rank(100.0, wait=300.0), stalled), fabric)
    assert forecast.step_ms == pytest.approx((466 + 500) / 1e3, rel=1e-2)
    assert any("rank 1 for 0.5 ms (52 % of the step)" in note for note in forecast.notes)


def test_ranks_whose_devices_are_not_recorded_are_no_devices_that_do_nothing(fabric: Fabric) -> None:
    whole, lacking = two_ranks(), two_ranks()
    lacking.graphs[1] = replace(lacking.graphs[1], kernels=KernelTable.empty(), collectives=[])
    both, one = (predict_on_own_machine(these, fabric) for these in (whole, lacking))
    assert one.kernels == both.kernels == 3
    assert one.device_active_ms == one.ranks[0].device_active_ms
    assert one.by_rank("wait_ms")[1] is None
    assert any(note.startswith(MISSING_DEVICES) and "rank 1 has" in note for note in one.cautions)
    fields = predicted_fields(one)["ranks"]
    assert [fields[number]["device_active_ms"] is None for number in (0, 1)] == [False, True]


def test_what_ran_before_the_trace_began_starts_when_it_did(fabric: Fabric) -> None:
    early = rank(Orphan(0.0, 250.0), *_calls(one_rank(100.0)), number=0, world=2)
    forecast = predict_on_own_machine(job(early, one_rank(100.0, number=1)), fabric)
    assert forecast.device_span_ms == pytest.approx((250 + 20 + TAKES + 11) / 1e3, rel=0.05)


@pytest.mark.parametrize("before", [0, 2])
def test_a_forecast_tells_kernels_of_its_step_from_those_that_were_launched_before_it(before: int) -> None:
    earlier = [Orphan(100.0 * number, 100.0 * number + 100.0) for number in range(before)]
    ready = 100.0 * before + 30.0
    calls: list[Any] = [Call("aten::mm", 0, 20), launch(5, 10, (ready, ready + 50)), Call("aten::mm", 20, 400)]
    calls.append(sync(30, 390))
    forecast = predict_on_own_machine(Job([rank(*earlier, *calls, steps=[Span("ProfilerStep#3", 0.0, 400.0)])]))
    assert forecast.kernels == 1
    assert forecast.ranks[0].launched_before_ms == pytest.approx(0.1 * before)
    assert forecast.to_dict()["ranks"][0]["launched_before_ms"] == pytest.approx(0.1 * before)
    about = {name: text for name, _, text in step_facts(forecast)}
    assert ("launched before" in about["step"]) == ("launched before the step" in about["device"]) == bool(before)


def test_what_the_step_before_left_on_the_device_is_in_no_table_of_a_forecast() -> None:
    calls: list[Any] = [Call("aten::mm", 0, 20), launch(5, 10, (230, 280)), Call("aten::mm", 20, 400)]
    steps = [Span("ProfilerStep#2", -100.0, 0.0), Span("ProfilerStep#3", 0.0, 400.0)]
    several = Job([rank(Orphan(0.0, 100.0), Orphan(100.0, 200.0), *calls, steps=steps)])
    forecast, shown = predict_on_own_machine(several, step="ProfilerStep#3"), measure_step(several, "ProfilerStep#3")
    assert [(row.count, row.device_ms) for row in forecast.by_family] == [(1, pytest.approx(0.05))]
    assert [row.name for row in forecast.by_op] == [row.name for row in shown.by_op]
    assert forecast.kernel_ms == pytest.approx(shown.kernel_ms) and forecast.device_active_ms == pytest.approx(0.25)


def test_a_step_without_its_gaps_takes_no_less_than_many_such_steps_in_a_row() -> None:
    calls: list[Any] = [launch(900, 905, (910, 1400)), Call("aten::mm", 1600, 1700), launch(1610, 1620, (1630, 1700))]
    calls += [sync(1700, 1705), Call("aten::mm", 1750, 2000), launch(1990, 1995, (2000, 2100))]
    steps = [Span(f"ProfilerStep#{number}", 1000.0 * number, 1000.0 * number + 1000.0) for number in range(3)]
    loading = ("DataLoader.__next__", 1000.0, 1600.0)  # meanwhile the device ends what the step before gave it
    graph = doing(rank(*calls, launch(2600, 2605, (2610, 2650)), steps=steps), loading)
    kept, dropped = (predict_on_own_machine(Job([graph]), step="ProfilerStep#1", drop_gaps=d) for d in (False, True))
    assert kept.step_ms == pytest.approx(1.0)
    assert dropped.step_ms == pytest.approx(0.4 + 0.07, rel=0.05), "the host's own time, and its wait for the device"


def test_kernels_without_any_launch_in_a_trace_are_those_of_the_step() -> None:
    forecast = predict_on_own_machine(Job([rank(Call("aten::mm", 0, 400), Orphan(50.0, 150.0), Orphan(150.0, 250.0))]))
    assert forecast.kernels == 2 and forecast.ranks[0].launched_before_ms == 0.0


def test_kernels_on_a_stream_without_any_launch_are_those_of_the_step() -> None:
    graph = rank(Call("aten::mm", 0, 400), launch(5, 10, (30, 50), stream=8), Orphan(50.0, 150.0), Orphan(150.0, 250.0))
    forecast = predict_on_own_machine(Job([graph]))
    assert forecast.kernels == 3 and forecast.ranks[0].launched_before_ms == 0.0


def _calls(graph: Graph) -> list[Any]:
    """The same rank's calls on a device that is busy until 250."""
    return [Call("aten::mm", 0, 100), launch(95, 100, (250, 270)), Call("c10d::allreduce_", 100, 110), wait_event(102),
            all_reduce(104, 108, (270, 320)), wait_event(112), launch(118, 122, (321, 331))]  # fmt: skip


def test_traces_that_began_later_than_others_are_simulated_from_what_all_saw(fabric: Fabric) -> None:
    longer = rank(Call("c10d::allreduce_", -90, -80), all_reduce(-88, -82, (-80, -60)), *_late(), number=0, world=2)
    forecast = predict_on_own_machine(job(longer, rank(*_late(), number=1, world=2)), fabric)
    assert any("2 on rank 0, 1 on rank 1" in note for note in forecast.notes)


def test_collectives_of_which_nobody_knows_the_kind_stay_as_they_were(fabric: Fabric) -> None:
    graphs = [one_rank(100.0, number=number) for number in range(2)]
    for graph in graphs:
        graph.collectives[0].kind = ""
    forecast = predict_on_own_machine(Job(graphs), fabric)
    assert forecast.step_ms == pytest.approx((100 + 5 + 20 + 50 + 1 + 10) / 1e3, rel=1e-3)
    assert any("2 collectives of unknown kind" in note for note in forecast.notes)


def test_nobody_waits_for_collectives_that_no_device_shows(fabric: Fabric) -> None:
    seen, unseen = one_rank(100.0), one_rank(400.0, number=1)
    unseen.collectives[0] = replace(unseen.collectives[0], kernel=-1, group="another")
    forecast = predict_on_own_machine(Job([seen, unseen]), fabric)
    assert any("the device of rank 1 shows no kernel of some collectives" in note for note in forecast.notes)
    assert forecast.by_rank("wait_ms")[0] == 0.0


def test_one_rank_alone_rests_on_no_fabric() -> None:
    alone = one_rank(100.0)
    alone.world, alone.collectives[0].ranks = 1, (0,)
    assert not any("fabric none" in note for note in predict_on_own_machine(Job([alone])).notes)


@pytest.mark.parametrize(
    "supposed", [{"slow_host": {0: 1e300}}, {"slow_host": {0: 0.0}}, {"slow_link": {0: 1e-300}}, {"host_of": {1: 1}}]
)
def test_nonsense_is_not_supposed_of_a_rank(supposed: dict[str, Any]) -> None:
    with pytest.raises(ForetraceError, match=r"can't|already"):
        RankOverrides(**supposed)


def _late() -> list[Any]:
    return [Call("c10d::allreduce_", 0, 10), all_reduce(2, 8, (10, 40))]


def test_a_sync_of_the_host_ends_with_the_simulated_collective(fabric: Fabric) -> None:
    def synced(number: int) -> Graph:
        return rank(
            Call("c10d::allreduce_", 0, 10), all_reduce(2, 8, (12, 112)), wait_event(11), sync(20, 115),
            Call("aten::mm", 120, 140), launch(125, 130, (135, 145)), number=number, world=2,
        )  # fmt: skip

    forecast = predict_on_own_machine(job(synced(0), synced(1)), fabric)
    # The collective takes 30 instead of 100 us: everything after the sync comes 70 us sooner.
    assert forecast.step_ms == pytest.approx((145 - 70) / 1e3, rel=0.02)


def asked(us: int, ranks: tuple[int, ...], number: int, **more: Any) -> Graph:
    """A sketch: so many products, an all_reduce, a product that waits for it."""
    ops = [*[Op("aten::mm")] * us, Op("c10d::allreduce_"), Op("aten::mm")]
    reduce = Collective("all_reduce", "0", 1024, -1, us, ranks)
    return Graph(OpTable.of(ops), rank=number, world=len(ranks), collectives=[reduce], **more)


def on_platform(platform: Any, fabric: Fabric, *graphs: Graph, **more: Any) -> StepReport:
    platform.fabric = fabric
    return predict_on_platform(Job(list(graphs), **more), platform)


def test_all_ranks_are_predicted_on_a_platform(platform: Any, fabric: Fabric) -> None:
    forecast = on_platform(platform, fabric, asked(2, (0, 1), 0), asked(10, (0, 1), 1))
    assert [row.rank for row in forecast.ranks] == [0, 1]
    assert forecast.by_rank("wait_ms")[1] == 0.0 and forecast.by_rank("wait_ms")[0] > 0.05
    assert forecast.low_ms <= forecast.step_ms <= forecast.high_ms
    assert forecast.step_ms_back_to_back is not None and forecast.step_ms_back_to_back <= forecast.step_ms
    assert sum(part.ms for part in forecast.critical_path) == pytest.approx(forecast.step_ms)


def test_on_its_own_machine_it_is_told_what_the_range_is_of(fabric: Fabric) -> None:
    forecast = predict_on_own_machine(two_ranks(), fabric)
    assert forecast.low_ms < forecast.step_ms < forecast.high_ms, "the transfer is on the path"
    assert any("range: the host varies by" in note for note in forecast.notes)


def test_ranks_alike_are_simulated_once_and_say_so(platform: Any, fabric: Fabric) -> None:
    alone = on_platform(platform, fabric, asked(4, (0, 1, 2, 3), 0), alike={1: 0, 2: 0, 3: 0})
    each = on_platform(platform, fabric, *(asked(4, (0, 1, 2, 3), number) for number in range(4)))
    assert alone.step_ms == pytest.approx(each.step_ms)
    assert [row.stands_for for row in alone.ranks] == [4]


def test_one_slow_rank_of_many_alike_gets_a_program_of_its_own(platform: Any, fabric: Fabric) -> None:
    platform.fabric = fabric
    alike = Job([asked(4, (0, 1, 2, 3), 0)], alike={1: 0, 2: 0, 3: 0})
    usual, slow = (predict_on_platform(alike, platform, overrides=RankOverrides(slow)) for slow in ({}, {3: 2.0}))
    assert [(row.rank, row.stands_for) for row in slow.ranks] == [(0, 3), (3, 1)]
    assert slow.by_rank("wait_ms")[0] > 0 and slow.by_rank("wait_ms")[3] == 0.0
    assert slow.step_ms_back_to_back is not None and usual.step_ms_back_to_back is not None
    assert slow.step_ms_back_to_back > 1.4 * usual.step_ms_back_to_back, "it is slow in every step"


def test_a_platform_without_a_fabric_is_refused(platform: Any) -> None:
    with pytest.raises(ForetraceError, match="no fabric"):
        predict_on_platform(Job([asked(1, (0, 1), number) for number in (0, 1)]), platform)


def test_a_fabric_smaller_than_the_job_is_refused(platform: Any, fabric: Fabric) -> None:
    with pytest.raises(ForetraceError, match="not measured between nodes"):
        on_platform(platform, fabric, asked(1, tuple(range(64)), 0))


def test_groups_that_are_called_in_another_order_are_told(platform: Any, fabric: Fabric) -> None:
    def crossed(number: int, *names: str) -> Graph:
        data = [Tensor((8,), "float32", "cuda:0", id=n, storage=n) for n in range(2)]
        ops = [op for t in data for op in (Op("c10d::allreduce_", ([t],)), Op("aten::mm", (t, t)))]
        both = [Collective("all_reduce", name, 1024, -1, row, (0, 1)) for name, row in zip(names, (0, 2))]
        return Graph(OpTable.of(ops), rank=number, world=2, collectives=both)

    with pytest.raises(ForetraceError, match=r"rank 0 waits in all_reduce of group a .* rank 1 waits .* group b"):
        on_platform(platform, fabric, crossed(0, "a", "b"), crossed(1, "b", "a"))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=4))
def test_no_rank_ends_a_collective_before_the_slowest_has_arrived(hosts: list[int]) -> None:
    fabric = Fabric("by hand", (Curve("all_reduce", 4, 1, TAKES, 1e6, 1.0, ((64.0, 1.0),), 0.05),), "made up")
    slowest = max(hosts) * 100.0
    graphs = [one_rank(host * 100.0, wait=slowest - host * 100.0) for host in hosts]
    forecast = predict_on_own_machine(job(*graphs), fabric)
    assert forecast.workings is not None
    ends = [float(graph.kernels.end[graph.collectives[0].kernel]) for graph in forecast.workings.graphs]
    assert np.ptp(ends) < 1e-6 and ends[0] >= slowest + 25.0
    assert min(forecast.by_rank("wait_ms").values()) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("name", "ranks"), [("dlrm_8xV100", 8), ("megatron_tp2_2xV100", 2)])
def test_public_jobs_are_simulated_to_what_they_took(shared: Any, name: str, ranks: int) -> None:
    measured = load_traces(shared / "public" / name)
    seen = measure_step(measured)
    forecast = predict_on_own_machine(measured, fabric_of(measured.graphs[0].device, measured.world))
    assert forecast.device_span_ms == pytest.approx(seen.device_span_ms, rel=0.03)
    for row in forecast.ranks:
        span = seen.by_rank("device_span_ms")[row.rank]
        assert row.device_span_ms == pytest.approx(span, rel=0.03)
    assert len(forecast.ranks) == ranks


def test_a_step_is_cut_out_of_several(fabric: Fabric) -> None:
    graphs = [one_rank(100.0, number=number) for number in range(2)]
    for graph in graphs:
        graph.steps = [Span("ProfilerStep#1", -10.0, 150.0)]
    assert predict_on_own_machine(Job(graphs), fabric, step="ProfilerStep#1").step_ms > 0
    with pytest.raises(ForetraceError, match="no step"):
        predict_on_own_machine(Job(graphs), fabric, step="ProfilerStep#9")


def test_one_rank_of_a_job_and_the_job_agree(platform: Any) -> None:
    square = Tensor((2048, 2048), "bfloat16", "cuda:0", id=0, storage=0)
    other = replace(square, id=1, storage=1)
    ops = [
        Op("aten::mm", (square, square), outputs=(square,), phase="backward"),
        Op("c10d::allreduce_", ([square],), outputs=([square],), phase="backward"),
        Op("aten::mm", (other, other), outputs=(other,), phase="backward"),
    ]
    reduce = Collective("all_reduce", "0", 1 << 26, -1, 1, (0, 1))
    graph = Graph(OpTable.of(ops), world=2, collectives=[reduce])
    platform.fabric = Fabric.named("h100-8x")
    one, all_of_them = (
        predict_on_platform(Job([graph]), platform),
        predict_on_platform(at_world(Job([graph]), 2), platform),
    )
    assert one.step_ms == pytest.approx(all_of_them.step_ms)
    assert one.kernel_ms == pytest.approx(all_of_them.kernel_ms, rel=1e-3)
    assert one.step_ms_back_to_back == pytest.approx(all_of_them.step_ms_back_to_back)


def test_from_step_to_step_a_job_takes_no_longer_than_with_a_sync_in_between(shared: Path) -> None:
    done = predict(load_traces(shared / "public" / "wild" / "sglang_decode_8xB200"), on="h200")
    assert 0.9 * done.step_ms < present(done.step_ms_back_to_back) <= done.step_ms


def test_one_rank_alone_says_whether_its_waits_for_others_are_in_its_collectives() -> None:
    waits = all_reduce(10, 20, (20, 1_020), nbytes=4096, ranks=(0, 1))
    alone = rank(Call("c10d::allreduce_", 0, 30), waits, world=2)
    fabric = Fabric.named("v100-8x")
    own, elsewhere = predict_on_own_machine(Job([alone])), predict_on_own_machine(Job([alone]), fabric)
    assert own.step_ms > 1 > elsewhere.step_ms
    kept = predict_on_platform(alone, Platform.named("h200"), "measured")
    for report, included in [(own, True), (elsewhere, False), (kept, True)]:
        (note,) = [note for note in report.notes if "predicted alone" in note]
        assert note.endswith("its waits for other ranks included" if included else "is not included")
        assert (report.by_rank("wait_ms")[0] is None) == included
        assert any("waiting included" in said for name, _, said in step_facts(report) if name == "comm") == included
