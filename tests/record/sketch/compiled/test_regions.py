"""Compiled functions are sketched as compiled for a GPU; as they were written elsewhere, and the graph says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from foretrace.graph import ForetraceError, Graph
from foretrace.graph.graph import cautions
from foretrace.graph.op import COMPILED_REGION, GRAPH_LAUNCH
from foretrace.record.sketch.compiled.inductor import program_of
from foretrace.record.sketch.compiled.regions import NOTHING, compiled_regions
from foretrace.record.sketch.cuda_api import gpu_is_visible
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.profile import something_is_compiled
from foretrace.transforms.resize.batch_sequence import batch
from tests.record.jobs import names_and_shapes, script

on_cuda = pytest.mark.skipif(gpu_is_visible(), reason="a real GPU is visible, and torch.compile would use it")
NOTE = "torch.compile was left out: {} predicted as eager code"
ONE = NOTE.format("1 compiled region is")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, given: torch.Tensor) -> Any:
        return given + self.narrow(torch.nn.functional.gelu(self.wide(given)))


def building(kind: str, device: str) -> Callable[[], Callable[[], Any]]:
    """A function that builds a step in which something is compiled."""

    def build() -> Callable[[], Any]:
        layers = torch.nn.Sequential(Block(), Block()).to(device)
        optimizer = torch.optim.AdamW(layers.parameters())
        run: Any = layers
        update: Any = optimizer.step
        if kind == "model":
            run = torch.compile(layers)
        elif kind == "max-autotune":
            run = torch.compile(layers, mode="max-autotune", fullgraph=True)
        elif kind == "dynamic":
            run = torch.compile(layers, dynamic=True)
        elif kind == "regional":
            for layer in layers:
                layer.compile()
        elif kind == "optimizer":
            update = torch.compile(lambda: optimizer.step())

        def step() -> None:
            run(torch.randn(4, 8, device=device)).square().mean().backward()
            update()
            optimizer.zero_grad()

        return torch.compile(step) if kind == "whole step" else step

    return build


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("model", ONE),
        ("max-autotune", ONE),
        ("regional", NOTE.format("2 compiled regions are")),
        ("optimizer", ONE),
        ("whole step", ONE),
    ],
)
def test_a_compiled_step_of_a_cpu_is_sketched_as_eager_code_and_says_so(kind: str, note: str) -> None:
    graph = sketch(building(kind, "cpu"), "cpu")
    assert note in graph.notes
    eager = sketch(building("", "cpu"), "cpu")
    assert names_and_shapes(graph) == names_and_shapes(eager)
    assert not any("compile" in note for note in eager.notes)
    assert not something_is_compiled()


def kernels(graph: Graph, phase: str = "") -> list[str]:
    """Generated kernels in order, without their numbers."""
    ops = [op for op in graph.ops if op.name.startswith("triton_") and (not phase or op.phase == phase)]
    return [op.name.rpartition("_")[0] for op in ops]


@on_cuda
@pytest.mark.parametrize("kind", ["model", "max-autotune", "regional", "optimizer", "whole step", "dynamic"])
def test_a_compiled_step_of_a_gpu_is_sketched_with_its_fused_kernels(kind: str) -> None:
    graph, eager = (sketch(building(each, "cuda"), "cuda") for each in (kind, ""))
    assert not any(note.startswith("torch.compile was left out") for note in graph.notes)
    assert any("max-autotune chooses" in note for note in graph.notes) == (kind == "max-autotune")
    assert len([op for op in graph.ops if op.outputs]) < len([op for op in eager.ops if op.outputs])
    generated = [op for op in graph.ops if op.name.startswith("triton_")]
    assert all(op.produced and {tensor.device for tensor in op.tensors} == {"cuda:0"} for op in generated)
    if kind != "optimizer":
        assert any("gelu" in name for name in kernels(graph, "forward"))
        assert any("gelu_backward" in name for name in kernels(graph, "backward"))
        products = [[op.name for op in some.ops if op.name in ("aten::mm", "aten::addmm")] for some in (graph, eager)]
        assert len(products[0]) == len(products[1]) == 11, "GEMMs stay calls of PyTorch"
    if kind in ("optimizer", "whole step"):
        assert set(kernels(graph, "optimizer")) == {"triton_for_fused"}
    assert not something_is_compiled()


@on_cuda
def test_a_kernel_has_its_tensors_and_the_sizes_of_its_loops_and_writes_what_it_makes() -> None:
    def build() -> Callable[[], Any]:
        given = torch.randn(64, 1024, device="cuda")
        norm = torch.compile(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]))
        return lambda: norm(given)

    graph = sketch(build, "cuda")
    begin, op = graph.ops
    assert (begin.name, begin.args) == (COMPILED_REGION, (1, 1)), "one call, one argument"
    assert op.name == "triton_per_fused_native_layer_norm_0"
    assert op.args[2:] == (64, 1024, 0)
    given, made = op.tensors
    assert (given.shape, made.shape, op.produced) == ((64, 1024), (64, 1024), [made])
    assert given.storage != made.storage
    assert (graph.storages[given.storage].birth, graph.storages[made.storage].birth) == (-1, 1)


@on_cuda
def test_code_around_a_graph_break_runs_eagerly_between_two_programs() -> None:
    def build() -> Callable[[], Any]:
        @torch.compile
        def twice(given: torch.Tensor) -> torch.Tensor:
            halves = torch.nn.functional.gelu(given * 2)
            torch._dynamo.graph_break()
            return torch.tanh(halves - torch.ones(4, device=given.device))

        given = torch.randn(8, 4, device="cuda")
        return lambda: twice(given)

    graph = sketch(build, "cuda")
    names = [op.name for op in graph.ops if not op.is_side_call]
    assert names == ["triton_poi_fused_gelu_mul_0", "triton_poi_fused_ones_sub_tanh_0"]
    assert [op.args for op in graph.ops if op.name == COMPILED_REGION] == [(1, 1), (1, 1)]


@on_cuda
def test_reduce_overhead_copies_what_has_moved_and_launches_a_graph_for_each_program() -> None:
    def build() -> Callable[[], Any]:
        layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU()).to("cuda")
        run = torch.compile(layer, mode="reduce-overhead")
        return lambda: run(torch.randn(4, 8, device="cuda")).sum().backward()

    graph = sketch(build, "cuda")
    ops = list(graph.ops)
    launches = [place for place, op in enumerate(ops) if op.name == GRAPH_LAUNCH]
    assert [ops[place].phase for place in launches] == ["forward", "backward"]
    assert ops[launches[0]].args == (2,) and [op.name for op in ops[launches[0] + 1 :][:2]] == [
        "aten::addmm",
        "triton_poi_fused_gelu_0",
    ]
    (copied,) = (op for op in ops[: launches[0]] if op.name == "aten::_foreach_copy_")
    assert [tensor.shape for tensor in copied.produced or copied.tensors[:1]] == [(4, 8)]


@on_cuda
@pytest.mark.parametrize("kind", ["", "model"])
def test_a_step_can_be_sketched_compiled_or_not_whatever_it_says_itself(kind: str) -> None:
    build = building(kind, "cuda")
    compiled, graphed, eager = (sketch(build, "cuda", compile=how) for how in ("on", "reduce-overhead", "off"))
    assert [op.phase for op in compiled.ops if op.name == COMPILED_REGION] == ["forward", "backward"]
    assert len([op for op in graphed.ops if op.name == GRAPH_LAUNCH]) == 2
    assert kernels(compiled) == kernels(graphed) and not kernels(eager)
    assert names_and_shapes(eager) == names_and_shapes(sketch(building("", "cuda"), "cuda"))
    assert not any("left out" in note for graph in (compiled, graphed, eager) for note in graph.notes)


@on_cuda
def test_the_step_that_is_watched_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[Any] = []

    def counted(module: Any, options: dict[str, Any]) -> Any:
        lowered.append(module)
        return program_of(module, options)

    monkeypatch.setattr("foretrace.record.sketch.compiled.dynamo.program_of", counted)
    sketch(building("model", "cuda"), "cuda")
    assert len(lowered) == 2, "forward and backward"


@on_cuda
def test_a_compiled_sketch_is_not_transformed() -> None:
    graph = sketch(building("model", "cuda"), "cuda")
    with pytest.raises(ForetraceError, match="is compiled: its kernels were fused for this very step"):
        batch(graph, 2)


@on_cuda
def test_what_can_not_be_compiled_is_eager_and_says_why() -> None:
    def fails(module: Any, inputs: Any) -> Any:
        raise RuntimeError("no such compiler")

    def build() -> Callable[[], Any]:
        given = torch.randn(8, 4, device="cuda")
        run = torch.compile(torch.neg, backend=fails)
        return lambda: run(given)

    graph = sketch(build, "cuda")
    assert [op.name for op in graph.ops] == ["aten::neg"]
    assert graph.notes == [ONE + " (RuntimeError: no such compiler)"]
    assert cautions(graph.notes) == graph.notes


@on_cuda
def test_autocast_attention_and_dropout_in_a_compiled_model_are_those_of_a_gpu() -> None:
    def build() -> Callable[[], Any]:
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).to("cuda")
        given, run = torch.randn(2, 16, 64, device="cuda"), torch.compile(layer)

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = run(given).sum()
            loss.backward()

        return step

    graph = sketch(build, "cuda")
    products = [op for op in graph.ops if op.name in ("aten::mm", "aten::addmm")]
    assert {tensor.dtype for op in products for tensor in op.tensors} == {"bfloat16"}
    assert any("attention_backward" in op.name for op in graph.ops)
    assert any("native_dropout" in name for name in kernels(graph, "forward"))
    assert not any("left out" in note for note in graph.notes)


@on_cuda
def test_resampling_in_a_compiled_model_stays_in_the_lower_precision_as_torch_compile_keeps_it() -> None:
    def building(compiled: bool) -> Callable[[], Callable[[], Any]]:
        def build() -> Callable[[], Any]:
            layer = torch.nn.Conv2d(4, 4, 1).to("cuda")
            given = torch.randn(2, 4, 8, 8, device="cuda")

            def resized(given: torch.Tensor) -> torch.Tensor:
                return torch.nn.functional.interpolate(layer(given), scale_factor=2)

            run = torch.compile(resized) if compiled else resized

            def step() -> None:
                with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                    run(given)

            return step

        return build

    def last_dtype(compiled: bool) -> str:
        return [op for op in sketch(building(compiled), "cuda").ops if op.tensors][-1].tensors[-1].dtype

    assert (last_dtype(compiled=True), last_dtype(compiled=False)) == ("bfloat16", "float32")


@on_cuda
@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm_backward"), reason="RMS norm is no call of its own")
def test_kernels_of_an_rms_norm_are_named_after_it() -> None:
    def build() -> Callable[[], Any]:
        layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.RMSNorm(64)).to("cuda")
        given, run = torch.randn(16, 64, device="cuda"), torch.compile(layer)
        return lambda: run(given).sum().backward()

    graph = sketch(build, "cuda")
    assert any("_fused_rms_norm" in name for name in kernels(graph, "forward"))
    assert not any("_mul" in name or "_rsqrt" in name for name in kernels(graph, "forward"))


def test_a_compile_that_a_script_keeps_is_torchs_own_after_the_sketch() -> None:
    with compiled_regions(None):
        kept = torch.compile
    compiled = kept(torch.neg, backend="eager")
    assert torch.compiler._is_compiling_flag is False
    with compiled_regions(None) as regions:
        assert compiled(torch.ones(1)).item() == -1
    assert regions.notes == [ONE]


LATE = """
import sys
from torch import compile
import torch, foretrace as ft
from foretrace.graph.op import COMPILED_REGION
def build():
    model = torch.nn.Linear(8, 8, device="cuda")
    given = torch.randn(4, 8, device="cuda")
    run = compile(model) if "compiled" in sys.argv else model
    return lambda: run(given).relu().sum().backward()
