"""Another implementation of attention: cuDNN's, flash, or the memory-efficient one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.fresh import Fresh
from foretrace.transforms.on_meta import META, Made, UnknownOnMetaError
from foretrace.transforms.relayout import relaid
from foretrace.transforms.step import assembled, flattened

SEEDED = ("out", "lse", "cum_q", "cum_k", "max_q", "max_k", "seed", "offset", "mask")
FORWARD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "efficient": (("q", "k", "v", "bias", "train", "p", "causal"), ("out", "lse", "seed", "offset")),
    "flash": (("q", "k", "v", "p", "causal", "debug"), SEEDED),
    "cudnn": (("q", "k", "v", "bias", "train", "p", "causal", "debug"), SEEDED),
}
"""What each implementation takes and gives."""
BACKWARD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "efficient": (
        ("grad", "q", "k", "v", "bias", "out", "lse", "seed", "offset", "p", "needs", "causal"),
        ("dq", "dk", "dv", "dbias"),
    ),
    "flash": (
        ("grad", "q", "k", "v", "out", "lse", "cum_q", "cum_k", "max_q", "max_k", "p", "causal", "seed", "offset"),
        ("dq", "dk", "dv"),
    ),
    "cudnn": (
        ("grad", "q", "k", "v", "out", "lse", "seed", "offset", "bias", "cum_q", "cum_k", "max_q", "max_k", "p",
         "causal"),
        ("dq", "dk", "dv"),
    ),
}  # fmt: skip
USUAL: dict[str, Any] = {"train": True, "p": 0.0, "causal": False, "debug": False, "bias": None}
NAME = "aten::_scaled_dot_product_{}_attention"
HALF = ("bfloat16", "float16")
LARGEST_HEAD = {"cudnn": 128, "flash": 256}
"""The largest head that each takes, in half precision only. The efficient one takes any head, in any type."""


def attention(graph: Graph, kind: str) -> Graph:
    """The step with its attention computed by ``"cudnn"``, ``"flash"`` or ``"efficient"``."""
    implementation(kind)
    made = _swapped(graph, lambda q, bias: kind)
    if not any(kind_of(op.name) for op in made.ops):
        raise ForetraceError(f"{graph.title} calls none of {', '.join(FORWARD)} attention", "There is nothing to swap.")
    made.notes.append(f"attention is {kind}, whatever it was")
    return made


def implementation(kind: str) -> str:
    """The name, if there is such an implementation."""
    if kind not in FORWARD:
        raise ForetraceError(f"there is no attention {kind!r}", f"There are {', '.join(FORWARD)}.")
    return kind


def suited_attention(graph: Graph) -> Graph:
    """The step with the attention that PyTorch takes on a GPU from Hopper on, for its types and sizes."""
    return _swapped(graph, suited)


def suited(q: Tensor, bias: object) -> str:
    """The implementation that PyTorch takes.

    >>> suited(Tensor((8, 12, 512, 64), "bfloat16"), None), suited(Tensor((8, 12, 512, 64), "float32"), None)
    ('cudnn', 'efficient')
    """
    size = q.shape[-1]
    if q.dtype in HALF and size <= LARGEST_HEAD["cudnn"] and size % 8 == 0:
        return "cudnn"
    return "flash" if q.dtype in HALF and bias is None and size <= LARGEST_HEAD["flash"] else "efficient"


def _swapped(graph: Graph, wanted: Callable[[Tensor, object], str]) -> Graph:
    graph = flattened(graph)
    before, ops = list(graph.ops), list(graph.ops)
    fresh = Fresh(ops)
    saved: dict[int, dict[str, Any]] = {}
    extra: dict[int, tuple[int, ...]] = {}
    after = []
    for op in ops:
        op.frees += tuple(number for freed in op.frees for number in extra.get(freed, ()))
        kind = kind_of(op.name)
        if kind is not None and op.name.endswith("_backward"):
            op = _backward(op, kind, wanted, saved, fresh)
        elif kind is not None:
            op = _forward(op, kind, wanted, saved, fresh, extra)
        after.append(op)
    rows = relaid(before, after)
    return assembled(graph, rows)


def kind_of(name: str) -> str | None:
    """The implementation of attention that an op is of; None for another op.

    >>> kind_of("aten::_scaled_dot_product_flash_attention_backward"), kind_of("aten::mm")
    ('flash', None)
    """
    return next((kind for kind in FORWARD if name.removesuffix("_backward") == NAME.format(kind)), None)


def _made(made: Made, like: Tensor, known: Any, fresh: Fresh) -> Tensor:
    """A result: the tensor that it was, or a new one."""
    if isinstance(known, Tensor):
        return Tensor(made.shape, made.dtype, known.device, made.stride, 0, known.id, known.storage)
    return Tensor(made.shape, made.dtype, like.device, made.stride, 0, fresh.number(), fresh.storage())


def _forward(
    op: Op,
    kind: str,
    wanted: Callable[[Tensor, object], str],
    saved: dict[int, dict[str, Any]],
    fresh: Fresh,
    extra: dict[int, tuple[int, ...]],
) -> Op:
    takes, gives = FORWARD[kind]
    roles = {**USUAL, **dict(zip(takes, op.args)), **dict(zip(gives, op.outputs))}
    new = wanted(roles["q"], roles["bias"])
    out = roles["out"]
    if new != kind:
        _check(op, new, roles)
        before = {tensor.storage for tensor in op.produced}
        op = _called(op, new, FORWARD[new], roles, fresh, "")
        roles.update(zip(FORWARD[new][1], op.outputs))
        added = tuple(tensor.storage for tensor in op.produced if tensor.storage not in before)
        if isinstance(roles["lse"], Tensor):
            extra[roles["lse"].storage] = added
    roles |= {"max_q": roles["q"].shape[-2], "max_k": roles["k"].shape[-2], "cum_q": None, "cum_k": None}
    saved[out.storage] = roles
    return op


def _check(op: Op, kind: str, roles: dict[str, Any]) -> None:
    """Refuses what an implementation does not take."""
    if kind == "flash" and roles["bias"] is not None:
        raise ForetraceError(f"{op.name} has a mask, and flash attention takes none", "Choose cudnn or efficient.")
    if kind not in LARGEST_HEAD:
        return
    q, most = roles["q"], LARGEST_HEAD[kind]
    if q.dtype not in HALF:
        raise ForetraceError(
            f"{op.name} is given {q.dtype}, and {kind} attention takes {' and '.join(HALF)} only",
            "Set dtype=bf16 or autocast=bf16 before it.",
        )
    if q.shape[-1] > most or (kind == "cudnn" and q.shape[-1] % 8):
        sizes = f"{'multiples of 8 ' if kind == 'cudnn' else ''}up to {most}"
        raise ForetraceError(
            f"{op.name} has heads of {q.shape[-1]}, and {kind} attention takes {sizes}", "Choose efficient."
        )


def _backward(
    op: Op,
    kind: str,
    wanted: Callable[[Tensor, object], str],
    saved: dict[int, dict[str, Any]],
    fresh: Fresh,
) -> Op:
    takes, gives = BACKWARD[kind]
    roles = {**USUAL, **dict(zip(takes, op.args)), **dict(zip(gives, op.outputs))}
    forward = saved.get(roles["out"].storage)
    new = wanted(roles["q"], roles["bias"])
    if new == kind or forward is None:
        return op
    kept = ("lse", "seed", "offset", "cum_q", "cum_k", "max_q", "max_k")
    roles |= {role: forward.get(role) for role in kept}
    roles["needs"] = [True, True, True, False]
    return _called(op, new, BACKWARD[new], roles, fresh, "_backward")


def _called(
    op: Op, kind: str, form: tuple[tuple[str, ...], tuple[str, ...]], roles: dict[str, Any], fresh: Fresh, end: str
) -> Op:
    """The call of another implementation."""
    takes, gives = form
    new = op.__copy__()
    new.name, new.overload = NAME.format(kind) + end, "default"
    new.args = tuple(roles[role] for role in takes)
    try:
        made = META.called(new.name, new.overload, new.args, new.kwargs)
    except (UnknownOnMetaError, ValueError) as error:
        raise ForetraceError(f"{op.name} can't be done by {kind} attention ({error})", "Choose another.") from None
    new.outputs = tuple(
        _made(result, roles["q"], roles.get(role), fresh) if isinstance(result, Made) and role != "mask" else None
        for role, result in zip(gives, made)
    )
    return new
