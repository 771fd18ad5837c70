"""A sketch is the recording of a step that never ran."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bert
import dlrm
import dlrm_distributed
import gpt
import resnet
from foretrace.graph import ForetraceError, Graph, Op
from foretrace.record.folder import read_ops
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch
from tests.record.jobs import names_and_shapes, small_step

EXAMPLES: dict[str, Callable[..., Any]] = {
    "dlrm": dlrm.make_step,
    "dlrm in bf16 autocast": partial(dlrm.make_step, dtype="bf16"),
    "gpt": gpt.make_step,
    "gpt in bf16 autocast": partial(gpt.make_step, dtype="bf16"),
    "gpt with fused AdamW": partial(gpt.make_step, optimizer="fused"),
    "gpt with foreach AdamW": partial(gpt.make_step, optimizer="foreach"),
    "gpt with a loop over weights": partial(gpt.make_step, optimizer="loop"),
    "gpt with checkpointed activations": partial(gpt.make_step, recompute=True),
    "gpt with accumulated gradients": partial(gpt.make_step, accumulate=2),
    "gpt with all of it": partial(gpt.make_step, dtype="bf16", optimizer="fused", recompute=True, accumulate=2),
    "bert": bert.make_step,
    "bert in bf16 autocast": partial(bert.make_step, dtype="bf16"),
    "resnet": resnet.make_step,
    "resnet in bf16 autocast": partial(resnet.make_step, dtype="bf16"),
}


def watched(step: Callable[[], Any]) -> list[Op]:
    step()
    with Watch() as watch:
        step()
    return watch.ops


def layouts(op: Op) -> list[Any]:
    """What comes out first; PyTorch's fake norms tell another type than real ones of what they save for backward."""
    return [(t.dtype, t.device, t.stride) for t in op.produced[:1]]


