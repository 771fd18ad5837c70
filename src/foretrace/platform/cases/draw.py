"""Random sizes, shapes and layouts as training steps have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TypeVar

from foretrace.graph import Tensor

T = TypeVar("T")
Shape = tuple[int, ...]

DTYPES = {"bfloat16": 9, "float32": 8, "float16": 3}
"""Floats of training steps, with how often each is drawn."""


class Draw:
    """A source of random choices; the same seed gives the same ones.

    Parameters
    ----------
    seed
        Any text.
    most
        Elements that the largest tensor of a case has, about.
    kind
        The device's kind, ``cuda`` or ``cpu``: some calls exist on one of them only.
    turn
        Which of the calls that are made with the same seed: 0 is a forward, 1 its backward.

    >>> Draw("a", most=4096, kind="cuda").size(16, 64) == Draw("a", most=4096, kind="cuda").size(16, 64)
    True
    """

    def __init__(self, seed: str, most: int, kind: str, turn: int = 0) -> None:
        self.random = Random(seed)
        self.most = most
        self.kind = kind
        self.turn = turn

    def one(self, choices: Sequence[T]) -> T:
        """One of several, all equally likely."""
        return self.random.choice(choices)

    def weighted(self, weights: dict[T, int]) -> T:
        """One of several, as often as its weight says."""
        return self.random.choices(list(weights), list(weights.values()))[0]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def whole(self, low: int, high: int) -> int:
        """A whole number, uniform over the logarithm, both ends included."""
        high = max(low, high)
        return min(high, int(math.exp(self.random.uniform(math.log(low), math.log(high + 1)))))

    def size(self, low: int, high: int) -> int:
        """A dimension: often a power of two or a multiple of 64 or 8, sometimes any number.

        >>> 16 <= Draw("b", most=4096, kind="cuda").size(16, 100) <= 100
        True
        """
        number = self.whole(low, high)
        style = self.random.random()
        if style < 0.3:
            number = 2 ** round(math.log2(number))
        elif style < 0.85:
            step = 64 if style < 0.6 else 8
            number = round(number / step) * step or number
        return max(low, min(max(low, high), number))

    def dtype(self) -> str:
        """A float type, as often as training steps use it."""
        return self.weighted(DTYPES)

    def shape(self, dims: int, low: int = 1024, high: int | None = None) -> Shape:
        """Sizes whose product lies between two numbers of elements, spread over the logarithm.

        >>> math.prod(Draw("c", most=4096, kind="cuda").shape(3)) <= 4096
        True
        """
        high = min(high or self.most, self.most)
        left = self.whole(min(low, high), high)
        sizes = []
        for rest in range(dims - 1, 0, -1):
            # The last dimension of a tensor is seldom tiny: let the ones before it take their part first.
            taken = self.size(1, max(1, int(left ** (1 / (rest + 1) * self.random.uniform(0.3, 1.7)))))
            taken = min(taken, left)
            sizes.append(taken)
            left //= taken
        return (*sizes, max(1, left if self.chance(0.3) else self.size(max(1, left // 2), left)))

    def activation(self, dtype: str | None = None) -> Tensor:
        """A tensor that flows between layers: of rank 1 to 4, dense; sometimes a loss, a norm or a tiny vector."""
        if self.chance(0.05):
            return Tensor(self.one(((), (1,), (self.whole(1, min(1024, self.most)),))), dtype or self.dtype())
        dims = self.weighted({1: 1, 2: 3, 3: 4, 4: 2})
        return Tensor(self.shape(dims), dtype or self.dtype())

    def layout(self, shape: Shape) -> Shape | None:
        """Strides of a tensor as views leave them: mostly dense, else two dimensions exchanged, sliced or repeated."""
        if len(shape) < 2 or self.chance(0.7):
            return None
        style = self.weighted({"turned": 10, "sliced": 4, "repeated": 1})
        if style == "sliced" and math.prod(shape) * 8 <= self.most:
            # Part of each row of a wider tensor: a head's half in a rotary embedding, one of several projections.
            return strides((*shape[:-1], shape[-1] * self.one((2, 2, 3, self.whole(2, 8)))))
        if style == "repeated":
            # The gradient of a mean, or a tensor broadcast to a batch.
            known = strides(shape)
            return (0, *known[1:]) if self.chance(0.4) else (*strides(shape[:-2]), 0, 0)
        order = list(range(len(shape)))
        if len(shape) == 4 and self.chance(0.7):
            order = self.one(([0, 2, 3, 1], [0, 2, 1, 3]))  # channels last; heads still side by side in a row
        else:
            first = self.random.randrange(len(shape) - 1)
            second = self.random.randrange(first + 1, len(shape))
            order[first], order[second] = order[second], order[first]
        return strides(shape, order)


def strides(shape: Shape, order: Sequence[int] | None = None) -> Shape:
    """Strides of a dense tensor whose dimensions lie in memory in this order, the outermost first.

    >>> strides((4, 8)), strides((4, 8), (1, 0))
    ((8, 1), (1, 4))
    """
    result, step = [0] * len(shape), 1
    for dim in reversed(order if order is not None else range(len(shape))):
        result[dim] = step
        step *= shape[dim]
    return tuple(result)
