"""Which variable holds which tensor."""

from __future__ import annotations

from foretrace.graph import Storage, Tensor
from foretrace.replay.variables import Variables


def tensor(number: int, storage: int, offset: int = 0, size: int = 4) -> Tensor:
    return Tensor((size,), "float32", "cpu", (1,), offset=offset, id=number, storage=storage)


def test_what_nobody_made_was_there_before() -> None:
    variables = Variables({0: Storage(0, 64, "cpu", -1, -1)}, {})
    name, maker = variables.read(tensor(0, 0))
    assert maker is None and [given.name for given in variables.inputs] == [name]
    assert variables.memories[0].nbytes == 64


def test_the_same_view_under_another_number_is_the_same_variable() -> None:
    variables = Variables({}, {})
    made = variables.make(tensor(1, 1))
    assert variables.read(tensor(7, 1)) == (made, None) and variables.inputs == []


def test_another_view_of_what_was_made_is_taken_of_it() -> None:
    variables = Variables({}, {})
    base = variables.make(tensor(1, 1, size=8))
    name, maker = variables.read(tensor(2, 1, offset=4))
    assert maker is not None and maker.name == "aten::as_strided" and maker.args == (base, [4], [1], 4)
    assert maker.results == (name,) and variables.inputs == []


def test_a_result_in_place_makes_no_variable() -> None:
    variables = Variables({}, {})
    given, _ = variables.read(tensor(0, 0))
    assert variables.make(tensor(0, 0)) is None and variables.read(tensor(0, 0))[0] == given


def test_a_storage_that_dies_takes_its_variables_with_it() -> None:
    variables = Variables({}, {})
    first, second = variables.make(tensor(1, 1)), variables.make(tensor(2, 1, offset=4))
    assert variables.free([1]) == [first, second]
    name, _ = variables.read(tensor(1, 1))
    assert name not in (first, second)  # the number is another tensor's by now


def test_a_resized_storage_keeps_its_variables() -> None:
    variables = Variables({}, {})
    made = variables.make(tensor(1, 1))
    assert variables.resized(1, 9) == made and variables.read(tensor(1, 9))[0] == made


def test_what_gets_another_storage_does_not_end_with_the_one_it_had() -> None:
    variables = Variables({}, {})
    made = variables.make(tensor(1, 1))
    assert variables.make(tensor(1, 2)) is None and variables.free([1]) == []
    assert variables.read(tensor(1, 2)) == (made, None) and variables.free([2]) == [made]


def test_a_part_of_a_sparse_input_that_a_call_makes_gets_a_twin() -> None:
    ids, rows = Tensor((1, 4), "int64", "cpu", (4, 1), id=1, storage=1), tensor(2, 2)
    gradient = Tensor((9, 4), "float32", "cpu", id=3, layout="sparse_coo")
    variables = Variables({}, {3: (ids, rows)})
    made = variables.make(ids)
    variables.read(gradient)
    parts = next(given.parts for given in variables.inputs if given.parts)
    names = {given.name: given for given in variables.inputs}
    assert made not in parts and all(part in names for part in parts)
    assert len({given.memory.name for given in names.values() if given.memory}) == 2


def test_memory_that_the_step_gives_its_size_has_the_one_it_begins_with() -> None:
    before, after = Storage(0, 0, "cpu", -1, 3), Storage(1, 64, "cpu", 3, -1)
    variables = Variables({0: before, 1: after}, {})
    variables.resized(0, 1)
    weight, _ = variables.read(tensor(7, 1, size=16))
    assert variables.memories[1].nbytes == 0
    assert [given.memory is variables.memories[1] for given in variables.inputs] == [True, True]
    assert weight == variables.inputs[1].name
