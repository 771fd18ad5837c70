"""Chains of calls that a compiler makes kernels of: element-wise ones, and what sums them up."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.platform.cases.draw import Draw

COMPILED = "compiled"
"""The family of compiled kernels."""
OPERANDS = {"whole": 8, "row": 3, "column": 2, "turned": 1}
"""Shapes of a chain's other operands: its own, a row or a column for all, or its own with columns side by side."""
BINARY = {"add": 6, "mul": 5, "sub": 1, "div": 1, "where": 1}
UNARY = {"relu": 2, "gelu": 3, "silu": 2, "tanh": 1, "sigmoid": 1, "exp": 1, "square": 1, "rsqrt": 1, "cast": 3}
ENDINGS = {"": 12, "sum": 2, "columns": 3, "norm": 4, "softmax": 2, "amax": 1, "all": 1}
"""What follows: nothing, or a reduction of rows, columns or all, or what divides by one."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What one kernel is likely to be made of."""

    rows: int
    columns: int
    dtype: str
    operands: tuple[str, ...]
    """Of each operand beside the first, its shape."""
    steps: tuple[str, ...]
    ending: str
    result: str
    """Dtype of what is written."""


def chain_number(number: int, most: int) -> Chain:
    """The chain of this number: always the same one.

    >>> chain_number(3, most=4096) == chain_number(3, most=4096)
    True
    """
    draw = Draw(f"{COMPILED} {number}", most, "cuda")
    numel = draw.whole(min(256, most), most)
    columns = min(numel, draw.size(16, 8192))
    others = tuple(draw.weighted(OPERANDS) for _ in range(draw.weighted({0: 4, 1: 5, 2: 3, 3: 1})))
    steps = [draw.weighted(BINARY) for _ in others] + [draw.weighted(UNARY) for _ in range(draw.whole(1, 4))]
    draw.random.shuffle(steps)
    dtype = draw.dtype()
    result = dtype if draw.chance(0.7) else draw.dtype()
    return Chain(max(1, numel // columns), columns, dtype, others, tuple(steps), draw.weighted(ENDINGS), result)
