"""Blocks recomputed in backward: compared with torch.utils.checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import dlrm
import foretrace as ft
import gpt
import resnet
from benchmarks.lib.checkpoint_plans import make_step
from foretrace.analysis.memory import peak_memory
from foretrace.api import as_job
from foretrace.graph import ForetraceError
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.structure.checkpointing import checkpointing
from tests.narrowing import present
from tests.transforms.agreement import assert_same, sketched


@pytest.mark.parametrize(("dtype", "accumulate"), [("fp32", 1), ("bf16", 1), ("fp32", 2)])
def test_a_step_computes_its_blocks_again_as_pytorch_does(dtype: str, accumulate: int) -> None:
    options = {"dtype": dtype, "accumulate": accumulate}
    plain, truth = (sketched(gpt, options={**options, "recompute": again}) for again in (False, True))
    edited = checkpointing(plain)
    # Variables of a block's code hold casts a few calls longer than their last use: no plain step shows which.
    assert_same(edited, truth, memory=0.02 if dtype == "bf16" else 0.0)
    assert [op.entered for op in edited.ops] == [op.entered for op in truth.ops]
    assert present(peak_memory(edited)) < present(peak_memory(plain))
    times = [ft.predict(graph, on="h200").step_ms for graph in (edited, truth)]
    assert times[0] == pytest.approx(times[1], rel=0.05)


def test_blocks_of_which_backward_reads_the_input_alone_are_refused() -> None:
    def build() -> Callable[[], None]:
        net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
        return lambda: net(torch.ones(8, 64)).sum().backward()

    with pytest.raises(ForetraceError, match=r"nothing can be recomputed in Sequential\.0:"):
        checkpointing(sketch(build), "0-0")


def test_selective_checkpointing_keeps_attention_and_every_second_gemm_as_torchtitan_does() -> None:
    command = "python benchmarks/models/llama.py --preset tiny --layers 4 --seq 256"
    plain, truth = (as_job(f"{command}{more}", "cuda").graphs[0] for more in ("", " --recompute selective"))
    edited = checkpointing(plain, "selective")
    names = [[(op.name, op.phase) for op in graph.ops] for graph in (edited, truth)]
    assert Counter(names[0]) == Counter(names[1])
    # A norm's code holds its input in float32 until it returns: 1 of the 30 activations that are alive at the peak.
    assert present(peak_memory(edited)) == pytest.approx(present(peak_memory(truth)), rel=0.04)
    assert present(peak_memory(checkpointing(plain))) < present(peak_memory(edited)) < present(peak_memory(plain))


def test_nothing_is_freed_before_its_last_use() -> None:
    # Norms of several calls do not save the sum that each block begins with, and is computed again from.
    plain = as_job("python benchmarks/models/llama.py --preset tiny --layers 4", "cuda").graphs[0]
    for blocks in ("*", "1/2", "selective"):
        graph = checkpointing(plain, blocks)
        for row, op in enumerate(graph.ops):
            ends = [graph.storages[tensor.storage].death for tensor in (*op.tensors, *op.produced)]
            assert all(end < 0 or end > row for end in ends), op.name


def test_a_share_of_the_blocks_is_spread_evenly() -> None:
    plain = sketched(gpt, layers=4)
    again = {op.module.split(".")[2] for op in checkpointing(plain, "1/2").ops if op.phase == "backward"
             and op.name == "aten::gelu"}  # fmt: skip
    assert again == {"1", "3"}
    assert len(checkpointing(plain, "4/4").ops) == len(checkpointing(plain).ops)
    with pytest.raises(ForetraceError, match="no share of the blocks"):
        checkpointing(plain, "3/2")


def test_blocks_keep_the_named_results_as_pytorch_does_with_such_a_policy() -> None:
    shape = gpt.Shape(layers=4, heads=4, dim=64, vocabulary=512, seq=32, batch=8)
    plan = ["0-1:addmm.0+addmm.2", "2-2"]
    plain, truth = (sketch(partial(make_step, some, shape), device="cuda") for some in ([], plan))
    edited = plain
    for text in plan:
        edited = checkpointing(edited, text)
    assert_same(edited, truth, memory=0.0)
    assert len(edited.ops) < len(checkpointing(plain, "0-2").ops)
    with pytest.raises(ForetraceError, match="has no blocks 2-4"):
        checkpointing(plain, "2-4")
    with pytest.raises(ForetraceError, match=r"addmm\.9"):
        checkpointing(plain, "0-1:addmm.9")


def test_one_block_alone_is_computed_again() -> None:
    plain = sketched(gpt)
    assert len(plain.ops) < len(checkpointing(plain, "blocks.1").ops) < len(checkpointing(plain).ops)


def test_the_blocks_of_all_stages_are_computed_again() -> None:
    plain = sketched(resnet, blocks=(2, 3))
    again = checkpointing(plain)
    extra = [op.module for op in again.ops if op.phase == "backward" and op.name == "aten::convolution"]
    assert {module.partition(".body")[0].partition(".shortcut")[0] for module in extra} == {
        f"ResNet.stages.{stage}.{block}" for stage, blocks in ((0, 2), (1, 3)) for block in range(blocks)
    }


def test_an_unknown_block_is_refused_with_similar_names() -> None:
    with pytest.raises(ForetraceError, match=r"no block 'GPT.block.1'.*GPT.blocks.1"):
        checkpointing(sketched(gpt), "GPT.block.1")
    with pytest.raises(ForetraceError, match=r"tables\.0"):
        checkpointing(sketched(dlrm), "blocks.*")
