"""Scaled dot-product attention, forward and backward: tiles of each library, and waves of blocks over the SMs."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt, prod
from typing import NamedTuple

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    alignment,
    argument,
    ceil_div,
    dtype_code,
    log,
    tensors_of,
    wave_quantization,
)
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.graph.operators import ATTENTION_PREFIX
from foretrace.platform.measurements.cases import Case, Draw, Shape, strides

CAUSAL = {"flash_attention": 4, "efficient_attention": 6, "cudnn_attention": 6, "flash_attention_backward": 11,
          "efficient_attention_backward": 11, "cudnn_attention_backward": 14}  # fmt: skip
"""Kinds of calls, and the position of each one's ``is_causal``."""
DROPOUT = {"flash_attention": 3, "efficient_attention": 5, "cudnn_attention": 5, "flash_attention_backward": 10,
           "efficient_attention_backward": 9, "cudnn_attention_backward": 13}  # fmt: skip
BIAS = {"efficient_attention": 3, "efficient_attention_backward": 4, "cudnn_attention": 3,
        "cudnn_attention_backward": 8}  # fmt: skip
TILES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "flash_attention": ((64, 128, 128), (192, 128, 64), (256, 64, 64)),
    "flash_attention_backward": ((64, 128, 128), (128, 64, 128), (256, 64, 64)),
    "efficient_attention": ((64, 64, 64), (128, 64, 128), (1 << 30, 32, 128)),
    "efficient_attention_backward": ((64, 64, 64), (1 << 30, 128, 64)),
    "cudnn_attention": ((1 << 30, 128, 128),),
    "cudnn_attention_backward": ((1 << 30, 64, 128),),
}
"""Largest head width, and queries and keys of a tile up to it."""
MAX_DECODED = 16
"""Queries at most of an attention that is decoding, where keys are more."""
WIDTHS = {"flash": (32, 64, 96, 128, 192, 256), "cudnn": (64, 128), "efficient": (32, 64, 128)}
"""Widths that heads are padded to."""


class Tiling(NamedTuple):
    """Blocks of an attention: each takes a tile of queries past all keys; backward, a tile of keys past all queries."""

    blocks: int
    steps: int
    """Tiles that a block passes at most."""
    tiles: float
    """Tiles of all blocks."""
    flops: float
    """Flops of one tile."""


