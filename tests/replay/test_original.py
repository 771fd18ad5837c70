"""What a recording measured."""

from __future__ import annotations

from foretrace.graph import Graph, Op, OpTable, Storage, Tensor, Timings
from foretrace.replay.original import original_of
from foretrace.replay.planning import plan_of
from foretrace.replay.selection import Selection


def graph() -> Graph:
    given, made = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in (0, 1))
    ops = [
        Op("aten::relu", (given,), outputs=(made,), overload="default", phase="forward"),
        Op("aten::neg", (made,), outputs=(made,), overload="default", phase="backward"),
    ]
    storages = {0: Storage(0, 16, "cpu", -1, -1), 1: Storage(1, 16, "cpu", 0, 1)}
    return Graph(OpTable.of(ops), storages=storages, plain=Timings((3.0, 1.0, 2.0), (1.5,)), device="Some CPU")


def test_times_are_medians_of_plain_steps_and_memory_is_what_lived_at_once() -> None:
    found = original_of(graph(), plan_of(graph()))
    assert (found["step_ms"], found["step_ms_back_to_back"]) == (2.0, 1.5)
    assert found["peak_memory_bytes"] == 32 and found["device"] == "Some CPU" and found["kernel_ms"] is None


def test_of_a_part_nobody_knows_time_and_memory() -> None:
    found = original_of(graph(), plan_of(graph(), Selection(phase="forward")))
    assert found["step_ms"] is None and found["peak_memory_bytes"] is None


def test_obfuscated_the_machine_has_no_name() -> None:
    assert original_of(graph(), plan_of(graph()), obfuscate=True)["device"] == "cpu"
