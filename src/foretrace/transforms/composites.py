"""The functions that a program called, recovered from dispatcher calls: ``linear`` shows there as ``t`` and ``addmm``.

Autocast and autograd act on whole functions, so `retrace` needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace.graph.op import CONTIGUOUS, contiguous_strides
from foretrace.transforms.dataflow import Slot, SlotCall
from foretrace.transforms.structure.attention import DEFAULT_ARGUMENTS, FORWARD, attention_kind

RESHAPES = ("aten::view", "aten::_unsafe_view", "aten::clone")
LINEARS = [
    [f"aten::{name}" for name in names.split()]
    for names in (
        "t clone _unsafe_view mm _unsafe_view add", "t view mm _unsafe_view add", "t view mm _unsafe_view",
        "t clone _unsafe_view mm _unsafe_view", "clone _unsafe_view t addmm view", "view t addmm view", "t addmm",
        "t mm",
    )
]  # fmt: skip
"""Sequences of calls in which a linear layer reaches the dispatcher, long ones first."""
LONGEST = max(map(len, LINEARS))
LOSSES = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")
BATCH_NORMS = ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm")
FUNCTIONS = {"aten::native_layer_norm": "layer_norm", "aten::_softmax": "softmax", "aten::_log_softmax": "log_softmax"}
"""Functions with the same first arguments as a call, which return only its first result."""
ARGUMENT_COUNTS = {"layer_norm": 5, "softmax": 2, "log_softmax": 2}


@dataclass
class Composite:
    """A function call of the program."""

    name: str
    """A function of PyTorch (``linear``), or an op (``aten::relu``)."""
    calls: list[SlotCall]
    """Its dispatcher calls."""
    args: list[Any]
    """Its arguments, with slots for tensors."""
    makes: list[Any]
    """Its results, likewise."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    is_op: bool = False
    """Whether the name comes from a recording: then only an operator may be called by it."""


def composites(calls: Sequence[SlotCall], is_input: Callable[[int], bool]) -> list[Composite]:
    """The function calls of a program, in order; ``is_input`` tells slots that existed before the step: weights."""
    found: list[Composite] = []
    place = 0
    while place < len(calls):
        rest = calls[place : place + LONGEST]
        made = _linear(rest, is_input) or _reshape(rest) or _loss(rest) or _batch_norm(rest) or _attention(rest[0])
        made = made or _convolution(rest[0]) or _op(rest[0])
        found.append(made)
        place += len(made.calls)
    return found


def _linear(calls: Sequence[SlotCall], is_input: Callable[[int], bool]) -> Composite | None:
    for names in LINEARS:
        if [call.op.name for call in calls[: len(names)]] == names:
            made = _linear_of(list(calls[: len(names)]), is_input)
            if made:
                return made
    return None


def _linear_of(calls: list[SlotCall], is_input: Callable[[int], bool]) -> Composite | None:
    transposed = next(call for call in calls if call.op.name == "aten::t")
    product = next(call for call in calls if call.op.name in ("aten::mm", "aten::addmm"))
    weight, read = transposed.reads[0], product.reads[-2]
    before = [call for call in calls[: calls.index(product)] if call.op.name in RESHAPES]
    for call in reversed(before):
        if read not in call.made:
            return None
        read = call.reads[0]
    last, bias = next(iter(product.made), -1), product.reads[0] if product.op.name == "aten::addmm" else None
    for call in calls[calls.index(product) + 1 :]:
        if call.reads[0] != last or not call.made:
            return None
        last = next(iter(call.made))
        bias = call.reads[1] if call.op.name == "aten::add" and len(call.reads) == 2 else bias
    inputs = (before[0] if before else product).op.tensors[0 if before else -2].shape
    made = calls[-1].op.produced[0].shape
    fits = inputs[:-1] == made[:-1] and inputs[-1:] == transposed.op.tensors[0].shape[1:]
    small = bias is None or is_input(bias)
    if product.reads[-1] not in transposed.made or not is_input(weight) or not fits or not small:
        return None
    return Composite("linear", calls, [Slot(read), Slot(weight), None if bias is None else Slot(bias)], [Slot(last)])


def _reshape(calls: Sequence[SlotCall]) -> Composite | None:
    """A reshape: a view, or a copy where the strides allow no view."""
    first = calls[0]
    if first.op.name == "aten::view" and isinstance(first.args[1], (list, tuple)):
        return Composite("reshape", [first], list(first.args), list(first.results))
    if first.op.name != "aten::clone" or first.kwargs.get("memory_format") != CONTIGUOUS:
        return None
    if len(calls) > 1 and calls[1].op.name == "aten::_unsafe_view" and calls[1].reads[0] in first.made:
        return Composite("reshape", list(calls[:2]), [first.args[0], calls[1].args[1]], list(calls[1].results))
    given = first.op.tensors[0]
    if given.stride == contiguous_strides(given.shape):
        return None
    return Composite("contiguous", [first], list(first.args), list(first.results))


def _loss(calls: Sequence[SlotCall]) -> Composite | None:
    """Cross entropy: a negative log likelihood right after a log softmax."""
    if len(calls) < 2 or calls[0].op.name != "aten::_log_softmax" or calls[1].op.name not in LOSSES:
        return None
    if calls[1].reads[0] not in calls[0].made:
        return None
    args = [calls[0].args[0], *calls[1].args[1:5], 0.0]
    return Composite("cross_entropy_loss", list(calls[:2]), args, [calls[1].results[0]])


def _batch_norm(calls: Sequence[SlotCall]) -> Composite | None:
    """A batch norm, with the empty tensor that PyTorch creates in place of cuDNN's reserve space."""
    reserved = calls[0].op.name == "aten::empty" and len(calls) > 1
    norm = calls[1] if reserved else calls[0]
    if norm.op.name not in BATCH_NORMS:
        return None
    return Composite("batch_norm", list(calls[: 1 + reserved]), [*norm.args[:8], True], [norm.results[0]])


def _attention(call: SlotCall) -> Composite | None:
    kind = attention_kind(call.op.name)
    if kind is None:
        return None
    roles = {**DEFAULT_ARGUMENTS, **dict(zip(FORWARD[kind][0], call.args))}
    args = [roles["q"], roles["k"], roles["v"], roles["bias"], roles["p"], roles["causal"]]
    return Composite("scaled_dot_product_attention", [call], args, [call.results[0]], call.kwargs)


def _convolution(call: SlotCall) -> Composite | None:
    """A convolution, under the name that autocast knows on every device."""
    if call.op.name != "aten::convolution" or len(call.args) < 9:
        return None
    data, weight, bias, stride, padding, dilation, transposed, output_padding, groups = call.args
    dims = len(call.op.tensors[1].shape) - 2
    if not transposed:
        return Composite(
            f"conv{dims}d", [call], [data, weight, bias, stride, padding, dilation, groups], [*call.results]
        )
    args = [data, weight, bias, stride, padding, output_padding, groups, dilation]
    return Composite(f"conv_transpose{dims}d", [call], args, [*call.results])


def _op(call: SlotCall) -> Composite:
    name = FUNCTIONS.get(call.op.name)
    if name:
        return Composite(name, [call], list(call.args[: ARGUMENT_COUNTS[name]]), [call.results[0]])
    return Composite(call.op.name, [call], list(call.args), list(call.results), call.kwargs, is_op=True)
