"""Scaled dot-product attention, forward and backward: the tiles each library cuts it into, and who works on them."""

from __future__ import annotations

from typing import NamedTuple

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import alignment, argument, dtype_code, log, per, ragged, tensors_of
from foretrace.graph import Op, Tensor

PREFIX = "aten::_scaled_dot_product_"
CAUSAL = {"flash_attention": 4, "efficient_attention": 6, "cudnn_attention": 6, "flash_attention_backward": 11,
          "efficient_attention_backward": 11, "cudnn_attention_backward": 14}  # fmt: skip
"""Kinds of calls, and where each says whether it is causal."""
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
"""Queries and keys of a tile, for heads up to a width."""
WIDTHS = {"flash": (32, 64, 96, 128, 192, 256), "cudnn": (64, 128), "efficient": (32, 64, 128)}
"""Widths that heads are filled up to."""


class Cut(NamedTuple):
    """How an attention is shared out: a block takes a tile of queries past all keys; backward, of keys past queries."""

    blocks: int
    steps: int
    """Tiles that a block passes, at most."""
    passed: float
    """Tiles that all blocks pass together."""
    flops: float
    """Of one tile."""


class Attention(Family):
    """Queries, keys and values to outputs; or gradients of them."""

    name = "attention"
    ops = tuple(PREFIX + kind for kind in CAUSAL)
    columns = ("op", "dtype", "batch", "heads", "key_heads", "queries", "keys", "dim", "value_dim", "causal",
               "dropout", "masked", "mask_broadcast", "statistics", "flops", "bytes", "packed", "queries_aligned",
               "keys_aligned", "dim_aligned", "blocks", "waves", "ragged", "steps", "step_us", "roof", "longest",
               "padded", "pair_waves", "pair_ragged", "heads_a_key")  # fmt: skip

    def takes(self, op: Op) -> bool:
        """Calls whose tensors are known."""
        tensors = _inputs(op)
        return len(tensors) == 3 and all(len(t.shape) == 4 for t in tensors)

    def describe(self, op: Op, facts: Facts) -> Described:
        """Sizes, and blocks of tiles over the processors."""
        kind = op.name[len(PREFIX) :]
        backward = kind.endswith("backward")
        q, k, v = _inputs(op)
        batch, heads, queries, dim = q.shape
        keys = k.shape[2]
        causal = argument(op, CAUSAL[kind], "is_causal") is True
        share = argument(op, DROPOUT[kind], "dropout_p")
        dropout = isinstance(share, float) and 0.0 < share < 1.0
        bias = _bias(op, kind)
        cut = _cut(kind, q, keys, causal, dropout)
        sms = facts.device.sms
        rounds = per(cut.blocks, sms)
        # As long as its busiest processor, or its longest block, is at it.
        tiles = max(cut.passed / sms * ragged(cut.blocks / sms), cut.steps)
        moved = (2 * q.nbytes + k.nbytes + v.nbytes) * (2 if backward else 1) + (bias.nbytes if bias else 0)
        rate = "tf32" if q.dtype == "float32" else q.dtype
        work = Work(tiles * sms * cut.flops, moved, rate)
        needed = 2 * batch * heads * queries * keys * (dim + v.shape[3]) * (2.5 if backward else 1)
        pairs = cut.blocks / (2 * sms)
        features = [
            PLACE[kind], dtype_code(q.dtype), log(batch), log(heads), log(k.shape[1]), log(queries), log(keys), dim,
            v.shape[3], causal, dropout, bias is not None,
            bias is not None and bias.numel < batch * heads * queries * keys, _statistics(op), log(work.flops),
            log(work.bytes), q.stride is not None and q.stride[2] != dim, alignment(queries), alignment(keys),
            alignment(dim), log(cut.blocks), log(64 * cut.blocks / sms), ragged(cut.blocks / sms), log(cut.steps),
            log(cut.flops), log(64 * work.us(facts.device)), cut.steps / max(1.0, tiles), work.flops / max(1, needed),
            rounds, ragged(pairs), heads / max(1, k.shape[1]),
        ]  # fmt: skip
        return Described(features, work)


def _inputs(op: Op) -> list[Tensor]:
    """Queries, keys and values; a gradient comes before them."""
    tensors = tensors_of(op)
    return tensors[1:4] if op.name.endswith("backward") else tensors[:3]


PLACE = {kind: place for place, kind in enumerate(CAUSAL)}


def _cut(kind: str, q: Tensor, keys: int, causal: bool, dropout: bool) -> Cut:
    batch, heads, queries, dim = q.shape
    rows, columns = next(((a, b) for most, a, b in TILES[kind] if dim <= most), TILES[kind][-1][1:])
    if dropout and kind == "flash_attention" and dim in range(33, 129):
        columns = 64 if dim <= 96 else 32
    backward = kind.endswith("backward")
    down, across = per(queries, rows), per(keys, columns)
    blocks, steps = (across, down) if backward else (down, across)
    passed = float(down * across)
    if causal:
        passed = passed / 2 + min(down, across) / 2  # the tiles on the diagonal are whole
    together = batch * heads
    filled = next((width for width in WIDTHS[kind.partition("_")[0]] if dim <= width), dim)
    return Cut(together * blocks, steps, together * passed, rows * columns * filled * (10 if backward else 4))


def _bias(op: Op, kind: str) -> Tensor | None:
    found = argument(op, BIAS[kind], "attn_bias") if kind in BIAS else None
    return found if isinstance(found, Tensor) and len(found.shape) >= 2 else None


def _statistics(op: Op) -> int:
    """Which options are on, as a number: whether sums for the gradient are kept among them."""
    return sum(1 << i for i, a in enumerate(a for a in op.args if isinstance(a, (bool, float))) if a is True)
