"""Where steps end, by the order in which optimizers are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretrace.record.watch import step_boundaries as optimizers
from foretrace.record.watch.step_boundaries import Boundaries, CallsPerGradients, listen, on_step_end


def steps(calls: list[str]) -> list[list[str]]:
    """The calls of each whole step, from the last time on that all was started over."""
    boundaries = Boundaries()
    cut: list[list[str]] = [[]]
    for who in calls:
        if boundaries.learn(who):
            cut = [[]]
        else:
            cut[-1].append(who)
        if boundaries.last == who:
            cut.append([])
    return [step for step in cut[:-1] if step]


def test_one_optimizer_ends_each_step() -> None:
    assert steps(["a"] * 5) == [["a"]] * 4, "the first call only opens the first step"


def test_two_in_turn_make_one_step() -> None:
    assert steps(["a", "b"] * 4) == [["a", "b"]] * 3


def test_many_optimizers_one_for_each_weight_make_one_step() -> None:
    weights = [f"w{n}" for n in range(50)]
    assert steps(weights * 4) == [weights] * 3


def test_a_critic_trained_five_times_belongs_to_the_generators_step() -> None:
    assert steps((["critic"] * 5 + ["generator"]) * 4) == [["critic"] * 5 + ["generator"]] * 3


def test_a_generator_that_goes_first_is_still_the_rarer_one() -> None:
    found = steps((["generator"] + ["critic"] * 5) * 5)
    assert found[-2:] == [["critic"] * 5 + ["generator"]] * 2


def test_a_long_start_of_the_critic_alone_is_no_step() -> None:
    assert steps(["critic"] * 100 + (["critic"] * 5 + ["generator"]) * 3) == [["critic"] * 5 + ["generator"]] * 2


def test_an_actor_with_a_delay_ends_the_step() -> None:
    assert steps(["critic", "critic", "actor"] * 4) == [["critic", "critic", "actor"]] * 3


def test_an_optimizer_that_is_called_now_and_then_ends_the_step() -> None:
    calls = ["g", "d", "g", "g", "d", "g", "d", "g", "g", "g", "d"]
    assert steps(calls) == [["g", "g", "d"], ["g", "d"], ["g", "g", "g", "d"]]


def test_an_optimizer_that_is_gone_is_not_waited_for() -> None:
    assert steps(["before"] * 3 + ["now"] * 50) == [["now"]] * 49


def test_a_step_that_a_scaler_skips_joins_the_next_one() -> None:
    assert steps(["a", "b", "a", "b", "a", "a", "b", "a", "b"])[-1] == ["a", "b"]


@pytest.mark.parametrize("skipped", ["a", "b"])
def test_an_optimizer_whose_steps_are_skipped_for_a_while_does_not_end_steps_twice(skipped: str) -> None:
    usual, without = ["a", "b"], [who for who in "ab" if who != skipped]
    found = steps(usual * 3 + without * 3 + usual * 6)
    assert len(found) >= 4
    assert all(sorted(step) == ["a", "b"] for step in found[-4:])


def heard(calls: list[Any]) -> list[str]:
    events: list[str] = []
    end = on_step_end(lambda: events.append("ended"), lambda: events.append("over"))
    for optimizer in calls:
        optimizer.step()
    end()
    calls[0].step()
    return events


def test_real_optimizers_are_heard_until_told_otherwise() -> None:
    one, other = (torch.optim.SGD([torch.zeros(1)], lr=0.1) for _ in range(2))
    assert heard([one, one, one]) == ["over", "ended", "ended", "ended"]
    assert heard([one, other, one, other]) == ["over", "ended", "over", "ended", "ended"]


def test_gradient_accumulation_is_one_step() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    events: list[str] = []
    end = on_step_end(lambda: events.append("ended"), lambda: None)
    for micro_batch in range(8):
        weight.sum().backward()
        if micro_batch % 4 == 3:
            optimizer.step()
    end()
    assert events == ["ended", "ended"]


def test_a_scaler_that_finds_infinities_ends_no_step() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    events: list[str] = []
    end = on_step_end(lambda: events.append("ended"), lambda: None)
    for gradient in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * gradient).backward()
        scaler.step(optimizer)
        scaler.update()
    end()
    assert events == ["ended", "ended"]


def test_an_optimizer_around_another_ends_one_step() -> None:
    class Wrapped(torch.optim.SGD):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__([torch.zeros(1)], lr=0.1)
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    outer = Wrapped(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert heard([outer] * 3)[-2:] == ["ended", "ended"]
    assert heard([outer] * 3).count("ended") - heard([outer] * 2).count("ended") == 1


def trained(calls: int, steps: int = 6) -> list[str]:
    """What is heard of an optimizer that is called so often after each backward."""
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    events: list[str] = []
    end = on_step_end(lambda: events.append("ended"), lambda: events.append("over"))
    for _ in range(steps):
        weight.sum().backward()
        for _ in range(calls):
            optimizer.step()
        events.append("|")
    end()
    return events


def test_an_optimizer_that_is_called_once_for_each_group_of_weights_ends_one_step() -> None:
    """As DeepSpeed's ZeRO does."""
    learnt = trained(calls=2)
    assert learnt[:7] == ["over", "ended", "ended", "|", "ended", "ended", "|"], "nothing is known yet"
    assert learnt[7:] == ["over", "ended", "|", "ended", "|", "ended", "|", "ended", "|"]
    assert trained(calls=3)[-6:] == ["ended", "|"] * 3


def test_an_optimizer_that_is_called_twice_now_and_then_ends_a_step_with_each_call() -> None:
    repeats = CallsPerGradients()
    calls = [1, 2, 3, 3, 4, 5, 6, 6, 7]
    assert all(repeats.learn("a", sequence) == (False, True) for sequence in calls)


def test_two_optimizers_that_are_called_for_the_same_gradients_are_each_called_once() -> None:
    repeats = CallsPerGradients()
    assert all(repeats.learn(who, sequence) == (False, True) for sequence in range(5) for who in "ab")


def test_a_forward_that_is_not_seen_any_more_is_not_waited_for() -> None:
    repeats = CallsPerGradients()
    for sequence in (1, 1, 2, 2, 3, 3):
        repeats.learn("a", sequence)
    lasting = [repeats.learn("a", 3)[1] for _ in range(20)]
    assert lasting[-1] and lasting.count(False) < 10


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
    heard: list[Any] = []
    early = sgd()
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
