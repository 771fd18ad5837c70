"""Where collectives are waited for."""

from __future__ import annotations

from foretrace.graph import Content, Tensor
from foretrace.replay.literals import Name
from foretrace.replay.plan import Call, Input, Memory
from foretrace.replay.works import WAIT, with_waits

GIVEN = Tensor((4,), "float32", "cpu", (1,), id=0, storage=7)
T0, T1, W0, W1 = Name("t0"), Name("t1"), Name("w0"), Name("w1")
INPUT = Input(T0, GIVEN, Memory(Name("m0"), 16, "cpu"), Content("unknown"))


def reduced(number: int, work: Name) -> Call:
    return Call(number, "c10d::allreduce_", args=([T0],), results=([None], work))


def names(calls: list[Call]) -> list[str]:
    return [call.name.partition("::")[2] for call in calls]


def test_a_work_is_waited_for_where_the_original_waited() -> None:
    calls = [reduced(0, W0), Call(1, "aten::ones"), Call(2, WAIT, args=(W0,)), Call(3, "aten::relu", args=(T0,))]
    settled = with_waits(calls, [INPUT])
    assert names(settled) == ["allreduce_", "ones", "wait", "relu"]
    assert settled[-1].frees == (W0,), "a work that is done keeps no memory"


def test_a_work_that_nobody_was_seen_waiting_for_is_done_before_its_result_is_touched() -> None:
    view = Call(1, "aten::view", args=(T0,), results=(T1,), made={T1: GIVEN})
    calls = [view, reduced(2, W0), Call(3, "aten::ones"), Call(4, "aten::relu", args=(T1,))]
    assert names(with_waits(calls, [INPUT])) == ["view", "allreduce_", "ones", "wait", "relu"]


def test_a_work_that_nobody_needs_is_waited_for_at_the_end() -> None:
    assert names(with_waits([reduced(0, W0), Call(1, "aten::ones")], [INPUT])) == ["allreduce_", "ones", "wait"]


def test_a_wait_for_a_work_of_another_part_of_the_step_is_left_out() -> None:
    calls = [Call(0, WAIT, args=(W1,), frees=(T1,)), Call(1, "aten::ones")]
    settled = with_waits(calls, [INPUT])
    assert names(settled) == ["ones"] and settled[0].frees == (T1,)
