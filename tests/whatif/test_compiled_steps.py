"""A compiled step is edited as the graphs of its programs, and fused anew: as if the changed script were sketched."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import foretrace as ft
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.graph.op import COMPILED_REGION
from foretrace.graph.programs import Program
from foretrace.transforms.resize.batch_sequence import batch
from foretrace.whatif.compiled_steps import BEGIN, END, fuse_programs, open_programs

SCRIPT = """
import sys, torch

def make_step():
    batch = int(sys.argv[1])
    wide, norm = torch.nn.Linear(64, 128), torch.nn.LayerNorm(128)
    layers = torch.nn.Sequential(wide, norm, torch.nn.GELU(), torch.nn.Linear(128, 8)).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    run, given = torch.compile(layers), torch.ones(batch, 64, device="cuda")

    def step():
        run(given).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


def kernels(graph: Graph) -> Counter[object]:
    """Calls by kind of kernel or name, phase, and the sizes of what they touch, whatever their order."""
    calls = [op for op in graph.ops if not op.is_side_call]
    names = [re.sub(r"^(triton_[a-z]+)_.*", r"\1", op.name) for op in calls]
    return Counter(
        (name, op.phase, tuple(sorted(t.numel for t in {t.storage: t for t in op.tensors}.values())))
        for name, op in zip(names, calls)
    )


@pytest.mark.slow
def test_a_compiled_step_with_another_batch_is_the_one_that_would_be_compiled(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    from foretrace.record.command import Script
    from foretrace.record.script import sketch_command

    small, large = (
        sketch_command(Script(script, arguments=(str(size),), programs=True), "cuda") for size in (16, 4096)
    )
    assert [program.kind for program in small.programs] == ["forward", "backward"]
    opened = open_programs(small)
    names = [op.name for op in opened.ops]
    assert names.count(BEGIN) == names.count(END) == 2 and "aten::addmm" in names and COMPILED_REGION not in names
    fused = fuse_programs(batch(opened, 4096))
    assert kernels(fused) == kernels(large)
    assert ft.predict(fused).step_ms == pytest.approx(ft.predict(large).step_ms, rel=0.02)
    found = ft.what_if(small, batch=4096)
    assert found.after.device_active_ms == pytest.approx(ft.predict(large).device_active_ms, rel=0.05)


def compiled(device: str = "cuda:0", **facts: str) -> Graph:
    x, y = (Tensor((4, 4), "float32", device, (4, 1), id=number, storage=number) for number in (0, 1))
    mark = Op(COMPILED_REGION, (1, 1), {"program": 0, "given": [x]}, (y,), phase="forward")
    kernel = Op("triton_poi_fused_relu_0", (x, y), outputs=(y,), phase="forward")
    relu = Op("aten::relu", (x,), outputs=(y,), overload="default")
    program = Program((x,), (y,), () if facts else (relu,), **facts)  # type: ignore[arg-type]
    return Graph(OpTable.of([mark, kernel]), programs=(program,), source="run")


def test_an_opened_program_has_the_calls_of_its_graph_with_the_tensors_of_the_step() -> None:
    begin, relu, end = open_programs(compiled()).ops
    assert (begin.name, relu.name, end.name) == (BEGIN, "aten::relu", END)
    assert (relu.phase, relu.tensors[0].id, relu.produced[0].id) == ("forward", 0, 1)


def test_a_program_whose_graph_is_not_known_is_not_changed() -> None:
    with pytest.raises(ForetraceError, match="run is compiled, and can't be changed: a Triton kernel"):
        open_programs(compiled(failed="a Triton kernel"))


def test_a_program_of_a_cpu_is_not_fused_for_a_gpu() -> None:
    with pytest.raises(ForetraceError, match="run was compiled for a CPU"):
        open_programs(compiled("cpu"))


def test_a_step_without_opened_programs_stays() -> None:
    graph = compiled()
    assert fuse_programs(graph) is graph
