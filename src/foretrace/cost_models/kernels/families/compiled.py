"""Compiled and custom kernels: priced from the tensors they are given, and from what their source says.

TorchInductor gives a kernel its tensors, the sizes of its loops, and a stream; what it does with them is in its source
(`foretrace.graph.generated_kernels`). Where that is not known, as in traces of others, its name tells a little:
``triton_red_fused_add_sum_3``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from foretrace.cost_models.kernels.family import PYTORCH_NAMESPACES, CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    alignment,
    log,
    tensors_of,
    wave_quantization,
)
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor
from foretrace.graph.generated_kernels import SECTOR, WARP
from foretrace.graph.op import ITEMSIZE
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Draw

KINDS = {"poi": 1, "red": 2, "per": 3, "tem": 4, "for": 5}
"""By the letters after ``triton_``: pointwise, a looped reduction, a persistent reduction (rows fit into a block), a
template such as a GEMM, and a foreach kernel. Any other kernel is 0."""
POINTWISE, LOOPED, PERSISTENT = 1, 2, 3
LOOPED_ROW = 512
"""A looped reduction is about as fast as a sum over rows of this length."""
HEAVY = re.compile(r"gelu|tanh|erf|sigmoid|silu|pow|log|sin|cos|softplus|mish|rand|dropout|bernoulli")
DIVIDING = re.compile(r"exp|softmax|sqrt|div|norm|var")
INSTRUCTIONS = (1, 12, 40)
"""Instructions for each element, about, by what was fused: see `arithmetic`."""
SELECTING = re.compile(r"embedding|index|gather|scatter")
SECTOR_BYTES = 32
CACHE_BYTES = 64
"""What the L1 cache of a processor delivers in a clock."""
LEAST_US = 0.1
"""Times below this are alike."""
FLOPS = 2.0
"""An instruction of the arithmetic units may do so many operations."""


class KernelWork(NamedTuple):
    """What a generated kernel does."""

    kind: int
    rows: int
    """Results."""
    along: int
    """Elements that are reduced to one; 1 where nothing is reduced."""
    accessed: float
    """Bytes that are read and written."""
    fetched: float
    """The same, with those beside them in the sectors of memory."""
    footprint: float
    """Bytes of memory that are touched."""
    largest: float
    """Those of its largest tensor."""
    instructions: int
    """For each element, about."""
    indirect: int = 0
    atomics: int = 0
    loops: int = 0
    reductions: int = 0
    read: int = 0
    written: int = 0
    read_sectors: int = 0
    written_sectors: int = 0
    """Elements that instructions access, and sectors that they ask for."""
    loads: int = 1
    stores: int = 1
    inner: int = 0
    """Elements that lie in a row along what is reduced."""
    tiled: int = 1
    """Dimensions of a block of threads."""

    @property
    def elements(self) -> int:
        """Elements iterated over."""
        return self.rows * self.along


class Compiled(Family):
    """Kernels that torch.compile generates, and other custom kernels."""

    name = "compiled"
    ops = ()
    min_measurements = 1000  # they differ widely: a model of a few hundred is worse than the proxy
    one_kernel = True
    columns = ("kind", "elements", "rows", "along", "accessed", "fetched", "footprint", "largest", "tensors", "widest",
               "narrowest", "indirect", "atomics", "loops", "reductions", "instructions", "bytes_per_element", "waste",
               "all_instructions", "row_aligned", "along_aligned", "waves", "ragged", "read_sectors",
               "written_sectors", "sectors_per_load", "sectors_per_store", "inner", "loads", "stores",
               "tiled", "memory_us", "arithmetic_us", "cache_us", "together")  # fmt: skip

    def matches(self, op: Op) -> bool:
        """Names are made up by the compiler, so any is accepted."""
        return self.accepts(op)

    def accepts(self, op: Op) -> bool:
        """Calls that are not PyTorch's own, if their tensors are known."""
        return not op.name.startswith(PYTORCH_NAMESPACES) and bool(tensors_of(op))

    def describe(self, op: Op, context: CallContext) -> Description:
        """Loops, traffic and arithmetic."""
        tensors = tensors_of(op)
        work = kernel_work(op, tensors)
        sizes = [t.itemsize for t in tensors]
        device = context.device
        waves = work.elements / (1024 * device.sms)
        arithmetic = float(work.elements) * work.instructions
        features = [
            work.kind, log(work.elements), log(work.rows), log(work.along), log(work.accessed), log(work.fetched),
            log(work.footprint), log(work.largest), len(tensors), max(sizes), min(sizes), work.indirect, work.atomics,
            work.loops, work.reductions, work.instructions, work.fetched / max(1, work.elements),
            work.fetched / max(1.0, work.accessed), log(arithmetic), alignment(work.rows), alignment(work.along),
            log(64 * waves), wave_quantization(waves), log(work.read_sectors), log(work.written_sectors),
            WARP * work.read_sectors / max(1, work.read), WARP * work.written_sectors / max(1, work.written),
            work.inner / max(1, work.read + work.written), work.loads, work.stores, work.tiled,
            *_limits(work, FLOPS * arithmetic, device),
        ]  # fmt: skip
        return Description(features, Work(flops=FLOPS * arithmetic, bytes=work.footprint))

    def is_guess(self, op: Op) -> bool:
        """The name of a kernel that TorchInductor did not generate tells nothing."""
        return not op.name.startswith("triton_")

    def proxy(self, op: Op) -> Op:
        """A PyTorch op that moves as many bytes in the same way."""
        tensors = tensors_of(op)
        work = kernel_work(op, tensors)
        dtype = max(tensors, key=lambda t: t.nbytes).dtype
        dtype = dtype if dtype in ("float32", "bfloat16", "float16") else "float32"
        if work.kind in (LOOPED, PERSISTENT):
            along = work.along if work.kind == PERSISTENT else LOOPED_ROW
            rows = max(1, round(work.fetched / along / ITEMSIZE["float32"]))
            return Op("aten::sum", (Tensor((rows, along), "float32"), [1]), overload="dim_IntList")
        name = "aten::gelu" if work.instructions > INSTRUCTIONS[1] else "aten::relu"
        return Op(name, (Tensor((max(1, round(work.fetched / 2 / ITEMSIZE[dtype])),), dtype),), overload="default")