graph = ft.sketch(build, "cuda")
print("torch._inductor.compile_fx" in sys.modules, COMPILED_REGION in graph.ops.names.items)
"""


@on_cuda
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_the_compiler_is_loaded_by_the_first_call_of_torch_compile_however_it_was_imported(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", LATE, how], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(how == "compiled")] * 2


@pytest.mark.slow
def test_a_step_that_was_compiled_before_is_sketched_and_still_compiled_after(tmp_path: Path) -> None:
    train = """
import foretrace as ft
from torch._dynamo.utils import counters
model.compile(backend="aot_eager")
step = torch.compile(step, backend="aot_eager")
step()
weight, graphs = model.weight.detach().clone(), counters["stats"]["unique_graphs"]
print(graphs > 0, *ft.sketch(step).notes, sep="|")
print(bool((weight == model.weight).all()))
step()
print(bool((weight == model.weight).all()), counters["stats"]["unique_graphs"] - graphs)
"""
    done = subprocess.run([sys.executable, script(tmp_path, train)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *then = done.stdout.splitlines()
    assert first.startswith("True|") and "torch.compile was left out" in first
    assert then == ["True", "False 0"]


@on_cuda
def test_a_function_that_is_compiled_again_in_the_next_step_is_reported() -> None:
    def build() -> Callable[[], Any]:
        weight, steps = torch.nn.Parameter(torch.ones(8, 8, device="cuda")), [""]

        @torch.compile
        def scaled(given: torch.Tensor, name: str) -> torch.Tensor:
            return (given @ weight * len(name)).relu().sum()

        def step() -> None:
            steps[0] += "x"
            scaled(torch.ones(4, 8, device="cuda"), steps[0]).backward()

        return step

    notes = sketch(build, device="cuda").notes
    assert any(
        note.startswith("compiled again in the second step, for other sizes or values: scaled") for note in notes
    )


@on_cuda
def test_code_that_a_full_graph_cannot_hold_is_refused_with_the_reason() -> None:
    @torch.compile(fullgraph=True)
    def printed(given: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return given.relu()

    with pytest.raises(ForetraceError, match="the step can't be compiled: Unsupported: ") as refused:
        sketch(lambda: printed(torch.ones(4, device="cuda")), device="cuda")
    assert "fullgraph=True allows no graph break" in str(refused.value)


@on_cuda
def test_a_process_that_sketched_a_compiled_step_can_compile_for_itself() -> None:
    sketch(building("model", "cuda"), "cuda")
    doubled = torch.compile(lambda given: torch.softmax(2 * given, -1))
    try:
        with torch._inductor.config.patch(fx_graph_cache=False):
            torch.testing.assert_close(doubled(torch.zeros(4)), torch.full((4,), 0.25))
    finally:  # for tests of processes that have compiled nothing
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


@on_cuda
def test_a_compiled_model_under_ddp_is_split_at_its_buckets() -> None:
    def build() -> Callable[[], Any]:
        layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).to("cuda")
        run = DistributedDataParallel(torch.compile(layers), device_ids=[0], bucket_cap_mb=4)

        def step() -> None:
            run(torch.randn(4, 1024, device="cuda")).square().mean().backward()

        return step

    graph = sketch(build, device="cuda", world=2)
    names = [op.name for op in graph.ops]
    assert names.count(COMPILED_REGION) > 2 and names.count("c10d::allreduce_") > 1
    assert not [note for note in graph.notes if "eager code" in note]


def test_tables_with_sparse_gradients_are_compiled_with_the_rest() -> None:
    def build() -> Callable[[], Any]:
        table = torch.nn.EmbeddingBag(100, 8, sparse=True, device="cuda")
        ids = torch.zeros(32, dtype=torch.int64, device="cuda")
        run = torch.compile(lambda: torch.relu(table(ids, ids[:4] + 1)).sum())
        return lambda: run().backward()

    graph = sketch(build, "cuda")
    assert not any(note.startswith("torch.compile was left out") for note in graph.notes)
    assert kernels(graph, "forward") and kernels(graph, "backward")
    assert [op.name for op in graph.ops if op.phase == "backward"].count("aten::_embedding_bag_backward") == 1


@on_cuda
def test_a_backward_is_compiled_for_the_layouts_that_the_forward_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    strides: list[tuple[int, ...]] = []

    def kept(module: torch.fx.GraphModule, options: dict[str, Any]) -> Any:
        if options.get("is_backward"):
            values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
            strides.extend(each.stride() for each in values if each.dim() == 4 and each.shape[-1] == 16)
        return program_of(module, options)

    def build() -> Callable[[], Any]:
        layers = [torch.nn.Conv2d(128, 128, 3, padding=1), torch.nn.BatchNorm2d(128), torch.nn.ReLU()]
        run = torch.compile(torch.nn.Sequential(*layers, torch.nn.Conv2d(128, 128, 3)).cuda())
        given = torch.randn(4, 128, 16, 16, device="cuda")
        return lambda: run(given).sum().backward()

    monkeypatch.setattr("foretrace.record.sketch.compiled.dynamo.program_of", kept)
    sketch(build, "cuda")
    channels_last = (128 * 16 * 16, 1, 128 * 16, 128)
    assert strides and set(strides) == {channels_last}, (
        "TorchInductor lays convolutions out so, whatever the weights are"
    )


class Cells(torch.nn.Module):
    """A recurrent network that is written out cell by cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(8, 8)

    def forward(self, given: torch.Tensor) -> Any:
        state = torch.zeros_like(given[0])
        for row in given:
            state = self.cell(row, state)
        return state


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = torch.nn.LSTM(8, 8), torch.nn.Linear(8, 2)

    def forward(self, given: torch.Tensor) -> Any:
        return self.head(self.layers(given)[0][-1])


