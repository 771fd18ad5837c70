"""A step with samples of another length."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

import bert
import dlrm
import foretrace as ft
import gpt
from foretrace.graph import ForetraceError, Graph
from foretrace.transforms.sequence import sequence
from tests.transforms.agreement import assert_same, shapes, sketched


@pytest.mark.parametrize(("model", "new"), [(gpt, 48), (gpt, 128), (bert, 64)])
def test_every_call_is_the_one_that_the_model_makes(model: ModuleType, new: int) -> None:
    assert_same(sequence(sketched(model), new), sketched(model, seq=new))


def test_autocast_stays_where_it_was() -> None:
    half = {"dtype": "bf16"}
    assert_same(sequence(sketched(bert, options=half), 64), sketched(bert, options=half, seq=64))


def with_positions(tokens: int) -> Graph:
    """A step whose model cuts its positions from a buffer for longer samples, as BERT does in transformers."""

    def build() -> Callable[[], None]:
        words, places, head = torch.nn.Embedding(100, 16), torch.nn.Embedding(32, 16), torch.nn.Linear(16, 4)
        positions = torch.arange(32)[None]
        ids = torch.zeros(4, tokens, dtype=torch.int64)
        weights = [*words.parameters(), *places.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(weights, lr=0.1)

        def step() -> None:
            head(words(ids) + places(positions[:, : ids.shape[1]])).relu().sum().backward()
            optimizer.step()

        return step

    return ft.sketch(build)


def test_positions_are_cut_from_a_buffer_for_longer_samples() -> None:
    assert shapes(sequence(with_positions(8), 16)) == shapes(with_positions(16))


def test_a_step_without_sequences_says_so() -> None:
    with pytest.raises(ForetraceError, match="does not show its sequence length"):
        sequence(sketched(dlrm), 64)
