"""Another implementation of attention: cuDNN's, flash, or the memory-efficient one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Constant, Op, map_tensors
from foretrace.graph.tensor import Tensor, contiguous_strides
from foretrace.transforms.dataflow import Call, Dataflow, slots_in, substitute
from foretrace.transforms.meta_device import META, MetaTensor, MetaUnsupportedError
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, flatten, recompute_frees

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
DEFAULT_ARGUMENTS: dict[str, Any] = {"train": True, "p": 0.0, "causal": False, "debug": False, "bias": None}
NAME = "aten::_scaled_dot_product_{}_attention"
HALF = ("bfloat16", "float16")
MAX_HEAD_SIZE = {"cudnn": 128, "flash": 256}
"""The largest head that each takes, in half precision only. The efficient one takes any head, in any type."""


def attention(graph: Graph, kind: str) -> Graph:
    """The step with its attention computed by ``"cudnn"``, ``"flash"`` or ``"efficient"``."""
    check_attention(kind)
    made = _swapped(graph, lambda q, bias: kind)
    if not any(attention_kind(op.name) for op in made.ops):
        raise ForetraceError(f"{graph.title} calls none of {', '.join(FORWARD)} attention", "There is nothing to swap.")
    made.notes.append(f"attention is {kind}, whatever it was")
    return made


def check_attention(kind: str) -> str:
    """The name, if there is such an implementation."""
    if kind not in FORWARD:
        raise ForetraceError(f"there is no attention {kind!r}", f"There are {', '.join(FORWARD)}.")
    return kind


def select_attention(graph: Graph) -> Graph:
    """The step with the attention that PyTorch takes on a GPU from Hopper on, for its types and sizes."""
    return _swapped(graph, default_attention)


def default_attention(q: Tensor, bias: object) -> str:
    """The implementation that PyTorch takes.

    >>> default_attention(Tensor((8, 12, 512, 64), "bfloat16"), None), default_attention(Tensor((8, 12, 512, 64), "float32"), None)
    ('cudnn', 'efficient')
    """
    size = q.shape[-1]
    if q.dtype in HALF and size <= MAX_HEAD_SIZE["cudnn"] and size % 8 == 0:
        return "cudnn"
    return "flash" if q.dtype in HALF and bias is None and size <= MAX_HEAD_SIZE["flash"] else "efficient"


def _swapped(graph: Graph, wanted: Callable[[Tensor, object], str]) -> Graph:
    graph = flatten(graph)
    before, ops = list(graph.ops), list(graph.ops)
    fresh = IdAllocator(ops)
    saved: dict[int, dict[str, Any]] = {}
    extra: dict[int, tuple[int, ...]] = {}
    after = []
    for op in ops:
        op.frees += tuple(number for freed in op.frees for number in extra.get(freed, ()))
        kind = attention_kind(op.name)
        if kind is not None and op.name.endswith("_backward"):
            op = _backward(op, kind, wanted, saved, fresh)
        elif kind is not None:
            op = _forward(op, kind, wanted, saved, fresh, extra)
        after.append(op)
    rows = propagate_layout(before, after)
    return assemble(graph, rows)


def attention_kind(name: str) -> str | None:
    """The implementation of attention that an op is of; None for another op.

    >>> attention_kind("aten::_scaled_dot_product_flash_attention_backward"), attention_kind("aten::mm")
    ('flash', None)
    """
    return next((kind for kind in FORWARD if name.removesuffix("_backward") == NAME.format(kind)), None)


def _made(made: MetaTensor, like: Tensor, known: Any, fresh: IdAllocator) -> Tensor:
    """A result: the tensor that it was, or a new one."""
    if isinstance(known, Tensor):
        return Tensor(made.shape, made.dtype, known.device, made.stride, 0, known.id, known.storage)
    return Tensor(made.shape, made.dtype, like.device, made.stride, 0, fresh.tensor_id(), fresh.storage_id())


def _forward(
    op: Op,
    kind: str,
    wanted: Callable[[Tensor, object], str],
    saved: dict[int, dict[str, Any]],
    fresh: IdAllocator,
    extra: dict[int, tuple[int, ...]],
) -> Op:
    takes, gives = FORWARD[kind]
    roles = {**DEFAULT_ARGUMENTS, **dict(zip(takes, op.args)), **dict(zip(gives, op.outputs))}
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
    if kind not in MAX_HEAD_SIZE:
        return
    q, most = roles["q"], MAX_HEAD_SIZE[kind]
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
    fresh: IdAllocator,
) -> Op:
    takes, gives = BACKWARD[kind]
    roles = {**DEFAULT_ARGUMENTS, **dict(zip(takes, op.args)), **dict(zip(gives, op.outputs))}
    forward = saved.get(roles["out"].storage)
    new = wanted(roles["q"], roles["bias"])
    if new == kind or forward is None:
        return op
    kept = ("lse", "seed", "offset", "cum_q", "cum_k", "max_q", "max_k")
    roles |= {role: forward.get(role) for role in kept}
    roles["needs"] = [True, True, True, False]
    return _called(op, new, BACKWARD[new], roles, fresh, "_backward")


def _called(
    op: Op, kind: str, form: tuple[tuple[str, ...], tuple[str, ...]], roles: dict[str, Any], fresh: IdAllocator, end: str
) -> Op:
    """The call of another implementation."""
    takes, gives = form
    new = op.__copy__()
    new.name, new.overload = NAME.format(kind) + end, "default"
    new.args = tuple(roles[role] for role in takes)
    try:
        made = META.called(new.name, new.overload, new.args, new.kwargs)
    except (MetaUnsupportedError, ValueError) as error:
        raise ForetraceError(f"{op.name} can't be done by {kind} attention ({error})", "Choose another.") from None
    new.outputs = tuple(
        _made(result, roles["q"], roles.get(role), fresh) if isinstance(result, MetaTensor) and role != "mask" else None
        for role, result in zip(gives, made)
    )
    return new


# --- was transforms.relayout: Strides that follow from others, and the copies that they cost or save.

VIEW, COPY, VIEW_OF_COPY = "aten::view", "aten::clone", "aten::_unsafe_view"
CONTIGUOUS = Constant("memory_format", "contiguous_format")


def propagate_layout(before: Sequence[Op], after: Sequence[Op]) -> list[EditedCall]:
    """The calls of a step in which some make results of another layout: strides follow, copies come and go.

    Parameters
    ----------
    before
        The calls of the step.
    after
        The same, some of them swapped for others; what they make has its own strides.
    """
    return _Relaid(before, after).rows()


class _Relaid:
    def __init__(self, before: Sequence[Op], after: Sequence[Op]) -> None:
        self._after = after
        self._step = Dataflow(before)
        self._fresh = IdAllocator([*before, *after])
        self._now = dict(self._step.inputs)
        self._was = dict(self._step.inputs)
        self._freed = {storage for op in after for storage in op.frees}
        self._soon: set[int] = set()
        """Storages of copies that were not there, and of what they are copies of."""
        self._viewed = {
            call.reads[0]: call for call in self._step.calls if call.op.name == VIEW_OF_COPY and len(call.reads) == 1
        }

    def rows(self) -> list[EditedCall]:
        rows: list[EditedCall] = []
        for call in self._step.calls:
            self._was.update(call.made)
            if call.row < 0:
                self._look(call)
            elif self._after[call.row].name != call.op.name:
                rows.append(EditedCall(self._swapped(call, self._after[call.row]), call.row))
            elif all(self._now[slot] is self._was[slot] for slot in call.reads):
                self._now.update(call.made)
                rows.append(EditedCall(call.op.__copy__(), call.row))
            else:
                rows += [EditedCall(op, call.row) for op in self._follows(call)]
        recompute_frees(rows, self._after, self._soon)
        return rows

    def _look(self, call: Call) -> None:
        """A look at a storage: like the tensor that lies there, where it was."""
        ((slot, tensor),) = call.made.items()
        was, now = self._was[call.reads[0]], self._now[call.reads[0]]
        alike = (was.shape, was.stride) == (tensor.shape, tensor.stride)
        self._now[slot] = replace(now, id=tensor.id) if now is not was and alike else tensor

    def _swapped(self, call: Call, op: Op) -> Op:
        """A call of another kind: it is given what its tensors are now, and what it makes is known."""
        slots = {t.id: slot for slot, t in zip(call.reads, call.op.tensors)}
        made = {t.id: t for t in op.produced}
        self._now.update({slot: made.get(tensor.id, tensor) for slot, tensor in call.made.items()})
        new = op.__copy__()
        new.args = map_tensors(op.args, lambda t: self._as(t, slots[t.id]) if t.id in slots else t)
        return new

    def _as(self, tensor: Tensor, slot: int) -> Tensor:
        """What is in a slot, by the number that a call knows it by."""
        return tensor if self._now[slot] is self._was[slot] else replace(self._now[slot], id=tensor.id)

    def _follows(self, call: Call) -> list[Op]:
        name = call.op.name
        if name == COPY and call.op.kwargs.get("memory_format") == CONTIGUOUS and self._needs_none(call):
            (slot,) = call.made
            self._now[slot] = self._now[call.reads[0]]
            return []
        op = self._given(call)
        if name in (VIEW, VIEW_OF_COPY):
            return self._viewing(call, op)
        self._make(call, op)
        return [op]

    def _needs_none(self, call: Call) -> bool:
        """Whether a copy into rows without gaps has become needless: its view is one of the tensor itself."""
        given = self._now[call.reads[0]]
        viewed = self._viewed.get(next(iter(call.made), -1))
        if viewed is None:
            return given.stride == contiguous_strides(given.shape)
        return self._asked(VIEW, (given, viewed.op.args[1])) is not None

    def _viewing(self, call: Call, op: Op) -> list[Op]:
        given = self._now[call.reads[0]]
        made = self._asked(VIEW, (given, op.args[1]))
        ((slot, was),) = call.made.items() if call.made else ((-1, given),)
        if made is not None:
            copied = call.op.name == VIEW_OF_COPY and given.storage == self._was[call.reads[0]].storage
            op.name = VIEW_OF_COPY if copied else VIEW
            self._now[slot] = replace(was, stride=made.stride, offset=given.offset, storage=given.storage)
            op.outputs = (self._now[slot],)
            return [op]
        copy = self._fresh.tensor(given.shape, given.dtype, given.device)
        self._soon.update({copy.storage, given.storage} & (self._freed | {copy.storage}))
        copying = op.__copy__()
        copying.name, copying.args, copying.outputs = COPY, (op.args[0],), (copy,)
        copying.kwargs = {"memory_format": CONTIGUOUS}
        op.name, op.args, op.entered = VIEW_OF_COPY, (copy, op.args[1]), 0
        self._now[slot] = replace(was, stride=contiguous_strides(was.shape), offset=0, storage=copy.storage)
        op.outputs = (self._now[slot],)
        return [copying, op]

    def _given(self, call: Call) -> Op:
        """The call with its arguments as they are now."""
        given = iter(call.op.tensors)
        op = call.op.__copy__()
        op.args = tuple(substitute(list(call.args), lambda slot: self._as(next(given), slot)))
        op.kwargs = substitute(call.kwargs, lambda slot: self._as(next(given), slot))
        return op

    def _make(self, call: Call, op: Op) -> None:
        """Find the strides of what a call makes; what the meta device does not know stays as it was."""
        result = self._asked(op.name, op.args, op.overload, op.kwargs)
        told = list(_flat(result))
        slots = list(slots_in(call.results))
        for slot, made in zip(slots, told if len(told) == len(slots) else [None] * len(slots)):
            if slot in call.made:
                self._now[slot] = self._laid(call, call.made[slot], made)
        produced = iter(call.op.produced)
        op.outputs = tuple(substitute(list(call.results), lambda slot: self._as(next(produced), slot)))

    def _laid(self, call: Call, was: Tensor, made: MetaTensor | None) -> Tensor:
        base = next((slot for slot in call.reads if self._was[slot].storage == was.storage >= 0), None)
        if made is None or made.shape != was.shape:
            return was
        if base is None:
            return was if made.stride == was.stride else replace(was, stride=made.stride)
        at = self._now[base]
        return replace(was, stride=made.stride, offset=at.offset + made.offset, storage=at.storage)

    def _asked(self, name: str, args: Any, overload: str = "default", kwargs: Any = None) -> Any:
        try:
            return META.called(name, overload, args, kwargs or {})
        except (MetaUnsupportedError, ValueError):
            return None


def _flat(value: Any) -> list[MetaTensor | None]:
    if isinstance(value, list):
        return [item for each in value for item in _flat(each)]
    return [value]
