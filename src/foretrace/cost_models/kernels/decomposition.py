"""Calls that PyTorch makes of several others: their parts, and which kernels of a measured call belong to each part."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from foretrace.graph import Op, Tensor, Value
from foretrace.graph.op import contiguous_strides

if TYPE_CHECKING:
    from foretrace.platform.measurements.kernels import Measurement, Repeat

HALVES = {"bfloat16", "float16"}
"""Dtypes that neither hold the other's values: together they are promoted to float32."""
KERNEL_LETTERS = (
    ("memset|memcpy", "m"),
    ("nchwtonhwc", ">"),
    ("nhwctonchw", "<"),
    ("wgrad|bgrad", "W"),
    ("dgrad", "D"),
    ("splitk_?reduce", "r"),
    ("at::native::reduce_kernel", "b"),
    ("elementwise|copy", "e"),
    ("addpadding|tensortransform", "p"),
    ("fft", "f"),
    ("depthwise", "d"),
    ("nvjet|cutlass|gemm|fprop", "g"),
    ("", "o"),
)
"""A letter for what a kernel of a convolution's backward does, by its name, the first that matches: layout changes,
gradients of filter and input, sums, copies, padding, GEMMs, others."""
INPUT_GRADIENT = re.compile("(?P<before>[empo<>]*)(D+|gr?|d)")
"""How the kernels of an input's gradient begin: layout changes, then the GEMM."""
RESTORING = {">": "<", "<": ">", "p": "p<"}
"""Kernels that restore the layout of a result, by what changed the layout of the inputs before."""
PLAIN_PRODUCTS = {"aten::addmm": "aten::mm", "aten::baddbmm": "aten::bmm"}
"""Products with a sum, and the same without."""
FILTER_FIRST = "conv_depthwise2d_grad_weight"
"""PyTorch's own kernel, with which the gradient of the filter comes before that of the input."""


def parts_of(op: Op, kind: str = "cuda") -> Sequence[Op]:
    """The calls that a call is made of on a kind of device: itself where nothing else is known.

    >>> [part.name for part in parts_of(Op("aten::_safe_softmax", (Tensor((8, 8), "float32"), -1)))]
    ['aten::_softmax', 'aten::eq', 'aten::all', 'aten::fill_', 'aten::where']
    >>> [part.name for part in parts_of(Op("aten::relu"))]
    ['aten::relu']
    """
    decompose = _PARTS.get(op.name) or (_GPU_PARTS.get(op.name) if kind == "cuda" else None)
    return decompose(op, op.tensors[0]) if decompose and op.tensors else (op,)


def _safe_softmax(op: Op, scores: Tensor) -> Sequence[Op]:
    """Zeros instead of NaNs for rows that are fully masked."""
    dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", -1)
    mask = replace(scores, dtype="bool", storage=-1)
    row = replace(mask, shape=(*scores.shape[:-1], 1), stride=None)
    zero = Tensor((), scores.dtype, device=scores.device)
    return (
        Op("aten::_softmax", (scores, dim, False), overload="default"),
        Op("aten::eq", (scores, float("-inf")), overload="Scalar", outputs=(mask,)),
        Op("aten::all", (mask, dim, True), overload="dim", outputs=(row,)),
        Op("aten::fill_", (zero, 0.0), overload="Scalar"),
        Op("aten::where", (row, zero, scores), overload="self", outputs=(scores,)),
    )


def _gradients(op: Op, grad: Tensor) -> Sequence[Op]:
    """Each gradient of a convolution by its own library call; None in a mask is one that is already computed."""
    from foretrace.cost_models.kernels.families.convolutions import MASK, gradients

    wanted = gradients(op)
    if wanted.count(True) < 2:
        return (op,)
    masks: list[list[Value]] = [
        [*(None if each else False for each in wanted[:place]), True, *(False for _ in wanted[place + 1 :])]
        for place, each in enumerate(wanted)
        if each
    ]
    return [replace(op, args=op.args[:MASK], kwargs={**op.kwargs, "output_mask": mask}) for mask in masks]


