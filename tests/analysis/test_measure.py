"""From a job to an observation, by hand and on published traces."""

import json
from pathlib import Path

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import CollectiveRow, Unprofiled
from foretrace.formats.load import load_traces
from foretrace.graph import Collective, Graph, Job, Op, OpTable, Span, Timings
from foretrace.graph.tables import ANNOTATION
from foretrace.platform.fabric import Fabric
from foretrace.prediction.predict import predict_on_own_machine
from foretrace.report.step import step_facts
from tests.analysis.builders import Call, Orphan, all_reduce, job, launch, rank, sync, wait_event

FIELDS = {
    "source", "world", "missing", "step", "steps", "step_ms", "mark_ms", "device_active_ms", "device_idle_ms",
    "kernel_ms", "device_span_ms", "wait_ms", "transfer_ms", "collectives", "stragglers", "overlap", "critical_path_ms",
    "critical_path", "critical_path_ranks", "overheads", "ranks", "by_op", "by_family", "by_phase", "by_module",
    "queue_depth", "peak_memory_bytes", "attributed", "launched_before_ms", "notes", "plain", "slowdown", "bound",
    "idle", "idle_causes", "straggler_gain_ms", "iterations", "limiting",
}  # fmt: skip
"""Of `foretrace show --json`, as docs/show.md lists them."""


def pair() -> Job:
    """Two ranks: the second one's host is slow, and the first one waits for it."""
    ranks = [
        rank(
            Call("aten::mm", 0, 20, module="net"), launch(5, 10, (15, 115), name="sgemm"),
            wait_event(22 + late), all_reduce(25 + late, 30 + late, (120 + late, 2020), nbytes=4096),
            wait_event(32 + late), launch(35 + late, 40 + late, (2025, 2100)), sync(45 + late, 2105),
            steps=[Span("ProfilerStep#1", 0.0, 2110.0)],
        )
        for late in (0.0, 900.0)
    ]  # fmt: skip
    return job(*ranks)


def test_a_step_in_the_words_of_show() -> None:
    seen = measure_step(pair())
    assert (seen.source, seen.world, seen.missing, seen.step, seen.steps) == ("by hand", 2, [], "ProfilerStep#1", 1)
    assert seen.by_rank("step_ms") == {0: 2.11, 1: 2.11}
    assert seen.by_rank("wait_ms") == {0: 0.9, 1: 0.0}
    assert seen.transfer_ms == {"all_reduce": 1.0}
    assert seen.device_span_ms == pytest.approx(2.085)
    assert seen.by_rank("device_active_ms") == pytest.approx({0: 2.075, 1: 1.175})
    assert seen.by_rank("kernel_ms") == pytest.approx({0: 2.075, 1: 1.175})
    assert seen.collectives == [
        CollectiveRow(kind="all_reduce", nbytes=4096, count=1, transfer_ms=1.0, total_transfer_ms=1.0, wait_ms=0.9)
    ]
    assert seen.attributed == pytest.approx(0.2 / 3.25)
    assert [straggler.rank for straggler in seen.stragglers] == [1]


def test_the_critical_path_of_a_pair_goes_through_the_late_rank_and_the_transfer() -> None:
    seen = measure_step(pair())
    assert seen.critical_path_ms == pytest.approx(2.105)
    assert {part.rank for part in seen.critical_path if part.what == "transfer"} == {None}
    assert seen.critical_path_ranks[1] > 0.9


def test_overheads_are_a_mean_over_ranks_and_stand_for_each() -> None:
    seen = measure_step(pair())
    assert seen.overheads["T1"].ms == pytest.approx((0.015 + 0.915) / 2)
    assert seen.ranks[0].overheads["T1"].ms == pytest.approx(0.015)
    assert sum(part.share for part in seen.overheads.values()) == pytest.approx(1.0)


def test_an_observation_is_plain_json() -> None:
    words = json.loads(json.dumps(measure_step(pair()).to_dict(), allow_nan=False))
    assert words["wait_ms"] == {"0": 0.9, "1": 0.0}
    assert set(words) == FIELDS


def test_what_limits_a_job_is_what_limits_the_rank_that_waits_least() -> None:
    seen, there = measure_step(pair()), predict_on_own_machine(pair(), Fabric.named("h100-nvswitch"))
    for report in (seen, there):
        assert report.bound == "host" and report.limiting is not None and report.limiting.rank == 1
        assert "host-bound: device of rank 1 idle" in next(said for name, _, said in step_facts(report))
    assert seen.ranks[0].bound == "device", "it waits for the other one in its kernel"


def test_a_rank_whose_partners_left_no_trace_is_said_to_be_alone() -> None:
    alone = pair().graphs[0]
    seen = measure_step(Job([alone]))
    assert seen.missing == [1] and seen.by_rank("wait_ms") == {0: None}  # unknown, and not 0
    assert [row.wait_ms for row in seen.collectives] == [None]
    assert any("rank 0: no other member of its group has a trace" in note for note in seen.notes)


def test_a_graph_that_nobody_timed_is_shown_without_times() -> None:
    seen = measure_step(Job([Graph(OpTable.of([Op("aten::mm"), Op("aten::relu")]))]))
    assert seen.by_rank("step_ms") == {0: 0.0} and seen.critical_path == []
    assert {row.name: row.count for row in seen.by_op} == {"aten::mm": 1, "aten::relu": 1}
    json.dumps(seen.to_dict(), allow_nan=False)


