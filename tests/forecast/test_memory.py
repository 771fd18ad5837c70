"""Peak memory."""

from foretrace.forecast.memory import peak_memory
from foretrace.graph import Graph, OpTable, Storage


def held(*storages: Storage) -> int | None:
    return peak_memory(Graph(OpTable.of([]), storages={s.id: s for s in storages}))


def test_storages_that_never_live_at_once_do_not_add_up() -> None:
    assert held(Storage(0, 100, "cuda:0", birth=0, death=3), Storage(1, 60, "cuda:0", birth=3, death=5)) == 100


def test_storages_that_live_at_once_add_up_and_what_was_there_before_counts() -> None:
    weights = Storage(0, 1000, "cuda:0")
    assert held(weights, Storage(1, 60, "cuda:0", birth=0, death=4), Storage(2, 70, "cuda:0", birth=3)) == 1130


def test_only_the_device_counts_where_there_is_one() -> None:
    assert held(Storage(0, 10, "cuda:0"), Storage(1, 999, "cpu")) == 10
    assert held(Storage(1, 999, "cpu")) == 999


def test_what_the_allocator_said_goes_before_what_storages_add_up_to() -> None:
    graph = Graph(OpTable.of([]), storages={0: Storage(0, 10, "cuda:0")}, allocated=((0.0, 50), (1.0, 80), (2.0, 20)))
    assert peak_memory(graph) == 80


def test_a_source_that_says_nothing_of_memory_has_no_peak() -> None:
    assert held() is None
