"""Peak memory."""

from dataclasses import replace

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.analysis.memory import held_bytes, held_bytes_by_kind, peak_memory, storage_kinds
from foretrace.graph import Graph, Op, OpTable, Storage, Tensor
from foretrace.platform.device import Device
from foretrace.prediction.memory import gemm_workspaces


def held(*storages: Storage) -> int | None:
    return peak_memory(Graph(OpTable.of([]), storages={s.id: s for s in storages}))


def test_storages_that_never_live_at_once_do_not_add_up() -> None:
    assert held(Storage(0, 1024, "cuda:0", birth=0, death=3), Storage(1, 512, "cuda:0", birth=3, death=5)) == 1024


def test_storages_that_live_at_once_add_up_and_what_was_there_before_counts() -> None:
    weights = Storage(0, 10240, "cuda:0")
    assert held(weights, Storage(1, 1024, "cuda:0", birth=0, death=4), Storage(2, 512, "cuda:0", birth=3)) == 11776


def test_a_device_gives_memory_out_in_blocks_and_the_host_does_not() -> None:
    assert held(Storage(0, 1, "cuda:0"), Storage(1, 513, "cuda:0")) == 512 + 1024
    assert held(Storage(0, 1, "cpu"), Storage(1, 513, "cpu")) == 514


def test_only_the_device_counts_where_there_is_one() -> None:
    assert held(Storage(0, 512, "cuda:0"), Storage(1, 99999, "cpu")) == 512
    assert held(Storage(1, 99999, "cpu")) == 99999


def test_what_the_allocator_said_goes_before_what_storages_add_up_to() -> None:
    graph = Graph(OpTable.of([]), storages={0: Storage(0, 10, "cuda:0")}, allocated=((0.0, 50), (1.0, 80), (2.0, 20)))
    assert peak_memory(graph) == 80


def test_the_matrix_library_keeps_a_workspace_for_each_thread_and_stream() -> None:
    def kept(*ops: Op, kind: str = "cuda") -> float:
        calls = dispatched_calls(Graph(OpTable.of(list(ops))))
        return sum(each.nbytes for each in gemm_workspaces(calls, replace(Device.named("h200"), kind=kind))) / 2**20

    forward, backward = (Op("aten::addmm", phase=phase) for phase in ("forward", "backward"))
    assert kept(Op("aten::relu")) == 0
    assert kept(forward, forward) == 32 and kept(forward, backward) == 64
    assert kept(forward, Op("aten::bmm", phase="forward", stream=9)) == 64
    assert kept(forward, backward, kind="cpu") == 0


def test_a_source_that_says_nothing_of_memory_has_no_peak() -> None:
    assert held() is None


def test_adding_a_sparse_gradient_holds_a_copy_of_its_values_meanwhile() -> None:
    table = Tensor((100, 64), "float32", "cuda:0", id=0, storage=0)
    ids, values = (
        Tensor((1, 4), "int64", "cuda:0", id=1, storage=1),
        Tensor((4, 64), "float32", "cuda:0", id=2, storage=2),
    )
    gradient = Tensor((100, 64), "float32", "cuda:0", id=3, layout="sparse_coo")
    ops = [
        Op("aten::_sparse_coo_tensor_unsafe", (ids, values, [100, 64]), outputs=(gradient,)),
        Op("aten::add_", (table, gradient)),
        Op("aten::relu"),
    ]
    graph = Graph(OpTable.of(ops), storages={0: Storage(0, 25600, "cuda:0"), 2: Storage(2, 1024, "cuda:0")})
    assert peak_memory(graph) == 25600 + 1024 + 1024
    graph.ops = OpTable.of(ops[:1])
    assert peak_memory(graph) == 25600 + 1024


def training_step(held: bool) -> Graph:
    """A weight, its momentum and an input from before; an activation, a gradient and a product that dies at once."""
    cuda = {number: Tensor((256,), "float32", "cuda:0", id=number, storage=number) for number in range(6)}
    weight, momentum, batch, activation, gradient, scratch = cuda.values()
    ops = [
        Op("aten::mul", (weight, batch), outputs=(activation,), phase="forward"),
        Op("aten::mul", (activation, batch), outputs=(scratch,), phase="backward"),
        Op("aten::mul", (scratch, batch), outputs=(gradient,), phase="backward"),
        Op("aten::add_", (momentum, gradient), outputs=(momentum,), phase="optimizer"),
        Op("aten::add_", (weight, momentum), outputs=(weight,), phase="optimizer"),
    ]
    lives = {0: (-1, -1), 1: (-1, -1), 2: (-1, -1), 3: (0, 2), 4: (2, -1), 5: (1, 3)}
    storages = {n: Storage(n, 1024, "cuda:0", *life, held=held and n == 0) for n, life in lives.items()}
    return Graph(OpTable.of(ops), storages=storages)


def test_memory_is_told_apart_by_what_it_is_for() -> None:
    assert list(storage_kinds(training_step(held=True)).values()) == [
        "weights", "optimizer state", "inputs and others", "activations", "gradients", "temporary",
    ]  # fmt: skip
    assert list(storage_kinds(training_step(held=False)).values())[:3] == ["from before the step"] * 3


def test_kinds_of_memory_add_up_to_all_of_it() -> None:
    graph = training_step(held=True)
    whole = held_bytes(graph)
    assert whole is not None and whole.tolist() == sum(held_bytes_by_kind(graph).values()).tolist()  # type: ignore[union-attr]
