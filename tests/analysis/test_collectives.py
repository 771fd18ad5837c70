"""Collectives matched across ranks."""

from dataclasses import replace
from typing import Any

import pytest

from foretrace.analysis.collective_matching import match_collectives, seen_by_all
from foretrace.analysis.collectives import collective_times
from foretrace.analysis.measure import measure_step
from foretrace.graph import Collective, Graph, Job, Op, OpTable
from tests.analysis.builders import all_reduce, job, rank


def arrivals(*kernels: tuple[float, float], **more: Any) -> Graph:
    """A rank whose collectives' kernels run at these times."""
    return rank(*(all_reduce(start - 2, start - 1, (start, end), **more) for start, end in kernels))


def test_every_rank_waits_for_the_last_one() -> None:
    (group,), _ = collective_times(job(arrivals((10, 50)), arrivals((25, 50)), arrivals((40, 50))).graphs)
    assert group.wait.tolist() == [[30.0, 15.0, 0.0]]
    assert group.last_member.tolist() == [2]


def test_a_transfer_runs_from_the_last_start_to_the_last_end() -> None:
    (group,), _ = collective_times(job(arrivals((10, 50)), arrivals((40, 52))).graphs)
    assert group.transfer.tolist() == [12.0]


def test_a_root_that_is_done_before_the_last_rank_comes_waits_only_while_it_runs() -> None:
    (group,), _ = collective_times(job(arrivals((0, 5), kind="broadcast"), arrivals((20, 25), kind="broadcast")).graphs)
    assert group.wait.tolist() == [[5.0, 0.0]]


def test_groups_of_other_members_are_kept_apart() -> None:
    pairs = [arrivals((10.0 * i, 50), ranks=(0, 1) if i < 2 else (2, 3)) for i in range(4)]
    found, notes = collective_times(job(*pairs).graphs)
    assert [group.members for group in found] == [[0, 1], [2, 3]]
    assert notes == []


def test_a_rank_without_a_trace_does_not_hinder_the_others() -> None:
    graphs = job(arrivals((10, 50), ranks=(0, 1, 2)), arrivals((30, 50), ranks=(0, 1, 2))).graphs
    (group,), notes = collective_times(graphs)
    assert group.wait.tolist() == [[20.0, 0.0]] and notes == []


def test_the_first_collective_whose_size_ranks_disagree_on_is_named_and_does_not_end_the_matching() -> None:
    agreed, other = arrivals((10, 20), (30, 40), (50, 60)), arrivals((10, 20), (30, 40), (50, 60))
    other.collectives[1].nbytes = 77
    (group,), (note,) = collective_times(job(agreed, other).graphs)
    assert len(group) == 3
    assert "collective 1 of group world: all_reduce of 1024 bytes on rank 0, all_reduce of 77 bytes on rank 1" in note


def test_groups_that_a_trace_does_not_name_may_be_called_in_another_order() -> None:
    def kernels(*both: tuple[str, float]) -> Graph:
        return rank(*(all_reduce(at - 2, at - 1, (at, at + 9), kind=kind, group="", ranks=()) for kind, at in both))

    one, other = kernels(("all_reduce", 10), ("all_gather", 12)), kernels(("all_gather", 11), ("all_reduce", 13))
    (group,), notes = collective_times(job(one, other).graphs)
    assert group.kinds == ["all_reduce", "all_gather"] and notes == []
    assert group.start.tolist() == [[10.0, 13.0], [12.0, 11.0]]
    graphs, _ = seen_by_all([one, other])
    matches, _ = match_collectives(Job(graphs))
    assert [(match.kind, [call.number for call in match.calls]) for match in matches] == [
        ("all_reduce", [0, 1]), ("all_gather", [1, 0])
    ]  # fmt: skip


def test_what_a_thread_of_the_host_runs_is_matched_apart() -> None:
    def both(host_at: float) -> Graph:
        graph = arrivals((10, 20), (30, 40), group="", ranks=())
        ops = [*graph.ops, Op("gloo:broadcast", start_us=host_at, end_us=host_at + 1)]
        mixed = Collective("broadcast", "", 8, -1, op=len(ops) - 1)
        return replace(graph, ops=OpTable.of(ops), collectives=[*graph.collectives, mixed])

    found, notes = collective_times(job(both(5), both(25)).graphs)
    assert [group.kinds for group in found] == [["broadcast"], ["all_reduce", "all_reduce"]] and notes == []


def test_an_all_to_all_may_move_other_sizes_on_each_rank() -> None:
    one, other = arrivals((10, 20), kind="all_to_all"), arrivals((12, 20), kind="all_to_all", nbytes=9000)
    (group,), notes = collective_times(job(one, other).graphs)
    assert group.nbytes.tolist() == [9000] and notes == []


def test_what_a_rank_did_before_the_others_were_traced_is_left_out() -> None:
    early, late = arrivals((0, 8), (10, 20), (30, 40)), arrivals((12, 20), (31, 40))
    (group,), (note,) = collective_times(job(early, late).graphs)
    assert group.start.tolist() == [[10.0, 12.0], [30.0, 31.0]]
    assert "3 on rank 0, 2 on rank 1" in note


def test_send_and_recv_are_not_matched_and_that_is_said() -> None:
    found, (note,) = collective_times(job(arrivals((0, 8), kind="send"), arrivals((0, 8), kind="recv")).graphs)
    assert found == [] and note.startswith("send and recv")


def test_a_collective_that_nobody_timed_is_not_matched() -> None:
    graph = arrivals((10, 20))
    graph.collectives[0].kernel = graph.collectives[0].op = -1
    assert collective_times([graph]) == ([], [])


def test_a_send_is_matched_with_what_receives_it() -> None:
    """Rank 0 sends twice to rank 1, which comes 30 us late to the first; a third has no counterpart."""
    sender = arrivals((10, 50), (60, 70), (80, 90), kind="send", ranks=(0, 1))
    receiver = arrivals((40, 50), (61, 70), kind="recv", ranks=(0, 1))
    (pair,), (note,) = collective_times(job(sender, receiver).graphs)
    assert pair.members == [0, 1] and pair.kinds == ["send", "send"]
    assert pair.wait.tolist() == [[30.0, 0.0], [1.0, 0.0]] and pair.transfer.tolist() == [10.0, 9.0]
    assert "(1 of them)" in note
    report = measure_step(job(sender, receiver))
    assert report.rank(0).wait_ms == pytest.approx(0.031) and report.rank(1).wait_ms == 0


def test_stages_of_a_pipeline_send_both_ways() -> None:

    def stage(*calls: tuple[str, float, float]) -> Graph:
        return rank(
            *(all_reduce(start - 2, start - 1, (start, end), kind=kind, ranks=(0, 1)) for kind, start, end in calls)
        )

    first, second = stage(("send", 2, 10), ("recv", 20, 60)), stage(("recv", 7, 10), ("send", 50, 60))
    groups, notes = collective_times(job(first, second).graphs)
    assert {group.group: group.wait.tolist() for group in groups} == {"0 to 1": [[5.0, 0.0]], "1 to 0": [[0.0, 30.0]]}
    assert notes == []
