"""Tensors made from their descriptions."""

from __future__ import annotations

import pytest
import torch

from foretrace.replay.harness import contents, host, inputs

CPU = torch.device("cpu")


def test_views_look_at_the_same_memory() -> None:
    memory = inputs.memory(32, CPU)
    whole = inputs.view(memory, [4, 2], [2, 1], 0, torch.float32, contents.constant(1.0))
    column = inputs.view(memory, [4], [2], 1, torch.float32, contents.constant(5.0))
    assert whole[:, 1].tolist() == [5.0] * 4 and whole[:, 0].tolist() == [1.0] * 4
    assert column.data_ptr() == whole.data_ptr() + 4


def test_an_expanded_view_is_filled_once() -> None:
    made = inputs.view(inputs.memory(16, CPU), [3, 4], [0, 1], 0, torch.float32, contents.uniform(1.0, 2.0))
    assert made.stride() == (0, 1) and torch.equal(made[0], made[2])


def test_a_sparse_tensor_keeps_its_duplicates() -> None:
    indices, values = torch.tensor([[1, 1, 3]]), torch.ones(3, 2)
    made = inputs.sparse(indices, values, [5, 2], torch.float32, CPU)
    assert made._nnz() == 3 and not made.is_coalesced()


def test_a_content_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.here, "notes", [])
    made = inputs.tensor([3], torch.int64, CPU, contents.values([1.0, 2.0]))
    assert made.tolist() == [0, 0, 0] and "holds zeros" in host.here.notes[0]


def test_a_meta_tensor_is_not_filled() -> None:
    assert inputs.tensor([3], torch.float32, torch.device("meta"), contents.constant(1.0)).is_meta


def test_a_view_of_memory_that_has_no_size_yet_holds_nothing() -> None:
    memory = inputs.memory(0, CPU)
    made = inputs.view(memory, [2, 3], [3, 1], 1, torch.float32, contents.constant(1.0))
    assert made.shape == (2, 3) and memory.untyped_storage().nbytes() == 0
    host.resize(made, 28)
    assert made.fill_(2.0).tolist() == [[2.0] * 3] * 2
