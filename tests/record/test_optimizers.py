"""Hearing any optimizer of the process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretrace.record.watch import step_boundaries as optimizers
from foretrace.record.watch.step_boundaries import listen


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1)], lr=0.1)


def test_both_ends_of_a_step_are_heard_with_the_optimizer() -> None:
    optimizer, heard = sgd(), []
    silence = listen(after=lambda o: heard.append(("after", o)), before=lambda o: heard.append(("before", o)))
    optimizer.step()
    silence()
    assert heard == [("before", optimizer), ("after", optimizer)]


@pytest.mark.parametrize("kind", ["AdamW", "Adagrad", "RMSprop", "LBFGS"])
def test_every_kind_of_optimizer_is_heard_once_a_step(kind: str) -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = weight.square().sum()
        value.backward()
        return value

    heard: list[Any] = []
    silence = listen(heard.append)
    optimizer.step(loss)
    silence()
    assert heard == [optimizer]


def test_optimizers_made_before_and_after_are_heard() -> None:
    early, heard = sgd(), []
    silence = listen(heard.append)
    late = sgd()
    early.step()
    late.step()
    silence()
    assert heard == [early, late]


def test_silence_may_be_asked_for_twice_and_inside_a_hook() -> None:
    heard: list[Any] = []

    def once(optimizer: Any) -> None:
        heard.append(optimizer)
        silence()
        silence()

    silence = listen(once)
    others: list[Any] = []
    silence_others = listen(others.append)
    optimizer = sgd()
    optimizer.step()
    optimizer.step()
    silence_others()
    assert len(heard) == 1 and len(others) == 2


def test_a_listener_may_begin_inside_a_hook() -> None:
    heard: list[Any] = []
    endings: list[Any] = []
    silence = listen(lambda _: endings.append(listen(heard.append)) if not endings else None)
    optimizer = sgd()
    optimizer.step()
    assert heard == [], "it began in the middle of this step's telling"
    optimizer.step()
    silence()
    endings[0]()
    assert heard == [optimizer]


def test_torch_gets_one_pair_of_hooks_however_many_listen() -> None:
    from torch.optim import optimizer as module

    listen(lambda _: None)()
    before = len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)
    silences = [listen(lambda _: None) for _ in range(3)]
    assert (len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)) == before
    for silence in silences:
        silence()
    assert optimizers._listeners == []