class Attention(Family):
    """Flash, memory-efficient and cuDNN attention."""

    name = "attention"
    share = 18
    cases_per_shape = 2
    slow_to_plan = True
    ops = tuple(ATTENTION_PREFIX + kind for kind in CAUSAL)
    columns = ("op", "dtype", "batch", "heads", "key_heads", "queries", "keys", "dim", "value_dim", "causal",
               "dropout", "masked", "mask_broadcast", "statistics", "flops", "bytes", "packed", "queries_aligned",
               "keys_aligned", "dim_aligned", "blocks", "waves", "ragged", "steps", "step_us", "roof", "longest",
               "padded", "pair_waves", "pair_ragged", "heads_a_key")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Calls whose queries, keys and values are known, but for those of decoding."""
        return self.has_shapes(op) and not is_decoding(op)

    def has_shapes(self, op: Op) -> bool:
        """Whether queries, keys and values are known."""
        tensors = inputs_of(op)
        return len(tensors) == 3 and all(len(t.shape) == 4 for t in tensors)

    def describe(self, op: Op, context: CallContext) -> Description:
        """Sizes, and the tiles of the busiest SM."""
        kind = op.name[len(ATTENTION_PREFIX) :]
        backward = kind.endswith("backward")
        q, k, v = inputs_of(op)
        batch, heads, queries, dim = q.shape
        keys = k.shape[2]
        causal = argument(op, CAUSAL[kind], "is_causal") is True
        share = argument(op, DROPOUT[kind], "dropout_p")
        dropout = isinstance(share, float) and 0.0 < share < 1.0
        bias = _bias(op, kind)
        tiling = _tiling(kind, q, keys, causal, dropout)
        sms = context.device.sms
        waves = tiling.blocks / sms
        # The busiest SM decides, or the longest block.
        tiles = max(tiling.tiles / sms * wave_quantization(waves), tiling.steps)
        moved = (2 * q.nbytes + k.nbytes + v.nbytes) * (2 if backward else 1) + (bias.nbytes if bias else 0)
        rate = "tf32" if q.dtype == "float32" else q.dtype
        work = Work(tiles * sms * tiling.flops, moved, rate)
        needed = 2 * batch * heads * queries * keys * (dim + v.shape[3]) * (2.5 if backward else 1)
        features = [
            self.op_codes[op.name], dtype_code(q.dtype), log(batch), log(heads), log(k.shape[1]), log(queries),
            log(keys), dim, v.shape[3], causal, dropout, bias is not None,
            bias is not None and bias.numel < batch * heads * queries * keys, _statistics(op), log(work.flops),
            log(work.bytes), q.stride is not None and q.stride[2] != dim, alignment(queries), alignment(keys),
            alignment(dim), log(tiling.blocks), log(64 * tiling.blocks / sms), wave_quantization(waves),
            log(tiling.steps), log(tiling.flops), log(64 * work.us(context.device)), tiling.steps / max(1.0, tiles),
            work.flops / max(1, needed), ceil_div(tiling.blocks, sms), wave_quantization(tiling.blocks / (2 * sms)),
            heads / max(1, k.shape[1]),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """An attention in the first turn, its backward in the second."""
        return attention_case(draw, _shapes)


def is_decoding(op: Op) -> bool:
    """Whether an attention has few queries over more keys.

    >>> one, many = Tensor((1, 8, 1, 64), "bfloat16"), Tensor((1, 8, 512, 64), "bfloat16")
    >>> is_decoding(Op("aten::_scaled_dot_product_flash_attention", (one, many, many)))
    True
    """
    queries, keys, _ = inputs_of(op)
    return queries.shape[2] <= MAX_DECODED and queries.shape[2] < keys.shape[2]


def inputs_of(op: Op) -> list[Tensor]:
    """Queries, keys and values; in a backward call the gradient comes before them."""
    tensors = tensors_of(op)
    return tensors[1:4] if op.name.endswith("backward") else tensors[:3]


def on_device(op: Op, attention: str) -> Op:
    """A call as a device with another attention makes it: cuDNN's is the default on Hopper and later GPUs alone.

    >>> q = Tensor((1, 8, 512, 64), "bfloat16")
    >>> on_device(Op("aten::_scaled_dot_product_cudnn_attention", (q, q, q, None, True, 0.0, True)), "flash").name
    'aten::_scaled_dot_product_flash_attention'
    """
    kind = op.name[len(ATTENTION_PREFIX) :]
    if attention == "cudnn" or not op.name.startswith(f"{ATTENTION_PREFIX}cudnn") or kind not in CAUSAL:
        return op
    tensors = inputs_of(op)
    if len(tensors) != 3 or any(len(t.shape) != 4 for t in tensors):
        return op
    q, k, v = tensors
    bias, share = _bias(op, kind), argument(op, DROPOUT[kind], "dropout_p")
    causal = argument(op, CAUSAL[kind], "is_causal") is True
    other = "efficient" if bias is not None else attention
    inputs = Inputs(other, q, k, v, bias, share if isinstance(share, float) else 0.0, causal)
    return _backward(inputs) if kind.endswith("backward") else _forward(inputs)


def tiles_of(op: Op) -> int:
    """Tiles of queries of an attention, or of keys of its backward, which blocks take; 0 of other calls."""
    kind, inputs = op.name[len(ATTENTION_PREFIX) :], inputs_of(op)
    if not op.name.startswith(ATTENTION_PREFIX) or kind not in TILES or len(inputs) != 3:
        return 0
    return _tiling(kind, inputs[0], inputs[1].shape[2], False, False).blocks if len(inputs[0].shape) == 4 else 0


def _tiling(kind: str, q: Tensor, keys: int, causal: bool, dropout: bool) -> Tiling:
    batch, heads, queries, dim = q.shape
    rows, columns = next(((a, b) for most, a, b in TILES[kind] if dim <= most), TILES[kind][-1][1:])
    if dropout and kind == "flash_attention" and dim in range(33, 129):
        columns = 64 if dim <= 96 else 32
    backward = kind.endswith("backward")
    down, across = ceil_div(queries, rows), ceil_div(keys, columns)
    blocks, steps = (across, down) if backward else (down, across)
    tiles = float(down * across)
    if causal:
        tiles = tiles / 2 + min(down, across) / 2  # the tiles on the diagonal are computed whole
    count = batch * heads
    padded = next((width for width in WIDTHS[kind.partition("_")[0]] if dim <= width), dim)
    return Tiling(count * blocks, steps, count * tiles, rows * columns * padded * (10 if backward else 4))


def _bias(op: Op, kind: str) -> Tensor | None:
    found = argument(op, BIAS[kind], "attn_bias") if kind in BIAS else None
    return found if isinstance(found, Tensor) and len(found.shape) >= 2 else None


def _statistics(op: Op) -> int:
    """The options that are on, as bits; whether the log-sum-exp is stored for backward is among them."""
    return sum(1 << i for i, a in enumerate(a for a in op.args if isinstance(a, (bool, float))) if a is True)


# Cases to measure

KINDS = {"cuda": {"cudnn": 4, "flash": 5, "efficient": 6}, "cpu": {"cpu": 1}}
HEAD_WIDTHS = {32: 3, 48: 1, 64: 9, 72: 1, 80: 2, 96: 2, 128: 8, 160: 1, 192: 1, 256: 2}
"""Head widths, with how often each is drawn."""
MAX_SCORES = {"cpu": 2**20, "float32": 2**28, "float16": 2**31, "bfloat16": 2**31}
"""Pairs of a query and a key at most: a larger attention takes a good part of a second."""


class Inputs(NamedTuple):
    """What an attention and its backward have in common."""

    kind: str
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    dropout: float
    causal: bool

    @property
    def scale(self) -> dict[str, Value]:
        """The scale of the scores."""
        return {"scale": self.query.shape[-1] ** -0.5}

    @property
    def name(self) -> str:
        """The forward call's name."""
        style = "flash_attention_for_cpu" if self.kind == "cpu" else f"{self.kind}_attention"
        return f"aten::_scaled_dot_product_{style}"


