"""Holders of tensors while storages are allocated, resized and freed."""

from __future__ import annotations

from foretrace.graph import Tensor
from foretrace.graph.bindings import Bindings


def tensor(number: int, storage: int, offset: int = 0) -> Tensor:
    return Tensor((4,), "float32", "cpu", (1,), offset, number, storage)


def test_the_same_look_at_the_same_place_is_the_same_tensor():
    bindings = Bindings[str]()
    bindings.bind(tensor(0, storage=0), "t0")
    assert bindings.find(tensor(1, storage=0)) == "t0"
    assert bindings.find(tensor(1, storage=0, offset=4)) is None
    assert bindings.by_id(tensor(1, storage=0)) is None


def test_holders_end_with_their_storage():
    bindings = Bindings[str]()
    bindings.bind(tensor(0, storage=0), "t0")
    bindings.bind(tensor(1, storage=0, offset=4), "t1")
    bindings.bind(tensor(2, storage=1), "t2")
    assert bindings.release(0) == ["t0", "t1"]
    assert bindings.find(tensor(0, storage=0)) is None
    assert bindings.find(tensor(2, storage=1)) == "t2"
    assert bindings.release(0) == []


def test_an_object_with_another_storage_does_not_end_with_the_one_it_had():
    bindings = Bindings[str]()
    bindings.bind(tensor(0, storage=0), "t0")
    bindings.rebind(tensor(0, storage=1), "t0")
    assert bindings.release(0) == []
    assert bindings.find(tensor(0, storage=1)) == "t0"


def test_a_storage_of_another_size_takes_its_holders_along():
    bindings = Bindings[str]()
    bindings.bind(tensor(0, storage=0), "t0")
    assert bindings.move(0, 5) == ["t0"]
    assert bindings.find(tensor(7, storage=5)) == "t0"
    assert not bindings.knows(0)
    assert bindings.knows(5)
    assert bindings.move(3, 4) == []


def test_a_tensor_is_looked_at_through_one_of_its_own_type():
    bindings = Bindings[str]()
    bindings.hold(0, "bytes", Tensor((16,), "uint8", "cpu", (1,), storage=0))
    assert bindings.base_of(tensor(3, storage=0)) is None
    bindings.bind(tensor(0, storage=0), "t0")
    assert bindings.base_of(tensor(3, storage=0, offset=2)) == "t0"


def test_a_tensor_without_id_has_no_holder():
    bindings = Bindings[str]()
    bindings.bind(tensor(-1, storage=0), "t0")
    assert bindings.find(tensor(-1, storage=0)) is None
    assert not bindings.knows(0)
