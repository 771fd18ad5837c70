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
