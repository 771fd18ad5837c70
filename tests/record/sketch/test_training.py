"""A sketch says where a step does not train what it seems to train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretrace.graph.graph import cautions
from foretrace.record.sketch.sketch import sketch


def stepping(*parts: str, device: str = "cpu", no_grad: bool = False) -> Callable[[], Callable[[], None]]:
    """A function that builds a step of these parts."""

    def build() -> Callable[[], None]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            with torch.set_grad_enabled(not no_grad):
                loss = model(torch.randn(2, 4, device=device)).sum()
            for part in parts:
                {"backward": lambda: loss.backward(), "update": optimizer.step, "zero": optimizer.zero_grad}[part]()

        return step

    return build


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("parts", [("backward", "update", "zero"), ("zero", "backward", "update")])
def test_a_whole_step_is_no_reason_for_caution(parts: tuple[str, ...], device: str) -> None:
    assert not cautions(sketch(stepping(*parts, device=device), device).notes)


def test_a_step_without_a_backward_is_said() -> None:
    (caution,) = cautions(sketch(stepping()).notes)
    assert caution.startswith("the step has no backward: 4 weights would be trained (test_training.py:")


def test_inference_needs_no_backward() -> None:
    assert not cautions(sketch(stepping(no_grad=True)).notes)


@pytest.mark.parametrize("parts", [("backward",), ("backward", "zero"), ("zero", "backward")])
def test_weights_without_an_update_are_said(parts: tuple[str, ...]) -> None:
    (caution,) = cautions(sketch(stepping(*parts)).notes)
    assert caution.startswith("weights without an update: 4 weights of 4 with gradients (test_training.py:")


def test_an_update_by_hand_is_an_update() -> None:
    layer = torch.nn.Linear(4, 4)

    def step() -> None:
        layer(torch.randn(2, 4)).sum().backward()
        with torch.no_grad():
            for weight in layer.parameters():
                weight -= 0.1 * weight.grad
                weight.grad = None

    assert not cautions(sketch(step).notes)


def test_weights_on_different_devices_are_said_with_the_line_that_calls_them() -> None:
    def build() -> Callable[[], Any]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to("cuda")
        model[1].to("cpu")
        return lambda: model[1](model[0](torch.randn(2, 4, device="cuda")).cpu())

    def whole() -> Callable[[], Any]:
        near, far = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)
        model = torch.nn.ModuleDict({"near": near, "far": far}).to("cuda")
        model["far"].to("cpu")
        model.forward = lambda data: model["far"](model["near"](data).cpu())
        return lambda: model(torch.randn(2, 4, device="cuda"))

    assert not [note for note in sketch(build, "cuda").notes if "different devices" in note], "two models, each on one"
    (note,) = [note for note in sketch(whole, "cuda").notes if "different devices" in note]
    expected = "weights on different devices: ModuleDict is on cuda:0, far.weight on cpu"
    assert note.startswith(f"{expected} (test_training.py:")
