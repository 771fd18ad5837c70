"""All ranks as one program."""

import numpy as np
import pytest

from foretrace.forecast.jobs.agreement import Call, Meeting
from foretrace.forecast.jobs.together import Part, Together, together
from foretrace.forecast.measured import HOST, KERNEL, TRANSFER
from foretrace.simulation.forward import simulate
from foretrace.simulation.program import Program, Timeline
from foretrace.simulation.turns import StuckError

HOST_TASK, COMPUTE, ARRIVAL, AFTER = range(4)


def part(compute: float, waits: bool = True) -> Part:
    """A launch, a kernel before a collective, the collective, and a kernel that waits for it or does not."""
    edges = [(HOST_TASK, COMPUTE), (COMPUTE, ARRIVAL), (ARRIVAL if waits else COMPUTE, AFTER)]
    program = Program.of([1.0, compute, 99.0, 2.0], [0, 1, 2, 1], edges)
    kind = np.array([HOST, KERNEL, KERNEL, KERNEL], np.int8)
    return Part(program, kind, np.array([0, 0, 1, 2], np.int32), np.array([ARRIVAL]))


def simulated(*parts: Part, us: float = 5.0) -> tuple[Together, Timeline]:
    all_reduce = Meeting("all_reduce", 64, tuple(range(len(parts))), tuple(Call(n, 0) for n in range(len(parts))))
    job = together(parts, [all_reduce], np.array([us]))
    return job, simulate(job.program)


def test_a_collective_starts_when_its_last_rank_arrives_and_ends_for_all() -> None:
    job, timeline = simulated(part(3.0), part(10.0))
    early, late = job.times(0, timeline), job.times(1, timeline)
    assert (early.start[ARRIVAL], late.start[ARRIVAL]) == (4.0, 11.0)
    assert early.end[ARRIVAL] == late.end[ARRIVAL] == 16.0
    assert early.start[AFTER] == late.start[AFTER] == 16.0


def test_what_a_rank_measured_as_its_collective_is_not_part_of_the_simulation() -> None:
    _, timeline = simulated(part(3.0), us=5.0)
    assert timeline.span == 1.0 + 3.0 + 5.0 + 2.0


def test_only_who_waits_for_a_collective_is_held_up() -> None:
    job, timeline = simulated(part(3.0, waits=False), part(10.0))
    assert job.times(0, timeline).start[AFTER] == 4.0
    assert job.times(1, timeline).start[AFTER] == 16.0


def test_a_transfer_is_told_of_with_the_rank_that_came_last() -> None:
    job, timeline = simulated(part(3.0), part(10.0))
    tasks = job.measured(timeline)
    assert (tasks.kind[-1], tasks.graph[-1], tasks.row[-1]) == (TRANSFER, 1, 1)


def test_a_rank_without_a_graph_of_its_own_holds_nobody_up() -> None:
    meeting = Meeting("all_reduce", 64, (0, 1), (Call(0, 0),))
    job = together([part(3.0)], [meeting], np.array([5.0]))
    assert simulate(job.program).span == 11.0


def test_ranks_that_start_later_arrive_later() -> None:
    early, late = part(3.0), part(3.0)
    held = Part(
        Program(late.program.duration, late.program.lane, late.program.first, late.program.before, late.program.lag,
                np.array([50.0, 0.0, 0.0, 0.0])), late.kind, late.row, late.arrival,
    )  # fmt: skip
    job, timeline = simulated(early, held)
    assert job.times(0, timeline).end[ARRIVAL] == 50.0 + 4.0 + 5.0


def test_groups_called_in_another_order_make_a_knot() -> None:
    program = Program.of([0.0, 0.0], [0, 0], [(0, 1)])
    kind, row = np.array([KERNEL, KERNEL], np.int8), np.array([0, 1], np.int32)
    one, other = Part(program, kind, row, np.array([0, 1])), Part(program, kind, row, np.array([1, 0]))
    crossed = [Meeting("all_reduce", 8, (0, 1), (Call(0, n), Call(1, n))) for n in range(2)]
    with pytest.raises(StuckError):
        simulate(together([one, other], crossed, np.zeros(2)).program)