def test_an_empty_graph_is_no_error() -> None:
    words = json.loads(json.dumps(measure_step(Job([Graph(OpTable.of([]))])).to_dict(), allow_nan=False))
    assert words["step_ms"] == words["device_active_ms"] == {"0": None} and words["critical_path"] == []


def test_plain_times_are_medians_of_the_slowest_rank() -> None:
    both = pair()
    both.graphs[0].unprofiled, both.graphs[1].unprofiled = (
        Timings((1.0, 2.0, 9.0), (1.0,)),
        Timings((3.0, 4.0, 5.0), (2.0,)),
    )
    assert measure_step(both).unprofiled == Unprofiled(synced_ms=4.0, back_to_back_ms=2.0, peak_memory_bytes=None)


def test_the_profiling_overhead_is_of_the_step_that_is_shown() -> None:
    both = pair()
    both.graphs[0].unprofiled, both.graphs[0].profiling_overhead = Timings((1.0, 1.0)), 9.0
    report = measure_step(both)
    assert report.step_ms == 2.11 and report.profiling_overhead == pytest.approx(2.11)


def test_one_step_of_several_is_shown_when_named() -> None:
    marks = [Span("a", 0.0, 100.0), Span("b", 100.0, 300.0), Span("c", 300.0, 900.0)]
    graph = rank(*(Call(name, start, start + 50) for name, start, _ in marks), steps=marks)
    assert (measure_step(Job([graph])).step, measure_step(Job([graph])).steps) == ("b", 3)
    assert [row.name for row in measure_step(Job([graph]), "c").by_op] == ["c"]


def test_eight_ranks_of_megatron_wait_for_two_of_them(shared: Path) -> None:
    seen = measure_step(load_traces(shared / "public/megatron_tp8_8xA100"))
    waits = [191.4, 431.0, 362.8, 421.8, 445.1, 441.1, 214.1, 432.2]
    assert list(seen.by_rank("wait_ms").values()) == pytest.approx(waits, rel=0.01)
    assert seen.collectives[0].transfer_ms == pytest.approx(0.611, rel=0.01)
    assert sum(row.count for row in seen.collectives) == 84
    assert sorted(straggler.rank for straggler in seen.stragglers) == [0, 6]
    assert seen.critical_path_ms == pytest.approx(630.6, rel=0.01)
    assert seen.device_span_ms == pytest.approx(630.5, rel=0.01)
    assert seen.attributed > 0.995


def test_the_path_of_a_recommender_crosses_ranks_and_spans_the_job(shared: Path) -> None:
    seen = measure_step(load_traces(shared / "public/dlrm_8xV100"))
    assert seen.device_span_ms == pytest.approx(19.7, rel=0.01)
    assert seen.critical_path_ms >= seen.device_span_ms
    assert len(seen.critical_path_ranks) > 1


def test_a_device_that_stands_still_is_told_from_a_slow_host(shared: Path) -> None:
    seen = measure_step(load_traces(shared / "public/megatron_tp2_2xV100"))
    assert seen.by_rank("step_ms") == pytest.approx({0: 62.6, 1: 58.8}, rel=0.01)
    assert seen.stragglers[0].why == "its device idles although work is queued"
    assert sum(part.ms for part in seen.critical_path if part.what == "unexplained") > 20


@pytest.mark.parametrize("workload", ["dlrm_default_b512", "bert_base_b16_s128_bf16", "resnet50_b64_fp32"])
def test_kernel_times_add_up_to_what_was_measured(shared: Path, workload: str) -> None:
    folder = shared / "traces/h200" / workload
    measured = json.loads((folder / "measured.json").read_text())
    assert measure_step(load_traces(folder)).by_rank("kernel_ms")[0] == pytest.approx(measured["kernel_ms"], rel=1e-6)


def test_what_is_launched_under_a_step_mark_alone_is_no_ops() -> None:
    mark = Call("ProfilerStep#1", 0, 100, kind=ANNOTATION)
    graph = rank(
        mark, Call("aten::mm", 10, 20), launch(12, 14, (15, 25)), launch(50, 52, (55, 85)),
        steps=[Span("ProfilerStep#1", 0.0, 100.0)],
    )  # fmt: skip
    seen = measure_step(graph)
    assert seen.attributed == pytest.approx(0.25)
    assert [row.name for row in seen.by_op if row.device_ms] == ["(no op)", "aten::mm"]


def test_work_side_by_side_that_was_launched_before_counts_once() -> None:
    graph = rank(
        Orphan(0, 10), Orphan(5, 15, stream=8), Call("aten::mm", 10, 20), launch(12, 14, (20, 25)),
        launch(15, 16, (26, 27), stream=8),
    )  # fmt: skip
    assert measure_step(graph).ranks[0].launched_before_ms == pytest.approx(0.015)


def test_collectives_of_a_trace_without_times_are_counted_by_kind_and_size() -> None:
    ops = OpTable.of([Op("c10d::allreduce_"), Op("c10d::allreduce_")])
    sizes = [Collective("all_reduce", "", nbytes, -1, op) for op, nbytes in enumerate((1024, 1024))]
    seen = measure_step(Job([Graph(ops, collectives=sizes)]))
    assert [(row.kind, row.nbytes, row.count) for row in seen.collectives] == [("all_reduce", 1024, 2)]
