"""Sketching a program that trains by itself: which of its steps is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import foretrace as ft
from foretrace.graph import ForetraceError, Graph, Tensor
from foretrace.graph.graph import cautions
from foretrace.record.sketch.program import sketch_program
from foretrace.record.sketch.values import DRAWN
from tests.narrowing import instance


def model_and_optimizer(**options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(8, 8)
    return model, torch.optim.AdamW(model.parameters(), **options)


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def train(between: Callable[[int], Any] = lambda step: None, accumulate: int = 1, steps: int = 10**9) -> None:
    model, optimizer = model_and_optimizer()
    for step in range(steps):
        for _ in range(accumulate):
            model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        between(step)


def test_the_optimizers_state_is_there_and_nothing_of_the_first_step():
    graph = sketch_program(train)
    assert names(graph).count("aten::addmm") == 1
    assert not [op for op in graph.ops if op.phase == "optimizer" and "zeros_like" in op.name]


def test_what_is_done_after_the_first_step_alone_is_no_part_of_it():
    graph = sketch_program(lambda: train(lambda step: torch.ones(3).exp() if step % 100 == 0 else None))
    assert "aten::exp" not in names(graph)


def test_a_step_that_does_much_more_than_others_is_passed_over():
    def between(step: int) -> None:
        if step in (1, 2):  # the first two that are recorded
            for _ in range(100):
                torch.ones(3).exp()

    assert "aten::exp" not in names(sketch_program(lambda: train(between)))


def test_gradients_of_several_batches_are_one_step():
    assert names(sketch_program(lambda: train(accumulate=3))).count("aten::addmm") == 3


def test_a_step_with_two_optimizers_ends_with_the_one_that_is_called_less_often():
    def gan() -> None:
        critic, of_critic = model_and_optimizer()
        generator, of_generator = model_and_optimizer()
        while True:
            for _ in range(5):
                critic(torch.ones(4, 8)).sum().backward()
                of_critic.step()
            generator(torch.ones(4, 8)).sum().backward()
            of_generator.step()

    assert names(sketch_program(gan)).count("aten::addmm") == 6


def test_work_of_loader_workers_is_no_part_of_the_step():
    class Exponentials(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1_000

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.ones(8).exp()

    def run(workers: int) -> list[str]:
        def load() -> None:
            model, optimizer = model_and_optimizer()
            for batch in DataLoader(Exponentials(), batch_size=4, num_workers=workers):
                model(batch).sum().backward()
                optimizer.step()

        return names(sketch_program(load))

    assert run(0).count("aten::exp") == 4 and "aten::exp" not in run(2)


def test_batches_that_begin_at_random_places_of_a_file_are_whole():
    def file_of_tokens() -> None:
        tokens, (model, optimizer) = list(range(10_000)), model_and_optimizer()
        while True:
            places = torch.randint(len(tokens) - 8, (4,))
            batch = torch.stack([torch.tensor(tokens[i : i + 8], dtype=torch.float32) for i in places])
            model(batch).sum().backward()
            optimizer.step()

    graph = sketch_program(file_of_tokens)
    product = next(op for op in graph.ops if op.name == "aten::addmm")
    assert instance(Tensor, product.args[1]).shape == (4, 8)
    assert graph.notes[0].startswith(f"assumed: {DRAWN}")


def test_an_exception_handler_of_the_program_does_not_keep_it_running():
    def careful() -> None:
        try:
            train()
        except Exception:
            torch.ones(1)
            raise AssertionError from None

    assert "aten::addmm" in names(sketch_program(careful))


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (lambda: None, "made no optimizer"),
        (model_and_optimizer, "called none of its optimizers"),
        (lambda: train(steps=1), "after 1 step, and 3"),
    ],
)
def test_a_program_without_a_usual_step_is_told_why(program, what):
    with pytest.raises(ForetraceError, match=what):
        sketch_program(program)


def test_an_optimizer_that_is_called_for_each_group_of_weights_ends_the_step_with_the_last():
    def in_parts() -> None:  # as DeepSpeed's ZeRO
        model, optimizer = model_and_optimizer(foreach=False)
        groups = [{**optimizer.param_groups[0], "params": [weight]} for weight in model.parameters()]
        for _ in range(100):
            model(torch.ones(4, 8)).sum().backward()
            for group in groups:
                optimizer.param_groups = [group]
                optimizer.step()

    graph = sketch_program(in_parts)
    assert names(graph).count("aten::addmm") == 1
    assert names(graph).count("aten::addcdiv_") == 2, "the weight's and the bias's"


def test_a_program_may_act_on_arrays_of_unknown_values_and_the_headline_says_so() -> None:
    def train() -> None:
        weight = torch.nn.Parameter(torch.randn(4, 4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(100):
            acted = torch.randn(8).int().numpy()
            loss = (weight[torch.from_numpy(acted)] @ weight).sum()
            loss.backward()
            assert weight.detach().numpy().shape == (4, 4) and acted.tolist() == [1] * 8
            optimizer.step()

    graph = sketch_program(train)
    assert "aten::mm" in [op.name for op in graph.ops]
    (caution,) = cautions(graph.notes)
    assert "1 for an integer, perhaps a size" in caution
    assert "1 for each number of an array, which may decide something (test_program.py:" in caution


def test_a_program_without_an_optimizer_may_say_where_its_steps_end():
    def train() -> None:
        weight = torch.ones(4, 4)
        while True:
            gradient = torch.func.grad(lambda w: (w @ w).sum())(weight)
            weight = weight - 0.1 * gradient
            ft.step()

    graph = sketch_program(train)
    assert names(graph).count("aten::sub") == 1 and "aten::mm" in names(graph)


def test_a_group_of_one_rank_is_found_without_a_launcher():
    def distributed() -> None:
        dist.init_process_group("gloo", init_method="tcp://localhost:29500", rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters())
        while True:
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    assert "aten::addmm" in names(sketch_program(distributed))
    assert not dist.is_initialized()
