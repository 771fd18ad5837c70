"""Optimizers: the update of a step replaced by that of another optimizer, sketched for the step's own weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, Tensor, with_tensors
from foretrace.transforms.dataflow import Dataflow
from foretrace.transforms.inputs import StepInputs
from foretrace.transforms.meta_device import torch_empty
from foretrace.transforms.step import EditedCall, SketchIds, assemble, editable_step, storages_in

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {}),
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adagrad": ("Adagrad", {}),
}
"""Classes of ``torch.optim`` and their options, by name."""
IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""Options by which an optimizer updates weights one by one, with foreach calls, or in one fused call."""
OF_MOMENTS = ("sqrt", "addcmul", "addcdiv", "lerp", "abs", "pow", "sign")
"""Parts of the names of calls that only optimizers with moments make: neither weight decay nor clipping does."""
MARKER = "aten::detach"
"""The call by which a sketched update marks its weights and gradients before it begins."""


def optimizer(graph: Graph, name: str) -> Graph:
    """The step with another optimizer, or with another implementation of the same one.

    ``name`` is one of `OPTIMIZERS`, one of `IMPLEMENTATIONS`, or both, as in ``"adamw:fused"``. PyTorch selects the
    implementation where it is left out.
    """
    kind, implementation = parse_optimizer(name)
    graph, ops = editable_step(graph)
    pairs = updated_weights(graph, ops)
    if kind is None:
        kind = _recognized(graph, pairs)
    try:
        update = _sketched(pairs, kind, implementation)
    except RuntimeError as error:  # PyTorch's own: sparse gradients, or dtypes that an implementation does not take
        raise _refused(name, str(error)) from None
    except ForetraceError as error:  # its calls depend on values: which ids occur twice
        raise _refused(name, error.what) from None
    marked = {tensor.id for op in update.ops if op.phase != "optimizer" for tensor in op.tensors}
    read = (tensor for op in update.ops if op.phase == "optimizer" for tensor in op.tensors)
    if any(tensor.layout != "strided" and tensor.id not in marked for tensor in read):
        raise _refused(name, "its sparse state would grow with every step")
    made = _with_update(graph, ops, _with_step_ids(list(update.ops), pairs, ops))
    made.notes.append(f"the optimizer is {kind}{f', {implementation}' if implementation else ''}")
    return made


def parse_optimizer(name: str) -> tuple[str | None, str | None]:
    """The optimizer and the implementation in a name; None for what it does not name.

    >>> parse_optimizer("adamw:fused"), parse_optimizer("foreach"), parse_optimizer("sgd")
    (('adamw', 'fused'), (None, 'foreach'), ('sgd', None))
    """
    parts = name.split(":")
    kinds = [part for part in parts if part in OPTIMIZERS]
    implementations = [part for part in parts if part in IMPLEMENTATIONS]
    if len(kinds) + len(implementations) != len(parts) or len(kinds) > 1 or len(implementations) > 1:
        wrong = next((part for part in parts if part not in OPTIMIZERS and part not in IMPLEMENTATIONS), name)
        raise unknown_name("optimizer", wrong, [*OPTIMIZERS, *IMPLEMENTATIONS])
    return next(iter(kinds), None), next(iter(implementations), None)


def updated_weights(graph: Graph, ops: list[Op]) -> list[tuple[Tensor, Tensor]]:
    """The weights that a flat step's optimizer updates, each with its gradient, in its order."""
    step = Dataflow(ops)
    weights = {tensor.storage: tensor for tensor in StepInputs(step).weights.values()}
    preexisting = {tensor.storage for tensor in step.inputs.values() if tensor.layout == "strided"}
    shapes = {tensor.shape for tensor in weights.values()}
    updated: dict[int, Tensor] = {}
    gradients: dict[tuple[str, int], Tensor] = {}
    made: set[int] = set()
    for op in ops:
        if op.phase != "optimizer":
            continue
        for tensor in op.tensors:
            if tensor.storage in weights:
                updated.setdefault(tensor.storage, weights[tensor.storage])
            elif tensor.id not in made and tensor.storage not in preexisting and tensor.shape in shapes:
                key = ("tensor", tensor.id) if tensor.storage < 0 else ("storage", tensor.storage)
                gradients.setdefault(key, tensor)
        made.update({tensor.id for tensor in op.produced} - {tensor.id for tensor in op.tensors})
    pairs = list(zip(updated.values(), gradients.values()))
    if not pairs or len(updated) != len(gradients) or any(weight.shape != grad.shape for weight, grad in pairs):
        raise ForetraceError(
            f"gradients and weights of {graph.title} can't be matched", "Its optimizer can't be replaced."
        )
    return pairs


def _with_update(graph: Graph, ops: list[Op], new: list[Op]) -> Graph:
    """The flat step with the calls of another optimizer."""
    old = [row for row, op in enumerate(ops) if op.phase == "optimizer"]
    used = storages_in(op for op in ops if op.phase != "optimizer")
    freed = tuple(number for row in old for number in ops[row].frees if number in used)
    if new:
        new[0].frees = (*freed, *new[0].frees)
    for op in new:
        op.thread, op.stream = ops[old[0]].thread, ops[old[0]].stream
    calls = [EditedCall(op, row) for row, op in enumerate(ops) if op.phase != "optimizer"]
    place = next((number for number, call in enumerate(calls) if call.origin > old[0]), len(calls))
    state = {tensor.storage for row in old for tensor in ops[row].tensors} - used
    storages = {number: storage for number, storage in graph.storages.items() if number not in state}
    calls[place:place] = [EditedCall(op) for op in new]
    return assemble(replace(graph, storages=storages), calls)