def _limits(work: KernelWork, flops: float, device: Device) -> list[float]:
    """Logarithms of the microseconds of memory traffic, arithmetic and accesses of caches; and how they add up.

    They overlap in part: their sum is over the roofline.
    """
    memory = work.footprint / device.memory_gbps / 1e3
    arithmetic = flops / device.peak("float32") / 1e6
    cache = SECTOR_BYTES * (work.read_sectors + work.written_sectors) / (CACHE_BYTES * device.sms * device.clock_mhz)
    summed = memory + arithmetic / 4 + cache / 2
    return [*(math.log(us + LEAST_US) for us in (memory, arithmetic, cache)),
            math.log((summed + 1) / (max(memory, arithmetic) + 1))]  # fmt: skip


def kernel_work(op: Op, tensors: list[Tensor]) -> KernelWork:
    """What a kernel does: as its source says, or by its name and the sizes of its loops.

    >>> x, sums = Tensor((4096, 768), "float32"), Tensor((4096,), "float32")
    >>> work = kernel_work(Op("triton_per_fused_sum_0", (x, sums, 4096, 768, 0)), [x, sums])
    >>> work.rows, work.along, work.accessed == x.nbytes + sums.nbytes
    (4096, 768, True)
    """
    kind = KINDS.get(op.name[7:10], 0) if op.name.startswith("triton_") else 0
    accessed: list[Any]
    fetched: list[Any]
    match op.kwargs:
        case {
            "accessed": list(accessed),
            "fetched": list(fetched),
            "rows": int(rows),
            "along": int(along),
            **counts,
        } if len(accessed) == len(fetched) == len(tensors):
            known = {name: n for name, n in counts.items() if name in KernelWork._fields}
            numbers = {name: n for name, n in known.items() if isinstance(n, int) and n >= 0}
        case _:
            rows, along = loops_of(op, kind, tensors)
            accessed = fetched = [min(t.numel, rows * along) for t in tensors]
            numbers = {"instructions": INSTRUCTIONS[arithmetic(op.name)], "reductions": int(along > 1)}
            numbers["indirect"] = int(bool(SELECTING.search(op.name)))
    for done, moved_elements in (("read", sum(_counts(fetched)[:-1])), ("written", sum(_counts(fetched)[-1:]))):
        numbers.setdefault(done, moved_elements)
        numbers.setdefault(f"{done}_sectors", moved_elements // SECTOR)
    touched = [min(n, t.numel) * t.itemsize for n, t in zip(_counts(accessed), tensors)]
    moved, brought = (
        float(sum(n * t.itemsize for n, t in zip(_counts(some), tensors))) for some in (accessed, fetched)
    )
    numbers.setdefault("instructions", 1)
    return KernelWork(kind, rows, along, moved, brought, float(sum(touched)), float(max(touched)), **numbers)


def _counts(values: list[Any]) -> list[int]:
    """Of a recording only numbers are believed."""
    return [value if isinstance(value, int) and value >= 0 else 0 for value in values]


def loops_of(op: Op, kind: int, tensors: list[Tensor]) -> tuple[int, int]:
    """Results of a kernel, and elements that are reduced to one, by its arguments; for others the largest tensor.

    Arguments that are no sizes, such as the offset of a random seed, come first: what is left walks over no more than
    the largest tensor.

    >>> x = Tensor((4096, 768), "float32")
    >>> loops_of(Op("triton_per_fused_sum_0", (x, Tensor((4096,), "float32"), 4096, 768, 0)), PERSISTENT, [x])
    (4096, 768)
    """
    *sizes, _ = [a for a in op.args if isinstance(a, int) and not isinstance(a, bool)] or [0]  # the last is the stream
    largest = max(1, *(t.numel for t in tensors))
    reduces = kind in (LOOPED, PERSISTENT)
    while len(sizes) > 1 + reduces and math.prod(sizes) > largest:
        sizes = sizes[1:]
    if reduces and len(sizes) > 1:
        return math.prod(sizes[:-1]), sizes[-1]
    return (math.prod(sizes) if kind == POINTWISE and sizes else largest), 1


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
