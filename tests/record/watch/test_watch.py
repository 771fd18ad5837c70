"""The watch sees every call of a step, exactly, and changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from foretrace.graph import Constant, tensors_in
from foretrace.record.watch.watch import Watch
from tests.record.reexecution import Reexecution, watched

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "dlrm with sparse gradients": ("dlrm", {}),
    "gpt": ("gpt", {}),
    "gpt in bf16 autocast": ("gpt", {"dtype": "bf16"}),
    "gpt with fused AdamW": ("gpt", {"optimizer": "fused"}),
    "gpt with foreach AdamW": ("gpt", {"optimizer": "foreach"}),
    "gpt with a loop over weights": ("gpt", {"optimizer": "loop"}),
    "gpt with checkpointed activations": ("gpt", {"recompute": True}),
    "gpt with accumulated gradients": ("gpt", {"accumulate": 2}),
    "bert": ("bert", {}),
    "resnet": ("resnet", {}),
}


def example(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return __import__(name).make_step(device="cpu", **options)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_call_of_an_example_runs_again_to_the_same_bits(name: str) -> None:
    module, options = EXAMPLES[name]
    step = example(module, **options)
    step()
    torch.manual_seed(1)
    seen, ops = watched(step)
    again = Reexecution(seen.before)
    torch.manual_seed(1)
    again.run(ops)
    outlived = [s for s in seen.registry.storages.values() if s.birth < 0 and s.death < 0]
    changed = [s.id for s in outlived if not torch.equal(again.storages[s.id], seen.before[s.id])]
    assert len(changed) >= 4, "the step changed its weights"
    live = {number: ref() for number, ref in seen.registry._living.values()}
    for number in changed:
        now = torch.empty(0, dtype=torch.uint8).set_(live[number])
        assert torch.equal(again.storages[number], now), f"storage {number} came out differently"


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_argument_of_an_example_is_opaque(name: str) -> None:
    module, options = EXAMPLES[name]
    _, ops = watched(example(module, **options))
    values = [value for op in ops for value in (*op.args, *op.kwargs.values())]
    assert not [v for v in values if isinstance(v, Constant) and v.kind == "object"]


def test_scalars_keep_their_full_precision() -> None:
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=1e-4, eps=1e-8, foreach=False)
    weight.sum().backward()
    _, ops = watched(optimizer.step)
    (added,) = [op for op in ops if op.name == "aten::add_" and 1e-8 in op.args]
    assert added.args[1] == 1e-8


def test_phases_modules_and_nodes_are_told() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    _, ops = watched(step)
    where = {op.name: (op.phase, op.module, op.node) for op in ops}
    assert where["aten::addmm"] == ("forward", "Sequential.0", "")
    assert where["aten::threshold_backward"] == ("backward", "Sequential.1", "ReluBackward0")
    assert where["aten::mm"] == ("backward", "Sequential.0", "AddmmBackward0")
    assert {op.phase for op in ops if op.name in ("aten::add_", "aten::_foreach_add_")} == {"optimizer"}


def test_a_storage_is_born_and_dies_with_the_ops_around_it() -> None:
    def step() -> None:
        a = torch.ones(8)  # op 0
        b = a + 1  # op 1
        del a
        b.mul_(2)  # op 2: a is gone by now

    watch, ops = watched(step)
    a = next(iter(tensors_in(ops[0].outputs)))
    assert (watch.registry.storages[a.storage].birth, watch.registry.storages[a.storage].death) == (0, 2)
    assert ops[2].frees == (a.storage,)


def test_watching_holds_no_gradient() -> None:
    """A gradient that somebody holds is cloned by autograd: no clone may show up."""
    step = example("dlrm")
    step()
    with Watch() as watch:
        step()
    assert not [op for op in watch.ops if op.name == "aten::clone" and "AccumulateGrad" in op.node]


def test_nothing_is_left_hooked_after_a_step() -> None:
    from torch.nn.modules import module

    from foretrace.record.watch.step_boundaries import _listeners

    before = (len(module._global_forward_hooks), len(_listeners), torch.cuda.Event.record, torch.cuda.synchronize)
    watched(example("dlrm"))
    after = (len(module._global_forward_hooks), len(_listeners), torch.cuda.Event.record, torch.cuda.synchronize)
    assert before == after


def test_a_subclass_is_seen_through_to_its_pieces() -> None:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    with Watch() as watch:
        _ = AsyncCollectiveTensor(torch.ones(3)) + 1
    assert "aten::add" in [op.name for op in watch.ops]


def test_calls_with_kernels_of_their_own_are_not_taken_apart():
    x = torch.randn(4, 8, requires_grad=True)
    with Watch() as watch:
        torch.nn.functional.mish(torch.nn.functional.silu(x)).sum().backward()
    backward = [op.name for op in watch.ops if op.phase == "backward"]
    assert backward[-2:] == ["aten::mish_backward", "aten::silu_backward"]
    assert not {"aten::sigmoid", "aten::tanh"} & {op.name for op in watch.ops}


def test_in_inference_mode_calls_are_those_that_run_without_gradients():
    layers = torch.nn.Linear(8, 4), torch.nn.Dropout(0.5), torch.nn.LayerNorm(4)
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(2, 8)

    def names(mode: Any) -> list[str]:
        with mode(), Watch() as watch:
            model(x).softmax(-1)
        return [op.name for op in watch.ops]

    assert names(torch.inference_mode) == names(torch.no_grad)
    assert "aten::addmm" in names(torch.inference_mode)


def test_calls_of_composite_ones_leave_the_context_as_it_is():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    with torch.inference_mode(), Watch() as watch:
        model(torch.ones(2, 4))
        model(torch.ones(8).reshape(2, 4))
    assert [op.module for op in watch.ops if op.name == "aten::addmm"] == 2 * ["Sequential.0", "Sequential.2"]
