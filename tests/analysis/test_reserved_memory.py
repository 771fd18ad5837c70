"""What PyTorch's allocator reserves over the first steps of a process."""

from foretrace.analysis.reserved_memory import FRAGMENTATION, WORKSPACES, ReservedMemory, Workspace, simulate_memory
from foretrace.graph import Graph, Op, OpTable, Storage, Tensor
from foretrace.graph.op import Value
from foretrace.simulation.caching_allocator import MIB, AllocatorSettings

WEIGHT = Storage(0, 40 * MIB, "cuda:0", held=True)
MOMENT = Storage(3, 40 * MIB, "cuda:0")


def step(*storages: Storage, phases: tuple[str, ...] = ("forward", "backward", "optimizer")) -> Graph:
    """Ops of these phases; the optimizer updates the moment."""
    moment = Tensor((10 * MIB,), "float32", "cuda:0", id=3, storage=3)
    ops = [Op("aten::mul", (moment,) if phase == "optimizer" else (), phase=phase) for phase in phases]
    return Graph(OpTable.of(ops), storages={storage.id: storage for storage in storages})


def simulated(*storages: Storage, **options: object) -> ReservedMemory:
    found = simulate_memory([step(*storages)], **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_state_of_the_optimizer_is_made_in_the_first_step() -> None:
    activation = Storage(1, 30 * MIB, "cuda:0", birth=0, death=2)
    gradient = Storage(2, 40 * MIB, "cuda:0", birth=1)
    found = simulated(WEIGHT, activation, gradient, MOMENT)
    # The state takes the place of nothing: the activation's block is too small, and stays cached.
    assert found.reserved == (40 + 30 + 40 + 40) * MIB
    assert found.by_kind["optimizer state"] == found.by_kind["gradients"] == 40 * MIB


def test_gradients_of_a_step_are_gone_when_the_next_one_begins() -> None:
    gradient = Storage(2, 40 * MIB, "cuda:0", birth=1)
    assert simulated(WEIGHT, gradient).reserved == 80 * MIB


def test_what_is_reserved_is_what_is_allocated_and_what_is_lost() -> None:
    grows = [Storage(n + 1, (20 + 4 * n) * MIB, "cuda:0", birth=n, death=n + 1) for n in range(3)]
    found = simulated(WEIGHT, *grows)
    assert sum(found.by_kind.values()) == found.reserved
    assert found.allocated == 68 * MIB and found.by_kind[FRAGMENTATION] == (20 + 24) * MIB
    expandable = simulated(WEIGHT, *grows, settings=AllocatorSettings(expandable_segments=True))
    assert expandable.reserved == 80 * MIB  # pages of 20


def test_workspaces_stay_from_their_first_use_on() -> None:
    found = simulated(WEIGHT, workspaces=[Workspace(0, 32 * MIB), Workspace(1, 32 * MIB, stream=7)])
    assert found.reserved == 104 * MIB and found.by_kind[WORKSPACES] == 64 * MIB


def test_what_was_freed_on_one_stream_is_not_reused_on_another() -> None:
    first, second = Storage(1, 30 * MIB, "cuda:0", birth=0, death=1), Storage(2, 30 * MIB, "cuda:0", birth=1, death=2)

    def reserved(stream: int) -> int:
        ops = OpTable.of([Op("aten::mul"), Op("aten::mul", stream=stream), Op("aten::mul")])
        found = simulate_memory([Graph(ops, storages={0: WEIGHT, 1: first, 2: second})])
        assert found is not None
        return found.reserved

    assert reserved(0) == 70 * MIB and reserved(7) == 100 * MIB


def test_calls_of_a_trace_are_not_decoded_for_streams_that_it_does_not_have() -> None:
    graph, decoded = step(WEIGHT, Storage(1, 30 * MIB, "cuda:0", birth=0, death=2), phases=("forward",) * 3), []
    graph.ops.stream, graph.ops.detail = None, lambda row: decoded.append(row) or Op("aten::mul")
    assert simulate_memory([graph]) is not None and not decoded


def test_steps_of_growing_sizes_fragment() -> None:
    sizes = (20, 24, 28, 32)
    steps = [step(WEIGHT, Storage(1, size * MIB, "cuda:0", birth=0, death=1)) for size in sizes]
    varying, fixed = simulate_memory(steps), simulate_memory(steps[-1:])
    assert varying is not None and fixed is not None
    assert varying.reserved == (40 + sum(sizes)) * MIB and fixed.reserved == 72 * MIB


def test_a_limit_says_which_op_failed_and_what_it_asked_for() -> None:
    activation = Storage(1, 30 * MIB, "cuda:0", birth=1, death=2)
    found = simulated(WEIGHT, activation, limit=60 * MIB)
    assert found.failed_at == 1 and found.asked == 30 * MIB
    assert simulated(WEIGHT, activation, limit=70 * MIB).failed_at is None


def test_a_source_that_says_nothing_of_memory_reserves_nothing_known() -> None:
    assert simulate_memory([step()]) is None


def _alone(op: Op, made: Storage, limit: int | None = None) -> ReservedMemory:
    """A call over a weight of 40 MiB."""
    found = simulate_memory([Graph(OpTable.of([op]), storages={0: WEIGHT, 1: made})], limit=limit)
    assert found is not None
    return found


def test_sums_of_long_columns_take_memory_for_the_partial_sums_of_thread_blocks() -> None:
    rows = Tensor((25600, 256), "float32", "cuda:0", stride=(256, 1))
    made = Storage(1, 4 * MIB, "cuda:0", birth=0)
    assert _alone(Op("aten::sum", (rows, [0], True)), made).allocated == (40 + 4 + 50) * MIB  # as an H200 has it
    assert _alone(Op("aten::sum", (rows, [1], True)), made).allocated == (40 + 4) * MIB


def test_a_convolution_does_without_a_workspace_that_does_not_fit() -> None:
    image, weight = Tensor((16, 64, 64, 64), "float32", "cuda:0"), Tensor((64, 64, 3, 3), "float32", "cuda:0")
    made = Storage(1, 16 * MIB, "cuda:0", birth=0)
    call = Op("aten::convolution", (image, weight))
    assert _alone(call, made).allocated > (40 + 16 + 16) * MIB
    tight = _alone(call, made, limit=62 * MIB)
    assert tight.failed_at is None and tight.allocated == (40 + 16) * MIB


def test_a_recurrent_layer_has_its_gates_before_what_it_returns() -> None:
    given = Tensor((64, 128, 1024), "float32", "cuda:0")
    weights: list[Value] = [
        Tensor(shape, "float32", "cuda:0") for shape in ((4096, 1024), (4096, 1024), (4096,), (4096,))
    ]
    made = Storage(1, 64 * MIB, "cuda:0", birth=0)
    found = _alone(Op("aten::_cudnn_rnn", (given, weights)), made)
    assert found.allocated == (40 + 128 + 64) * MIB