def _with_step_ids(update: list[Op], pairs: Sequence[tuple[Tensor, Tensor]], ops: list[Op]) -> list[Op]:
    """The calls of a sketched update over the step's weights and gradients, which its first calls mark."""
    recorded = {tensor.id: tensor for pair in pairs for tensor in pair}
    marked = [op.tensors[0] for op in update if op.name == MARKER and op.phase != "optimizer"]
    ids = SketchIds(ops, zip(marked, (tensor for pair in pairs for tensor in pair)))

    def as_recorded(tensor: Tensor) -> Tensor:
        known = recorded.get(tensor.id, tensor)
        return replace(known, stride=tensor.stride) if known.stride is None else known

    return [with_tensors(ids.op(op), as_recorded) for op in update if op.phase == "optimizer"]


def _refused(name: str, why: str) -> ForetraceError:
    return ForetraceError(
        f"{name} does not take the gradients of this step ({why.partition(chr(10))[0]})", "Choose another."
    )


def optimizer_class(graph: Graph) -> str | None:
    """The class of ``torch.optim`` whose calls a step makes; None where it updates nothing, or by something else."""
    with suppress(ForetraceError):
        graph, ops = editable_step(graph)
        return OPTIMIZERS[_recognized(graph, updated_weights(graph, ops))][0]
    return None


def _recognized(graph: Graph, pairs: Sequence[tuple[Tensor, Tensor]]) -> str:
    """The optimizer of the step: the one that makes most of its calls, on as many tensors for each weight."""
    calls, read = _calls_and_tensors(graph, len(pairs))
    implementation = next((kind for kind in ("fused", "foreach") if any(f"_{kind}_" in name for name in calls)), "loop")
    found: list[tuple[int, float, str]] = []
    for kind in OPTIMIZERS:
        try:
            sketched = _sketched(pairs[:2], kind, implementation)
        except (ForetraceError, RuntimeError, ValueError):
            continue  # it does not take such gradients, or has no such implementation
        made, reads = _calls_and_tensors(sketched, len(pairs[:2]))
        if made.keys() <= calls.keys() | {"aten::lift_fresh"} and _keeps_same_state(made, calls):
            found.append((len(calls.keys() - made.keys()), sum(abs(reads[name] - read[name]) for name in made), kind))
    if not found:
        raise ForetraceError(
            f"the optimizer of {graph.title} is not recognized", f"Name the new one: {', '.join(OPTIMIZERS)}."
        )
    return min(found)[-1]


def _calls_and_tensors(graph: Graph, weights: int) -> tuple[Counter[str], dict[str, float]]:
    """The optimizer's calls by name, and how many tensors those read for each weight."""
    ops = [op for op in graph.ops if op.phase == "optimizer"]
    read = defaultdict[str, float](float)
    for op in ops:
        read[op.name] += len(op.tensors) / weights
    return Counter(op.name for op in ops), read


def _keeps_same_state(made: Counter[str], calls: Counter[str]) -> bool:
    """Whether calls update moments of gradients as others do: by the same ones, equally often for each weight."""
    moments = [name for name in calls if any(part in name for part in OF_MOMENTS)]
    return all(made[name] for name in moments) and len({calls[name] / made[name] for name in moments}) <= 1


def _sketched(pairs: Sequence[tuple[Tensor, Tensor]], kind: str, implementation: str | None) -> Graph:
    """One update of weights and gradients like these."""
    from foretrace.record.sketch.sketch import sketch  # here, since it imports torch

    device = pairs[0][0].device.partition(":")[0]
    return sketch(_update(pairs, kind, implementation), "cuda" if device == "cuda" else None)


def _update(pairs: Sequence[tuple[Tensor, Tensor]], kind: str, implementation: str | None) -> Callable[[], Any]:
    import torch

    name, options = OPTIMIZERS[kind]

    def like(tensor: Tensor) -> Any:
        device = tensor.device.partition(":")[0] or "cpu"
        if tensor.layout == "strided":
            return torch_empty(tensor, device)
        rows = torch.empty((0, *tensor.shape[1:]), dtype=getattr(torch, tensor.dtype), device=device)
        places = torch.empty((1, 0), dtype=torch.int64, device=device)
        return torch.sparse_coo_tensor(places, rows, tensor.shape)  # of no rows: a sketched call does not read them

    def build() -> Callable[[], Any]:
        weights = [torch.nn.Parameter(like(weight)) for weight, _ in pairs]
        for weight, (_, gradient) in zip(weights, pairs):
            weight.grad = like(gradient)
        chosen = IMPLEMENTATIONS.get(implementation or "", {})
        update = getattr(torch.optim, name)(weights, lr=0.01, **options, **chosen)

        def step() -> None:
            for weight in weights:
                weight.detach()
                weight.grad.detach()
            update.step()

        return step

    return build
