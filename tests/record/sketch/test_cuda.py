"""A sketch made without a GPU is what a GPU really ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

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
    [(None, "cudnn"), ("given", "cudnn"), ("learned", "efficient_attention"), ("turned", "_safe_softmax")],
)
def test_attention_is_chosen_as_autocast_and_its_mask_have_it(mask: str | None, chosen: str) -> None:
    def make() -> Callable[[], None]:
        heads = torch.randn(2, 4, 16, 64, device="cuda", requires_grad=True)
        bias = torch.randn(1, 4, 16, 16, device="cuda", requires_grad=mask != "given") if mask else None

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                shown = bias.mT if mask == "turned" and bias is not None else bias  # as T5 computes its bias
                F.scaled_dot_product_attention(heads, heads, heads, shown, dropout_p=0.1).sum().backward()

        return step

    ops = [op for op in sketch(make, device="cuda").ops if op.phase == "forward"]
    (attention,) = [op for op in ops if chosen in op.name]
    assert attention.tensors[0].dtype == ("float32" if mask == "turned" else "bfloat16")
    assert any(op.name == "aten::_to_copy" for op in ops)


def test_buckets_of_gradients_lie_where_the_gradients_do() -> None:
    rank = sketch(partial(gpt.make_step, preset="tiny", device="cuda", ddp=True), device="cuda", world=2)
    shared = [tensor.device for op in rank.ops if op.name == "c10d::allreduce_" for tensor in op.tensors]
    assert shared and set(shared) == {"cuda:0"}


def test_norms_of_half_precision_keep_their_statistics_in_float32() -> None:
    graph = sketch(partial(resnet.make_step, preset="tiny", device="cuda", dtype="bf16"), device="cuda")
    norms = [op for op in graph.ops if op.name == "aten::native_batch_norm"]
    assert norms and {tensor.dtype for op in norms for tensor in op.produced[1:]} == {"float32"}


def sharded_fully(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


def sharded_by_columns(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cuda", (torch.distributed.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


SHARDED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "FSDP2": sharded_fully,
    "tensor parallel": sharded_by_columns,
    "FSDP1": lambda model: FullyShardedDataParallel(model, device_id=0),
}


@pytest.mark.parametrize("name", SHARDED)
def test_weights_of_shards_are_on_the_gpu_and_their_optimizer_is_foreach(name: str) -> None:
    def build() -> Callable[[], None]:
        model = SHARDED[name](nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to("cuda"))
        assert all(weight.is_cuda and weight.device == torch.device("cuda:0") for weight in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters())
        given = torch.randn(4, 64, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            model(given).mean().backward()
            optimizer.step()

        return step

    graph = sketch(build, device="cuda", world=2)
    ops = [op.name for op in graph.ops if op.phase == "optimizer"]
    assert ops.count("aten::_foreach_addcdiv_") == 1 and "aten::addcdiv_" not in ops
    assert {one.kind for one in graph.collectives} <= {"all_gather", "reduce_scatter", "all_reduce"}
    assert graph.collectives


def test_synchronized_batch_norm_gathers_the_statistics_of_all_ranks() -> None:
    def build() -> Callable[[], None]:
        plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        model = nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(plain).to("cuda"))
        given = torch.randn(4, 3, 8, 8, device="cuda")
        return lambda: model(given).mean().backward()

    ops = [op.name for op in sketch(build, device="cuda", world=4).ops if "batch_norm" in op.name or "c10d" in op.name]
    assert [name for name in ops if "batch_norm" in name] == [
        "aten::batch_norm_stats",
        "aten::batch_norm_gather_stats_with_counts",
        "aten::batch_norm_elemt",
        "aten::batch_norm_backward_reduce",
        "aten::batch_norm_backward_elemt",
    ]
    assert "c10d::_allgather_base_" in ops


def test_what_a_call_gives_on_a_gpu_is_not_taken_for_what_it_gives_on_the_cpu() -> None:
    def build(device: str) -> Callable[[], None]:
        bag = nn.EmbeddingBag(50, 7, mode="sum").to(device)
        given = torch.zeros(12, dtype=torch.int64, device=device), torch.arange(0, 12, 3, device=device)
        return lambda: bag(*given).sum().backward()

    def results(*devices: str) -> list[list[tuple[int, ...]]]:
        def both() -> Callable[[], Any]:
            steps = [build(device) for device in devices]
            return lambda: [step() for step in steps]

        ops = sketch(both, device="cuda").ops
        return [[made.shape for made in op.produced] for op in ops if op.name == "aten::_embedding_bag"]

    on_gpu, on_cpu = [(4, 7), (12,), (4,), (0,)], [(4, 7), (0,), (4,), (4,)]
    assert results("cuda", "cpu") == [on_gpu, on_cpu] and results("cpu", "cuda") == [on_cpu, on_gpu]
