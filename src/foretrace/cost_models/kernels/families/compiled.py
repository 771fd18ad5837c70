"""Compiled and custom kernels: priced from the tensors they are given, and from what their names tell.

TorchInductor names a kernel after what it does, ``triton_red_fused_add_sum_3``, and gives it its tensors, the sizes of
its loops, and a stream. Which tensors it writes is not known.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from foretrace.cost_models.kernels.family import PYTORCH_NAMESPACES, CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    alignment,
    dtype_code,
    is_contiguous,
    log,
    tensors_of,
    wave_quantization,
)
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor
from foretrace.graph.op import ITEMSIZE
from foretrace.platform.measurements.cases import Draw

KINDS = {"poi": 1, "red": 2, "per": 3, "tem": 4, "for": 5}
"""By the letters after ``triton_``: pointwise, a looped reduction, a persistent reduction (rows fit into a block), a
template such as a GEMM, and a foreach kernel. Any other kernel is 0."""
POINTWISE, LOOPED, PERSISTENT = 1, 2, 3
LOOPED_ROW = 512
"""A looped reduction is about as fast as a sum over rows of this length."""
HEAVY = re.compile(r"gelu|tanh|erf|sigmoid|silu|pow|log|sin|cos|softplus|mish|rand|dropout|bernoulli")
DIVIDING = re.compile(r"exp|softmax|sqrt|div|norm|var")
SELECTING = re.compile(r"embedding|index|gather|scatter|slice|cat")


class Loops(NamedTuple):
    """The iteration space of a kernel."""

    kind: int
    rows: int
    along: int
    """Elements of a row that are reduced to one; 1 where nothing is reduced."""

    @property
    def elements(self) -> int:
        """Elements iterated over."""
        return self.rows * self.along


class Compiled(Family):
    """Kernels that torch.compile generates, and other custom kernels."""

    name = "compiled"
    ops = ()
    min_measurements = 1000  # random chains differ widely: a model of a few hundred is worse than the proxy
    one_kernel = True
    columns = ("kind", "elements", "rows", "along", "bytes", "tensors", "whole", "broadcast", "gathered", "largest",
               "dtype", "last_dtype", "itemsize", "uneven", "arithmetic", "selecting", "words", "row_aligned",
               "along_aligned", "waves", "ragged")  # fmt: skip

    def matches(self, op: Op) -> bool:
        """Names are made up by the compiler, so any is accepted."""
        return self.accepts(op)

    def accepts(self, op: Op) -> bool:
        """Calls that are not PyTorch's own, if their tensors are known."""
        return not op.name.startswith(PYTORCH_NAMESPACES) and bool(tensors_of(op))

    def describe(self, op: Op, context: CallContext) -> Description:
        """Loops and traffic; of a tensor larger than the iteration space only that much is touched."""
        tensors = tensors_of(op)
        loops = loops_of(op, tensors)
        moved = traffic(loops, tensors)
        largest = max(tensors, key=lambda t: t.nbytes)
        touched = sum(min(t.numel, loops.elements) for t in tensors)
        waves = loops.elements / (1024 * context.device.sms)
        features = [
            loops.kind, log(loops.elements), log(loops.rows), log(loops.along), log(moved), len(tensors),
            sum(t.numel == loops.elements for t in tensors), sum(t.numel < loops.elements for t in tensors),
            sum(t.numel > loops.elements for t in tensors), log(largest.nbytes), dtype_code(largest.dtype),
            dtype_code(tensors[-1].dtype), moved / max(1, touched), sum(not is_contiguous(t) for t in tensors),
            arithmetic(op.name), bool(SELECTING.search(op.name)), op.name.count("_"), alignment(loops.rows),
            alignment(loops.along), log(64 * waves), wave_quantization(waves),
        ]  # fmt: skip
        return Description(features, Work(flops=float(loops.elements), bytes=float(moved)))

    def is_guess(self, op: Op) -> bool:
        """The name of a kernel that TorchInductor did not generate tells nothing."""
        return not op.name.startswith("triton_")

    def proxy(self, op: Op) -> Op:
        """A PyTorch op that moves as many bytes in the same way."""
        tensors = tensors_of(op)
        loops = loops_of(op, tensors)
        moved = traffic(loops, tensors)
        dtype = max(tensors, key=lambda t: t.nbytes).dtype
        dtype = dtype if dtype in ("float32", "bfloat16", "float16") else "float32"
        if loops.kind in (LOOPED, PERSISTENT):
            along = loops.along if loops.kind == PERSISTENT else LOOPED_ROW
            rows = max(1, round(moved / along / ITEMSIZE["float32"]))
            return Op("aten::sum", (Tensor((rows, along), "float32"), [1]), overload="dim_IntList")
        name = "aten::gelu" if arithmetic(op.name) > 1 else "aten::relu"
        return Op(name, (Tensor((max(1, round(moved / 2 / ITEMSIZE[dtype])),), dtype),), overload="default")


def loops_of(op: Op, tensors: list[Tensor]) -> Loops:
    """The iteration space of a kernel: as TorchInductor gives it, for others the largest tensor.

    >>> x = Tensor((4096, 768), "float32")
    >>> loops_of(Op("triton_per_fused_sum_0", (x, Tensor((4096,), "float32"), 4096, 768, 0)), [x])
    Loops(kind=3, rows=4096, along=768)
    """
    kind = KINDS.get(op.name[7:10], 0) if op.name.startswith("triton_") else 0
    *sizes, _ = [a for a in op.args if isinstance(a, int) and not isinstance(a, bool)] or [0]  # the last is the stream
    largest = max((t.numel for t in tensors), default=1)
    if kind in (LOOPED, PERSISTENT) and len(sizes) > 1:
        return Loops(kind, math.prod(sizes[:-1]), sizes[-1])
    return Loops(kind, math.prod(sizes) if kind == POINTWISE and sizes else max(1, largest), 1)


def traffic(loops: Loops, tensors: list[Tensor]) -> int:
    """Bytes that a kernel moves at least: each tensor once, and no more of it than the iteration space.

    >>> traffic(Loops(1, 8, 1), [Tensor((8,), "float32"), Tensor((100,), "float32")])
    64
    """
    return sum(min(t.numel, loops.elements) * t.itemsize for t in tensors)


def arithmetic(name: str) -> int:
    """Arithmetic per element, by what was fused: light (0), a division or exponential (1), heavy (2).

    >>> arithmetic("triton_poi_fused_add_0"), arithmetic("triton_poi_fused_gelu_0")
    (0, 2)
    """
    return 2 if HEAVY.search(name) else int(bool(DIVIDING.search(name)))


# Cases to measure

COMPILED = "compiled"
"""The family of compiled kernels."""
OPERANDS = {"whole": 8, "row": 3, "column": 2, "transposed": 1}
"""Shapes of a chain's other operands: the same, a broadcast row or column, or the same transposed."""
BINARY = {"add": 6, "mul": 5, "sub": 1, "div": 1, "where": 1}
UNARY = {"relu": 2, "gelu": 3, "silu": 2, "tanh": 1, "sigmoid": 1, "exp": 1, "square": 1, "rsqrt": 1, "cast": 3}
ENDINGS = {"": 12, "sum": 2, "columns": 3, "norm": 4, "softmax": 2, "amax": 1, "all": 1}
"""How a chain ends: elementwise, with a reduction of rows, columns or all, or with a normalization."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of calls that is compiled to about one kernel."""

    rows: int
    columns: int
    dtype: str
    operands: tuple[str, ...]
    """The shape of each operand but the first."""
    steps: tuple[str, ...]
    ending: str
    result: str
    """Dtype of the output."""


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
