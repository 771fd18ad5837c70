"""Context parallel: ring attention compared with PyTorch's own, all-to-all attention with one written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.distributed.tensor.experimental._context_parallel import _attention as pytorch
from torch.nn.functional import scaled_dot_product_attention

from foretrace.analysis.memory import peak_memory
from foretrace.graph import ForetraceError, Graph, Op
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.context import attention_kind
from foretrace.transforms.parallel.parallelize import parallelize
from tests.narrowing import present
from tests.transforms.parallel.steps import exchanged, gpt_step, trained

HEADS, WIDTH, LENGTH, BATCH = 8, 128, 64, 4
METHODS = {"ring": "alltoall", "all-gather": "allgather"}


class Ring(Function):
    """What ``context_parallel`` puts in the place of attention."""

    @staticmethod
    def forward(context: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        op = torch.ops.aten._scaled_dot_product_cudnn_attention
        options: dict[str, Any] = {"compute_log_sumexp": True, "dropout_p": 0.0, "return_debug_mask": False}
        made = pytorch._templated_ring_attention(
            present(dist.group.WORLD), 2, op, q, k, v, is_causal=True, attn_bias=None, scale=None, **options
        )
        context.save_for_backward(q, k, v, *made[:2])
        context.rest = made[2:]
        return made[0]

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, out, lse = context.saved_tensors
        cum_seq_q, cum_seq_k, max_q, max_k, seed, offset, *_ = context.rest
        op = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
        made = pytorch._templated_ring_attention_backward(
            present(dist.group.WORLD), 2, op, gradient, "grad_out", q, k, v, out, lse, is_causal=True,
            philox_seed=seed, philox_offset=offset, attn_bias=None, cum_seq_q=cum_seq_q, cum_seq_k=cum_seq_k,
            max_q=max_q, max_k=max_k, dropout_p=0.0, scale=None,
        )  # fmt: skip
        return made[:3]


class Trade(Function):
    """Heads for sequence, or back."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, to_heads: bool) -> torch.Tensor:
        context.to_heads, ranks = to_heads, dist.get_world_size()
        samples, heads, length, width = x.shape
        split = (samples, ranks, heads // ranks, length, width) if to_heads else (samples, heads, ranks, -1, width)
        packed = x.reshape(split).movedim(1 if to_heads else 2, 0).contiguous()
        out = torch.empty_like(packed)
        dist.all_to_all_single(out, packed)
        if to_heads:
            return out.movedim(0, 2).reshape(samples, heads // ranks, -1, width)
        return out.movedim(0, 1).reshape(samples, heads * ranks, -1, width)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return Trade.apply(gradient, not context.to_heads), None


class Block(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.norm = kind, nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.kind in METHODS:
            return Ring.apply(q, k, v)
        if self.kind:
            q, k, v = (Trade.apply(x, True) for x in (q, k, v))
            return Trade.apply(scaled_dot_product_attention(q, k, v, is_causal=True), False)
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.norm(x)
        heads = (layer(given).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return x + self.out(self.attention(*heads).transpose(1, 2).flatten(-2))


def blocks(kind: str = "", ranks: int = 1, length: int = LENGTH) -> Callable[[], tuple[nn.Module, torch.Tensor]]:
    def build() -> tuple[nn.Module, torch.Tensor]:
        if kind in METHODS:
            pytorch.set_rotate_method(METHODS[kind])
        model = nn.Sequential(*(Block(kind) for _ in range(3))).bfloat16()
        return model, torch.randn(BATCH, length // ranks, WIDTH, dtype=torch.bfloat16)

    return build


@cache
def whole(length: int = LENGTH) -> Graph:
    return sketch(trained(blocks(length=length)), device="cuda")


@cache
def theirs(kind: str, ranks: int, length: int = LENGTH) -> Graph:
    return sketch(trained(blocks(kind, ranks, length)), device="cuda", world=ranks)


def ours(kind: str, ranks: int) -> Graph:
    return parallelize(whole(), context=ranks, context_kind=kind).graphs[0]


def in_attention(graph: Graph) -> list[tuple[str, int, str]]:
    """The collectives of attention, in the library's words: a step around the ring is an uneven all_to_all there."""
    kinds = {"permute": "all_to_all"}
    gradients = {number for number, c in enumerate(graph.collectives) if c.group == "data"}
    return [(kinds.get(k, k), *rest) for n, (k, *rest) in enumerate(exchanged(graph)) if n not in gradients]  # type: ignore[misc]


def heavy(graph: Graph) -> list[tuple[str, list[tuple[int, ...]]]]:
    """GEMMs and attention with their shapes, in order."""
    calls = (op for op in graph.ops if "mm" in op.name or attention_kind(op))
    return [(op.name, [t.shape for t in (*op.tensors, *op.produced)]) for op in calls]


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ring_attention_computes_and_exchanges_what_pytorchs_does(kind: str, ranks: int) -> None:
    assert in_attention(ours(kind, ranks)) == in_attention(theirs(kind, ranks))
    assert heavy(ours(kind, ranks)) == heavy(theirs(kind, ranks))


@pytest.mark.parametrize("kind", METHODS)
def test_partial_results_are_merged_by_the_calls_that_pytorch_merges_them_by(kind: str) -> None:
    names = ("sub", "mul", "sigmoid", "log_sigmoid_forward", "cat", "zeros_like")

    def merging(graph: Graph) -> Counter[tuple[str, int]]:
        calls = (op for op in graph.ops if op.module.endswith((".0", ".1", ".2")))
        return Counter(
            (op.name, op.produced[0].numel) for op in calls if op.name.removeprefix("aten::").rstrip("_") in names
        )

    assert merging(ours(kind, 4)) == merging(theirs(kind, 4)) != Counter()


def test_ulysses_trades_heads_for_the_sequence() -> None:
    made = ours("all-to-all", 4)
    assert in_attention(made) == in_attention(theirs("all-to-all", 4))
    assert heavy(made) == heavy(theirs("all-to-all", 4))
    queries = next(op.tensors[0] for op in made.ops if attention_kind(op))
    assert queries.shape == (BATCH, HEADS // 4, LENGTH, WIDTH // HEADS)


@pytest.mark.parametrize("kind, within", [("ring", 0.05), ("all-gather", 0.05), ("all-to-all", 0.01)])
def test_a_rank_holds_what_the_sketch_of_it_holds(kind: str, within: float) -> None:
    """In a sketch what a functional collective returns is there twice while it is waited for."""
    made = parallelize(whole(1024), context=4, context_kind=kind, bucket_mb=1e-6).graphs[0]
    buckets = sum(c.nbytes for c in made.collectives if c.group == "data")
    held = present(peak_memory(made)) - buckets
    assert held == pytest.approx(present(peak_memory(theirs(kind, 4, 1024))), rel=within)


def test_gradients_and_shards_are_those_of_data_and_context_ranks_together() -> None:
    reduced = parallelize(whole(), data=2, context=2, tensor=2)
    assert reduced.world == 8
    assert {c.group: c.ranks for c in reduced.graphs[0].collectives} == {
        "tensor": (0, 1),
        "context": (0, 2),
        "data": (0, 2, 4, 6),
    }
    sharded = parallelize(whole(), context=4, sharded=True).graphs[0]
    assert {c.kind: c.ranks for c in sharded.collectives if c.group == "data"} == {
        "all_gather": (0, 1, 2, 3),
        "reduce_scatter": (0, 1, 2, 3),
    }


def flops(graph: Graph) -> int:
    """Of GEMMs, on all ranks alike."""
    return sum(op.tensors[-2].numel * op.tensors[-1].shape[-1] for op in graph.ops if op.name == "aten::mm")


@pytest.mark.parametrize("kind", [*METHODS, "all-to-all"])
@pytest.mark.parametrize(
    "others",
    [
        {"tensor": 2},
        {"tensor": 2, "sequence": True},
        {"pipeline": 2, "microbatches": 4},
        {"data": 2, "sharded": True},
        {"data": 2, "tensor": 2, "sequence": True, "pipeline": 2, "microbatches": 4, "zero1": True},
    ],
)
def test_it_divides_the_work_of_every_other_kind_of_parallelism(kind: str, others: dict[str, Any]) -> None:
    step = gpt_step(dtype="bf16")
    with_context, without = (parallelize(step, **others, context=n, context_kind=kind) for n in (2, 1))
    assert with_context.world == 2 * without.world
    assert sum(map(flops, with_context.graphs)) * 2 == sum(map(flops, without.graphs))


def test_recomputed_attention_is_shared_again() -> None:
    plain, again = (parallelize(gpt_step(dtype="bf16", recompute=r), context=2) for r in (False, True))
    permutes = [sum(c.kind == "permute" for c in job.graphs[0].collectives) for job in (plain, again)]
    assert permutes == [8, 10]  # two blocks: once forward and three times backward, and forward again


def causal(graph: Graph) -> list[Any]:
    return [op.args[6] for op in graph.ops if op.name.endswith("cudnn_attention")]


def test_only_attention_to_the_own_keys_is_causal() -> None:
    assert causal(ours("ring", 4))[:4] == [True, False, False, False]
    assert causal(ours("all-to-all", 4)) == [True] * 3


class WrittenOut(Block):
    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v


class Masked(Block):
    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, torch.zeros(LENGTH, LENGTH, device=q.device, dtype=q.dtype))


class Mixing(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).cumsum(1)


@pytest.mark.parametrize(
    "block, ranks, message",
    [
        (WrittenOut, 2, "calls no scaled_dot_product_attention"),
        (Masked, 2, "takes a mask"),
        (Mixing, 2, "cumsum in .* goes along the split dimension"),
        (Block, 3, "sequences of 64 can't be divided into two parts for each of 3"),
    ],
)
def test_what_can_not_be_shared_is_named(block: type[Block], ranks: int, message: str) -> None:
    def build() -> tuple[nn.Module, torch.Tensor]:
        model = nn.Sequential(block(""), block("")).bfloat16()
        return model, torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16)

    step = sketch(trained(build), device="cuda")
    with pytest.raises(ForetraceError, match=message):
        parallelize(step, context=ranks)


def test_more_ranks_than_heads_are_for_the_ring() -> None:
    with pytest.raises(ForetraceError, match=r"8 heads in Sequential.0 can't be divided over 16 ranks"):
        parallelize(whole(), context=16, context_kind="all-to-all")
    assert parallelize(whole(), context=16).world == 16


def test_attention_is_known_by_its_name() -> None:
    assert attention_kind(Op("aten::_scaled_dot_product_efficient_attention")) == "efficient_attention"
    assert not attention_kind(Op("aten::_scaled_dot_product_of_something"))