def trained(model: Callable[[], torch.nn.Module], *shape: int) -> Graph:
    """The sketch of a compiled model's forward and backward."""

    def build() -> Callable[[], Any]:
        compiled = torch.compile(model().to("cuda"))
        return lambda: compiled(torch.randn(*shape, device="cuda")).sum().backward()

    return sketch(build, device="cuda")


@on_cuda
def test_kernels_that_only_a_gpu_has_are_called_by_compiled_programs() -> None:
    names = [op.name for op in trained(Cells, 3, 4, 8).ops]
    assert names.count(COMPILED_REGION) == 2 and names.count("aten::_thnn_fused_gru_cell") == 3


@on_cuda
def test_a_model_of_which_nothing_is_compiled_says_so() -> None:
    graph = trained(Recurrent, 3, 4, 8)
    assert COMPILED_REGION not in {op.name for op in graph.ops} and NOTHING in graph.notes


@on_cuda
def test_checkpointed_layers_of_a_compiled_model_are_recomputed_in_its_backward_with_their_random_numbers() -> None:
    def build() -> Callable[[], Any]:
        layer = torch.nn.Linear(64, 64, device="cuda")

        def block(given: torch.Tensor) -> Any:
            heads = layer(given).view(2, 16, 4, 16).transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1).flatten(1)

        run = torch.compile(lambda x: checkpoint(block, x, use_reentrant=False).square().sum())
        return lambda: run(torch.randn(2, 16, 64, device="cuda")).backward()

    graph = sketch(build, device="cuda")
    attention = [op.phase for op in graph.ops if op.name == "aten::_scaled_dot_product_efficient_attention"]
    assert attention == ["forward", "backward"] and not cautions(graph.notes)


def test_a_graph_of_another_backend_than_inductor_is_said_and_is_the_calls_that_it_makes() -> None:
    graph = sketch(lambda: torch.compile(torch.neg, backend="eager")(torch.ones(4, device="cuda")), "cuda")
    assert any("1 graph is compiled by backend 'eager' and not by TorchInductor" in note for note in graph.notes)
    assert COMPILED_REGION not in {op.name for op in graph.ops} and "aten::neg" in {op.name for op in graph.ops}
