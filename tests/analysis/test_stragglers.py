"""Who holds the others back."""

import numpy as np

from foretrace.analysis.collectives import CollectiveTimes, collective_times
from foretrace.analysis.measure import measure_step
from foretrace.analysis.stragglers import stragglers
from foretrace.graph import Graph
from foretrace.graph.tables import COLLECTIVE
from tests.analysis.builders import Call, Runtime, all_reduce, job, launch, rank, sync
from tests.analysis.test_idle import LOADER, doing

STEPS = range(1, 6)


def found(*ranks: Graph) -> list[tuple[int, str]]:
    graphs = job(*ranks).graphs
    return [(one.rank, one.why) for one in stragglers(graphs, collective_times(graphs)[0], step_ms=1.0)]


def paced(arrives: float, launched: float | None = None, kernels: int = 1, busy: float = 10.0) -> Graph:
    """A rank that meets the others every 100 us: when it arrives each time, its last launch, and its work before."""
    events: list[Runtime] = [all_reduce(0, 1, (0, 50))]
    for step in STEPS:
        t = 100.0 * step
        work = busy / kernels
        events += [launch(t - 49, t - 48, (t - 40 + work * i, t - 40 + work * (i + 1))) for i in range(kernels)]
        at = t + (launched if launched is not None else -45)
        events.append(all_reduce(at, at + 1, (t + arrives, t + 50)))
    return rank(*events)


def test_ranks_that_arrive_together_hold_nobody_back() -> None:
    assert found(paced(0), paced(0), paced(0), paced(0)) == []


def test_a_rank_whose_launches_come_late_is_a_slow_host() -> None:
    assert found(paced(-28), paced(-28), paced(40, launched=38), paced(-28)) == [
        (2, "slow host: its launches come late")
    ]


def test_a_rank_with_longer_kernels_has_slower_kernels() -> None:
    assert found(paced(-28), paced(-28), paced(40, busy=78)) == [(2, "slower kernels")]


def test_a_rank_with_more_kernels_has_more_work() -> None:
    assert found(paced(-28), paced(-28), paced(40, busy=78, kernels=5)) == [(2, "more work: it runs more kernels")]


def test_a_device_that_does_not_start_what_is_queued_stands_still() -> None:
    assert found(paced(-28), paced(-28), paced(40)) == [(2, "its device idles although work is queued")]


def meets_once(begins: float, arrives: float) -> Graph:
    return rank(Call("aten::view", begins, begins + 1), all_reduce(arrives - 2, arrives - 1, (arrives, 200)))


def test_a_rank_whose_first_call_is_late_begins_late() -> None:
    assert found(meets_once(0, 10), meets_once(0, 10), meets_once(90, 100)) == [(2, "its step begins late")]


def later(graph: Graph, us: float) -> Graph:
    """The rank with all it does so much later, up to the ends of its collectives."""
    moved = graph.shifted(us)
    moved.kernels.end = np.where(moved.kernels.kind == COLLECTIVE, graph.kernels.end, moved.kernels.end)
    return moved


def test_a_rank_that_begins_late_and_is_as_far_behind_at_each_collective_is_not_called_slow() -> None:
    ranks = [paced(-28, launched=-30), paced(-28, launched=-30), later(paced(-28, launched=-30), 40.0)]
    assert found(*ranks) == [(2, "its step begins late, and its launches stay behind")]


def test_a_rank_that_begins_with_the_others_and_comes_late_is_slow() -> None:
    late = meets_once(0, 100)
    assert found(meets_once(0, 10), meets_once(0, 10), late) == [(2, "slow host: its launches come late")]


def test_a_rank_that_loads_data_for_longer_is_not_called_a_slow_host() -> None:
    def loading(us: float) -> Graph:
        graph = rank(Call("aten::view", 0, 1), all_reduce(us + 8, us + 9, (us + 10, 2000)))
        return doing(graph, (LOADER, 1.0, us))

    (late,) = measure_step(job(loading(100), loading(100), loading(1500))).stragglers
    assert (late.rank, late.why) == (2, "data loading: 1.4 ms more")


def test_of_two_ranks_the_one_that_the_other_waits_for_is_named() -> None:
    assert found(paced(-28), paced(40, launched=38)) == [(1, "slow host: its launches come late")]


def test_waiting_that_is_no_part_of_the_step_worth_naming_is_not_named() -> None:
    graphs = job(paced(0), paced(0), paced(1, launched=0)).graphs
    assert stragglers(graphs, collective_times(graphs)[0], step_ms=1.0) == []


def test_held_is_how_long_each_of_the_others_waited() -> None:
    graphs = job(paced(-10), paced(-20), paced(40, launched=38)).graphs
    (late,) = stragglers(graphs, collective_times(graphs)[0], step_ms=1.0)
    assert late.held_ms == len(STEPS) * (50 + 60) / 2 / 1e3


def test_others_that_wait_in_two_collectives_at_a_time_lose_that_time_once() -> None:
    """Two asynchronous collectives of two groups, in which ranks 0 and 1 wait for rank 2 from 10 and from 60 to 200."""
    graphs = job(*(rank(Call("aten::view", 0, 1)) for _ in range(3))).graphs
    start, end = np.array([[10.0, 60.0, 200.0]]), np.full((1, 3), 210.0)
    both = [
        CollectiveTimes(name, [0, 1, 2], ["all_reduce"], np.array([1024]), np.full((1, 3), -1), at, end)
        for name, at in (("one", start), ("other", start[:, [1, 0, 2]]))
    ]
    (late,) = stragglers(graphs, both, step_ms=0.21)
    assert (late.rank, late.held_ms) == (2, 190 / 1e3)


def test_two_slow_ranks_are_both_named_the_slower_one_first() -> None:
    slower, slow = paced(40, launched=38), paced(30, launched=28)
    for collective in slower.collectives[1::3]:
        slower.kernels.start[collective.kernel] -= 68
    ranks = [paced(-28) for _ in range(6)]
    assert [r for r, _ in found(slow, *ranks[:5], slower, ranks[5])] == [6, 0]


def host_paced(arrives: float, syncs: bool) -> Graph:
    """A rank whose host launches a collective every 100 us, and waits for each, or never."""
    events: list[Runtime] = []
    for step in STEPS:
        t = 100.0 * step
        events.append(all_reduce(t + arrives - 2, t + arrives - 1, (t + arrives, t + 50)))
        if syncs:
            events.append(sync(t + arrives, t + 51))
    return rank(*events)


def test_what_is_to_gain_is_what_the_others_would_be_done_sooner_not_what_they_wait() -> None:
    busy = [host_paced(0, syncs=False), host_paced(0, syncs=False), host_paced(40, syncs=False)]
    seen = measure_step(job(*busy))
    assert [one.rank for one in seen.stragglers] == [2]
    assert seen.stragglers[0].held_ms == 0.2  # 40 us, five times
    assert seen.straggler_gain_ms == 0.04  # hosts that never wait arrive at the last one 40 us sooner, and no more


def test_hosts_that_wait_for_each_collective_gain_all_that_they_wait() -> None:
    waiting = [host_paced(0, syncs=True), host_paced(0, syncs=True), host_paced(40, syncs=True)]
    seen = measure_step(job(*waiting))
    assert seen.straggler_gain_ms == 0.2


def test_without_stragglers_there_is_nothing_to_gain() -> None:
    assert measure_step(job(paced(0), paced(0))).straggler_gain_ms is None
