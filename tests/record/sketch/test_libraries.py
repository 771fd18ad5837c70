"""Code that looks for fake tensors finds none, and what can't run on them says so."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foretrace.graph import ForetraceError
from foretrace.graph.graph import cautions
from foretrace.record.sketch.sketch import sketch

on_cuda = pytest.mark.skipif(bool(torch.version.cuda), reason="a build with CUDA runs scripted code as it is")


@torch.jit.script
def scripted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.is_cuda:
        return torch.dropout(x * y, 0.5, True)
    return x


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a module of a library, found by imports until the test ends."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [*sys.modules]:  # another test's
        if name.partition(".")[0] in ("transformers", "triton"):
            monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, *path.parent.parents):
            if folder != tmp_path and tmp_path in folder.parents:
                (folder / "__init__.py").touch()
        path.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("transformers", "triton"):
            del sys.modules[name]


EXPORTING = """
def is_fake_tensor(x):
    return type(x).__name__ == "FakeTensor"
def is_tracing(x):
    return is_fake_tensor(x)
"""


@pytest.mark.parametrize("loaded", ["before", "in the sketch"])
def test_transformers_does_not_take_a_sketch_for_an_export(loaded: str, library: Callable[[str, str], None]) -> None:
    library("transformers.utils.import_utils", EXPORTING)
    if loaded == "before":
        __import__("transformers.utils.import_utils")
    asked = []

    def step() -> None:
        from transformers.utils.import_utils import is_tracing

        asked.append(is_tracing(torch.ones(2)))

    sketch(step)
    assert asked[-1] is False
    assert sys.modules["transformers.utils.import_utils"].is_fake_tensor.__name__ == "is_fake_tensor"


KERNELS = """
class JITFunction:
    def __init__(self, fn): self.fn = fn
    def run(self, *args, **kwargs): raise RuntimeError("0 active drivers")
