"""What a sketch assumes is sensible, and said with the line that reads it."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from foretrace.graph import ForetraceError, Graph
from foretrace.graph.graph import cautions
from foretrace.record.sketch import assumptions
from foretrace.record.sketch.assumptions import AssumedFloat
from foretrace.record.sketch.shares import VARIABLE
from foretrace.record.sketch.sketch import sketch

Body = Callable[[torch.Tensor, torch.optim.Optimizer], Any]


def training(body: Body, device: str = "cpu") -> Graph:
    """The sketch of a step of which only the end, from the loss on, differs."""

    def build() -> Callable[[], None]:
        layer = torch.nn.Linear(4, 4).to(device)
        optimizer = torch.optim.AdamW(layer.parameters())

        def step() -> None:
            optimizer.zero_grad()
            body(layer(torch.randn(2, 4, device=device)).square().mean(), optimizer)

        return step

    return sketch(build, device)


def phases(graph: Graph) -> set[str]:
    return {op.phase for op in graph.ops}


def guarded(loss: torch.Tensor, optimizer: Any) -> None:
    if not torch.isfinite(loss) or torch.isnan(loss).any() or torch.isinf(loss):
        return
    loss.backward()
    if any(not torch.isfinite(w.grad).all() for group in optimizer.param_groups for w in group["params"]):
        return
    optimizer.step()


def scaled(loss: torch.Tensor, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler(loss.device.type)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("body", [guarded, scaled])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_losses_and_gradients_are_finite(body: Body, device: str) -> None:
    graph = training(body, device)
    assert phases(graph) == {"forward", "backward", "optimizer"}
    assert any(note.startswith("assumed: losses and gradients are finite (test_assumptions") for note in graph.notes)
    assert not cautions(graph.notes)


def test_a_distribution_accepts_its_parameters() -> None:
    def body(loss: torch.Tensor, optimizer: Any) -> None:
        normal = torch.distributions.Normal(loss, loss.abs() + 1)
        (normal.log_prob(normal.rsample()) + loss).backward()
        optimizer.step()

    graph = training(body)
    assert phases(graph) == {"forward", "backward", "optimizer"} and not cautions(graph.notes)


def test_a_flag_that_decides_is_a_caution_with_its_line() -> None:
    def body(loss: torch.Tensor, optimizer: Any) -> None:
        loss.backward()
        if loss < 10:
            optimizer.step()

    flag, update = cautions(training(body).notes)
    line = body.__code__.co_firstlineno + 2
    assert flag == f"assumed in the step, and decisive: False for a flag (test_assumptions.py:{line})"
    assert update.startswith("weights without an update: 2 weights of 2 with gradients")


def test_a_number_that_is_compared_is_a_caution_and_one_that_is_logged_is_none() -> None:
    def logged(loss: torch.Tensor, optimizer: Any) -> None:
        loss.backward()
        optimizer.step()
        print(f"{loss:.4f} {loss.item() / 2:.3f} {float(loss)} {json.dumps(loss.item())} {copy.copy(loss.item())}")

    def compared(loss: torch.Tensor, optimizer: Any) -> None:
        loss.backward()
        if loss.item() * 2 < 10:
            optimizer.step()

    assert not cautions(training(logged).notes)
    (caution,) = cautions(training(compared).notes)
    line = compared.__code__.co_firstlineno + 2
    assert caution.endswith(f"1 for a number that is compared (test_assumptions.py:{line})")


def test_a_number_that_becomes_a_size_by_way_of_float_and_math_is_a_caution() -> None:
    def mixed(read: Callable[[torch.Tensor], int]) -> Callable[..., None]:
        def body(loss: torch.Tensor, optimizer: Any) -> None:
            loss.backward()
            optimizer.step()
            torch.zeros(read(loss.detach()) + 1)

        return body

    for read in (
        lambda loss: int(64 * math.sqrt(loss.item())),
        lambda loss: round(64 * math.exp(loss)),
        lambda loss: int(64 * np.sqrt(loss.item())),
        lambda loss: math.floor(float(loss) * 64),
        lambda loss: int(64 * float(loss.item())),
    ):
        (caution,) = cautions(training(mixed(read)).notes)
        assert f"(test_assumptions.py:{read.__code__.co_firstlineno})" in caution
    harmless = training(mixed(lambda loss: int(math.isnan(float(loss)))))
    assert not cautions(harmless.notes) and len(harmless.notes) == 1


def test_what_is_assumed_while_a_model_is_built_is_a_caution() -> None:
    def build() -> Callable[[], Any]:
        width = int(torch.randint(4, 9, ()))
        layer = torch.nn.Linear(4, width)
        return lambda: layer(torch.randn(2, 4)).sum().backward()

    (caution, *_) = cautions(sketch(build).notes)
    line = build.__code__.co_firstlineno + 1
    expected = "assumed while the model was built: 1 for an integer, perhaps a size"
    assert caution == f"{expected} (test_assumptions.py:{line})"


def test_what_a_step_without_a_builder_reads_is_not_said_twice() -> None:
    def step() -> None:
        assert int(torch.randint(4, 9, ())) == 1

    (caution,) = sketch(step).notes
    assert caution.startswith("assumed in the step, and decisive: 1 for an integer")


def test_generating_goes_on_until_the_longest_sequence() -> None:
    made: list[int] = []

    def step() -> None:
        ids, unfinished, count = torch.zeros(4, 4), torch.ones(4, dtype=torch.long), 0
        done = False
        while not done:
            chosen = (ids @ torch.randn(ids.shape[1], 1000)).argmax(-1)
            ids, count = torch.cat([ids, chosen[:, None]], -1), count + 1
            ended = torch.full((4,), ids.shape[1] >= 20) | (chosen == 3)
            unfinished = unfinished & ~ended
            done = unfinished.max() == 0
        made.append(count)

    sketch(step)
    assert made == [16, 16]


def test_a_loop_that_waits_for_an_unknown_value_is_refused_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions, "MAX_READS", 50)

    def step() -> None:
        value = torch.randn(())
        while not value > 8:
            value = value * 2

    with pytest.raises(ForetraceError) as raised:
        sketch(step)
    line = f"test_assumptions.py:{step.__code__.co_firstlineno + 2}"
    assert f"does not end: {line} has read" in raised.value.what and f"{line}=20x1/0" in raised.value.advice
    monkeypatch.setenv(VARIABLE, f"{line}=7x0/1")
    graph = sketch(step)
    assert sum(op.name == "aten::mul" for op in graph.ops) == 7 and not cautions(graph.notes)


def test_reading_many_elements_of_a_tensor_is_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions, "MAX_READS", 50)
    sketch(lambda: [value.item() for value in torch.randn(200)] and torch.randn(300).tolist())


def test_shuffled_data_is_loaded_without_a_word() -> None:
    def step() -> None:
        data = torch.utils.data.TensorDataset(torch.randn(8, 2))
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
            batch.sum()

    assert sketch(step).notes == []


def test_an_assumed_number_is_a_number() -> None:
    decided: list[int] = []
    number = AssumedFloat.made(1.0, lambda: decided.append(1))
    assert round(abs(-(2 * number + 1 - 0.5) / 2), 2) == 1.25
    assert type(copy.deepcopy(number)) is float and hash(number) == hash(1.0)
    assert not decided, "nothing was compared but plain numbers"
    assert number != float("inf") and not decided
    assert number < 2 and int(number) == 1 and decided == [1, 1]


def test_a_step_on_a_gpu_may_make_arrays_of_unknown_values_and_the_headline_says_so() -> None:
    def step() -> None:
        costs = torch.randn(4, 6, device="cuda").cpu().numpy()
        assert costs.shape == (4, 6) and (costs == 1).all()

    (caution,) = cautions(sketch(step, device="cuda").notes)
    assert "1 for each number of an array, which may decide something (test_assumptions.py:" in caution


def test_an_error_says_what_was_assumed_before_it() -> None:
    def step() -> None:
        loss = torch.randn(3).mean()
        chosen = [loss] if loss.item() < 0.5 else []
        chosen[0].exp()

    with pytest.raises(IndexError) as raised:
        sketch(step)
    (note,) = raised.value.__notes__
    assert re.fullmatch(r"before .* assumed 1 for a number that is compared \(test_assumptions.py:\d+\)", note)


def test_an_optimizer_that_scales_by_norms_decides_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.Adafactor([weight])

    def step() -> None:
        optimizer.zero_grad()
        (weight @ weight).sum().backward()
        optimizer.step()

    assert not cautions(sketch(step).notes)
