"""Ranks that share processors."""

from dataclasses import replace

import numpy as np
import pytest

from foretrace.graph import Job
from foretrace.platform.fabric import CpuOverlap, Curve, Fabric, Oversubscription
from foretrace.prediction.cpu_ranks import as_typical, expected_last, with_oversubscription
from foretrace.prediction.predict import measured_ranks, predict_on_own_machine
from foretrace.prediction.scaling import at_world
from tests.prediction.test_host_collectives import rank
from tests.prediction.test_jobs import two_ranks

WORLD = 8
CROWD = (Oversubscription(1, 1.0, 0.0), Oversubscription(2, 1.1, 0.05), Oversubscription(WORLD, 1.32, 0.2))


def fabric(crowd: tuple[Oversubscription, ...] = CROWD) -> Fabric:
    curves = tuple(Curve("all_reduce", ranks, 1, 100.0, 1e6, 1.0, ((64.0, 1.0),), 0.05) for ranks in (2, WORLD))
    return Fabric("gloo", curves, "made up", crowd=crowd)


def test_more_ranks_are_slower_and_further_apart() -> None:
    ranks, _ = measured_ranks(Job([rank(0), rank(1)]))
    changed, (note,) = with_oversubscription(ranks, fabric(), WORLD, was=2, per_node=None)
    times = changed[0].tasks.tasks.duration / ranks[0].tasks.tasks.duration
    assert times == pytest.approx(np.where(ranks[0].tasks.tasks.on_host, 1.2, 1.0)), "transfers are the fabric's"
    assert changed[0].jitter * expected_last(WORLD) == pytest.approx(0.2)
    assert "8 ranks at once take 1.20 times as long as 2" in note


def test_more_ranks_than_were_measured_are_as_slow_and_as_far_apart_as_the_most_that_were() -> None:
    ranks, _ = measured_ranks(Job([rank(0), rank(1)]))
    most, _ = with_oversubscription(ranks, fabric(), WORLD, was=2, per_node=None)
    more, (note,) = with_oversubscription(ranks, fabric(), 4 * WORLD, was=2, per_node=4 * WORLD)
    assert more[0].jitter == most[0].jitter
    assert more[0].tasks.tasks.duration == pytest.approx(most[0].tasks.tasks.duration)
    assert "where 8 were measured at most" in note


def test_as_many_as_were_measured_stay_as_fast() -> None:
    ranks, _ = measured_ranks(Job([rank(0), rank(1)]))
    changed, notes = with_oversubscription(ranks, fabric(), 2, was=2, per_node=None)
    assert changed[0].tasks.tasks.duration == pytest.approx(ranks[0].tasks.tasks.duration) and not notes


def test_ranks_with_devices_and_unmeasured_crowds_change_nothing() -> None:
    on_device, _ = measured_ranks(two_ranks())
    assert with_oversubscription(on_device, fabric(), WORLD, 2, None) == (on_device, [])
    on_host, _ = measured_ranks(Job([rank(0), rank(1)]))
    assert with_oversubscription(on_host, fabric(crowd=()), WORLD, 2, None) == (on_host, [])


def test_a_job_of_more_ranks_than_were_recorded_is_slower_by_that() -> None:
    small = Job([rank(0), rank(1)])
    grown = at_world(small, WORLD)
    alone, slowed = (predict_on_own_machine(grown, fabric(), measured=job).ranks[0].host_ms for job in (None, small))
    assert slowed == pytest.approx(1.2 * alone, rel=1e-6)


def test_ranks_are_slowed_by_what_they_exchange_and_the_other_way_round() -> None:
    seen = replace(fabric(), beside=CpuOverlap(work=1.5, transfer=2.0))
    ranks, _ = measured_ranks(Job([rank(0), rank(1)]))
    same, _ = with_oversubscription(ranks, seen, 2, was=2, per_node=None)
    more, _ = with_oversubscription(ranks, seen, WORLD, was=2, per_node=None)
    assert same[0].slowdown is not None and (same[0].slowdown.factor, same[0].slowdown.transfer) == (1.0, 2.0)
    assert more[0].slowdown is not None and more[0].slowdown.factor == 1.5
    assert more[0].overlap is not None and len(more[0].overlap) == np.count_nonzero(more[0].tasks.tasks.on_host)


def test_a_transfer_takes_longer_beside_work_on_processors() -> None:
    job, seen = Job([rank(0), rank(1)]), CpuOverlap(work=1.5, transfer=2.0)
    alone, beside = (predict_on_own_machine(job, replace(fabric(), beside=one)).step_ms for one in (None, seen))
    # Of 100 us it was slowed while a call of 50 us went on.
    assert 0.03 < beside - alone < 0.06


def test_a_rank_that_stands_for_many_is_as_fast_as_the_measured_ones_on_average() -> None:
    ranks, _ = measured_ranks(Job([rank(0), rank(1, late=40.0)]))
    (typical,), (note,) = as_typical(ranks[:1], ranks)
    assert typical.host_us == pytest.approx((ranks[0].host_us + ranks[1].host_us) / 2)
    assert note.endswith("the mean of all 2 measured ranks")
    on_device, _ = measured_ranks(two_ranks())
    assert as_typical(on_device[:1], on_device) == (on_device[:1], [])