def lives(graph: Graph | Watch) -> list[tuple[int, str, int, int]]:
    storages = graph.storages if isinstance(graph, Graph) else graph.registry.storages
    return [(s.nbytes, s.device, s.birth, s.death) for s in storages.values()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_sketch_is_what_a_watched_step_shows(name: str) -> None:
    build = partial(EXAMPLES[name], device="cpu")
    drawn = sketch(build)
    ran = watched(build())
    assert names_and_shapes(drawn) == names_and_shapes(ran)
    assert [(op.phase, op.module, op.node) for op in drawn.ops] == [(op.phase, op.module, op.node) for op in ran]
    assert [layouts(op) for op in drawn.ops] == [layouts(op) for op in ran]


def limited() -> Callable[[], None]:
    """A step that limits its gradients in two ways and averages its weights."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    averages = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=averages)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(4, 8)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        optimizer.zero_grad()

    return step


def test_clipping_and_averages_choose_foreach_functions_as_a_real_step_does() -> None:
    drawn = sketch(limited)
    step = limited()
    step()  # weights are copied into the average, and averaged from then on
    assert names_and_shapes(drawn) == names_and_shapes(watched(step))
    assert {"aten::_foreach_norm", "aten::_foreach_clamp_min_"} <= {op.name for op in drawn.ops}


@pytest.mark.parametrize("name", ["gpt", "gpt with checkpointed activations", "resnet", "dlrm"])
def test_memory_is_taken_and_freed_as_in_a_real_step(name: str) -> None:
    build = partial(EXAMPLES[name], device="cpu")
    step = build()
    step()
    with Watch() as watch:
        step()
    assert peak(sketch(build)) == peak(watch)


def peak(graph: Graph | Watch) -> int:
    """The most bytes that are held at once."""
    changes: dict[int, int] = {}
    for nbytes, _, birth, death in lives(graph):
        changes[birth] = changes.get(birth, 0) + nbytes
        if death >= 0:
            changes[death] = changes.get(death, 0) - nbytes
    held = most = 0
    for at in sorted(changes):
        held += changes[at]
        most = max(most, held)
    return most


RANKS: dict[str, Callable[..., Any]] = {
    "ddp": partial(gpt.make_step, ddp=True),
    "fsdp": partial(gpt.make_step, fsdp=True),
    "hybrid": dlrm_distributed.make_step,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RANKS)
def test_a_sketched_rank_is_what_two_ranks_recorded(name: str, on_two_ranks: Callable[[str], Path]) -> None:
    graph = sketch(partial(RANKS[name], device="cpu"), world=2)
    drawn, ran = names_and_shapes(graph), names_and_shapes(read_ops(on_two_ranks(name) / "rank-0"))
    # A script's step ends where it returns; a recorded one where its optimizer is done, just before.
    assert drawn.pop() == ran.pop(0) == ("aten::detach", [()])
    assert drawn == without_gloos_own(ran)
    assert graph.world == 2 and graph.groups == {"0": (0, 1)}


def without_gloos_own(ran: list[Any]) -> list[Any]:
    """Gloo reduces and scatters by an all_reduce, of which it copies each rank its part while that is waited for."""
    scattered = [row for row, (name, _) in enumerate(ran) if name == "c10d::_reduce_scatter_base_"]
    its_own = [ran.index(("c10d::wait", []), row) + after for row in scattered for after in (1, 2)]
    assert [ran[row][0] for row in its_own] == ["aten::split", "aten::copy_"] * len(scattered)
    return [call for row, call in enumerate(ran) if row not in its_own]


def test_a_rank_of_many_is_sketched_by_one_process() -> None:
    build = partial(gpt.make_step, device="cpu", fsdp=True)
    few, many = sketch(build, world=2), sketch(build, world=64, rank=7)
    assert (many.world, many.rank, many.groups["0"]) == (64, 7, tuple(range(64)))
    assert [op.name for op in few.ops if op.name.startswith("c10d")] == [
        op.name for op in many.ops if op.name.startswith("c10d")
    ]
    assert not torch.distributed.is_initialized()


STATES = {
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, weight_decay=0.5),
    "fused Adam": partial(torch.optim.Adam, fused=True),
    "Adam in a loop": partial(torch.optim.Adam, foreach=False),
    "Adagrad": torch.optim.Adagrad,
}


@pytest.mark.parametrize("trained", [0, 1], ids=["new", "trained"])
@pytest.mark.parametrize("name", STATES)
def test_a_real_model_is_left_as_it_was(name: str, trained: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = STATES[name](model.parameters())
    given = torch.randn(5, 4)

    def step() -> None:
        optimizer.zero_grad()
        model(given).square().mean().backward()
        optimizer.step()

    def everything() -> Any:
        gradients = [weight.grad for weight in model.parameters()]
        return copy.deepcopy((model.state_dict(), gradients, optimizer.state_dict(), torch.get_rng_state(), given))

    for _ in range(trained):
        step()
    before, held = everything(), [weight.grad for weight in model.parameters()]
    graph = sketch(step)
    torch.testing.assert_close(everything(), before, rtol=0, atol=0)
    assert all(weight.grad is gradient for weight, gradient in zip(model.parameters(), held))
    step()
    assert names_and_shapes(graph) == names_and_shapes(watched(step))


def test_views_and_changes_of_a_real_model_stay_in_its_storages() -> None:
    """The fake tensors that stand for a model's must be the same ones throughout."""
    step = small_step()
    with Watch() as watch:
        step()
    assert lives(sketch(step)) == lives(watch)


def test_a_look_at_a_copied_weight_lies_where_the_weight_does() -> None:
    def build() -> Callable[[], None]:
        layer, data = copy.deepcopy(torch.nn.Linear(4, 8)), torch.ones(2, 4)
        return lambda: layer(data).sum().backward()

    turned = next(op for op in sketch(build).ops if op.name == "aten::t")
    assert turned.tensors[0].storage == turned.produced[0].storage


def test_a_step_that_fails_leaves_the_model_too() -> None:
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.Adam([weight])

    def step() -> None:
        weight.sum().backward()
        optimizer.step()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sketch(step)
    assert weight.grad is None and not optimizer.state and weight.tolist() == [1, 1, 1, 1]


def test_a_result_that_depends_on_the_data_is_named_and_recording_is_offered() -> None:
    with pytest.raises(ForetraceError) as raised:
        sketch(lambda: torch.bincount(torch.randn(4).long()))
    assert "aten.bincount" in raised.value.what and "depends on the data" in raised.value.what
    assert "foretrace record" in raised.value.advice


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sparse_gradients_that_are_summed_by_row_have_as_many_as_evenly_drawn_ids_hit(device: str) -> None:
    def build() -> Callable[[], None]:
        table = nn.EmbeddingBag(1000, 16, sparse=True, mode="sum", device=device)
        ids = torch.zeros(64, 4, dtype=torch.int64, device=device)
        optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            table(ids).mean().backward()
            optimizer.step()

        return step

    graph = sketch(build, device=device)
    (values,) = [op.produced[0] for op in graph.ops if op.name == "aten::pow" and op.phase == "optimizer"]
    assert values.shape == (226, 16)  # of 256 ids, 1000 (1 - exp(-0.256))
    assert any("ids hit the rows of a table evenly" in note for note in graph.notes)


def test_adagrad_of_a_dlrm_is_sketched() -> None:
    sketch(partial(dlrm.make_step, device="cpu", optimizer="adagrad"))


def test_a_loss_may_be_read_and_is_said_to_be_assumed() -> None:
    def step() -> None:
        loss = torch.randn(3).sum()
        assert f"{loss.item()}" == "1.0" and not bool(loss.isnan())

    graph = sketch(step)
    read, finite = graph.notes
    assert read.startswith("1 value read on the host (.item()) was assumed to be 1 (test_sketch.py:")
    assert finite.startswith("assumed: losses and gradients are finite (test_sketch.py:")
    assert [op.name for op in graph.ops].count("aten::_local_scalar_dense") == 2


def test_numbers_that_a_script_writes_down_have_values() -> None:
    seen = []
    sketch(lambda: seen.append(torch.tensor(2).add(3).item()))
    assert seen == [5, 5]


LARGE = """
import resource, torch
from foretrace.record.sketch.sketch import sketch

def build():
    layers = torch.nn.Sequential(*(torch.nn.Linear(20_000, 20_000) for _ in range(8)))
    optimizer = torch.optim.AdamW(layers.parameters())
    def step():
        layers(torch.randn(64, 20_000)).sum().backward()
        optimizer.step()
    return step

sketch(lambda: None)  # all is imported
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
graph = sketch(build)
held = sum(storage.nbytes for storage in graph.storages.values())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, held >> 10)
"""


def test_nothing_is_allocated() -> None:
    printed = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True).stdout
    grown, held = map(int, printed.split())
    assert held > 40 << 20, "gigabytes, in kilobytes: weights, gradients and two moments"
    assert grown < 200 << 10


