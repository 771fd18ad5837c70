"""Kernels beside a collective."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from foretrace.cost_models.collectives.contention import Contention
from foretrace.forecast import contention
from foretrace.forecast.contention import beside
from foretrace.forecast.jobs.agreement import Call, Meeting
from foretrace.forecast.jobs.contention import measured_share, with_contention
from foretrace.forecast.jobs.predict import predict_job
from foretrace.forecast.jobs.rank import ALONE
from foretrace.forecast.jobs.together import Part, Together, together
from foretrace.forecast.jobs.world import at_world
from foretrace.forecast.measured import KERNEL
from foretrace.forecast.predict import predict
from foretrace.graph import Collective, Graph, Job, Op, OpTable, Tensor
from foretrace.platform.fabric import Fabric
from foretrace.simulation.forward import simulate
from foretrace.simulation.program import Program

FIRST, COLLECTIVE, OTHER = range(3)


@pytest.fixture(autouse=True)
def half_as_long_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = Contention(1.5, 2.0, "made up", 1.25, "made up")
    monkeypatch.setattr(contention, "contention", lambda: made_up)


def job(overlaps: bool, transfer: float = 100.0) -> Together:
    """A kernel; then a collective, and a kernel of 20 us beside it or after it."""
    edges = [(FIRST, COLLECTIVE), (FIRST if overlaps else COLLECTIVE, OTHER)]
    program = Program.of([10.0, 0.0, 20.0], [0, 1, 0], edges)
    part = Part(program, np.full(3, KERNEL, np.int8), np.arange(3, dtype=np.int32), np.array([COLLECTIVE]))
    return together([part], [Meeting("all_reduce", 8, (0, 1), (Call(0, 0),))], np.array([transfer]))


def test_a_kernel_beside_a_collective_takes_longer() -> None:
    program, timeline = with_contention(job(overlaps=True), [ALONE])
    assert program.program.duration[OTHER] == pytest.approx(1.5 * 20 + 2)
    assert timeline.end[OTHER] == pytest.approx(10 + 32)


def test_a_collective_beside_kernels_takes_longer_for_as_long_as_they_run() -> None:
    program, timeline = with_contention(job(overlaps=True), [ALONE])
    share = (timeline.end[OTHER] - 10) / (timeline.end[-1] - 10)
    assert program.program.duration[-1] == pytest.approx(100 * (1 + share * 0.25), rel=0.01)


def test_a_collective_is_as_slow_as_at_the_rank_with_most_beside_it() -> None:
    busy, idle = (job(overlaps).parts[0] for overlaps in (True, False))
    both = [Meeting("all_reduce", 8, (0, 1), (Call(0, 0), Call(1, 0)))]
    program, _ = with_contention(together([busy, idle], both, np.array([20.0])), [ALONE, ALONE])
    assert program.program.duration[-1] == pytest.approx(25.0), "the first rank computes beside all of it"


def test_kernels_before_and_after_it_do_not() -> None:
    program, timeline = with_contention(job(overlaps=False), [ALONE])
    assert program.program.duration[:3].tolist() == [10.0, 0.0, 20.0]
    assert timeline.span == 130.0


def test_a_kernel_that_overlaps_in_part_takes_longer_in_part() -> None:
    program, timeline = with_contention(job(overlaps=True, transfer=10.0), [ALONE])
    share = 10.0 / (timeline.end[OTHER] - timeline.start[OTHER])
    assert program.program.duration[OTHER] == pytest.approx(20 + share * 12, rel=0.05)


def test_what_was_measured_beside_a_collective_is_not_slowed_again() -> None:
    overlapping = job(overlaps=True)
    timeline = simulate(overlapping.program)
    share = measured_share(overlapping.parts[0], overlapping.times(0, timeline))
    assert share.tolist() == [0.0, 1.0]
    program, _ = with_contention(overlapping, [share])
    assert program.program.duration[OTHER] == 20.0


def test_kernels_that_shall_stay_as_they_are_do() -> None:
    program, _ = with_contention(job(overlaps=True), [None])
    assert program.program.duration[OTHER] == 20.0 and program.program.duration[-1] == 100.0


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
    one, all_of_them = predict(graph, platform), predict_job(at_world(Job([graph]), 2), platform)
    assert one.step_ms == pytest.approx(all_of_them.step_ms)
    assert one.kernel_ms == pytest.approx(all_of_them.kernel_ms, rel=1e-3)
    assert one.step_ms_back_to_back == pytest.approx(all_of_them.step_ms_back_to_back)


def test_shares_of_nothing_are_nothing() -> None:
    assert beside(np.array([0.0]), np.array([1.0]), np.zeros(0), np.zeros(0)).tolist() == [0.0]