def _mixed_concat(op: Op, first: Tensor) -> Sequence[Op]:
    """A concatenation of tensors of several dtypes: each is copied to its place in the result."""
    tensors = [tensor for tensor in op.tensors if 0 not in tensor.shape]
    dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) < 2 or not isinstance(dim, int) or not all(len(t.shape) == len(first.shape) > 0 for t in tensors):
        return (op,)
    dim %= len(first.shape)
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    dtype = "float32" if dtypes == HALVES else max(tensors, key=lambda tensor: tensor.itemsize).dtype
    stride = contiguous_strides(shape)
    targets = [replace(tensor, dtype=dtype, stride=stride, storage=-1) for tensor in tensors]
    return [Op("aten::copy_", both, overload="default") for both in zip(targets, tensors)]


def _self_attention(op: Op, query: Tensor) -> Sequence[Op]:
    """PyTorch's whole multi-head attention without gradients, as the calls it makes inside."""
    return _attention_of(query, op.args[4] if len(op.args) > 4 else None) or (op,)


def _attention_of(query: Tensor, heads: Value) -> Sequence[Op]:
    """The projections of an attention and the attention between them; none where the heads are unknown."""
    if len(query.shape) != 3 or not isinstance(heads, int) or heads < 1:
        return ()
    batch, length, width = query.shape
    head = replace(
        query, shape=(batch, heads, length, width // heads),
        stride=(3 * length * width, width // heads, 3 * width, 1), storage=-1,
    )  # fmt: skip
    kind, bias = ("efficient", (None, False)) if query.dtype == "float32" else ("flash", ())
    attention = Op(f"aten::_scaled_dot_product_{kind}_attention", (head, head, head, *bias, 0.0, False))
    return _linear(query, 3 * width), attention, _linear(query, width)


def _encoder_layer(op: Op, source: Tensor) -> Sequence[Op]:
    """PyTorch's whole encoder layer without gradients (TransformerEncoder's fast path), as the calls it makes inside.

    >>> x, w, b = Tensor((4, 16, 64), "float32"), Tensor((64, 64), "float32"), Tensor((64,), "float32")
    >>> args = (x, 64, 4, Tensor((192, 64), "float32"), b, w, b, True, False, 1e-5, b, b, b, b, w, b, w, b)
    >>> [part.name[6:] for part in parts_of(Op("aten::_transformer_encoder_layer_fwd", args))][:3]
    ['addmm', '_scaled_dot_product_efficient_attention', 'addmm']
    """
    weights = [argument for argument in op.args if isinstance(argument, Tensor) and len(argument.shape) == 2]
    attention = _attention_of(source, op.args[2] if len(op.args) > 2 else None)
    if not attention or len(weights) != 4:
        return (op,)
    width, hidden = source.shape[-1], weights[2].shape[0]
    norm = Op("aten::native_layer_norm", (source, [width], weights[0], weights[0], 1e-5), overload="default")
    wide = replace(source, shape=(*source.shape[:2], hidden), stride=None, storage=-1)
    add = Op("aten::add", (source, source), overload="Tensor", outputs=(source,))
    between = Op("aten::gelu" if op.args[7] is True else "aten::relu", (wide,), overload="default", outputs=(wide,))
    return (*attention, add, norm, _linear(source, hidden), between, _linear(wide, width), add, norm)


def _without_sum(op: Op, added: Tensor) -> Sequence[Op]:
    """A product whose ``beta`` is zero: what would be added to it is not read.

    >>> a = Tensor((2, 8, 4), "float16")
    >>> [part.name for part in parts_of(Op("aten::baddbmm", (a, a, a), {"beta": 0.0, "alpha": 0.125}))]
    ['aten::bmm']
    """
    beta = op.kwargs.get("beta", op.args[3] if len(op.args) > 3 else 1)
    if isinstance(beta, Tensor) or beta != 0:
        return (op,)
    return (Op(PLAIN_PRODUCTS[op.name], op.args[1:3], overload="default", outputs=op.outputs),)


def _linear(x: Tensor, made: int) -> Op:
    """A linear layer that makes so many features."""
    given = x.shape[-1]
    bias, rows = (replace(x, shape=s, stride=None, storage=-1) for s in ((made,), (x.numel // max(1, given), given)))
    weight = replace(x, shape=(given, made), stride=(1, given), storage=-1)
    return Op("aten::addmm", (bias, rows, weight), overload="default")


_PARTS: dict[str, Callable[[Op, Tensor], Sequence[Op]]] = {"aten::_safe_softmax": _safe_softmax}
_GPU_PARTS: dict[str, Callable[[Op, Tensor], Sequence[Op]]] = {
    "aten::convolution_backward": _gradients,
    "aten::cat": _mixed_concat,
    **dict.fromkeys(PLAIN_PRODUCTS, _without_sum),
    "aten::_native_multi_head_attention": _self_attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
}
"""Calls that a CPU does in one go."""


class PartShare(NamedTuple):
    """One part's share of a measured call."""

    kernels: Repeat
    """Its kernels with a cold cache."""
    cold: float
    """Share of the call's time with a cold cache."""
    warm: float


def attribute_kernels(found: Measurement, parts: int) -> list[PartShare] | None:
    """The share of each part in a measured call; None where the kernel names don't tell."""
    from foretrace.cost_models.kernels.families.convolutions import gradients

    kernels = found.cold[0]
    if parts == 1:
        return [PartShare(kernels, 1.0, 1.0)]
    ends = _ends(found.case.op, [name for name, _ in kernels])
    if ends is None:
        return None
    cold, warm = (_shares(repeats, ends) for repeats in (found.cold, found.warm))
    shares = [PartShare(kernels[begin:end], *both) for begin, end, *both in zip([0, *ends], ends, cold, warm)]
    swapped = gradients(found.case.op)[0] is True and any(FILTER_FIRST in name for name, _ in shares[0].kernels)
    return [shares[1], shares[0], *shares[2:]] if swapped else shares


def _shares(repeats: Sequence[Repeat], ends: Sequence[int]) -> list[float]:
    us = np.zeros(len(ends))
    for repeat in repeats:
        us += [sum(us for _, us in repeat[begin:end]) for begin, end in zip([0, *ends], ends)]
    return [float(part) for part in us / us.sum()]


def _ends(op: Op, names: Sequence[str]) -> list[int] | None:
    """Where the kernels of each gradient of a convolution end; None where they don't tell."""
    from foretrace.cost_models.kernels.families.convolutions import gradients

    letters = "".join(next(code for pattern, code in KERNEL_LETTERS if re.search(pattern, n.lower())) for n in names)
    of_input, of_filter, of_bias = ([each is True for each in gradients(op)] + [False] * 3)[:3]
    ends = [len(names)]
    if of_bias:
        last = re.search("m?b$", letters)
        if last is None:
            return None
        ends = [last.start(), *ends]
    if of_input and of_filter:
        first = _input_gradient_end(letters[: ends[0]])
        if first is None:
            return None
        ends = [first, *ends]
    return ends if ends[0] else None


def _input_gradient_end(letters: str) -> int | None:
    """Where the gradient of the input ends and that of the filter begins."""
    begun = INPUT_GRADIENT.match(letters)
    if begun is None or "f" in letters:
        return None
    end = begun.end()
    restoring = next((back for changed, back in RESTORING.items() if changed in begun["before"]), "")
    if letters[end : end + 1] and letters[end] in restoring:
        end += 1
    rest = letters[end:]
    return end if re.search("[Wgd]", rest) and "D" not in rest else None
