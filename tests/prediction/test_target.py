"""Where a job is predicted: the machine that is asked for, its fabric and its software stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretrace.graph import Collective, ForetraceError, Graph, Job, Op, OpTable
from foretrace.platform.registry import DEFAULT_PLATFORM, load_platform
from foretrace.prediction.target import OWN, find_fabric_and_stack, find_target, with_fabric
from tests.narrowing import present

ASKED: dict[str, Any] = {
    "on": None, "host": None, "fabric": None, "kernels": None, "power_limit": None, "alloc_conf": "",
}  # fmt: skip


def job(world: int, source: str = "train.py") -> Job:
    """A rank that reduces a megabyte with all others."""
    ops = OpTable.of([Op("c10d::allreduce_", ())])
    reduce = Collective("all_reduce", "0", 1 << 20, -1, 0, tuple(range(world)))
    return Job([Graph(ops, world=world, collectives=[reduce], source=source)], source)


def test_without_a_platform_the_job_decides_where_it_is_predicted() -> None:
    target = find_target(**ASKED)
    assert target.platform is None and not target.own_machine and target.device_kind == "cuda"


@pytest.mark.parametrize(
    "change", [{"host": "h200"}, {"power_limit": 500.0}, {"alloc_conf": "expandable_segments:True"}]
)
def test_what_changes_a_platform_asks_for_the_default_one(change: dict[str, Any]) -> None:
    target = find_target(**{**ASKED, **change})
    assert present(target.platform).device.matches == load_platform(DEFAULT_PLATFORM).device.matches
    assert target.has_named_host == ("host" in change)


@pytest.mark.parametrize(
    "change", [{"host": "h200"}, {"kernels": "model"}, {"power_limit": 500.0}, {"alloc_conf": "x:1"}]
)
def test_the_job_s_own_machine_can_t_be_changed(change: dict[str, Any]) -> None:
    assert find_target(**{**ASKED, "on": OWN}).own_machine
    with pytest.raises(ForetraceError, match="keeps the hosts and kernels that were measured"):
        find_target(**{**ASKED, "on": OWN, **change})


def test_a_named_fabric_is_the_platforms() -> None:
    target = find_target(**{**ASKED, "on": "h200", "fabric": "h100-8x"})
    where, notes = with_fabric(present(target.platform), job(8), None)
    assert present(where.fabric).name == "h100-8x" and not notes


def test_a_job_that_communicates_is_given_a_shipped_fabric_and_a_note() -> None:
    where, notes = with_fabric(load_platform("h200"), job(8), None)
    assert present(where.fabric).name == "h200-8x" and "fabric h200-8x is assumed" in notes[0]


def test_one_rank_alone_is_predicted_where_no_fabric_fits_and_a_job_is_not() -> None:
    h200 = load_platform("h200")
    where = replace(h200, device=replace(h200.device, matches="Radeon W6800"))
    alone, notes = find_fabric_and_stack(where, job(8), None, "none", must_communicate=False)
    assert alone.fabric is None and not notes
    with pytest.raises(ForetraceError, match="no shipped fabric"):
        find_fabric_and_stack(where, job(8), None, "none", must_communicate=True)


def test_a_device_that_was_not_measured_is_given_the_stack_of_its_clusters() -> None:
    where, _ = find_fabric_and_stack(load_platform("a100"), job(8), None, "auto", must_communicate=True)
    assert where.stack is not None
    where, _ = find_fabric_and_stack(load_platform("a100"), job(8), None, "none", must_communicate=True)
    assert where.stack is None
