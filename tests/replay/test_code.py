"""A plan as Python."""

from __future__ import annotations

from foretrace.graph import Content, Graph, Op, OpTable, Storage, Tensor
from foretrace.replay.generate.code import MAX_SECTIONS, code_of, content_text, sections
from foretrace.replay.generate.plan import Input, Memory, Name, Plan, PlanCall
from foretrace.replay.generate.planning import plan_of


def tensor(number: int, storage: int | None = None, **facts: object) -> Tensor:
    described = {"shape": (4, 2), "dtype": "float32", "device": "cpu", "stride": (2, 1), **facts}
    return Tensor(**described, id=number, storage=number if storage is None else storage)  # type: ignore[arg-type]


def test_a_call_is_a_line_and_a_free_comes_where_it_was() -> None:
    ops = [
        Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default", module="net.act"),
        Op("aten::neg", (tensor(1),), outputs=(tensor(2),), overload="default", module="net.act"),
        Op("aten::exp", (tensor(2),), outputs=(tensor(3),), overload="default", frees=(1,)),
    ]
    text = code_of(plan_of(Graph(OpTable.of(ops)))).step
    body = [line.strip() for line in text.partition("def other(")[2].splitlines()[1:7]]
    assert body == [
        "# net.act",
        "t1 = aten.relu.default(t0)  # 0  float32[4, 2]",
        "t2 = aten.neg.default(t1)  # 1  float32[4, 2]",
        "del t1",
        "t3 = aten.exp.default(t2)  # 2  float32[4, 2]",
        "live += [t2, t3]",
    ]


def test_modules_are_left_out_where_nobody_shall_know_them() -> None:
    ops = [Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default", module="secret")]
    assert "secret" not in code_of(plan_of(Graph(OpTable.of(ops))), modules=False).step


def test_tensors_that_share_memory_share_it() -> None:
    column = tensor(1, 0, shape=(4,), stride=(2,), offset=1)
    ops = [Op("aten::add", (tensor(0), column), outputs=(tensor(2),), overload="Tensor")]
    graph = Graph(OpTable.of(ops), storages={0: Storage(0, 32, "cpu", -1, -1)})
    text = code_of(plan_of(graph)).inputs
    assert "m0 = memory(32, cpu)" in text
    assert "t0 = view(m0, [4, 2], [2, 1], 0, torch.float32, " in text
    assert "t1 = view(m0, [4], [2], 1, torch.float32, " in text


def test_phases_are_functions_that_hand_over_what_lives_on() -> None:
    ops = [
        Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default", phase="forward"),
        Op("aten::neg", (tensor(1),), outputs=(tensor(2),), overload="default", phase="backward"),
    ]
    text = code_of(plan_of(Graph(OpTable.of(ops)))).step
    assert "def forward(live, t0):" in text and "def backward(live):" in text and "[t1] = live" in text
    assert text.rstrip().endswith("return live")


def test_contents_are_calls() -> None:
    assert content_text(Content("ids", {"low": 0, "high": 9, "reuse": [1, 2]})) == "ids(low=0, high=9, reuse=[1, 2])"


def call(number: int, phase: str, reads: str, makes: str, frees: tuple[str, ...] = ()) -> PlanCall:
    made = {Name(makes): Tensor((4,), "float32", id=number, storage=number)}
    ended = tuple(Name(name) for name in frees)
    return PlanCall(
        number, "aten::relu", args=(Name(reads),), results=(Name(makes),), made=made, frees=ended, phase=phase
    )


def plan(*calls: PlanCall) -> Plan:
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
    assert made[0].outgoing == ["a", "b"] and made[1].incoming == ["a", "b"] and made[1].frees == [["a"]]
    assert made[1].outgoing == ["b", "c"]


def test_inputs_go_to_the_functions_that_read_them() -> None:
    made = sections(plan(call(0, "forward", "x", "a"), call(1, "backward", "a", "b")))
    assert made[0].inputs == ["x"] and made[1].inputs == []


def test_a_step_that_changes_its_phase_all_the_time_is_one_function() -> None:
    phases = ("forward", "backward")
    calls = [call(number, phases[number % 2], "x", f"t{number}") for number in range(MAX_SECTIONS + 1)]
    assert [section.name for section in sections(plan(*calls))] == ["whole"]