def cuda(step: Callable[[], Any]) -> Graph:
    return sketch(step, device="cuda")


def test_on_a_gpu_that_is_not_there_tensors_say_where_they_would_be() -> None:
    asked = []

    def build() -> Callable[[], None]:
        model = torch.nn.Linear(8, 8).to("cuda")
        batch = torch.ones(4, 8)

        def step() -> None:
            given = batch.to("cuda")
            asked.append((given.is_cuda, given.device.type, batch.device.type, torch.cuda.is_available()))
            model(given).sum().cpu()

        return step

    graph = cuda(build)
    assert asked[-1] == (True, "cuda", "cpu", True)
    devices = {op.name: [t.device for t in op.produced] for op in graph.ops}
    assert devices["aten::addmm"] == ["cuda:0"] and {t.device for t in graph.ops[0].tensors} == {"cpu"}
    copies = [(op.tensors[0].device, op.produced[0].device) for op in graph.ops if op.name == "aten::_to_copy"]
    assert copies == [("cpu", "cuda:0"), ("cuda:0", "cpu")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_follows_cudas_rules(dtype: torch.dtype) -> None:
    def step() -> None:
        given = torch.ones(4, 8, device="cuda")
        weight = torch.ones(8, 8, device="cuda")
        with torch.autocast("cuda", dtype):
            product = given @ weight
            product.softmax(-1)
            torch.nn.functional.layer_norm(product, (8,))
            product.exp()
            product + given

    graph = cuda(step)
    short = str(dtype).removeprefix("torch.")
    made = {op.name: op.produced[0].dtype for op in graph.ops if op.name != "aten::_to_copy"}
    assert made["aten::mm"] == short
    assert made["aten::_softmax"] == made["aten::native_layer_norm"] == made["aten::exp"] == "float32"
    assert made["aten::add"] == "float32", "the wider one of its arguments"


ATTENTION = {
    "cudnn": ({"dtype": torch.bfloat16}, 64, "aten::_scaled_dot_product_cudnn_attention"),
    "flash": ({"dtype": torch.bfloat16}, 192, "aten::_scaled_dot_product_flash_attention"),
    "memory-efficient": ({"dtype": torch.float32}, 64, "aten::_scaled_dot_product_efficient_attention"),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_the_attention_that_a_gpu_would_take_is_taken(name: str) -> None:
    options, size, expected = ATTENTION[name]

    def step() -> None:
        query = torch.ones(1, 2, 16, size, device="cuda", requires_grad=True, **options)
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()

    ops = [op.name for op in cuda(step).ops]
    assert expected in ops and f"{expected}_backward" in ops


def test_batch_norm_dropout_and_the_optimizer_are_a_gpus() -> None:
    def build() -> Callable[[], None]:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5)).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(torch.ones(2, 3, 8, 8, device="cuda")).sum().backward()
            optimizer.step()

        return step

    ops = {op.name for op in cuda(build).ops}
    assert {"aten::cudnn_batch_norm", "aten::cudnn_batch_norm_backward"} <= ops
    assert {"aten::native_dropout", "aten::native_dropout_backward"} <= ops
    assert "aten::_foreach_addcdiv_" in ops and "aten::addcdiv_" not in ops


