"""Expert parallel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foretrace.graph import ForetraceError, Graph
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.draft import ProcessGroup, draft_of
from foretrace.transforms.parallel.experts import with_experts
from foretrace.transforms.parallel.parallelize import parallelize
from tests.transforms.parallel.steps import trained

EXPERTS, TOKENS, WIDTH = 8, 512, 64


class ExpertsOnly(nn.Module):
    """A model without any other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x, self.up).sum(0)


class Mixture(nn.Module):
    """Experts choose their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 4 * WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, 4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = self.gate(x).softmax(-1).t().topk(len(x) // EXPERTS, dim=1)
        hidden = nn.functional.gelu(torch.bmm(x[top.indices], self.up))
        made = torch.bmm(hidden, self.down) * top.values.unsqueeze(-1)
        return x + torch.zeros_like(x).index_add(0, top.indices.flatten(), made.flatten(0, 1))


def expert_parallel(graph: Graph, ranks: int) -> Graph:
    """The step of one of several ranks that have some experts each, before it shares any gradients."""
    draft = draft_of(graph, "experts")
    calls, _ = with_experts(draft, draft.calls, ProcessGroup("experts", tuple(range(ranks))))
    return draft.graph_of(calls, 0, ranks, "")


@pytest.fixture(scope="module")
def step() -> Graph:
    return sketch(trained(lambda: (nn.Sequential(Mixture(), Mixture()), torch.randn(TOKENS, WIDTH))), device="cuda")


def test_tokens_go_to_their_experts_and_back_in_both_directions(step: Graph) -> None:
    graph = expert_parallel(step, 4)
    sent = [(graph.ops[c.op].phase, c.kind, c.nbytes) for c in graph.collectives]
    tokens = TOKENS * WIDTH * 4
    # The gradient of the very first tokens nobody needs.
    assert sent == [("forward", "all_to_all", tokens)] * 4 + [("backward", "all_to_all", tokens)] * 3


def test_each_rank_has_all_ranks_tokens_for_its_own_experts(step: Graph) -> None:
    products = [op for op in expert_parallel(step, 4).ops if op.name == "aten::bmm"]
    assert products[0].tensors[0].shape == (2, 4 * 64, WIDTH)
    assert products[0].tensors[1].shape == (2, WIDTH, 4 * WIDTH)
    assert all(t.shape[0] == 2 for op in products for t in (*op.tensors, *op.produced))


def test_experts_are_changed_where_they_lie(step: Graph) -> None:
    changed = [t.shape for op in expert_parallel(step, 4).ops if op.phase == "optimizer" for t in op.tensors]
    assert (2, WIDTH, 4 * WIDTH) in changed
    assert (EXPERTS, WIDTH, 4 * WIDTH) not in changed
    assert (EXPERTS, WIDTH) in changed  # the gate is everybody's


def test_gradients_of_experts_are_shared_by_those_who_keep_them(step: Graph) -> None:
    job = parallelize(step, data=8, experts=4)
    shared = {c.group: (c.nbytes, c.ranks) for c in job.graphs[0].collectives if c.kind == "all_reduce"}
    expert, gate = 2 * WIDTH * 4 * WIDTH, WIDTH * EXPERTS + EXPERTS
    assert shared["data"] == (2 * gate * 4, tuple(range(8)))
    assert shared["expert replicas"][1] == (0, 4)
    assert sum(c.nbytes for c in job.graphs[0].collectives if c.group == "expert replicas") == 2 * 2 * expert * 4


def test_experts_are_in_shards_over_those_who_keep_the_same_and_the_rest_over_all(step: Graph) -> None:
    graph = parallelize(step, data=8, experts=4, sharded=True).graphs[0]
    sizes = {(c.kind, c.group): (c.nbytes, c.ranks) for c in graph.collectives}
    expert, gate = 2 * WIDTH * 4 * WIDTH, WIDTH * EXPERTS + EXPERTS
    for kind in ("all_gather", "reduce_scatter"):
        assert sizes[kind, "expert replicas"] == (2 * expert * 4, (0, 4))
        assert sizes[kind, "data"] == (gate * 4, tuple(range(8)))
    changed = {t.shape for op in graph.ops if op.phase == "optimizer" for t in op.tensors}
    assert changed == {(1, WIDTH, 4 * WIDTH), (1, 4 * WIDTH, WIDTH), (1, WIDTH), (1,)}


def test_experts_that_one_rank_alone_keeps_stay_whole(step: Graph) -> None:
    graph = parallelize(step, data=4, experts=4, sharded=True).graphs[0]
    assert {c.group for c in graph.collectives} == {"data", "experts"}
    assert (2, WIDTH, 4 * WIDTH) in {t.shape for op in graph.ops if op.phase == "optimizer" for t in op.tensors}


def test_experts_that_do_not_divide_are_named(step: Graph) -> None:
    with pytest.raises(ForetraceError, match=r"the 8 experts of Sequential.0 can't be divided over 3 ranks"):
        expert_parallel(step, 3)


def test_a_model_without_experts_is_refused() -> None:
    step = sketch(trained(lambda: (nn.Linear(8, 8), torch.randn(4, 8))), device="cuda")
    with pytest.raises(ForetraceError, match="has no experts"):
        expert_parallel(step, 2)


def test_a_model_of_experts_alone_shards_them_over_the_ranks_that_hold_the_same() -> None:
    step = sketch(trained(lambda: (ExpertsOnly(), torch.randn(EXPERTS, 4, WIDTH))), device="cuda")
    kinds = {c.kind: c.ranks for c in parallelize(step, data=4, experts=2, sharded=True).graphs[0].collectives}
    assert kinds["all_gather"] == kinds["reduce_scatter"] == (0, 2)
    assert {c.kind for c in parallelize(step, data=4, experts=4, sharded=True).graphs[0].collectives} == {"all_to_all"}


class Dropless(nn.Module):
    """Tokens choose two experts each; rows are sorted by expert for grouped GEMMs, and none is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 8 * WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, 4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        ends = torch.bincount(chosen.flatten(), minlength=EXPERTS).cumsum(0).int()
        gate, up = torch._grouped_mm(x[order // 2], self.up, offs=ends).chunk(2, dim=-1)
        made = torch._grouped_mm(nn.functional.silu(gate) * up, self.down, offs=ends)
        made = made * weights.flatten()[order].unsqueeze(-1)
        return x + torch.zeros_like(x).index_add(0, order // 2, made)


@pytest.fixture(scope="module")
def dropless() -> Graph:
    def build() -> tuple[nn.Module, torch.Tensor]:
        return nn.Sequential(Dropless(), Dropless()).bfloat16(), torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)

    return sketch(trained(build), device="cuda")


def test_rows_of_grouped_gemms_go_to_their_experts_and_back(dropless: Graph) -> None:
    graph = expert_parallel(dropless, 4)
    rows = 2 * TOKENS * WIDTH * 2
    sent = [(graph.ops[c.op].phase, c.kind, c.nbytes) for c in graph.collectives]
    # The first mixture's input needs no gradient, so nothing is sent back of it.
    assert sent == [("forward", "all_to_all", rows)] * 4 + [("backward", "all_to_all", rows)] * 3


def test_a_rank_has_its_own_experts_with_as_many_rows_as_before(dropless: Graph) -> None:
    graph = expert_parallel(dropless, 4)
    calls = [op for op in graph.ops if op.name == "aten::_grouped_mm"]
    for op in calls:
        assert op.tensors[2].shape == (EXPERTS // 4,)
        experts = [t.shape[0] for t in (*op.tensors[:2], *op.produced) if len(t.shape) == 3]
        assert experts == [EXPERTS // 4] and any(2 * TOKENS in t.shape for t in op.tensors)
    assert len(calls) == sum(op.name == "aten::_grouped_mm" for op in dropless.ops)
    assert any(op.name == "aten::index_select" and op.phase == "forward" for op in graph.ops)  # sorted on arrival


@pytest.mark.parametrize("options", [{}, {"microbatches": 2}, {"zero1": True, "mixed": True}], ids=str)
def test_experts_that_no_other_rank_has_are_not_reduced(dropless: Graph, options: dict[str, object]) -> None:
    graph = parallelize(dropless, data=4, experts=4, **options).graphs[0]  # type: ignore[arg-type]
    gates = 2 * EXPERTS * WIDTH
    assert any("as many tokens as those of the others" in note for note in graph.notes)
    reduced = [one for one in graph.collectives if one.kind in ("all_reduce", "reduce_scatter", "all_gather")]
    assert reduced and all(tensor.numel <= gates for one in reduced for tensor in graph.ops[one.op].tensors)


def test_grouped_gemms_add_to_the_float32_gradients_of_experts_as_megatrons_do(dropless: Graph) -> None:
    graph = parallelize(dropless, data=4, experts=4, microbatches=2, zero1=True, mixed=True).graphs[0]
    made = [op.produced[0] for op in graph.ops if op.name == "aten::_grouped_mm" and op.phase == "backward"]
    assert {t.dtype for t in made if len(t.shape) == 3} == {"float32"}
    added = [op for op in graph.ops if op.name == "aten::add_" and op.node.endswith("AccumulateGrad")]
    assert not [op for op in added if len(op.tensors[0].shape) == 3]


class Layers(nn.Module):
    """A dense layer before three mixtures."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), *(Dropless() for _ in range(3))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_stages_of_a_pipeline_count_dense_layers_beside_mixtures() -> None:
    def build() -> tuple[nn.Module, torch.Tensor]:
        return Layers().bfloat16(), torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)

    step = sketch(trained(build), device="cuda")
    stages = parallelize(step, data=2, experts=2, pipeline=2, microbatches=4).graphs
    grouped = [sum(op.name == "aten::_grouped_mm" and op.phase == "forward" for op in g.ops) for g in stages]
    assert grouped == [4 * 2, 4 * 2 * 2]
