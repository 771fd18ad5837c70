"""Compiled programs in a benchmark: their graphs are written as calls, compiled where it runs, or run call by call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foretrace.graph import Graph, Op, OpTable, Tensor, Value
from foretrace.graph.op import COMPILED_REGION
from foretrace.graph.programs import Program
from foretrace.replay.generate.choices import Choices
from foretrace.replay.generate.folder import write_benchmark
from foretrace.replay.harness.regions import compiled
from tests.replay.test_hostile import harmless_code


def tensor(number: int, *shape: int) -> Tensor:
    strides = torch.empty(shape, device="meta").stride()
    return Tensor(shape, "float32", "cpu", strides, id=number, storage=number)


def program(**facts: Any) -> Program:
    """relu(a @ b) + 1, and that changes c."""
    a, b, c, product, positive, more = (tensor(number, 4, 4) for number in range(6))
    ops = (
        Op("aten::mm", (a, b), outputs=(product,), overload="default"),
        Op("aten::relu", (product,), outputs=(positive,), overload="default"),
        Op("aten::add", (positive, 1), outputs=(more,), overload="Tensor"),
        Op("aten::copy_", (c, more), outputs=(c,), overload="default"),
    )
    made = Program((a, b, 4, c), (more, None), ops, ("aten::linear", "aten::relu", "aten::add", ""), "inference")
    return replace(made, **facts)


def step(made: Program) -> Graph:
    a, b, c, result, other = (tensor(number, 4, 4) for number in range(10, 15))
    mark = Op(COMPILED_REGION, (1, 4), {"program": 0, "given": [a, b, 4, c]}, (result, None), phase="forward")
    inside = Op("aten::mm", (a, b), {"out": result}, (result,), overload="out", phase="forward")
    after = Op("aten::neg", (result,), outputs=(other,), overload="default", phase="forward")
    return Graph(OpTable.of([mark, inside, after]), programs=(made,))


def test_a_compiled_program_is_one_call_of_a_function_that_holds_its_graph(tmp_path: Path) -> None:
    folder = write_benchmark(step(program()), tmp_path / "b", Choices())
    code, regions = (folder / "step.py").read_text(), (folder / "regions.py").read_text()
    assert "[t3, _] = region(0, t0, t1, t2)  # 0  float32[4, 4]" in code and "aten.mm" not in code
    assert "t4 = aten.relu.default(t3)" in regions and "aten.copy_.default(t2, t5)" in regions
    harmless_code(regions)


@pytest.mark.parametrize("eager", [False, True])
def test_the_calls_of_a_program_and_what_is_compiled_from_them_compute_the_same(
    eager: bool, tmp_path: Path, loaded: Callable[..., Any]
) -> None:
    benchmark = loaded(step(program()), eager=eager)
    assert benchmark.called == {0, 1} and not benchmark.source.failures
    assert any("ran call by call, as asked" in note for note in benchmark.notes) == eager
    a, b, c = benchmark.inputs
    made = benchmark.source.step(a, b, c)[-1]
    torch.testing.assert_close(made, -(torch.relu(a @ b) + 1))
    torch.testing.assert_close(c, -made)


def backward_step() -> Graph:
    """Two layers' gradients: what was saved for the second is freed before the first's is computed."""
    first, saved, gradient = (tensor(number, 4, 4) for number in (0, 2, 3))
    product, positive, result = (tensor(number, 4, 4) for number in range(4, 7))
    ops = (
        Op("aten::mm", (gradient, saved), outputs=(product,), overload="default"),
        Op("aten::relu", (product,), outputs=(positive,), overload="default"),
        Op("aten::mm", (positive, first), outputs=(result,), overload="default"),
    )
    backward = Program((first, saved, gradient), (result,), ops, kind="backward", donated=(1,))
    weight, kept, seed, made = tensor(10, 4, 4), tensor(11, 4, 4), tensor(12, 4, 4), tensor(13, 4, 4)
    copied = [Op("aten::clone", (weight,), outputs=(new,), overload="default") for new in (kept, seed)]
    given: list[Value] = [weight, kept, seed]
    mark = Op(COMPILED_REGION, (2, 3), {"program": 0, "given": given}, (made,), phase="backward")
    inside = [Op("aten::mm", (seed, kept), {"out": made}, overload="out"), Op("aten::mm", (made, weight))]
    inside[1].frees = (kept.storage,)
    after = Op("aten::neg", (made,), outputs=(tensor(14, 4, 4),), overload="default", frees=(seed.storage,))
    return Graph(OpTable.of([*copied, mark, *inside, after]), programs=(backward,))


def test_a_program_frees_what_was_saved_for_it_when_the_original_did(
    tmp_path: Path, loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (write_benchmark(backward_step(), tmp_path / "b", Choices()) / "step.py").read_text()
    assert "given = [t0, t1, t2]\n    del t1\n    [t3] = region(0, given)" in code and "del t2\n" in code
    benchmark = loaded(backward_step())
    multiply, alive = torch.ops.aten.mm.out, list[list[bool]]()
    held: list[weakref.ref[torch.Tensor]] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.clone.default:
                held.append(weakref.ref(made := func(*args)))
                return made
            if func in (multiply, torch.ops.aten.mm.default):
                alive.append([each() is not None for each in held])
            return func(*args, **(kwargs or {}))

    with Products():
        benchmark.source.step(*benchmark.inputs)
    assert alive == [[True, True], [False, True]]


def test_a_program_with_a_call_that_is_not_allowed_is_a_stand_in(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    bad = program()
    bad.ops[1].name = "os::system"
    benchmark = loaded(step(bad))
    assert benchmark.source.stand_ins == [0] and benchmark.called == {1}
    assert "the graph of a compiled program has os::system" in benchmark.facts["stand_ins"]["0"]


def test_a_program_whose_graph_is_not_known_is_replayed_by_the_calls_that_were_seen(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(step(Program(failed="a constant")))
    assert [benchmark.facts["calls"][number]["name"] for number in benchmark.called] == ["aten::mm", "aten::neg"]


def test_what_cannot_be_compiled_here_runs_call_by_call_and_is_reported(
    loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", lambda *_, **__: 1 / 0)
    benchmark = loaded(step(program()))
    assert "1 program, compiled in the original, ran call by call: it can't be compiled here" in benchmark.notes[-1]
    assert benchmark.called == {0, 1}


def test_generated_kernels_are_named_after_the_eager_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.graph import GraphLowering

    names = {"aten": torch.ops.aten}
    exec("def region_0(t0):\n    t1 = aten.add.Tensor(t0, 1)\n    t2 = aten.rsqrt.default(t1)\n    return [t2]", names)
    given = {"shape": [64], "stride": [1], "dtype": "float32", "device": "cpu"}
    sources, generate = [], GraphLowering.codegen

    def codegen(graph: Any) -> Any:
        made = generate(graph)
        sources.append(str(getattr(made[0], "value", made[0])))
        return made

    monkeypatch.setattr(GraphLowering, "codegen", codegen)
    with torch._inductor.config.patch(fx_graph_cache=False):
        run = compiled(names["region_0"], {"given": [given], "kind": "inference", "origins": ["aten::rms_norm"] * 2})
    torch.testing.assert_close(run([torch.ones(64)])[0], torch.full((64,), 2.0).rsqrt())
    assert "cpp_fused_rms_norm_0" in sources[0]
