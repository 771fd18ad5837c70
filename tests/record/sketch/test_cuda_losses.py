"""Losses on a GPU: a CTC loss has the calls of a real one, and says what it assumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from foretrace.graph import Op
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch


def spoken(device: str, lengths_on: str = "cpu", flat: bool = False, known: bool = True, **options: Any) -> Any:
    def build() -> Callable[[], None]:
        logits = torch.randn(50, 4, 20, device=device, requires_grad=True)
        said = torch.ones((48,) if flat else (4, 12), dtype=torch.int64, device=device)
        frames = torch.full((4,), 50, device=lengths_on)
        lengths = torch.full((4,), 12, device=lengths_on)
        if not known:
            lengths = (torch.randn(4, device=lengths_on).sigmoid() * 12).long()

        def step() -> None:
            logits.grad = None
            F.ctc_loss(logits.log_softmax(-1), said, frames, lengths, **options).sum().backward()

        return step

    return build


def calls(ops: Iterable[Op]) -> list[Any]:
    return [(op.name, op.overload, [t.shape for t in op.tensors], [t.shape for t in op.produced]) for op in ops]


@pytest.mark.parametrize(
    "options", [{"reduction": "sum"}, {"reduction": "none", "zero_infinity": True}, {"flat": True}]
)
def test_a_ctc_loss_has_the_calls_of_a_real_one(options: dict[str, Any]) -> None:
    with Watch() as watch:
        spoken("cpu", **options)()()
    real = calls(watch.ops)
    real = real[[name for name, *_ in real].index("aten::_log_softmax") :]
    sketched = sketch(spoken("cuda", **options), device="cuda")
    assert not sketched.notes
    found = calls(sketched.ops)
    sent = [call for call in found if call[0] == "aten::_to_copy"]  # lengths, where the loss is divided by them
    assert len(sent) == ("reduction" not in options)
    assert [call for call in found if call not in sent] == real


def test_lengths_that_are_unknown_are_the_longest_possible_and_a_note_says_so() -> None:
    graph = sketch(spoken("cuda", known=False, lengths_on="cuda"), device="cuda")
    (loss,) = (op for op in graph.ops if op.name == "aten::_ctc_loss")
    assert loss.produced[1].shape == (4, 50, 25)
    assert any("sequences of a CTC loss are as long as they may be" in note for note in graph.notes)


def test_a_loss_inside_a_transform_of_torch_func_is_sketched():
    def build() -> Callable[[], None]:
        weight, x = torch.randn(8, 4, device="cuda"), torch.randn(16, 8, device="cuda")
        labels = torch.randint(0, 4, (16,), device="cuda")

        def loss(weight: torch.Tensor, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(x[None] @ weight, label[None])

        return lambda: torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weight, x, labels)

    names = [op.name for op in sketch(build, device="cuda").ops]
    assert "aten::nll_loss_forward" in names or "aten::_log_softmax" in names
