"""A step in functions."""

from __future__ import annotations

from foretrace.graph import Content, Tensor
from foretrace.replay.literals import Name
from foretrace.replay.plan import Call, Input, Memory, Plan
from foretrace.replay.sections import MOST_SECTIONS, sections


def call(number: int, phase: str, reads: str, makes: str, frees: tuple[str, ...] = ()) -> Call:
    made = {Name(makes): Tensor((4,), "float32", id=number, storage=number)}
    ended = tuple(Name(name) for name in frees)
    return Call(number, "aten::relu", args=(Name(reads),), results=(Name(makes),), made=made, frees=ended, phase=phase)


def plan(*calls: Call) -> Plan:
    memory = Memory(Name("m0"), 16, "cpu")
    return Plan(
        [memory], [Input(Name("x"), Tensor((4,), "float32", storage=99), memory, Content("constant"))], list(calls)
    )


def test_a_phase_that_comes_again_gets_a_number() -> None:
    made = sections(plan(call(0, "forward", "x", "a"), call(1, "backward", "a", "b"), call(2, "forward", "b", "c")))
    assert [section.name for section in made] == ["forward", "backward", "forward_2"]


def test_what_ended_is_not_handed_on() -> None:
    made = sections(
        plan(call(0, "forward", "x", "a"), call(1, "forward", "a", "b"), call(2, "backward", "b", "c", ("a",)))
    )
    assert made[0].left == ["a", "b"] and made[1].taken == ["a", "b"] and made[1].frees == [["a"]]
    assert made[1].left == ["b", "c"]


def test_inputs_go_to_the_functions_that_read_them() -> None:
    made = sections(plan(call(0, "forward", "x", "a"), call(1, "backward", "a", "b")))
    assert made[0].inputs == ["x"] and made[1].inputs == []


def test_a_step_that_changes_its_phase_all_the_time_is_one_function() -> None:
    phases = ("forward", "backward")
    calls = [call(number, phases[number % 2], "x", f"t{number}") for number in range(MOST_SECTIONS + 1)]
    assert [section.name for section in sections(plan(*calls))] == ["whole"]
