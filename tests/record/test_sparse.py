"""Sparse gradients are taken as in a plain step."""

from __future__ import annotations

import torch

from foretrace.record.watch.watch import Watch


def table() -> torch.nn.EmbeddingBag:
    return torch.nn.EmbeddingBag(10, 4, mode="sum", sparse=True)


def test_a_sparse_gradient_is_taken_over_not_cloned() -> None:
    bag = table()
    with Watch() as watch:
        bag(torch.tensor([[1, 2, 2]])).sum().backward()
    last = [op.name for op in watch.ops][-3:]
    assert last == ["aten::_indices", "aten::_values", "aten::_sparse_coo_tensor_unsafe"]
    assert "aten::clone" not in [op.name for op in watch.ops]
    assert bag.weight.grad.layout == torch.sparse_coo and bag.weight.grad._nnz() == 3


def test_a_second_gradient_is_added_to_the_first() -> None:
    bag = table()
    bag(torch.tensor([[1]])).sum().backward()
    with Watch() as watch:
        bag(torch.tensor([[2, 3]])).sum().backward()
    assert "aten::add_" in [op.name for op in watch.ops]
    assert bag.weight.grad._nnz() == 3


def test_what_autograd_gives_away_is_watched_to_its_end() -> None:
    """``torch.autograd.grad`` keeps no gradient: the watch must not wait for one to be kept."""
    bag, other = table(), torch.ones(4, requires_grad=True)
    with Watch() as watch:
        product = bag(torch.tensor([[1, 2]])) * other.sigmoid()
        torch.autograd.grad(product.sum(), [bag.weight, other])
        torch.ones(3).mul(2)
    names = [op.name for op in watch.ops]
    assert "aten::sigmoid_backward" in names and names[-1] == "aten::mul"
    assert bag.weight.grad is None


def test_weights_have_no_hooks_left_after_a_step() -> None:
    bag = table()
    with Watch():
        bag(torch.tensor([[1]])).sum().backward()
    assert not bag.weight._backward_hooks and not bag.weight._post_accumulate_grad_hooks
