"""Optimizers by name: what a step calls with each of them, sketched for its own weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foretrace.graph import ForetraceError, Graph, Tensor
from foretrace.transforms.names import unknown
from foretrace.transforms.on_meta import empty
from foretrace.transforms.update import updated, with_update

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {}),
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adagrad": ("Adagrad", {}),
}
"""Optimizers of PyTorch, with what makes each of them."""
WALKS: dict[str, dict[str, bool]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""How they go through the weights: one by one, all at once call by call, or all in one call."""


def optimizer(graph: Graph, name: str) -> Graph:
    """The step with another optimizer, or with the same one that walks its weights otherwise.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    name
        ``"adamw"``, ``"adam"``, ``"sgd"``, ``"momentum"`` or ``"adagrad"``; ``"loop"``, ``"foreach"`` or ``"fused"``;
        or both, as in ``"adamw:fused"``. PyTorch itself chooses the walk where it is left out.
    """
    kind, walk = chosen(name)
    pairs = updated(graph)
    if kind is None:
        kind = _recognised(graph, pairs)
    try:
        update = _sketched(pairs, kind, walk)
    except RuntimeError as error:  # PyTorch's own: sparse gradients, types that a walk does not know
        raise _refused(name, str(error)) from None
    except ForetraceError as error:  # what it calls depends on values: which ids were looked up twice
        raise _refused(name, error.what) from None
    if _keeps_sparse_state(update):
        raise _refused(name, "its sparse state would grow with every step")
    made = with_update(graph, update)
    made.notes.append(f"the optimizer is {kind}{f', {walk}' if walk else ''}, whatever it was")
    return made


def _keeps_sparse_state(update: Graph) -> bool:
    """Whether an update reads anything sparse but the gradients, which it shows before it begins."""
    shown = {tensor.id for op in update.ops if op.phase != "optimizer" for tensor in op.tensors}
    given = (tensor for op in update.ops if op.phase == "optimizer" for tensor in op.tensors)
    return any(tensor.layout != "strided" and tensor.id not in shown for tensor in given)


def _refused(name: str, why: str) -> ForetraceError:
    return ForetraceError(
        f"{name} does not take the gradients of this step ({why.partition(chr(10))[0]})", "Choose another."
    )


def chosen(name: str) -> tuple[str | None, str | None]:
    """The kind and the walk that a name says.

    >>> chosen("adamw:fused"), chosen("foreach"), chosen("sgd")
    (('adamw', 'fused'), (None, 'foreach'), ('sgd', None))
    """
    words = name.split(":")
    kinds, walks = [word for word in words if word in KINDS], [word for word in words if word in WALKS]
    if len(kinds) + len(walks) != len(words) or len(kinds) > 1 or len(walks) > 1:
        wrong = next((word for word in words if word not in KINDS and word not in WALKS), name)
        raise unknown("optimizer", wrong, [*KINDS, *WALKS])
    return next(iter(kinds), None), next(iter(walks), None)


def _recognised(graph: Graph, pairs: Sequence[tuple[Tensor, Tensor]]) -> str:
    """The kind that the step has: the one that calls what the step calls."""
    names = {op.name for op in graph.ops if op.phase == "optimizer"}
    walk = "fused" if any("_fused_" in name for name in names) else "foreach" if _is_foreach(names) else "loop"
    for kind in KINDS:
        try:
            sketched = _sketched(pairs[:2], kind, walk)
        except (ForetraceError, RuntimeError, ValueError):
            continue  # that kind does not take such gradients, or knows no such walk
        if {op.name for op in sketched.ops if op.phase == "optimizer"} <= names | {"aten::lift_fresh"}:
            return kind
    raise ForetraceError(f"nobody knows the optimizer of {graph.title}", f"Say which it shall be: {', '.join(KINDS)}.")


def _is_foreach(names: set[str]) -> bool:
    return any("_foreach_" in name for name in names)


def _sketched(pairs: Sequence[tuple[Tensor, Tensor]], kind: str, walk: str | None) -> Graph:
    """One update of weights and gradients like these."""
    from foretrace.record.sketch import sketch  # here, since it brings torch

    device = pairs[0][0].device.partition(":")[0]
    return sketch(_update(pairs, kind, walk), "cuda" if device == "cuda" else None)


def _update(pairs: Sequence[tuple[Tensor, Tensor]], kind: str, walk: str | None) -> Callable[[], Any]:
    import torch

    name, options = KINDS[kind]

    def like(tensor: Tensor) -> Any:
        device = tensor.device.partition(":")[0] or "cpu"
        if tensor.layout == "strided":
            return empty(tensor, device)
        dtype = getattr(torch, tensor.dtype)  # no rows are in it: on paper no call reads them
        return torch.empty(tensor.shape, dtype=dtype, device=device, layout=torch.sparse_coo)

    def build() -> Callable[[], Any]:
        weights = [torch.nn.Parameter(like(weight)) for weight, _ in pairs]
        for weight, (_, gradient) in zip(weights, pairs):
            weight.grad = like(gradient)
        update = getattr(torch.optim, name)(weights, lr=0.01, **options, **WALKS.get(walk or "", {}))

        def step() -> None:
            for weight in weights:
                weight.detach()
                weight.grad.detach()
            update.step()

        return step

    return build
