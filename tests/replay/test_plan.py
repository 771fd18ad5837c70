"""A benchmark as data: its peak memory."""

from __future__ import annotations

from foretrace.graph import Content, Tensor
from foretrace.graph.op import RESIZE
from foretrace.replay.generate.plan import Footprint, Input, Memory, Name, Plan, PlanCall, footprint, main_device

T0, T1, T2 = (Name(f"t{number}") for number in range(3))


def made(number: int, nbytes: int, device: str = "cpu") -> Tensor:
    return Tensor((nbytes,), "uint8", device, (1,), id=number, storage=number)


def plan(*calls: PlanCall, device: str = "cpu") -> Plan:
    memory = Memory(Name("m0"), 100, device)
    given = Input(T0, made(0, 100, device), memory, Content("constant"))
    return Plan([memory], [given], list(calls))


def test_what_is_freed_is_held_no_longer() -> None:
    first = PlanCall(0, "aten::relu", made={T1: made(1, 50)})
    second = PlanCall(1, "aten::neg", made={T2: made(2, 70)}, frees=(T1,))
    assert footprint(plan(first, second)).peak == 170


def test_a_view_of_what_is_there_adds_nothing() -> None:
    assert footprint(plan(PlanCall(0, "aten::t", made={T1: made(0, 100)}))).peak == 100


def test_the_device_counts_where_a_step_uses_one() -> None:
    on_host = PlanCall(0, "aten::_to_copy", made={T1: made(1, 1000, "cpu")})
    assert main_device(plan(on_host, device="cuda:0")) == "cuda"
    assert footprint(plan(on_host, device="cuda:0")).peak == 100


def test_gradients_and_what_was_there_before_are_the_same_in_any_batch() -> None:
    activation, gradient = (
        PlanCall(n, "aten::x", made={name: made(n + 1, nbytes)}) for n, name, nbytes in ((0, T1, 70), (1, T2, 100))
    )
    assert footprint(plan(activation, gradient)) == Footprint(peak=270, lasting=200)


def test_memory_that_gets_another_size_counts_with_that_one() -> None:
    whole = plan(
        PlanCall(0, RESIZE, args=(T0, 400)),
        PlanCall(1, RESIZE, args=(T0, 0)),
        PlanCall(2, "aten::x", made={T1: made(1, 350)}),
    )
    assert footprint(whole) == Footprint(peak=400, lasting=400)
    made_here = plan(
        PlanCall(0, "aten::x", made={T1: made(1, 50)}),
        PlanCall(1, RESIZE, args=(T1, 10)),
        PlanCall(2, "aten::x", made={T2: made(2, 20)}),
    )
    assert footprint(made_here).peak == 150


def test_a_given_storage_under_a_number_that_it_got_later_adds_nothing() -> None:
    later = plan(PlanCall(0, RESIZE, args=(T0, 100)), PlanCall(1, "aten::t", made={T1: made(9, 100)}))
    later.renumbered = {9}
    assert footprint(later).peak == 100
