"""Sparse matrices in a sketch are those of a real step, with as many elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretrace.errors import ForetraceError
from foretrace.graph import Op, Tensor
from foretrace.record.sketch.sketch import sketch
from foretrace.record.sketch.values import DRAWN, EVEN
from foretrace.record.watch.tensors import stored_elements
from foretrace.record.watch.watch import Watch

EDGES = torch.tensor([[0, 1, 1, 4, 5, 5], [2, 0, 3, 4, 1, 1]])
"""One of them twice."""


def coo(weights: torch.Tensor | None = None, device: str = "cpu") -> torch.Tensor:
    weights = torch.arange(6.0) if weights is None else weights
    return torch.sparse_coo_tensor(EDGES.to(device), weights.to(device), (6, 6))


def csr(device: str) -> torch.Tensor:
    rows = torch.tensor([0, 1, 3, 3, 3, 4, 6])
    return torch.sparse_csr_tensor(rows, EDGES[1], torch.arange(6.0), (6, 6)).to(device)


Products = Callable[[str, torch.Tensor], torch.Tensor]
PRODUCTS: dict[str, Products] = {
    "mm": lambda device, x: torch.sparse.mm(coo(device=device), x),
    "moved": lambda device, x: coo().to(device) @ x,
    "coalesced": lambda device, x: coo(device=device).coalesce() @ x,
    "transposed": lambda device, x: coo(device=device).t() @ x,
    "scaled": lambda device, x: (coo(device=device) * 2) @ x,
    "added": lambda device, x: torch.sparse.addmm(x, coo(device=device), x),
    "a vector": lambda device, x: coo(device=device) @ x[:, 0],
    "with a gradient": lambda device, x: coo(x.sum(1), device) @ x,
    "rows": lambda device, x: csr(device) @ x,
    "rows of the identity": lambda device, x: torch.eye(6, device=device).to_sparse_csr() @ x,
    "the identity": lambda device, x: torch.eye(6, device=device).to_sparse() @ x,
    "converted": lambda device, x: coo(device=device).coalesce().to_sparse_csr() @ x,
    "made dense": lambda device, x: coo(device=device).to_dense() @ x,
}


def built(product: Products, device: str) -> Callable[[], Any]:
    def build() -> Callable[[], None]:
        weight = torch.nn.Parameter(torch.ones(4, 4, device=device))
        x = torch.ones(6, 4, device=device)

        def step() -> None:
            weight.grad = None
            product(device, x @ weight).sum().backward()

        return step

    return build


def products(ops: list[Op]) -> list[Any]:
    named = ("mm", "mv", "_coalesce", "_values", "values", "sparse_mask", "_to_dense")
    return [
        (op.name, *((t.shape, t.layout, t.stored) for t in (*op.tensors, *op.produced)))
        for op in ops
        if op.name.removeprefix("aten::").removeprefix("_sparse_add").removeprefix("add") in named
    ]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_sparse_matrices_are_those_of_a_real_step(name: str) -> None:
    step = built(PRODUCTS[name], "cpu")()
    step()
    with Watch() as watch:
        step()
    real = products(watch.ops)
    assert any(stored > 0 for _, *tensors in real for *_, stored in tensors) or name == "made dense"
    assert products(list(sketch(built(PRODUCTS[name], "cuda"), device="cuda").ops)) == real


def test_edges_that_were_drawn_and_those_that_are_unknown_are_counted_and_said() -> None:
    def step() -> list[int]:
        made = torch.sparse_coo_tensor(torch.randint(0, 100, (2, 5000)), torch.ones(5000), (100, 101))
        unknown = made.t()  # its indices are not followed
        return [stored_elements(each.coalesce()) for each in (made, unknown)]

    found: list[int] = []
    graph = sketch(lambda: found.extend(step()))
    assert all(3800 < count < 4100 for count in found), "5,000 draws hit 39 % of 10,000 places"
    assert all(note in graph.notes[0] for note in (DRAWN, EVEN))


def test_a_sparse_matrix_of_unknown_numbers_is_refused() -> None:
    with pytest.raises(ForetraceError, match="depends on the data"):
        sketch(lambda: torch.randn(4, 4).relu().to_sparse() @ torch.ones(4, 4))


def test_gradients_of_lookups_say_no_count_since_it_varies() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert stored_elements(torch.sparse_coo_tensor(torch.tensor([[1, 2]]), torch.ones(2, 4), (8, 4))) == -1
    assert Tensor((8, 4), "float32", layout="sparse_coo").stored == -1


def test_a_sparse_gradient_is_added_to_a_table_that_is_never_allocated() -> None:
    """PyTorch's own fake tensors add real zeros, as many as the table has."""

    def build() -> Callable[[], None]:
        table = torch.nn.EmbeddingBag(1 << 40, 64, mode="sum", sparse=True, device="cuda")
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            table(torch.zeros(8, 4, dtype=torch.int64, device="cuda")).sum().backward()
            optimizer.step()

        return step

    assert [op.name for op in sketch(build, "cuda").ops if op.phase == "optimizer"][-1] == "aten::add_"
