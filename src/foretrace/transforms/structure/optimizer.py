"""Another optimizer: its calls take the place of the ones that were there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, with_tensors
from foretrace.graph.tensor import Tensor
from foretrace.transforms.dataflow import Dataflow
from foretrace.transforms.inputs import StepInputs
from foretrace.transforms.meta_device import torch_empty
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, editable_step

MARK = "aten::detach"
"""The call with which a sketched update shows its weights and gradients, before it begins."""


def updated_weights(graph: Graph) -> list[tuple[Tensor, Tensor]]:
    """The weights that a step's optimizer changes, each with its gradient, in its order."""
    return _pairs(*editable_step(graph))


def _pairs(graph: Graph, ops: list[Op]) -> list[tuple[Tensor, Tensor]]:
    step = Dataflow(ops)
    weights = {tensor.storage: tensor for tensor in StepInputs(step).weights.values()}
    given = {tensor.storage for tensor in step.inputs.values() if tensor.layout == "strided"}
    shapes = {tensor.shape for tensor in weights.values()}
    changed: dict[int, Tensor] = {}
    gradients: dict[tuple[str, int], Tensor] = {}
    made: set[int] = set()
    for op in ops:
        if op.phase != "optimizer":
            continue
        for tensor in op.tensors:
            if tensor.storage in weights:
                changed.setdefault(tensor.storage, weights[tensor.storage])
            elif tensor.id not in made and tensor.storage not in given and tensor.shape in shapes:
                which = ("tensor", tensor.id) if tensor.storage < 0 else ("storage", tensor.storage)
                gradients.setdefault(which, tensor)
        made.update({tensor.id for tensor in op.produced} - {tensor.id for tensor in op.tensors})
    pairs = list(zip(changed.values(), gradients.values()))
    if not pairs or len(changed) != len(gradients) or any(weight.shape != grad.shape for weight, grad in pairs):
        raise ForetraceError(
            f"{graph.title} does not show which gradient belongs to which weight",
            "Its optimizer can't be changed.",
        )
    return pairs


def replace_optimizer(graph: Graph, update: Graph) -> Graph:
    """The step with the calls of another optimizer.

    Parameters
    ----------
    graph
        The step.
    update
        A sketch of the other optimizer's step over the same weights and gradients, in the order of `updated_weights`. Before
        it begins it detaches each weight and its gradient, so that they can be told apart from its state.
    """
    graph, ops = editable_step(graph)
    pairs = _pairs(graph, ops)
    old = [row for row, op in enumerate(ops) if op.phase == "optimizer"]
    new = _named(list(update.ops), [tensor for pair in pairs for tensor in pair], ops)
    kept = {tensor.storage for row, op in enumerate(ops) if op.phase != "optimizer" for tensor in _all(op)}
    ended = tuple(number for row in old for number in ops[row].frees if number in kept)
    if new:
        new[0].frees = (*ended, *new[0].frees)
    for op in new:
        op.thread, op.stream = ops[old[0]].thread, ops[old[0]].stream
    rows = [EditedCall(op, row) for row, op in enumerate(ops) if op.phase != "optimizer"]
    place = next((number for number, row in enumerate(rows) if row.origin > old[0]), len(rows))
    state = {tensor.storage for row in old for tensor in ops[row].tensors} - kept
    storages = {number: storage for number, storage in graph.storages.items() if number not in state}
    rows[place:place] = [EditedCall(op, -1) for op in new]
    return assemble(replace(graph, storages=storages), rows)


def _named(update: list[Op], ours: list[Tensor], ops: list[Op]) -> list[Op]:
    """The calls of an update over our weights and gradients, all else with numbers that nobody has yet."""
    marks = [op for op in update if op.name == MARK and op.phase != "optimizer"][: len(ours)]
    if len(marks) < len(ours):
        raise ForetraceError("the update does not show its weights", "Detach each weight and its gradient first.")
    tensors = {mark.tensors[0].id: our for mark, our in zip(marks, ours)}
    storages = {mark.tensors[0].storage: our.storage for mark, our in zip(marks, ours) if our.storage >= 0}
    fresh = IdAllocator(ops)
    next_id, next_storage = fresh.tensor_id(), fresh.storage_id()

    def named(tensor: Tensor) -> Tensor:
        our = tensors.get(tensor.id)
        if our is not None:
            return replace(our, stride=tensor.stride) if our.stride is None else our
        storage = storages.get(tensor.storage, tensor.storage + next_storage) if tensor.storage >= 0 else -1
        return replace(tensor, id=tensor.id + next_id, storage=storage)

    made = []
    for op in update:
        if op.phase == "optimizer":
            new = with_tensors(op, named)
            new.frees = tuple(storages.get(number, number + next_storage) for number in op.frees)
            made.append(new)
    return made


def _all(op: Op) -> Iterable[Tensor]:
    return (*op.tensors, *op.produced)


# --- was questions.optimizers: Optimizers by name: what a step calls with each of them, sketched for its own weights.

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
    kind, walk = parse_optimizer(name)
    pairs = updated_weights(graph)
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
    made = replace_optimizer(graph, update)
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


def parse_optimizer(name: str) -> tuple[str | None, str | None]:
    """The kind and the walk that a name says.

    >>> parse_optimizer("adamw:fused"), parse_optimizer("foreach"), parse_optimizer("sgd")
    (('adamw', 'fused'), (None, 'foreach'), ('sgd', None))
    """
    words = name.split(":")
    kinds, walks = [word for word in words if word in KINDS], [word for word in words if word in WALKS]
    if len(kinds) + len(walks) != len(words) or len(kinds) > 1 or len(walks) > 1:
        wrong = next((word for word in words if word not in KINDS and word not in WALKS), name)
        raise unknown_name("optimizer", wrong, [*KINDS, *WALKS])
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
            return torch_empty(tensor, device)
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
