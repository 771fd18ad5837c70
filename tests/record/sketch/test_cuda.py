"""A sketch made without a GPU is what a GPU really ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bert
import dlrm
import gpt
import resnet
from benchmarks.lib.workloads import WORKLOADS
from foretrace.files import read_chunks
from foretrace.graph import Op
from foretrace.graph.codec import from_lines
from foretrace.record.folder import read_ops
from foretrace.record.sketch.sketch import sketch

H200 = Path(__file__).parents[2] / "data" / "h200"

EXAMPLES: dict[str, Callable[[], Any]] = {
    "dlrm_mlperf": partial(dlrm.make_step, preset="mlperf", device="cuda"),
    "gpt2_bf16": partial(gpt.make_step, preset="gpt2", dtype="bf16", batch=4, device="cuda"),
    "gpt2_fp32_fused": partial(gpt.make_step, preset="gpt2", batch=2, device="cuda", optimizer="fused"),
    "bert_bf16": partial(bert.make_step, dtype="bf16", device="cuda"),
    "resnet50_fp32": partial(resnet.make_step, device="cuda"),
}


def reported(ops: Sequence[Op]) -> list[tuple[Any, ...]]:
    """What an op is, apart from who its tensors are."""
    return [
        (op.name, op.overload, op.phase, [t.shape for t in op.tensors], [(t.shape, t.dtype) for t in op.produced])
        for op in ops
        if not op.is_side_call
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_sketched_without_a_gpu_is_what_the_h200_ran(name: str) -> None:
    path = H200 / f"{name}.ops.jsonl.gz"
    ran = reported(from_lines(b"".join(read_chunks(path)).splitlines(), str(path)))
    drawn = reported(list(sketch(EXAMPLES[name], device="cuda").ops))
    differing = [(r, d) for r, d in zip(ran, drawn) if r != d]
    assert not differing, differing[0]
    assert len(ran) == len(drawn)


def test_a_workload_sketched_without_a_gpu_is_what_the_h200_ran() -> None:
    ran = read_ops(H200 / "dlrm_default_b512" / "rank-0")
    drawn = list(sketch(WORKLOADS["dlrm_default_b512"], device="cuda").ops)
    assert reported(ran) == reported(drawn)


def test_devices_are_told_as_they_would_be() -> None:
    graph = sketch(EXAMPLES["gpt2_fp32_fused"], device="cuda")
    assert {t.device for op in graph.ops for t in op.produced} == {"cuda:0"}


def test_a_cast_in_backward_stays_on_the_pretended_gpu() -> None:
    graph = sketch(partial(gpt.make_step, preset="tiny", dtype="bf16", batch=2, device="cuda"), device="cuda")
    asked = [op.kwargs["device"] for op in graph.ops if op.name == "aten::_to_copy" and "device" in op.kwargs]
    assert asked and {getattr(device, "value", "") for device in asked} == {"cuda:0"}


@pytest.mark.parametrize(
    ("mask", "chosen"),
    [(None, "cudnn"), ("given", "cudnn"), ("learned", "_safe_softmax")],
)
def test_attention_is_chosen_as_autocast_and_its_mask_have_it(mask: str | None, chosen: str) -> None:
    def make() -> Callable[[], None]:
        heads = torch.randn(2, 4, 16, 64, device="cuda", requires_grad=True)
        bias = torch.randn(1, 4, 16, 16, device="cuda", requires_grad=mask == "learned") if mask else None

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                F.scaled_dot_product_attention(heads, heads, heads, bias, dropout_p=0.1).sum().backward()

        return step

    ops = [op for op in sketch(make, device="cuda").ops if op.phase == "forward"]
    (attention,) = [op for op in ops if chosen in op.name]
    assert attention.tensors[0].dtype == ("float32" if mask == "learned" else "bfloat16")
    assert any(op.name == "aten::_to_copy" for op in ops)


def test_buckets_of_gradients_lie_where_the_gradients_do() -> None:
    rank = sketch(partial(gpt.make_step, preset="tiny", device="cuda", ddp=True), device="cuda", world=2)
    shared = [tensor.device for op in rank.ops if op.name == "c10d::allreduce_" for tensor in op.tensors]
    assert shared and set(shared) == {"cuda:0"}


def test_norms_of_half_precision_keep_their_statistics_in_float32() -> None:
    graph = sketch(partial(resnet.make_step, preset="tiny", device="cuda", dtype="bf16"), device="cuda")
    norms = [op for op in graph.ops if op.name == "aten::native_batch_norm"]
    assert norms and {tensor.dtype for op in norms for tensor in op.produced[1:]} == {"float32"}
