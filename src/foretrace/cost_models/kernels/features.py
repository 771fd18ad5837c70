"""Building blocks of features: arguments of a call as numbers, layouts of its tensors, and the reuse of table rows.

An argument that is absent or of another type gives a default, never an error.
"""

from __future__ import annotations

import math

from foretrace.graph import Constant, Indices, Op, Tensor
from foretrace.graph.op import ITEMSIZE, contiguous_strides, tensors_in

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Dtypes that have their own code, by position; any other counts as the first of its size."""
DTYPE_CODES = {
    dtype: DTYPES.index(next((d for d in (dtype, *DTYPES) if d in DTYPES and ITEMSIZE[d] == size), DTYPES[0]))
    for dtype, size in ITEMSIZE.items()
}
REUSE_COLUMNS = ("unique", "unique_share", "hottest", "hits", "often", "rows_hit")
"""Names of what `reuse_features` gives."""
WARP = 32
"""Threads of a GPU that run in step."""
RESIDENT = 2048
"""Threads that an SM holds at once, on the H200 and most others for data centres."""
SECTOR = 32
"""Bytes of a memory sector: what is moved at least."""
WIDEST_LOAD = 16
"""Bytes of the widest load of a thread."""
BLOCK_SORT = 5888
"""Keys up to which one block sorts them."""
SERIAL_ROUND_TRIPS = 0.4
"""Memory round trips per row or element that is accumulated serially."""
MANY_HITS = 64
"""Mean hits per row from which on all rows have about as many."""


def log(value: float) -> float:
    """Base-2 logarithm of a size; 0 for sizes up to one.

    >>> log(8), log(0)
    (3.0, 0.0)
    """
    return math.log2(value) if value > 1 else 0.0


def alignment(size: int) -> int:
    """The largest power of two up to 64 that divides a size: it decides on vector loads and tiles.

    >>> alignment(48), alignment(7), alignment(0)
    (16, 1, 64)
    """
    return min(size & -size, 64) if size else 64


def ceil_div(count: float, size: float) -> int:
    """How many pieces of a size a count takes."""
    return -int(-count // size) if size > 0 else 0


def wave_quantization(waves: float) -> float:
    """Factor by which rounding up to whole waves lengthens the work.

    >>> wave_quantization(1.5), wave_quantization(0)
    (1.3333333333333333, 1.0)
    """
    return math.ceil(waves) / waves if waves > 0 else 1.0


def dtype_code(dtype: str) -> int:
    """A number for a dtype.

    >>> dtype_code("bfloat16"), dtype_code("float8_e4m3fn")
    (1, 7)
    """
    return DTYPE_CODES.get(dtype, len(DTYPES))


def argument(op: Op, place: int, name: str, default: object = None) -> object:
    """An argument by position or by name; the default where it is absent or None."""
    found = op.args[place] if 0 <= place < len(op.args) else op.kwargs.get(name)
    return default if found is None else found


def int_argument(op: Op, place: int, name: str, default: int) -> int:
    """An argument that is an integer."""
    found = argument(op, place, name)
    return found if isinstance(found, int) and not isinstance(found, bool) else default


def int_list_argument(op: Op, place: int, name: str, count: int, default: int) -> list[int]:
    """An argument that is a list of integers, one of which may stand for all."""
    found = argument(op, place, name)
    listed = ints_in(found) if isinstance(found, (list, tuple)) else [found] if isinstance(found, int) else []
    if len(listed) < count:
        listed = [*listed, *(listed[-1:] or [default]) * (count - len(listed))]
    return listed[:count]


def ints_in(values: object) -> list[int]:
    """The integers of a list; of anything else none."""
    return [v for v in values if isinstance(v, int)] if isinstance(values, (list, tuple)) else []


def bool_argument(op: Op, place: int, name: str) -> bool:
    """An argument that is true or false; absent is false."""
    return argument(op, place, name) is True


def bitmask(values: object) -> int:
    """The true values of a list as bits."""
    return sum(1 << i for i, v in enumerate(values) if v is True) if isinstance(values, (list, tuple)) else 0


def dtype_argument(op: Op, default: str) -> str:
    """The ``dtype`` argument."""
    found = op.kwargs.get("dtype")
    return found.value if isinstance(found, Constant) and found.kind == "dtype" else default


def tensors_of(op: Op) -> list[Tensor]:
    """Every tensor among the arguments, like `Op.tensors`, faster where few arguments are tensors."""
    found: list[Tensor] = []
    for value in (*op.args, *op.kwargs.values()) if op.kwargs else op.args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple, dict)) and not isinstance(value, Constant):
            found.extend(tensors_in(value))
    return found


def strides_of(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor, contiguous where they are unknown."""
    stride = tensor.stride
    return stride if stride is not None and len(stride) == len(tensor.shape) else contiguous_strides(tensor.shape)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has neither holes nor overlaps in memory, in any order of its dimensions.

    >>> is_dense(Tensor((8, 4), "float32", stride=(1, 8))), is_dense(Tensor((8, 4), "float32", stride=(8, 1)))
    (True, False)
    """
    step = 1
    for stride, size in sorted(zip(tensor.stride or contiguous_strides(tensor.shape), tensor.shape)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def channels_last(tensor: Tensor) -> bool:
    """Whether channels are innermost in memory."""
    stride = tensor.stride
    return stride is not None and len(stride) > 2 and len(tensor.shape) > 2 and stride[1] == 1 and tensor.shape[1] > 1


def reuse_features(found: Indices) -> tuple[float, ...]:
    """How often rows are accessed, which decides how much of a lookup the caches serve; see `REUSE_COLUMNS`.

    >>> [round(x, 2) for x in reuse_features(uniform_indices(rows=1000, count=1000))]
    [9.3, 0.63, 3.0, 1.58, 0.0, 0.63]
    """
    unique = max(1, found.unique)
    hits = [n * 1.5 * 2**k for k, n in enumerate(found.reuse)]
    often = sum(hits[5:]) / (sum(hits) or 1.0)  # of rows with at least 32 hits
    return (log(unique), unique / max(1, found.count), float(len(found.reuse)), found.count / unique, often,
            unique / max(1, found.rows))  # fmt: skip


def hottest_row_hits(found: Indices) -> float:
    """Hits of the most accessed row, by the last bin of the histogram.

    >>> hottest_row_hits(Indices(op=-1, rows=9, count=12, unique=3, bags=12, reuse=(0, 0, 3)))
    6.0
    """
    return 1.5 * 2 ** (len(found.reuse) - 1) if len(found.reuse) > 1 else 1.0


def max_row_hits(found: Indices) -> float:
    """The same more closely: what the other bins leave of all hits to the rows in the last bin.

    >>> max_row_hits(Indices(op=-1, rows=9, count=107, unique=3, bags=107, reuse=(2, 0, 0, 0, 0, 0, 1)))
    105.0
    """
    last = len(found.reuse) - 1
    if last < 1 or not found.reuse[last]:
        return 1.0
    others = sum(rows * 1.5 * 2**k if k else rows for k, rows in enumerate(found.reuse[:last]))
    return float(min(max((found.count - others) / found.reuse[last], 2**last), 2 ** (last + 1) - 1))


def uniform_indices(rows: int, count: int) -> Indices:
    """Statistics of ids drawn uniformly from the rows: hits per row follow a Poisson distribution.

    >>> uniform_indices(10, 0).unique
    0
    """
    rows = max(1, rows)
    mean = count / rows
    if mean >= MANY_HITS:
        histogram = [0] * int(math.log2(mean)) + [rows]
    else:
        histogram = [round(rows * share) for share in _poisson_shares(mean)]
        while histogram and not histogram[-1]:
            histogram.pop()
    unique = round(rows * -math.expm1(-mean))
    return Indices(op=-1, rows=rows, count=count, unique=unique, bags=count, reuse=tuple(histogram))


def _poisson_shares(mean: float) -> list[float]:
    """Share of the rows with one hit, two or three, four to seven, and so on."""
    term, hits = math.exp(-mean), 0
    shares: list[float] = []
    while 2 ** len(shares) <= mean + 6 * math.sqrt(mean) + 8:
        share = 0.0
        for _ in range(2 ** len(shares)):
            hits += 1
            term *= mean / hits
            share += term
        shares.append(share)
    return shares