def test_on_its_own_device_an_optimizer_does_as_it_would() -> None:
    ops = [op.name for op in sketch(partial(small_step, torch.optim.AdamW)).ops]
    assert "aten::addcdiv_" in ops and "aten::_foreach_addcdiv_" not in ops


def test_everything_is_as_it_was_after_a_sketch() -> None:
    before = (torch.nn.Module.to, torch.nn.functional.dropout, torch.cuda.is_available, torch.optim.Optimizer.zero_grad)
    cuda(lambda: torch.ones(2, device="cuda"))
    with pytest.raises(ForetraceError):
        cuda(lambda: torch.randn(2, device="cuda").long().bincount())
    after = (torch.nn.Module.to, torch.nn.functional.dropout, torch.cuda.is_available, torch.optim.Optimizer.zero_grad)
    assert before == after
    assert not torch.cuda.is_available() or torch.version.cuda
    assert type(torch.ones(2)) is torch.Tensor and torch.ones(2).device.type == "cpu"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"device": "tpu"}, "no sketches for device 'tpu'"),
        ({"world": 0}, "world can't be 0"),
        ({"world": 2.5}, "world can't be 2.5"),
        ({"world": 4, "rank": 4}, "no rank 4 among 4"),
    ],
)
def test_what_cannot_be_pretended_is_refused(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ForetraceError, match=what):
        sketch(lambda: None, **arguments)


def test_a_step_that_puts_nothing_on_the_gpu_is_told_so() -> None:
    graph = sketch(lambda: torch.ones(3) + 1, device="cuda")
    assert graph.notes == ["the step puts nothing on the GPU: build the model on device cuda"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_step_that_wants_a_gpu_is_told_how_to_pretend_one() -> None:
    with pytest.raises(ForetraceError, match="needs a GPU"):
        sketch(lambda: (torch.ones(3, device="cuda", requires_grad=True) * 2).sum().backward())


def test_the_collectives_of_a_pretended_rank_are_among_what_is_known_of_it() -> None:
    graph = sketch(lambda: torch.distributed.all_reduce(torch.ones(256)), world=4)
    (found,) = graph.collectives
    assert (found.kind, found.nbytes, found.ranks) == ("all_reduce", 1024, (0, 1, 2, 3))


def test_any_rank_finds_its_own_gpu_to_be_the_first() -> None:
    def build() -> Callable[[], None]:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(device), device_ids=[device.index])
        return lambda: model(torch.ones(4, 8, device=device)).sum().backward()

    graph = sketch(build, device="cuda", world=64, rank=3)
    assert graph.rank == 3 and [one.kind for one in graph.collectives] == ["all_reduce"]


def test_a_group_of_one_is_there_where_it_is_asked_for() -> None:
    assert sketch(lambda: torch.ones(torch.distributed.get_world_size()), world=1).world == 1
