"""Attention implementations: cuDNN, flash or memory-efficient; with the layouts and copies that follow from the choice.

Implementations lay out their results differently. ``reshape`` is recorded as a view where strides allow one, else as a
copy and a view of it; ``contiguous`` is recorded as a copy, or not at all. So other strides mean other calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import CONTIGUOUS, HALF_DTYPES, Op, Tensor, contiguous_strides, map_tensors
from foretrace.graph.operators import MAX_HEAD_SIZE, attention_backends
from foretrace.transforms.dataflow import Dataflow, SlotCall, rebuild, substitute
from foretrace.transforms.meta_device import MetaTensor, MetaUnsupportedError, call_on_meta, meta_results
from foretrace.transforms.step import EditedCall, UnusedIds, flatten, reassemble

Roles: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""Arguments and results of an implementation, by what they are for."""
SEEDED = ("out", "lse", "cum_q", "cum_k", "max_q", "max_k", "seed", "offset", "mask")
FORWARD: dict[str, Roles] = {
    "efficient": (("q", "k", "v", "bias", "train", "p", "causal"), ("out", "lse", "seed", "offset")),
    "flash": (("q", "k", "v", "p", "causal", "debug"), SEEDED),
    "cudnn": (("q", "k", "v", "bias", "train", "p", "causal", "debug"), SEEDED),
}
BACKWARD: dict[str, Roles] = {
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
SAVED = ("lse", "seed", "offset", "cum_q", "cum_k", "max_q", "max_k")
"""Arguments of backward that forward returned."""
NAME = "aten::_scaled_dot_product_{}_attention"
VIEW, COPY, VIEW_OF_COPY = "aten::view", "aten::clone", "aten::_unsafe_view"


def attention(graph: Graph, kind: str) -> Graph:
    """The step with its attention computed by ``"cudnn"``, ``"flash"`` or ``"efficient"``."""
    check_attention(kind)
    made = _Swap(lambda roles: kind).graph(graph)
    if not any(attention_kind(op.name) for op in made.ops):
        raise ForetraceError(f"{graph.title} calls none of {', '.join(FORWARD)} attention", "There is nothing to swap.")
    made.notes.append(f"all attention is {kind}")
    return made


def check_attention(kind: str) -> str:
    """The name; raises if there is no such implementation."""
    if kind not in FORWARD:
        raise ForetraceError(f"there is no attention {kind!r}", f"There are {', '.join(FORWARD)}.")
    return kind


def select_attention(graph: Graph) -> Graph:
    """The step with the attention that PyTorch selects on Hopper and later GPUs, for its dtypes and sizes."""
    return _Swap(_default_attention).graph(graph)


def _default_attention(roles: dict[str, Any]) -> str:
    """The implementation that PyTorch selects; the efficient one where it would take the call apart."""
    mask = roles["bias"] if isinstance(roles["bias"], Tensor) else None
    causal, dropout = bool(roles["causal"]), float(roles["p"] or 0)
    first = attention_backends(roles["q"], roles["k"], roles["v"], mask, causal, dropout)[0]
    return first if first in FORWARD else "efficient"


def attention_kind(name: str) -> str | None:
    """The attention implementation of an op; None for other ops."""
    return next((kind for kind in FORWARD if name.removesuffix("_backward") == NAME.format(kind)), None)


class _Swap:
    """Replaces attention calls, forward and backward, by those of a wanted implementation."""

    def __init__(self, wanted: Callable[[dict[str, Any]], str]) -> None:
        self._wanted = wanted
        self._ids = UnusedIds([])
        self._saved: dict[int, dict[str, Any]] = {}
        """Arguments and results of forward calls, by the storage of their output."""
        self._added: dict[int, tuple[int, ...]] = {}
        """Storages that a new implementation saves besides, by one that the old one saved."""

    def graph(self, graph: Graph) -> Graph:
        """The step with attention replaced, and layouts propagated."""
        graph = flatten(graph)
        before, after = list(graph.ops), []
        self._ids = UnusedIds(before)
        for op in graph.ops:
            op.frees += tuple(number for freed in op.frees for number in self._added.get(freed, ()))
            kind = attention_kind(op.name)
            if kind is not None:
                op = self._backward(op, kind) if op.name.endswith("_backward") else self._forward(op, kind)
            after.append(op)
        return _LayoutPropagation(before, after).graph(graph)

    def _forward(self, op: Op, kind: str) -> Op:
        takes, gives = FORWARD[kind]
        roles = {**DEFAULT_ARGUMENTS, **dict(zip(takes, op.args)), **dict(zip(gives, op.outputs))}
        new = self._wanted(roles)
        out = roles["out"]
        if new != kind:
            _check_supported(op, new, roles)
            before = {tensor.storage for tensor in op.produced}
            op = self._call(op, new, FORWARD[new], roles)
            roles.update(zip(FORWARD[new][1], op.outputs))
            added = tuple(tensor.storage for tensor in op.produced if tensor.storage not in before)
            if isinstance(roles["lse"], Tensor):
                self._added[roles["lse"].storage] = added
        roles |= {"max_q": roles["q"].shape[-2], "max_k": roles["k"].shape[-2], "cum_q": None, "cum_k": None}
        self._saved[out.storage] = roles
        return op

    def _backward(self, op: Op, kind: str) -> Op:
        takes, gives = BACKWARD[kind]
        roles = {**DEFAULT_ARGUMENTS, **dict(zip(takes, op.args)), **dict(zip(gives, op.outputs))}
        forward = self._saved.get(roles["out"].storage)
        new = self._wanted(roles)
        if new == kind or forward is None:
            return op
        roles |= {role: forward.get(role) for role in SAVED}
        roles["needs"] = [True, True, True, False]
        return self._call(op, new, BACKWARD[new], roles, "_backward")

    def _call(self, op: Op, kind: str, form: Roles, roles: dict[str, Any], suffix: str = "") -> Op:
        """The call of another implementation."""
        takes, gives = form
        new = op.__copy__()
        new.name, new.overload = NAME.format(kind) + suffix, "default"
        new.args = tuple(roles[role] for role in takes)
        try:
            made = call_on_meta(new.name, new.overload, new.args, new.kwargs)
        except (MetaUnsupportedError, ValueError) as error:
            raise ForetraceError(f"{op.name} can't be done by {kind} attention ({error})", "Choose another.") from None
        new.outputs = tuple(
            self._result(result, roles["q"], roles.get(role))
            if isinstance(result, MetaTensor) and role != "mask"
            else None
            for role, result in zip(gives, made)
        )
        return new

    def _result(self, made: MetaTensor, like: Tensor, known: Any) -> Tensor:
        """A result: the tensor of that role, or a new one."""
        if isinstance(known, Tensor):
            return Tensor(made.shape, made.dtype, known.device, made.stride, 0, known.id, known.storage)
        ids = self._ids.tensor_id(), self._ids.storage_id()
        return Tensor(made.shape, made.dtype, like.device, made.stride, 0, *ids)


def _check_supported(op: Op, kind: str, roles: dict[str, Any]) -> None:
    """Raise for masks, dtypes and head sizes that an implementation does not support."""
    if kind == "flash" and roles["bias"] is not None:
        raise ForetraceError(f"{op.name} has a mask, and flash attention takes none", "Choose cudnn or efficient.")
    if kind not in MAX_HEAD_SIZE:
        return
    q, most = roles["q"], MAX_HEAD_SIZE[kind]
    if q.dtype not in HALF_DTYPES:
        raise ForetraceError(
            f"{op.name} takes {q.dtype}, and {kind} attention supports only {' and '.join(HALF_DTYPES)}",
            "Set dtype=bf16 or autocast=bf16 before it.",
        )
    if q.shape[-1] > most or (kind == "cudnn" and q.shape[-1] % 8):
        sizes = f"{'multiples of 8 ' if kind == 'cudnn' else ''}up to {most}"
        raise ForetraceError(
            f"{op.name} has a head size of {q.shape[-1]}, and {kind} attention supports {sizes}", "Choose efficient."
        )


class _LayoutPropagation:
    """A step in which some calls are replaced by others whose results have other strides: later results follow.

    ``after`` has the calls of ``before``, some of them replaced. Copies come and go with the strides.
    """

    def __init__(self, before: Sequence[Op], after: Sequence[Op]) -> None:
        self._after = after
        self._step = Dataflow(before)
        self._ids = UnusedIds([*before, *after])
        self._now = dict(self._step.inputs)
        self._was = dict(self._step.inputs)
        self._freed = {storage for op in after for storage in op.frees}
        self._early: set[int] = set()
        """Storages of new copies, and of what they are copies of: freed after their last use."""
        self._viewed = {
            call.reads[0]: call for call in self._step.calls if call.op.name == VIEW_OF_COPY and len(call.reads) == 1
        }

    def graph(self, graph: Graph) -> Graph:
        calls: list[EditedCall] = []
        for call in self._step.calls:
            self._was.update(call.made)
            if call.row < 0:
                self._inferred_view(call)
            elif self._after[call.row].name != call.op.name:
                calls.append(EditedCall(self._replaced(call, self._after[call.row]), call.row))
            elif all(self._now[slot] is self._was[slot] for slot in call.reads):
                self._now.update(call.made)
                calls.append(EditedCall(call.op.__copy__(), call.row))
            else:
                calls += [EditedCall(op, call.row) for op in self._following(call)]
        return reassemble(graph, self._after, calls, self._early)

    def _inferred_view(self, call: SlotCall) -> None:
        """A view that no recorded call made: follows its base if it viewed all of it."""
        ((slot, tensor),) = call.made.items()
        was, now = self._was[call.reads[0]], self._now[call.reads[0]]
        whole = (was.shape, was.stride) == (tensor.shape, tensor.stride)
        self._now[slot] = replace(now, id=tensor.id) if now is not was and whole else tensor

    def _replaced(self, call: SlotCall, op: Op) -> Op:
        """A replaced call: it reads the current tensors, and its results are known."""
        slots = {t.id: slot for slot, t in zip(call.reads, call.op.tensors)}
        made = {t.id: t for t in op.produced}
        self._now.update({slot: made.get(tensor.id, tensor) for slot, tensor in call.made.items()})
        new = op.__copy__()
        new.args = map_tensors(op.args, lambda t: self._current(slots[t.id], t) if t.id in slots else t)
        return new

    def _current(self, slot: int, tensor: Tensor) -> Tensor:
        """The current tensor of a slot, under the id that a call knows."""
        return tensor if self._now[slot] is self._was[slot] else replace(self._now[slot], id=tensor.id)

    def _following(self, call: SlotCall) -> list[Op]:
        name = call.op.name
        if name == COPY and call.op.kwargs.get("memory_format") == CONTIGUOUS and self._copy_is_needless(call):
            (slot,) = call.made
            self._now[slot] = self._now[call.reads[0]]
            return []
        op = rebuild(call, self._current)
        if name in (VIEW, VIEW_OF_COPY):
            return self._view(call, op)
        self._set_results(call, op)
        return [op]

    def _copy_is_needless(self, call: SlotCall) -> bool:
        """Whether a contiguous copy is not needed any more: its view can be one of the tensor itself."""
        given = self._now[call.reads[0]]
        viewed = self._viewed.get(next(iter(call.made), -1))
        if viewed is None:
            return given.stride == contiguous_strides(given.shape)
        return _viewed(given, viewed.op.args[1]) is not None

    def _view(self, call: SlotCall, op: Op) -> list[Op]:
        given = self._now[call.reads[0]]
        made = _viewed(given, op.args[1])
        ((slot, was),) = call.made.items() if call.made else ((-1, given),)
        if made is not None:
            copied = call.op.name == VIEW_OF_COPY and given.storage == self._was[call.reads[0]].storage
            op.name = VIEW_OF_COPY if copied else VIEW
            self._now[slot] = replace(was, stride=made.stride, offset=given.offset, storage=given.storage)
            op.outputs = (self._now[slot],)
            return [op]
        copy = self._ids.tensor(given.shape, given.dtype, given.device)
        self._early.update({copy.storage, given.storage} & (self._freed | {copy.storage}))
        copying = op.__copy__()
        copying.name, copying.args, copying.outputs = COPY, (op.args[0],), (copy,)
        copying.kwargs = {"memory_format": CONTIGUOUS}
        op.name, op.args, op.entered = VIEW_OF_COPY, (copy, op.args[1]), 0
        self._now[slot] = replace(was, stride=contiguous_strides(was.shape), offset=0, storage=copy.storage)
        op.outputs = (self._now[slot],)
        return [copying, op]

    def _set_results(self, call: SlotCall, op: Op) -> None:
        """Set the strides of a call's results; those that the meta device does not know stay."""
        try:
            results = meta_results(call, call.args, call.kwargs, self._now)
        except (MetaUnsupportedError, ValueError):
            results = {}
        for slot, tensor in call.made.items():
            self._now[slot] = self._laid_out(call, tensor, results.get(slot))
        produced = iter(call.op.produced)
        op.outputs = tuple(substitute(list(call.results), lambda slot: self._current(slot, next(produced))))

    def _laid_out(self, call: SlotCall, was: Tensor, made: MetaTensor | None) -> Tensor:
        base = next((slot for slot in call.reads if self._was[slot].storage == was.storage >= 0), None)
        if made is None or made.shape != was.shape:
            return was
        if base is None:
            return was if made.stride == was.stride else replace(was, stride=made.stride)
        at = self._now[base]
        return replace(was, stride=made.stride, offset=at.offset + made.offset, storage=at.storage)


def _viewed(given: Tensor, sizes: Any) -> MetaTensor | None:
    """The view of a tensor in another shape; None if its strides allow none."""
    try:
        made: MetaTensor = call_on_meta(VIEW, "default", (given, sizes), {})
    except (MetaUnsupportedError, ValueError):
        return None
    return made