"""


def test_a_triton_kernel_is_refused_by_name_with_the_way_out(library: Callable[[str, str], None]) -> None:
    library("triton.runtime.jit", KERNELS)

    def add_rows() -> None: ...

    def step() -> None:
        from triton.runtime.jit import JITFunction

        JITFunction(add_rows).run(torch.ones(2), grid=(1,))

    with pytest.raises(ForetraceError, match="Triton kernel 'add_rows'") as raised:
        sketch(step)
    assert "register_fake" in raised.value.advice and "foretrace record" in raised.value.advice


@on_cuda
def test_a_function_that_was_scripted_before_runs_as_its_source() -> None:
    def build() -> Callable[[], None]:
        given = torch.ones(2, 2, device="cuda", requires_grad=True)
        return lambda: scripted(given, given).sum().backward()

    graph = sketch(build, device="cuda")
    assert "aten::native_dropout" in {op.name for op in graph.ops}
    (note,) = graph.notes
    assert "torch.jit was left out" in note and "1 scripted function is predicted as eager code" in note
    assert scripted(torch.ones(2), torch.ones(2)).tolist() == [1, 1]


@on_cuda
def test_modules_that_are_scripted_in_the_sketch_stay_modules() -> None:
    def build() -> Callable[[], Any]:
        model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))).to("cuda")
        given = torch.ones(2, 4, device="cuda")
        return lambda: model(given)

    graph = sketch(build, device="cuda")
    assert [op.name for op in graph.ops] == ["aten::t", "aten::addmm", "aten::native_dropout"]
    assert isinstance(torch.jit.script(nn.Linear(2, 2)), torch.jit.ScriptModule)


@on_cuda
def test_a_module_that_is_scripted_or_traced_is_saved_nowhere(tmp_path: Path) -> None:
    def build() -> Callable[[], Any]:
        model, given = nn.Linear(4, 4, device="cuda"), torch.ones(2, 4, device="cuda")
        torch.jit.script(nn.ReLU()).save(tmp_path / "scripted.pt")
        torch.jit.trace(model, given).save(f=str(tmp_path / "traced.pt"))
        torch.jit.trace(torch.relu, given)
        torch.jit.script(lambda x: x).save(tmp_path / "function.pt")
        return lambda: model(given)

    (note,) = (note for note in sketch(build, device="cuda").notes if note.startswith("not done"))
    assert note.count("torch.jit.save to ") == 3
    assert all(f"/{name}.pt (test_libraries.py:" in note for name in ("scripted", "traced", "function"))
    assert not list(tmp_path.iterdir())


@on_cuda
def test_flex_attention_is_an_attention_and_a_note() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def build() -> Callable[[], None]:
        heads = torch.randn(1, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        keys = torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.bfloat16)
        attend = torch.compile(flex_attention)
        return lambda: attend(heads, keys, keys, enable_gqa=True).sum().backward()

    graph = sketch(build, device="cuda")
    assert "aten::_scaled_dot_product_cudnn_attention_backward" in {op.name for op in graph.ops}
    assert any("FlexAttention is predicted as attention over all blocks" in note for note in graph.notes)


def stage(given: bool) -> Callable[[], Any]:
    """One stage of a pipeline of as many as there are ranks."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    example = torch.empty(4, 64, device="cuda", requires_grad=True)
    shapes = {"input_args": (example,), "output_args": (example,)} if given else {}
    part = PipelineStage(nn.Linear(64, 64).to("cuda"), rank, ranks, torch.device("cuda"), **shapes)
    schedule = ScheduleGPipe(part, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    batch = torch.randn(16, 64, device="cuda")
    return lambda: schedule.step(batch) if rank == 0 else schedule.step(target=batch)


@on_cuda
def test_a_stage_of_a_pipeline_with_given_shapes_sends_and_receives() -> None:
    first, last = (sketch(lambda: stage(given=True), device="cuda", world=2, rank=rank) for rank in (0, 1))
    sent, received = ([one.kind for one in rank.collectives] for rank in (first, last))
    assert sent.count("send") == received.count("recv") == 4
    assert sent.count("recv") == received.count("send") == 4


@on_cuda
def test_a_stage_that_asks_its_neighbours_is_told_to_give_its_shapes() -> None:
    with pytest.raises(ForetraceError, match="learns its shapes from other ranks") as raised:
        sketch(lambda: stage(given=False), device="cuda", world=2)
    assert "input_args" in raised.value.advice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_of_any_dtype_are_grouped(dtype: torch.dtype) -> None:
    def step() -> None:
        ends = torch.tensor([16, 32], dtype=torch.int32)
        tokens, experts = torch.randn(32, 8, dtype=dtype), torch.randn(2, 8, 24, dtype=dtype)
        assert torch._grouped_mm(tokens, experts, offs=ends).shape == (32, 24)

    assert "aten::_grouped_mm" in [op.name for op in sketch(step).ops]


def test_control_flow_runs_as_branches_and_loops() -> None:
    higher = torch._higher_order_ops
    layer = torch.nn.Linear(4, 4)

    def step() -> None:
        x = layer(torch.ones(3, 4))
        y = torch.cond(torch.tensor(2) > 1, torch.sin, torch.cos, (x,))
        carried, rows = higher.scan(lambda total, row: (total + row, total * row), torch.zeros(4), y)
        (carried.sum() + rows.sum()).backward()
        with torch.no_grad():
            higher.while_loop(lambda i, z: i < 5, lambda i, z: (i + 1, z.exp()), (torch.tensor(0), x.detach()))

    graph = sketch(step)
    ops = Counter(op.name for op in graph.ops if op.phase == "forward")
    assert ops["aten::sin"] == 1 and not ops["aten::cos"] and ops["aten::scatter_"] == 3 and ops["aten::exp"] == 5
    (caution,) = [note for note in cautions(graph.notes) if note.startswith("control flow")]
    assert caution.endswith("recomputes nothing: 1 call of cond, 1 call of scan")
