"""Each rank's memory is its own: peaks against sketches of such ranks, written as Megatron is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

import dlrm
import dlrm_distributed
from foretrace.analysis.memory import peak_memory
from foretrace.analysis.reserved_memory import simulate_memory
from foretrace.graph import Graph
from foretrace.record.sketch.sketch import sketch
from foretrace.simulation.caching_allocator import LARGE_SEGMENT
from foretrace.transforms.parallel.parallelize import parallelize
from tests.narrowing import present
from tests.transforms.parallel.steps import exchanged, gpt_step
from tests.transforms.parallel.test_experts import EXPERTS, TOKENS, WIDTH, Mixture, expert_parallel

LIMIT = 0.01
BLOCKS, DIM, HEADS, SEQ, BATCH = 4, 256, 4, 128, 8
Built = Callable[[], Callable[[], None]]


def assert_same_peak(ours: Graph, theirs: Graph) -> None:
    assert present(peak_memory(ours)) == pytest.approx(present(peak_memory(theirs)), rel=LIMIT)


def gathered(part: torch.Tensor) -> torch.Tensor:
    whole = part.new_empty(part.shape[0], part.shape[1] * dist.get_world_size(), part.shape[2])
    dist.all_gather_into_tensor(whole.view(-1), part.reshape(-1))
    return whole


def scattered(whole: torch.Tensor) -> torch.Tensor:
    part = whole.new_empty(whole.shape[0], whole.shape[1] // dist.get_world_size(), whole.shape[2])
    dist.reduce_scatter_tensor(part.view(-1), whole.reshape(-1))
    return part


class Enter(Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Leave(Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class GatherLinear(Function):
    """Saves its part of the sequence, and gathers it again for the weight's gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x, weight)
        return functional.linear(gathered(x), weight, bias)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight = context.saved_tensors
        whole = gathered(x)
        of_input = scattered(gradient @ weight)
        flat = gradient.flatten(0, 1)
        return of_input, flat.t() @ whole.flatten(0, 1), flat.sum(0)


