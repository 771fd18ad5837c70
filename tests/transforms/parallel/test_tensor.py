"""Tensor and sequence parallel: compared with DTensor, and with what Megatron describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gpt
import resnet
from foretrace.analysis.memory import peak_memory
from foretrace.graph import ForetraceError, Graph, Op, Tensor
from foretrace.graph.graph import cautions
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.parallelize import parallelize
from foretrace.transforms.parallel.split_rules import concat
from foretrace.transforms.parallel.splitting import Splitting, key_of
from tests.transforms.agreement import sketched
from tests.transforms.parallel.steps import LOOKS, exchanged, gpt_step, neighbours, tensor_parallel, told, trained


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, 16)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(64), Attention(), nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


PLAN = {f"attention.{name}": ColwiseParallel for name in "qkv"} | {
    "attention.out": RowwiseParallel,
    "up": ColwiseParallel,
    "down": RowwiseParallel,
}


def transformer(ways: int) -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(Block(), Block())
    if ways > 1:
        mesh = init_device_mesh("cpu", (ways,))
        for block in model:
            parallelize_module(block, mesh, {name: style() for name, style in PLAN.items()})
    return model, torch.randn(8, 32, 64)


@cache
def whole() -> Graph:
    return sketch(trained(lambda: transformer(1), "cpu"))


@pytest.mark.parametrize("ways", [2, 4])
def test_blocks_are_divided_as_dtensor_divides_them(ways: int) -> None:
    ours = tensor_parallel(whole(), ways)
    theirs = sketch(trained(lambda: transformer(ways), "cpu"), world=ways)
    assert exchanged(ours) == exchanged(theirs)
    assert neighbours(ours) == neighbours(theirs)

    def computed(graph: Graph) -> list[tuple[str, list[tuple[int, ...]]]]:
        return [(name, shapes) for name, shapes in told(graph) if "mm" in name or "attention" in name]

    assert computed(ours) == computed(theirs)


def in_two_dimensions(data: int, ways: int) -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(Block(), Block())
    mesh = init_device_mesh("cpu", (data, ways), mesh_dim_names=("data", "tensor"))
    for block in model:
        parallelize_module(block, mesh["tensor"], {name: style() for name, style in PLAN.items()})
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"]), torch.randn(8, 32, 64)


def test_divided_blocks_in_shards_exchange_what_dtensor_and_fsdp2_exchange() -> None:
    ours = parallelize(whole(), data=4, tensor=2, sharded=True).graphs[0]
    theirs = sketch(trained(lambda: in_two_dimensions(4, 2), "cpu"), world=8)
    assert exchanged(ours) == exchanged(theirs)
    assert {c.kind: c.ranks for c in ours.collectives} == {c.kind: c.ranks for c in theirs.collectives}


def test_sums_of_backward_may_go_out_before_the_weights_gradients() -> None:
    after, beside = (tensor_parallel(gpt_step(), 2, overlap) for overlap in (False, True))
    assert exchanged(after) == exchanged(beside)

    def products_behind(graph: Graph) -> list[str]:
        """Of each sum in backward, the next call that computes something."""
        sums = [c.op for c in graph.collectives if graph.ops[c.op].phase == "backward"]
        computing = [(row, op.name) for row, op in enumerate(graph.ops) if op.name not in LOOKS]
        return [next(name for row, name in computing if row > at) for at in sums]

    assert set(products_behind(after)) == {"aten::native_layer_norm_backward"}
    assert products_behind(beside).count("aten::mm") == 4


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_along_the_sequence_sums_are_scattered_and_products_gather(dtype: str) -> None:
    graph = tensor_parallel(gpt_step(dtype=dtype), 2, sequence=True)
    inside = [graph.ops[c.op] for c in graph.collectives if "blocks" in graph.ops[c.op].module]
    forward, backward = (Counter(op.name for op in inside if op.phase == phase) for phase in ("forward", "backward"))
    gather, scatter = "c10d::_allgather_base_", "c10d::_reduce_scatter_base_"
    assert forward == {gather: 2 * 2, scatter: 2 * 2}
    # Twice a block the gradient of a result, and the input once more; of the inputs' gradients, sums are scattered.
    assert backward == {gather: 4 * 2, scatter: 2 * 2}
    normed = {op.tensors[0].shape for op in graph.ops if "layer_norm" in op.name}
    assert normed == {(8, 16, 64)}


def test_along_the_sequence_products_are_the_same_and_less_is_kept() -> None:
    whole, parts = (tensor_parallel(gpt_step(), 2, sequence=sequence) for sequence in (False, True))
    products = [[op.tensors[-1].shape for op in g.ops if "mm" in op.name] for g in (whole, parts)]
    assert products[0] == products[1]
    assert (peak_memory(parts) or 0) < (peak_memory(whole) or 0)


def test_a_sequence_that_does_not_divide_is_named() -> None:
    odd = sketch(trained(lambda: (nn.Sequential(Block(), Block()), torch.randn(8, 31, 64)), "cpu"))
    with pytest.raises(ForetraceError, match=r"reads \[8, 31, 64\], without a sequence that is divisible by 2"):
        tensor_parallel(odd, 2, sequence=True)


def test_a_gpt_reduces_twice_per_block_and_direction_and_over_its_vocabulary() -> None:
    graph = tensor_parallel(gpt_step(), 2)
    words = 8 * 32
    activations, statistics = words * 64 * 4, words * 4
    assert [c.nbytes for c in graph.collectives] == [activations] * 5 + [statistics] * 3 + [activations] * 5
    assert {c.kind for c in graph.collectives} == {"all_reduce"}


def test_autocast_divides_the_same() -> None:
    whole, cast = tensor_parallel(gpt_step(), 2), tensor_parallel(gpt_step(dtype="bf16"), 2)
    assert [c.kind for c in cast.collectives] == [c.kind for c in whole.collectives]
    products = [[op.tensors[-1].shape for op in g.ops if op.name in ("aten::mm", "aten::addmm")] for g in (whole, cast)]
    assert products[0] == products[1]


def test_weights_states_and_gradients_are_divided_alike() -> None:
    graph = tensor_parallel(gpt_step(), 2)
    update = next(op for op in graph.ops if op.name == "aten::_foreach_lerp_")
    momenta, gradients = update.args[:2]
    assert isinstance(momenta, list) and isinstance(gradients, list)
    assert [t.shape for t in momenta] == [t.shape for t in gradients]  # type: ignore[union-attr]
    assert {(256, 64), (96, 64), (96,), (64, 32), (128, 64), (64, 128)} <= {t.shape for t in update.tensors}


def test_a_view_into_divided_queries_steps_over_its_own_part_only() -> None:
    graph = tensor_parallel(gpt_step(), 2)
    call = next(op for op in graph.ops if "attention" in op.name and op.phase == "forward")
    queries = call.tensors[0]
    assert (queries.shape, queries.stride) == ((8, 2, 32, 16), (32 * 96, 16, 96, 1))


def test_heads_that_do_not_divide_are_named() -> None:
    with pytest.raises(ForetraceError, match=r"aten::view in GPT.blocks.0.attention can't be split into 8"):
        tensor_parallel(gpt_step(), 8)


def test_a_width_that_does_not_divide_is_named() -> None:
    with pytest.raises(ForetraceError, match=r"addmm in GPT.blocks.0.attention.qkv .* not divisible by 5"):
        tensor_parallel(gpt_step(), 5)


def test_a_model_without_blocks_is_refused() -> None:
    graph = sketch(trained(lambda: (nn.Linear(8, 8), torch.randn(4, 8)), "cpu"))
    with pytest.raises(ForetraceError, match="no repeated blocks"):
        tensor_parallel(graph, 2)


def test_blocks_without_linear_layers_are_refused() -> None:
    def build() -> tuple[nn.Module, torch.Tensor]:
        return nn.Sequential(*(nn.LayerNorm(8) for _ in range(4))), torch.randn(4, 8)

    with pytest.raises(ForetraceError, match=r"no linear layers in the blocks .* Sequential.0"):
        tensor_parallel(sketch(trained(build, "cpu")), 2)


def test_a_split_of_few_weights_is_a_caution() -> None:
    assert [note for note in cautions(tensor_parallel(sketched(resnet), 2).notes) if "splits only" in note]
    assert not cautions(tensor_parallel(sketched(gpt), 2).notes)


def test_an_empty_vector_that_is_concatenated_with_anything_is_not_split() -> None:
    """As caches of keys begin: cat([], keys)."""
    rules = Splitting(2, {}, concat)
    keys, nothing = Tensor((4, 8, 16), "float32", id=0, storage=0), Tensor((0,), "float32", id=1, storage=1)
    joined = Tensor((4, 8, 16), "float32", id=2, storage=2)
    rules.states[key_of(keys)] = 1
    concat(rules, Op("aten::cat", ([nothing, keys], -2), outputs=(joined,)))
    assert rules.split_dim(joined) == 1


class RotaryBlock(nn.Module):
    """Queries and keys rotated as complex numbers, as in Meta's and torchtitan's Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.between = nn.RMSNorm(64), nn.RMSNorm(64)
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.norm(x)
        q, k, v = (part(given).unflatten(-1, (-1, 16)) for part in (self.q, self.k, self.v))
        angles = torch.polar(torch.ones(32, 1, 8, device=x.device), torch.ones(32, 1, 8, device=x.device))
        q, k = (
            torch.view_as_real(torch.view_as_complex(part.float().unflatten(-1, (-1, 2))) * angles).flatten(-2)
            for part in (q, k)
        )
        seen = nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        given = self.between(x)
        return x + self.down(nn.functional.silu(self.gate(given)) * self.up(given))


