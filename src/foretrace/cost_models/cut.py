"""Which of a measured call's kernels, and what share of its time, belong to each of the calls that it is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from foretrace.cost_models.families.convolutions import gradients
from foretrace.graph import Op
from foretrace.platform.measurements import Measurement, Repeat

LETTERS = (
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
"""A letter for what a kernel does by its name, the first that fits: changes of layout, gradients of filter and input,
sums, copies, padding, products, others."""
FIRST = re.compile("(?P<before>[empo<>]*)(D+|gr?|d)")
"""How a gradient of the input begins: what is turned around first, then the product."""
BACK = {">": "<", "<": ">", "p": "p<"}
"""What turns a result back, by what turned the tensors around before."""
FILTER_FIRST = "conv_depthwise2d_grad_weight"
"""Where PyTorch itself makes the gradients, with this kernel, that of the filter comes before that of the input."""


class Share(NamedTuple):
    """What a part of a call has of the whole."""

    kernels: Repeat
    """With a cold cache."""
    cold: float
    """Share of the time of all."""
    warm: float


def cut(found: Measurement, parts: int) -> list[Share] | None:
    """The share of each part in a measured call; None where its kernels don't tell.

    >>> from foretrace.platform.cases import Case
    >>> both = Op("aten::convolution_backward", kwargs={"output_mask": [True, True, False]})
    >>> ran = [("dgrad_128x64", 3.0), ("Memset (Device)", 1.0), ("wgrad_64x64", 4.0)]
    >>> [(share.cold, len(share.kernels)) for share in cut(Measurement(Case(both), [ran], [ran]), 2)]
    [(0.375, 1), (0.625, 2)]
    """
    kernels = found.cold[0]
    if parts == 1:
        return [Share(kernels, 1.0, 1.0)]
    ends = _ends(found.case.op, [name for name, _ in kernels])
    if ends is None:
        return None
    cold, warm = (_shares(repeats, ends) for repeats in (found.cold, found.warm))
    shares = [Share(kernels[begin:end], *both) for begin, end, *both in zip([0, *ends], ends, cold, warm)]
    turned = gradients(found.case.op)[0] is True and any(FILTER_FIRST in name for name, _ in shares[0].kernels)
    return [shares[1], shares[0], *shares[2:]] if turned else shares


def _shares(repeats: Sequence[Repeat], ends: Sequence[int]) -> list[float]:
    us = np.zeros(len(ends))
    for repeat in repeats:
        us += [sum(us for _, us in repeat[begin:end]) for begin, end in zip([0, *ends], ends)]
    return [float(part) for part in us / us.sum()]


def _ends(op: Op, names: Sequence[str]) -> list[int] | None:
    """Where the kernels of each gradient of a convolution end; None where they don't tell."""
    letters = "".join(next(letter for words, letter in LETTERS if re.search(words, name.lower())) for name in names)
    of_input, of_filter, of_bias = ([each is True for each in gradients(op)] + [False] * 3)[:3]
    ends = [len(names)]
    if of_bias:
        last = re.search("m?b$", letters)
        if last is None:
            return None
        ends = [last.start(), *ends]
    if of_input and of_filter:
        first = _first(letters[: ends[0]])
        if first is None:
            return None
        ends = [first, *ends]
    return ends if ends[0] else None


def _first(letters: str) -> int | None:
    """Where the gradient of the input ends and that of the filter begins."""
    begun = FIRST.match(letters)
    if begun is None or "f" in letters:
        return None
    end = begun.end()
    back = next((back for turned, back in BACK.items() if turned in begun["before"]), "")
    if letters[end : end + 1] and letters[end] in back:
        end += 1
    rest = letters[end:]
    return end if re.search("[Wgd]", rest) and "D" not in rest else None
