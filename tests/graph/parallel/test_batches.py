from __future__ import annotations

from typing import Any

import pytest
from graph.parallel.steps import gpt_step

import bert
import resnet
from foretrace.graph import ForetraceError, Graph, Op
from foretrace.graph.edits.parallel.batches import part_of_batch
from foretrace.record.sketch import sketch


def shapes(ops: list[Op]) -> list[tuple[str, list[tuple[int, ...]]]]:
    return [(op.name, [t.shape for t in (*op.tensors, *op.produced)]) for op in ops]


GPTS = [{"dtype": "fp32"}, {"dtype": "bf16"}, {"recompute": True}, {"optimizer": "fused"}]


@pytest.mark.parametrize("options", GPTS, ids=str)
def test_a_part_of_a_gpts_batch_is_the_step_at_a_smaller_batch(options: dict[str, Any]) -> None:
    part = part_of_batch(list(gpt_step(**options).ops), 4)
    assert shapes(part) == shapes(list(gpt_step(batch=2, **options).ops))


@pytest.mark.parametrize("example", [bert, resnet], ids=["sequences before samples", "convolutions"])
def test_a_part_of_another_models_batch_is_its_step_at_a_smaller_batch(example: Any) -> None:
    """nn.TransformerEncoder computes with the batch as its second dimension."""

    def at(batch: int) -> Graph:
        return sketch(lambda: example.make_step("tiny", device="cuda", batch=batch), device="cuda")

    assert shapes(part_of_batch(list(at(8).ops), 2)) == shapes(list(at(4).ops))


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ForetraceError, match="a batch of 8 can't be divided into 3 microbatches"):
        part_of_batch(list(gpt_step().ops), 3)