class Scatter(Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return scattered(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gathered(gradient)


class Block(nn.Module):
    """A transformer block, whole or split over tensor parallel ranks, with or without sequence parallel."""

    def __init__(self, ways: int = 1, sequence: bool = False) -> None:
        super().__init__()
        self.ways, self.sequence = ways, sequence
        self.before, self.between = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.up = nn.Linear(DIM, 3 * DIM // ways), nn.Linear(DIM, 4 * DIM // ways)
        self.out, self.down = nn.Linear(DIM // ways, DIM, bias=False), nn.Linear(4 * DIM // ways, DIM, bias=False)

    def column(self, layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if self.ways > 1 and self.sequence:
            return GatherLinear.apply(x, layer.weight, layer.bias)
        return layer(Enter.apply(x) if self.ways > 1 else x)

    def row(self, layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        made = layer(x)
        return made if self.ways == 1 else (Scatter if self.sequence else Leave).apply(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.column(self.qkv, self.before(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS // self.ways, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.row(self.out, seen.transpose(1, 2).flatten(-2))
        return x + self.row(self.down, functional.gelu(self.column(self.up, self.between(x))))


def blocks_step(ways: int = 1, sequence: bool = False) -> Built:
    def build() -> Callable[[], None]:
        with torch.device("cuda"):
            model = nn.Sequential(*(Block(ways, sequence) for _ in range(BLOCKS)))
            given = torch.randn(BATCH, SEQ // ways if sequence else SEQ, DIM)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()

        return step

    return build


@cache
def whole(half: bool = False) -> Graph:
    return sketch(half_step if half else blocks_step(), device="cuda")


def stage_step(stage: int, stages: int, microbatches: int) -> Built:
    """One stage under 1F1B; outputs that were sent on are deallocated, as in Megatron."""

    def build() -> Callable[[], None]:
        size, last = BATCH // microbatches, stage == stages - 1
        with torch.device("cuda"):
            model = nn.Sequential(*(Block() for _ in range(BLOCKS // stages)))
            batch = torch.randn(BATCH, SEQ, DIM) if stage == 0 else torch.empty(0)
        optimizer = torch.optim.AdamW(model.parameters())
        waiting: list[Any] = []

        def forward(number: int) -> None:
            if stage == 0:
                x = batch[number * size : (number + 1) * size]
            else:
                x = torch.empty(size, SEQ, DIM, device="cuda", requires_grad=True)
            made = model(x)
            loss = made.square().mean() if last else made
            waiting.append(get_gradient_edge(loss) if not last else loss)

        def backward() -> None:
            made = waiting.pop(0)
            torch.autograd.backward(made, None if last else torch.empty(size, SEQ, DIM, device="cuda"))

        def step() -> None:
            optimizer.zero_grad()
            ahead = min(stages - stage - 1, microbatches)
            for number in range(microbatches):
                forward(number)
                if number >= ahead:
                    backward()
            for _ in range(ahead):
                backward()
            optimizer.step()

        return step

    return build


@pytest.mark.parametrize(("stages", "stage", "microbatches"), [(2, 0, 4), (2, 1, 4), (4, 0, 8), (4, 1, 8), (4, 3, 8)])
def test_a_pipeline_stage_holds_its_own_weights_and_the_microbatches_in_flight(
    stages: int, stage: int, microbatches: int
) -> None:
    job = parallelize(whole(), pipeline=stages, microbatches=microbatches)
    assert_same_peak(job.graphs[stage], sketch(stage_step(stage, stages, microbatches), device="cuda"))


def test_a_rank_with_shards_holds_what_an_fsdp2_rank_holds() -> None:
    assert_same_peak(parallelize(gpt_step(), data=4, sharded=True).graphs[0], gpt_step(4, fsdp=True))


def sharded_stage_step(stage: int, stages: int, replicas: int, microbatches: int, mixed: bool) -> Built:
    """One stage of FSDP2 under 1F1B of `torch.distributed.pipelining`."""

    def build() -> Callable[[], None]:
        dtype, policy = (torch.bfloat16 if mixed else torch.float32), dict[str, Any]()
        if mixed:
            policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
        mesh = init_device_mesh("cuda", (stages, replicas), mesh_dim_names=("pp", "dp"))
        with torch.device("cuda"):
            model = nn.Sequential(*(Block() for _ in range(BLOCKS // stages)))
            given, target = torch.randn(BATCH, SEQ, DIM, dtype=dtype), torch.empty(BATCH)
            shape = torch.empty(BATCH // microbatches, SEQ, DIM, dtype=dtype, requires_grad=True)
        for part in (*model, model):
            fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False, **policy)
        optimizer = torch.optim.AdamW(model.parameters())
        shapes = {"input_args": (shape,), "output_args": (shape,), "group": mesh["pp"].get_group()}
        part = PipelineStage(model, stage, stages, torch.device("cuda"), **shapes)
        schedule = Schedule1F1B(part, microbatches, loss_fn=lambda made, _: made.square().mean(), scale_grads=False)

        def step() -> None:
            optimizer.zero_grad()
            first = (given,) if stage == 0 else ()
            schedule.step(*first, target=target if stage == stages - 1 else None, return_outputs=False)
            optimizer.step()

        return step

    return build


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("stages", "stage"), [(2, 0), (2, 1), (4, 2)])
def test_a_stage_with_shards_holds_and_scatters_what_fsdp2_and_pytorchs_pipelines_do(
    stages: int, stage: int, mixed: bool
) -> None:
    """In a sketch its first output, in a variable, outlives its backward."""
    step, replicas, microbatches = whole(mixed), 8 // stages, 8
    job = parallelize(step, replicas, 1, stages, microbatches=microbatches, sharded=True, mixed=mixed)
    built = sharded_stage_step(stage, stages, replicas, microbatches, mixed)
    theirs = sketch(built, device="cuda", world=8, rank=stage * replicas)
    assert_same_peak(job.graphs[stage], theirs)
    scattered = [
        [one for one in exchanged(graph) if one[0] == "reduce_scatter"] for graph in (job.graphs[stage], theirs)
    ]
    assert scattered[0] == scattered[1]


@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_parallel_ranks_hold_what_megatron_ranks_hold(sequence: bool) -> None:
    ours = parallelize(whole(), tensor=4, sequence=sequence).graphs[0]
    assert_same_peak(ours, sketch(blocks_step(4, sequence), device="cuda", world=4))


def test_weights_gradients_and_states_of_tensor_parallel_stages_add_up_to_the_whole() -> None:
    def lasting(graph: Graph) -> int:
        weights = {s.id for s in graph.storages.values() if s.held}
        assert weights
        updated = {t.storage for op in graph.ops if op.phase == "optimizer" for t in op.tensors}
        return sum(s.nbytes for s in graph.storages.values() if s.id in weights or (s.birth < 0 and s.id in updated))

    job = parallelize(whole(), tensor=4, sequence=True, pipeline=2, microbatches=4)
    split = sum(lasting(graph) for graph in job.graphs) * 4
    assert split == pytest.approx(lasting(whole()), rel=0.02)  # norms are on every tensor parallel rank
    assert all(present(peak_memory(graph)) < present(peak_memory(whole())) / 8 for graph in job.graphs)


def add_to(whole: torch.Tensor, weight: torch.Tensor) -> None:
    whole.add_(present(weight.grad))
    weight.grad = None


def sharded_states_step(ranks: int) -> Built:
    """Half-precision blocks whose weights and float32 gradients lie in one buffer each, as Megatron's."""

    def build() -> Callable[[], None]:
        with torch.device("cuda"):
            model = nn.Sequential(*(Block() for _ in range(BLOCKS))).bfloat16()
            given = torch.randn(BATCH, SEQ, DIM).bfloat16()
        weights = list(model.parameters())
        count = sum(weight.numel() for weight in weights)
        values = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
        sums, offset = torch.zeros(count, device="cuda"), 0
        for weight in weights:
            here = slice(offset, offset + weight.numel())
            weight.data, offset = values[here].view_as(weight), here.stop
            weight.register_post_accumulate_grad_hook(partial(add_to, sums[here].view_as(weight)))
        own = slice(0, count // ranks)
        full = values[own].float()
        optimizer = torch.optim.AdamW([full])

        def step() -> None:
            sums.zero_()
            dist.all_gather_into_tensor(values, values[own])
            model(given).square().mean().backward()
            sums.mul_(1 / ranks)
            dist.reduce_scatter_tensor(sums[own], sums)
            full.grad = sums[own]
            optimizer.step()
            values[own].copy_(full)

        return step

    return build


def half_step() -> Callable[[], None]:
    with torch.device("cuda"):
        model = nn.Sequential(*(Block() for _ in range(BLOCKS))).bfloat16()
        given = torch.randn(BATCH, SEQ, DIM).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(given).square().mean().backward()
        optimizer.step()

    return step


def test_ranks_with_sharded_states_hold_buffers_of_weights_and_gradients_and_reserve_little_more() -> None:
    ours = parallelize(whole(half=True), data=4, zero1=True, mixed=True).graphs[0]
    theirs = sketch(sharded_states_step(4), device="cuda", world=4)
    empty = sum(t.nbytes for op in ours.ops if op.name == "aten::detach" and op.phase == "backward"
                for t in op.tensors if t.dtype == "bfloat16" and len(t.shape) == 2)  # fmt: skip
    assert present(peak_memory(ours)) - empty == pytest.approx(present(peak_memory(theirs)), rel=LIMIT)
    reserved = [present(simulate_memory([graph])).reserved for graph in (ours, theirs)]
    assert abs(reserved[0] - reserved[1]) <= LARGE_SEGMENT


class AllToAll(Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return AllToAll.forward(context, gradient)


class SplitMixture(Mixture):
    """The experts of one of four ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Parameter(weight[: EXPERTS // 4].clone()) for weight in (self.up, self.down))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = self.gate(x).softmax(-1).t().topk(len(x) // EXPERTS, dim=1)
        arrived = AllToAll.apply(x[top.indices]).view(EXPERTS // 4, -1, WIDTH)
        made = torch.bmm(functional.gelu(torch.bmm(arrived, self.up)), self.down)
        made = AllToAll.apply(made).view(EXPERTS, -1, WIDTH) * top.values.unsqueeze(-1)
        return x + torch.zeros_like(x).index_add(0, top.indices.flatten(), made.flatten(0, 1))


def mixtures(kind: type[nn.Module]) -> Built:
    def build() -> Callable[[], None]:
        with torch.device("cuda"):
            model, given = nn.Sequential(kind(), kind()), torch.randn(TOKENS, WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()

        return step

    return build


def test_expert_parallel_ranks_hold_their_experts_and_what_arrived() -> None:
    ours = expert_parallel(sketch(mixtures(Mixture), device="cuda"), 4)
    assert_same_peak(ours, sketch(mixtures(SplitMixture), device="cuda", world=4))


def test_ranks_hold_their_own_tables() -> None:
    step = sketch(lambda: dlrm.make_step("tiny", device="cuda"), device="cuda")
    theirs = sketch(lambda: dlrm_distributed.make_step("tiny", device="cuda"), device="cuda", world=2)
    assert_same_peak(parallelize(step, data=2, tables=True).graphs[0], theirs)