def attention_case(draw: Draw, shapes: Callable[[Draw, str, str], tuple[Shape, Shape]]) -> Case:
    """A forward or its backward, by the turn, with shapes of the query and of the key drawn by a function."""
    kind = draw.weighted(KINDS[draw.kind])
    dtype = draw.weighted({"bfloat16": 5, "float16": 2})
    if kind == "cpu" or (kind == "efficient" and draw.chance(0.5)):
        dtype = "float32"
    query, key = shapes(draw, kind, dtype)
    inputs = _draw_inputs(draw, query, key, dtype)
    causal = query[2] == key[2] and draw.chance(0.5)
    dropout = 0.1 if kind != "cpu" and draw.chance(0.3) else 0.0
    bias = None
    scores = (*query[:3], key[2])
    biased = {"efficient": 0.5, "cudnn": 0.15}.get(kind, 0.0)
    if not causal and prod(scores) <= 2 * draw.most and draw.chance(biased):
        bias = _draw_bias(draw, scores, dtype)
    attention = Inputs(kind, *inputs, bias, dropout, causal)
    return Case(_backward(attention) if draw.turn else _forward(attention))


def _shapes(draw: Draw, kind: str, dtype: str) -> tuple[Shape, Shape]:
    """Batch, heads, length and width of the queries, and of the keys, which may have other heads and another length."""
    width = draw.weighted({w: often for w, often in HEAD_WIDTHS.items() if w <= 128 or kind != "cudnn"})
    scores = MAX_SCORES["cpu" if kind == "cpu" else dtype]
    length = draw.size(16, max(16, min(8192, draw.most // width, isqrt(scores))))
    others = draw.size(16, length) if draw.chance(0.12) else length
    pairs = max(1, min(65536, draw.most // (length * width), scores // (length * others)))
    heads = min(draw.whole(1, 64) if draw.chance(0.3) else draw.one((4, 6, 8, 12, 16, 20, 24, 32, 40, 64)), pairs)
    batch = draw.whole(1, max(1, min(4096, pairs // heads)))
    grouped = kind in ("cudnn", "flash") and draw.chance(0.2)
    shared = draw.one([n for n in (1, 2, 4, 8) if heads % n == 0]) if grouped else 1
    return (batch, heads, length, width), (batch, heads // shared, others, width)


def decoding_shapes(draw: Draw, kind: str, dtype: str) -> tuple[Shape, Shape]:
    """One or few new tokens over a cache of keys, as `_shapes` gives them."""
    width = draw.weighted({w: often for w, often in HEAD_WIDTHS.items() if w <= 128 or kind != "cudnn"})
    cached = draw.size(32, max(32, min(32768, draw.most // width)))
    heads = min(draw.one((4, 8, 12, 16, 24, 32, 40, 64)), max(1, draw.most // (cached * width)))
    batch = draw.whole(1, max(1, min(512, draw.most // (cached * width * heads))))
    shared = draw.one([n for n in (1, 1, 2, 4, 8) if heads % n == 0]) if kind in ("cudnn", "flash") else 1
    return (batch, heads, draw.one((1, 1, 1, 2, 4, 8, 16)), width), (batch, heads // shared, cached, width)


def _draw_inputs(draw: Draw, query: Shape, key: Shape, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value: one contiguous tensor per head, or views into separate or packed projections."""
    style = draw.weighted({"rows": 5, "packed": 4, "length first": 2, "dense": 2, "cached": 2})
    if style == "packed" and query == key:
        _, heads, length, width = query
        row = heads * width
        stride = (3 * length * row, width, 3 * row, 1)
        q, k, v = (Tensor(query, dtype, stride=stride, offset=part * row, storage=0) for part in range(3))
        return q, k, v
    orders = {"length first": (2, 0, 1, 3), "dense": (0, 1, 2, 3)}
    order = orders.get(style, (0, 2, 1, 3))
    # Keys and values concatenated to cached ones are contiguous, while the query is a view into its projection.
    other = (0, 1, 2, 3) if style == "cached" else order
    q = Tensor(query, dtype, stride=strides(query, order), storage=0)
    k, v = (Tensor(key, dtype, stride=strides(key, other), storage=number) for number in (1, 2))
    return q, k, v


def _draw_bias(draw: Draw, shape: Shape, dtype: str) -> Tensor:
    """A bias on the scores: shared by heads (a mask), shared by samples (positions), or full."""
    padded = (*shape[:3], -(-shape[3] // 16) * 16)
    style = draw.weighted({"heads": 5, "samples": 2, "own": 1})
    shared = {"heads": (1,), "samples": (0,), "own": ()}[style]
    steps = strides(tuple(1 if dim in shared else size for dim, size in enumerate(padded)))
    return Tensor(shape, dtype, stride=tuple(0 if dim in shared else step for dim, step in enumerate(steps)), storage=3)


def _forward(a: Inputs) -> Op:
    qkv = (a.query, a.key, a.value)
    rest: dict[str, tuple[Value, ...]] = {
        "cudnn": (a.bias, True, a.dropout, a.causal),
        "flash": (a.dropout, a.causal),
        "efficient": (a.bias, True, a.dropout, a.causal),
        "cpu": (0.0, a.causal),
    }
    return Op(a.name, (*qkv, *rest[a.kind]), a.scale, overload="default")


def _backward(a: Inputs) -> Op:
    qkv = (a.query, a.key, a.value)
    batch, heads, length, _ = a.query.shape
    others = a.key.shape[2]
    out = Tensor(a.query.shape, a.query.dtype, stride=strides(a.query.shape, (0, 2, 1, 3)))
    # The efficient kernel pads the log-sum-exp to multiples of 32.
    sums = {"cudnn": (batch, heads, length, 1), "efficient": (batch, heads, -(-length // 32) * 32)}
    logsumexp = Tensor(sums.get(a.kind, (batch, heads, length)), "float32")
    seed = Tensor((2,), "uint64") if a.kind == "flash" else Tensor((), "int64")
    offset = Tensor((), "int64")
    lengths = (length, others)
    wanted: list[Value] = [True, True, True, False]
    args: dict[str, tuple[Value, ...]] = {
        "cudnn": (out, *qkv, out, logsumexp, seed, offset, a.bias, None, None, *lengths, a.dropout, a.causal),
        "flash": (out, *qkv, out, logsumexp, None, None, *lengths, a.dropout, a.causal, seed, offset),
        "efficient": (out, *qkv, a.bias, out, logsumexp, seed, offset, a.dropout, wanted, a.causal),
        "cpu": (out, *qkv, out, logsumexp, 0.0, a.causal),
    }
    return Op(f"{a.name}_backward", args[a.kind], a.scale, overload="default")
