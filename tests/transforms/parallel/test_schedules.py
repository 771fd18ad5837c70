"""Pipeline schedules, and steps on a microbatch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble

import bert
import resnet
from foretrace.graph import ForetraceError, Graph, Op
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.schedules import (
    ScheduledPass,
    check_schedule,
    microbatch_of,
    stage_of,
    stage_schedule,
)
from tests.transforms.parallel.steps import gpt_step, trained

CASES = [
    ("1f1b", 4, 8, 1), ("gpipe", 4, 8, 1), ("1f1b", 4, 2, 1), ("interleaved", 4, 8, 2), ("interleaved", 2, 6, 3),
    ("zb-h1", 4, 8, 1), ("zb-h1", 4, 2, 1), ("zbv", 4, 8, 2), ("zbv", 3, 2, 2), ("zbv", 2, 16, 2),
]  # fmt: skip
ZERO_BUBBLE = ("zb-h1", "zbv")


@pytest.mark.parametrize("schedule, stages, microbatches, chunks", CASES)
def test_each_part_passes_each_chunk_once_in_each_direction(
    schedule: str, stages: int, microbatches: int, chunks: int
) -> None:
    parts = [(True, ""), *((False, part) for part in (("inputs", "weights") if schedule in ZERO_BUBBLE else ("",)))]
    every = {ScheduledPass(f, c, m, part) for f, part in parts for c in range(chunks) for m in range(microbatches)}
    for stage in range(stages):
        order = stage_schedule(schedule, stage, stages, microbatches, chunks)
        assert len(order) == len(every)
        assert set(order) == every


def spans(
    schedule: str, stages: int, microbatches: int, chunks: int, took: dict[tuple[bool, str], float]
) -> list[list[tuple[float, float]]]:
    """When the passes of each stage begin and end, where a forward, a backward and its parts take so long.

    Raises where stages wait for each other forever.
    """
    orders = [stage_schedule(schedule, stage, stages, microbatches, chunks) for stage in range(stages)]
    chunk_of = [[c for c in range(stages * chunks) if stage_of(c, stages, schedule) == s] for s in range(stages)]
    found: list[list[tuple[float, float]]] = [[] for _ in orders]
    done: dict[tuple[bool, int, int], float] = {}
    last = stages * chunks - 1
    while any(len(spans) < len(order) for spans, order in zip(found, orders)):
        before = sum(map(len, found))
        for stage, order in enumerate(orders):
            while len(found[stage]) < len(order):
                turn = order[len(found[stage])]
                chunk = chunk_of[stage][turn.chunk]
                needs = [(True, chunk - 1, turn.microbatch)] if turn.forward and chunk else []
                if not turn.forward:
                    needs = [(True, chunk, turn.microbatch)]
                    needs += [(False, chunk + 1, turn.microbatch)] if chunk < last else []
                if turn.part == "weights":
                    needs = [(False, chunk, turn.microbatch)]
                if not done.keys() >= set(needs):
                    break
                free = found[stage][-1][1] if found[stage] else 0.0
                start = max([free, *(done[need] for need in needs)])
                found[stage].append((start, start + took[turn.forward, turn.part]))
                if turn.part != "weights":
                    done[turn.forward, chunk, turn.microbatch] = found[stage][-1][1]
        assert sum(map(len, found)) > before
    return found


EQUAL = {(True, ""): 1.0, (False, ""): 2.0, (False, "inputs"): 1.0, (False, "weights"): 1.0}


@pytest.mark.parametrize("schedule, stages, microbatches, chunks", CASES)
def test_no_stage_waits_for_another_forever(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    work = 3.0 * microbatches * chunks
    assert max(stage[-1][1] for stage in spans(schedule, stages, microbatches, chunks, EQUAL)) >= work


@pytest.mark.parametrize("forward, inputs, weights", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (2.0, 2.5, 1.5)])
def test_the_bubble_of_zb_h1_is_that_of_the_paper(forward: float, inputs: float, weights: float) -> None:
    took = {(True, ""): forward, (False, "inputs"): inputs, (False, "weights"): weights}
    took[False, ""] = inputs + weights
    work = 12 * (forward + inputs + weights)
    zero, alternating = (
        max(stage[-1][1] for stage in spans(schedule, 4, 12, 1, took)) - work for schedule in ("zb-h1", "1f1b")
    )
    assert zero == pytest.approx(3 * (forward + inputs - weights))
    assert alternating == pytest.approx(3 * (forward + inputs + weights))


def test_no_stage_of_zbv_is_idle_between_its_first_pass_and_its_last() -> None:
    for stage in spans("zbv", 4, 12, 2, EQUAL):
        assert stage[-1][1] - stage[0][0] == pytest.approx(3 * 2 * 12)


@pytest.mark.parametrize("stages, microbatches", [(2, 4), (4, 8), (4, 16), (4, 3)])
def test_zero_bubble_passes_come_in_the_order_of_pytorchs_schedules(stages: int, microbatches: int) -> None:
    kinds = {
        "FORWARD": (True, ""),
        "BACKWARD_INPUT": (False, "inputs"),
        "BACKWARD_WEIGHT": (False, "weights"),
    }

    def theirs(schedule: Any, stage: int, chunks: int) -> list[ScheduledPass]:
        rounds = max(1, microbatches // stages)
        given = {
            "pp_group_size": stages,
            "_n_microbatches": microbatches,
            "n_local_stages": chunks,
            "num_stages": stages * chunks,
            "microbatches_per_round": microbatches // rounds,
        }
        actions = schedule._calculate_single_rank_operations(SimpleNamespace(**given), stage)
        passes = []
        for action in filter(None, actions):
            forward, part = kinds[action.computation_type.name]
            passes.append(ScheduledPass(forward, action.stage_index // stages, action.microbatch_index, part))
        return passes

    for stage in range(stages):
        ours = stage_schedule("zbv", stage, stages, microbatches)
        assert ours == theirs(ScheduleZBVZeroBubble, stage, 2)
        ours = stage_schedule("zb-h1", stage, stages, microbatches)
        assert ours == theirs(ScheduleInterleavedZeroBubble, stage, 1)


def test_the_first_stage_of_1f1b_keeps_no_more_activations_than_there_are_stages() -> None:
    kept, most = 0, 0
    for turn in stage_schedule("1f1b", 0, 4, 16):
        kept += 1 if turn.forward else -1
        most = max(most, kept)
    assert most == 4


@pytest.mark.parametrize(
    "case, message",
    [
        (("2f2b", 4, 8, 1), "there is no schedule '2f2b'"),
        (("interleaved", 4, 6, 2), "a multiple of 4 microbatches, not 6"),
        (("interleaved", 4, 8, 1), "needs several chunks"),
        (("1f1b", 4, 8, 2), "has no chunks"),
        (("zb-h1", 4, 8, 2), "has no chunks"),
        (("zbv", 4, 8, 3), "two chunks per stage, not 3"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(case: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(ForetraceError, match=message):
        check_schedule(*case)


def shapes(ops: list[Op]) -> list[tuple[str, list[tuple[int, ...]]]]:
    return [(op.name, [t.shape for t in (*op.tensors, *op.produced)]) for op in ops]


GPTS = [{"dtype": "fp32"}, {"dtype": "bf16"}, {"recompute": True}, {"optimizer": "fused"}]


@pytest.mark.parametrize("options", GPTS, ids=str)
def test_a_part_of_a_gpts_batch_is_the_step_at_a_smaller_batch(options: dict[str, Any]) -> None:
    part = microbatch_of(list(gpt_step(**options).ops), 4)
    assert shapes(part) == shapes(list(gpt_step(batch=2, **options).ops))


@pytest.mark.parametrize("example", [bert, resnet], ids=["sequences before samples", "convolutions"])
def test_a_part_of_another_models_batch_is_its_step_at_a_smaller_batch(example: Any) -> None:
    """nn.TransformerEncoder computes with the batch as its second dimension."""

    def at(batch: int) -> Graph:
        return sketch(lambda: example.make_step("tiny", device="cuda", batch=batch), device="cuda")

    assert shapes(microbatch_of(list(at(8).ops), 2)) == shapes(list(at(4).ops))


class SequencesFirst(torch.nn.Module):
    """Ids are samples of sequences, all that is made of them sequences of samples: as Megatron has it."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.out = torch.nn.Embedding(32, 8), torch.nn.Linear(8, 32)
        self.mask = torch.nn.Buffer(torch.ones(16, 16, dtype=torch.bool).triu(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.ids(ids).transpose(0, 1).contiguous()
        scores = torch.bmm(x.transpose(0, 1), x.permute(1, 2, 0)).masked_fill(self.mask, -1e4).softmax(-1)
        result: torch.Tensor = self.out(torch.bmm(scores, x.transpose(0, 1)).transpose(0, 1).contiguous())
        return result


def test_a_mask_as_long_as_the_sequences_is_not_taken_for_the_batch() -> None:
    def at(batch: int) -> Graph:
        return sketch(trained(lambda: (SequencesFirst(), torch.zeros(batch, 16, dtype=torch.int64)), "cpu"))

    assert shapes(microbatch_of(list(at(8).ops), 4)) == shapes(list(at(2).ops))
    with pytest.raises(ForetraceError, match="a batch of 8 can't be split into 16"):
        microbatch_of(list(at(8).ops), 16)


LOSSES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda guess: guess.mean(),
    lambda guess: guess.sum(),
    lambda guess: guess.sum(-1).mean(),
    lambda guess: guess.sum() / guess.numel(),
]


@pytest.mark.parametrize("loss", LOSSES, ids=["mean", "sum", "mean of sums", "sum by count"])
def test_the_gradient_of_a_plain_mean_or_sum_is_divided_like_its_samples(
    loss: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def at(batch: int) -> Graph:
        def build() -> Callable[[], None]:
            model, given = torch.nn.Linear(16, 4), torch.ones(batch, 16)
            optimizer = torch.optim.SGD(model.parameters())

            def step() -> None:
                loss(model(given)).backward()
                optimizer.step()

            return step

        return sketch(build, device="cpu")

    assert shapes(microbatch_of(list(at(8).ops), 2)) == shapes(list(at(4).ops))


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ForetraceError, match="a batch of 8 can't be split into 3 microbatches"):
        microbatch_of(list(gpt_step().ops), 3)