@cache
def rotary() -> Graph:
    return sketch(trained(lambda: (nn.Sequential(RotaryBlock(), RotaryBlock()), torch.randn(8, 32, 64))), device="cuda")


def test_rotation_by_complex_numbers_is_split_by_heads() -> None:
    parts = tensor_parallel(rotary(), 2)
    (heads,) = {op.tensors[0].shape[1] for op in parts.ops if "attention" in op.name and op.phase == "forward"}
    assert heads == 2 and not any("whole" in note for note in parts.notes)


def test_along_the_sequence_layers_that_read_one_input_reduce_its_gradient_once() -> None:
    """Per block: forward gathers and scatters twice; backward too, and gathers inputs again for weight gradients."""
    kinds = Counter(c.kind for c in tensor_parallel(rotary(), 2, sequence=True).collectives)
    assert (kinds["reduce_scatter"], kinds["all_gather"]) == (2 * 4, 2 * 6)


def test_what_can_not_be_split_is_named_though_it_shows_later() -> None:
    class Sorted(RotaryBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.out(self.q(x).sort(-1).values)

    step = sketch(trained(lambda: (nn.Sequential(Sorted(), Sorted()), torch.randn(8, 32, 64))), device="cuda")
    with pytest.raises(ForetraceError, match=r"aten::sort in Sequential.0"):
        tensor_parallel(step, 2, sequence=True)
    (note,) = [note for note in tensor_parallel(step, 2).notes if "whole" in note]
    assert "aten::sort in Sequential.0 can't be split" in note


@pytest.mark.parametrize("sequence", [False, True])
def test_a_vocabulary_that_does_not_divide_is_padded_as_megatron_pads_it(sequence: bool) -> None:
    odd, padded = (tensor_parallel(sketched(gpt, vocabulary=size), 4, sequence=sequence) for size in (509, 512))
    assert [shape for _, shape in told(odd)] == [shape for _, shape in told(padded)]
    assert peak_memory(odd) == peak_memory(padded)
    assert any("vocabulary of 509 is padded to 512" in note for note in odd.notes)


def clipped(foreach: bool) -> Callable[[], None]:
    with torch.device("cuda"):
        model, given = nn.Sequential(Block(), Block()), torch.randn(8, 32, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(given).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)
        optimizer.step()

    return step


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("sequence", [True, False])
def test_norms_of_split_gradients_are_reduced_together(foreach: bool, sequence: bool) -> None:
    step = sketch(lambda: clipped(foreach), device="cuda")
    plain, clips = tensor_parallel(whole(), 2, sequence=sequence), tensor_parallel(step, 2, sequence=sequence)
    *others, norms = exchanged(clips)
    assert others == exchanged(plain)
    assert norms == ("all_reduce", 4 * 2 * 16, "float32")  # of two blocks with 16 weights and biases each


def untied_step() -> Callable[[], None]:
    """A language model whose head has a table of its own, updated by foreach AdamW."""
    with torch.device("cuda"):
        model = nn.Sequential(nn.Embedding(512, 64), Block(), Block(), nn.Linear(64, 512, bias=False))
        ids = torch.randint(0, 512, (8, 32))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("sequence", [True, False])
def test_optimizer_states_of_untied_embeddings_are_split_with_them(sequence: bool) -> None:
    split = tensor_parallel(sketch(untied_step, device="cuda"), 2, sequence=sequence)
    updates = [op for op in split.ops if op.phase == "optimizer" and op.name.startswith("aten::_foreach_addcdiv_")]
    tables = {t.shape for op in updates for t in op.tensors if t.shape[-1:] == (64,) and t.shape[0] in (256, 512)}
    assert updates
    assert tables == {(256, 64)}
    assert not any("whole" in note for note in split.notes)


class SharedKeys(Block):
    """Queries of four heads, and keys and values of one, which can't be divided; the layers after it can."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.before(x)
        q = self.q(given).unflatten(-1, (-1, 16)).transpose(1, 2)
        k, v = self.kv(given).unflatten(-1, (-1, 16)).transpose(1, 2).chunk(2, 1)
        scores = (q @ k.transpose(-2, -1)).softmax(-1) * k.square().mean(-1).unsqueeze(-2)
        x = x + self.out((scores @ v).transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


def shared_keys_step() -> Callable[[], None]:
    with torch.device("cuda"):
        table = nn.Embedding(512, 64)
        blocks, head = nn.Sequential(SharedKeys(), SharedKeys()), nn.Linear(64, 512, bias=False)
        ids = torch.randint(0, 512, (8, 32))
    head.weight = table.weight

    def step() -> None:
        nn.functional.cross_entropy(head(blocks(table(ids))).flatten(0, 1), ids.flatten()).backward()

    return step


def test_fewer_key_heads_than_ranks_are_said() -> None:
    class Grouped(RotaryBlock):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.v = nn.Linear(64, 32), nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part(x).unflatten(-1, (-1, 16)).transpose(1, 2) for part in (self.q, self.k, self.v))
            made = nn.functional.scaled_dot_product_attention(q, k * 2, v, enable_gqa=True)
            return self.down(self.up(x + self.out(made.transpose(1, 2).flatten(-2))))

    step = sketch(
        trained(lambda: (nn.Sequential(Grouped(), Grouped()).half(), torch.randn(8, 32, 64).half())), device="cuda"
    )
    (note,) = [note for note in tensor_parallel(step, 4).notes if "whole" in note]
    assert "has 2 of what 4 ranks share" in note


def test_what_can_not_be_split_leaves_tied_embeddings_split() -> None:
    split = tensor_parallel(sketch(shared_keys_step, device="cuda"), 4)
    (lookup,) = [op for op in split.ops if op.name == "aten::embedding"]
    assert lookup.tensors[0].shape == (128, 64)
    assert any("its argument of shape [32, 16, 32] is whole on every rank" in note for note in split.notes)
