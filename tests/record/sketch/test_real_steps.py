"""Steps whose calls are alike on both devices: those of a sketch are those of a real run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from foretrace.graph import Op
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
ELEMENTWISE = (F.elu, F.selu, F.silu, F.gelu, F.mish, F.hardswish, F.hardtanh, F.leaky_relu, F.softplus, F.glu)
IN_PLACE = (F.elu, F.silu, F.hardswish, F.hardtanh, F.leaky_relu, F.relu6, F.relu)
DIFFERENCES = (F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, F.poisson_nll_loss, F.soft_margin_loss,
               F.binary_cross_entropy_with_logits, F.hinge_embedding_loss)  # fmt: skip


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] * weight, (gradients[0] * x).sum(0)


def added_in_place(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    made = model(x)
    left, right = made[:, :4], made[:, 4:]
    sums = left.clone()
    sums += right
    sums.mul_(2).add_(1)
    made = made + 0
    made[:, 0] += 1
    made[:, 1] *= sums[:, 0]
    return made.sum() + sums.sum()


def indexed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    ids, made = torch.tensor([0, 2, 1], device=x.device), model(x) * 1
    made.index_add_(0, ids, x[:3] * 2)
    made.scatter_(1, ids[:, None], 0.5)
    made[ids, 1] = x[:3, 0]
    made.masked_fill_(made.detach() > 0, 1.0)
    return made[ids].sum()


def penalized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (slope.norm(2, dim=1) - 1).square().mean()


def per_sample(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    weights = dict(model.named_parameters())
    loss = lambda given, row: torch.func.functional_call(model, given, (row[None],)).square().sum()  # noqa: E731
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    return model(x).sum() * found["0.weight"].sum()


LOSSES: dict[str, Loss] = {
    "changed in place": added_in_place,
    "indexed": indexed,
    "activations": lambda model, x: sum((f(model(x)).sum() for f in ELEMENTWISE), torch.zeros(())),
    "activations in place": lambda model, x: torch.stack(
        [f(model(x).view(3, 2, 4), inplace=True).sum() for f in IN_PLACE]
    ).sum(),
    "losses": lambda model, x: torch.stack([f(model(x), x) for f in DIFFERENCES]).sum(),
    "checkpoint": lambda model, x: checkpoint(model, x * 1, use_reentrant=False).square().mean(),
    "function": lambda model, x: Scaled.apply(model(x) * 2, model(x)[0]).sum(),
    "gradient penalty": penalized,
    "gradients per sample": per_sample,
    "one hot": lambda model, x: (model(x) @ F.one_hot(x[0].long(), 4).float()).sum(),
}


def built(loss_of: Loss, device: str) -> Callable[[], Any]:
    def build() -> Callable[[], None]:
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8)).to(device)
        x = torch.ones(3, 8, device=device)

        def step() -> None:
            model.zero_grad()
            loss_of(model, x).backward()

        return step

    return build


def calls(ops: Iterable[Op]) -> list[Any]:
    checks = ("aten::min", "aten::max", "aten::aminmax", "aten::_local_scalar_dense")  # of ids, on the CPU alone
    return [(op.name, *((t.shape, t.dtype) for t in op.tensors)) for op in ops if op.name not in checks]


@pytest.mark.parametrize("name", LOSSES)
def test_the_calls_of_a_sketch_are_those_of_a_real_step(name: str) -> None:
    step = built(LOSSES[name], "cpu")()
    step()
    with Watch() as watch:
        step()
    assert calls(sketch(built(LOSSES[name], "cuda"), device="cuda").ops) == calls(watch.ops)


def test_derivatives_in_forward_mode_are_sketched_where_scripts_run_as_eager_code() -> None:
    def build() -> Callable[[], Any]:
        layer, x = nn.Linear(8, 8).to("cuda"), torch.ones(3, 8, device="cuda")
        return lambda: torch.func.jvp(lambda given: layer(given).tanh(), (x,), (x,))

    assert "aten::tanh" in {op.name for op in sketch(build, device="cuda").ops}


def test_nested_tensors_are_sketched_as_they_run() -> None:
    def build(device: str) -> Callable[[], Any]:
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).to(device)
        rows = [torch.ones(length, 8, device=device) for length in (3, 5)]

        def step() -> None:
            model.zero_grad()
            model(torch.nested.nested_tensor(rows, layout=torch.jagged)).values().square().mean().backward()

        return step

    step = build("cpu")
    step()
    with Watch() as watch:
        step()
    graph = sketch(lambda: build("cuda"), device="cuda")
    assert calls(graph.ops) == calls(watch.ops)
    assert {"aten::addmm", "aten::mm"} <= {op.name for op in graph.ops}


@pytest.mark.parametrize("map_", ["householder", "cayley"])
def test_parametrizations_that_check_their_weights_are_sketched(map_: str) -> None:
    def build(device: str) -> Callable[[], Any]:
        layer = torch.nn.utils.parametrizations.orthogonal(nn.Linear(8, 8), orthogonal_map=map_).to(device)
        return lambda: layer(torch.ones(3, 8, device=device)).sum().backward()

    step = build("cpu")
    step()
    with Watch() as watch:
        step()
    graph = sketch(lambda: build("cuda"), device="cuda")
    assert calls(graph.ops) == calls(watch.ops) and not [note for note in graph.notes if "decisive" in note]
