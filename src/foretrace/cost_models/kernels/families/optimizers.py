"""Foreach and fused optimizer updates: number and sizes of tensors, and how they split into launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    alignment,
    ceil_div,
    dtype_code,
    is_dense,
    log,
    tensors_of,
    wave_quantization,
)
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.graph.op import is_contiguous
from foretrace.platform.measurements.cases import Case, Draw, Shape

CHUNK = 65536
"""Elements of a block of PyTorch's multi-tensor kernels."""
BLOCKS = 320
"""Blocks of a launch at most."""
TENSORS = (110, 64, 48, 36, 30)
"""Tensors of a launch at most, by number of lists."""
OUT_OF_PLACE = tuple(f"aten::_foreach_{name}" for name in (
    "mul", "add", "sqrt", "div", "sub", "neg", "exp", "reciprocal", "norm", "maximum", "rsqrt", "abs", "pow", "lerp",
    "addcmul", "addcdiv", "clamp_max", "clamp_min", "max", "minimum", "log", "sign", "sigmoid", "tanh"))  # fmt: skip
IN_PLACE = tuple(f"{name}_" for name in OUT_OF_PLACE if not name.endswith(("norm", "_max")))
BY_SCALAR_TENSOR = ("aten::_foreach_mul_", "aten::_foreach_mul", "aten::_foreach_div_", "aten::_foreach_div",
               "aten::_foreach_add_", "aten::_foreach_add")  # fmt: skip
FUSED = ("aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_")
OTHERS = ("aten::_foreach_zero_", "aten::_foreach_copy_", "aten::_amp_foreach_non_finite_check_and_unscale_")


class Optimizers(Family):
    """Calls on whole lists of parameters."""

    name = "optimizers"
    share = 5
    ops = (*OUT_OF_PLACE, *IN_PLACE, *FUSED, *OTHERS)
    columns = ("op", "lists", "tensors", "bytes", "numel", "dtype", "mixed", "chunks", "launches", "largest", "small",
               "scalars", "slow", "chunks_a_launch", "waves", "unaligned", "median", "ragged", "roof",
               "busiest")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Calls with a list of tensors."""
        return any(isinstance(a, (list, tuple)) and any(isinstance(t, Tensor) for t in a) for a in op.args)

    def describe(self, op: Op, context: CallContext) -> Description:
        """Chunks and launches, as PyTorch's multi_tensor_apply packs them."""
        lists = _lists(op)
        first = lists[0]
        sizes = [t.numel for t in first]
        made = op.name in OUT_OF_PLACE and not op.name.endswith(("norm", "_max"))
        chunks = sum(ceil_div(n, CHUNK) for n in sizes)
        scalars = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, Tensor) and not a.shape]
        slow = len({t.dtype for t in first}) > 1 or not _in_one_pass(lists)
        if op.name in BY_SCALAR_TENSOR and any(t.dtype != first[0].dtype for t in scalars):
            slow = True  # PyTorch has no fast path for a scalar tensor of another dtype
        launches = len(first) if slow else launches_of(sizes, len(lists) + made)
        numel = sum(sizes)
        moved = numel * (sum(group[0].itemsize for group in lists) + _written(op, lists, made) * first[0].itemsize)
        # A block takes one chunk: few chunks leave SMs idle.
        busy = min(1.0, max(1, chunks) / max(1, launches) / context.device.sms)
        work = Work(flops=4 * numel, bytes=moved, round_trips=2 * launches)
        waves = chunks / max(1, launches) / context.device.sms
        features = [
            self.op_codes[op.name], len(lists), log(len(first)), log(moved), log(numel), dtype_code(first[0].dtype),
            len({group[0].dtype for group in lists}) > 1, log(chunks), launches, log(max(sizes)),
            log(sum(n < CHUNK for n in sizes)), len(scalars), slow, log(chunks / max(1, launches)), waves,
            sum(alignment(n) < 4 for n in sizes) / len(sizes), log(sorted(sizes)[len(sizes) // 2]),
            wave_quantization(waves), log(64 * work.us(context.device)),
            log(64 * moved / max(1, launches) / busy / 1e6),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """An update of all parameters of a random model."""
        parameters = _within(draw.weighted(_MODELS)(draw), draw.most)
        dtype = draw.weighted({"float32": 8, "bfloat16": 1})
        tensors: list[Value] = [Tensor(shape, dtype) for shape in parameters]
        if draw.chance(0.3):
            return Case(_fused(draw, tensors))
        return Case(_foreach(draw, tensors))


def _in_one_pass(lists: Sequence[Sequence[Tensor]]) -> bool:
    """Whether all tensors lie densely in memory, those at the same place of all lists in the same order of dimensions.

    >>> last, first = Tensor((8, 4, 3, 3), "float32", stride=(36, 1, 12, 4)), Tensor((8, 4, 3, 3), "float32")
    >>> _in_one_pass([[last], [last]]), _in_one_pass([[last], [first]])
    (True, False)
    """
    layouts = [[tensor.stride for tensor in group] for group in lists]
    if all(layout == layouts[0] for layout in layouts):
        return all(is_contiguous(tensor) or is_dense(tensor) for tensor in lists[0])
    return all(is_contiguous(tensor) for group in lists for tensor in group)


def launches_of(sizes: Sequence[int], lists: int) -> int:
    """Kernels launched for tensors of these sizes: a launch is full when its tensors or its blocks are.

    >>> launches_of([1000] * 111, lists=1), launches_of([65536 * 321], lists=1)
    (2, 2)
    """
    most = TENSORS[min(lists, len(TENSORS)) - 1]
    launches = tensors = blocks = 0
    for size in sizes:
        chunks = ceil_div(size, CHUNK)
        tensors += 1
        if blocks + chunks >= BLOCKS:
            full, blocks = divmod(blocks + chunks, BLOCKS)
            launches, tensors = launches + full, 1 if blocks else 0
        else:
            blocks += chunks
        if tensors == most and blocks:
            launches, blocks, tensors = launches + 1, 0, 0
    return launches + (blocks > 0)


def _lists(op: Op) -> list[list[Tensor]]:
    """The lists of tensors that are traversed together, without step counts and other scalars."""
    lists = [[t for t in a if isinstance(t, Tensor)] for a in op.args if isinstance(a, (list, tuple))]
    traversed = [group for group in lists if group and (group is lists[0] or any(t.shape for t in group))]
    return traversed or [tensors_of(op)]


def _written(op: Op, lists: list[list[Tensor]], made: bool) -> int:
    """Number of lists that are written."""
    if op.name in FUSED:
        return max(1, len(lists) - 1)
    return 1 if made or op.name not in OUT_OF_PLACE else 0


# Cases to measure

ADAM: dict[str, Value] = {
    "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False,
}  # fmt: skip
SGD: dict[str, Value] = {
    "weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip


def _within(shapes: list[Shape], most: int) -> list[Shape]:
    """As many shapes as fit into the number of elements; at least a small one."""
    kept, left = [], most
    for shape in shapes:
        if prod(shape) <= left:
            kept.append(shape)
            left -= prod(shape)
    return kept or [(min(most, 64),)]


def _transformer(draw: Draw) -> list[Shape]:
    width = draw.size(32, 2048)
    block: list[Shape] = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(draw.whole(1000, 60000), width), *block * draw.whole(1, 32), (width,), (width,)]


def _perceptron(draw: Draw) -> list[Shape]:
    widths = [draw.size(8, 4096) for _ in range(draw.whole(2, 16))]
    return [shape for a, b in pairwise(widths) for shape in ((b, a), (b,))] or [(widths[0],)]


def _convolutional(draw: Draw) -> list[Shape]:
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for _ in range(draw.whole(2, 60)):
        wider = channels * 2 if channels < 1024 and draw.chance(0.1) else channels
        side = draw.one((1, 1, 3))
        shapes += [(wider, channels, side, side), (wider,), (wider,)]
        channels = wider
    return [*shapes, (draw.whole(10, 1000), channels)]


def _encoder(draw: Draw) -> list[Shape]:
    """Separate query, key and value, each with a bias."""
    width, wider = 64 * draw.whole(2, 24), draw.one((2, 4, 4))
    square: list[Shape] = [(width, width), (width,)]
    block = [*square * 4, (wider * width, width), (wider * width,), (width, wider * width), (width,), *[(width,)] * 4]
    embeddings: list[Shape] = [(draw.whole(8000, 60000), width), (draw.size(128, 1024), width), (2, width)]
    return [*embeddings, *block * draw.whole(2, 24), *square, (width,), (width,)]


def _gated(draw: Draw) -> list[Shape]:
    """Llama: no biases, grouped-query attention, gated MLPs."""
    width = 64 * draw.whole(4, 64)
    keys, wider = max(64, width // draw.one((1, 2, 4, 8))), 64 * max(1, round(width * 8 / 3 / 64))
    block: list[Shape] = [(width, width), (keys, width), (keys, width), (width, width)]
    block += [(wider, width), (wider, width), (width, wider), (width,), (width,)]
    return [(draw.whole(16000, 130000), width), *block * draw.whole(1, 32), (width,)]


def _bottlenecks(draw: Draw) -> list[Shape]:
    """ResNet: bottlenecks with batch norms."""
    base = draw.one((32, 48, 64, 64, 96, 128))
    shapes: list[Shape] = [(base, 3, 7, 7), (base,), (base,)]
    inner = base
    for stage, blocks in enumerate((draw.whole(1, 4), draw.whole(1, 8), draw.whole(1, 36), draw.whole(1, 4))):
        width = base << stage
        for block in range(blocks):
            shapes += [(width, inner, 1, 1), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, inner, 1, 1), (4 * width,), (4 * width,)]
            inner = 4 * width
    return [*shapes, (1000, inner), (1000,)]


_MODELS: dict[Callable[[Draw], list[Shape]], int] = {
    _transformer: 4,
    _perceptron: 4,
    _convolutional: 2,
    _encoder: 4,
    _gated: 4,
    _bottlenecks: 4,
}


def _fused(draw: Draw, tensors: list[Value]) -> Op:
    steps: list[Value] = [Tensor((), "float32") for _ in tensors]
    if draw.chance(0.7):
        name = draw.one(("_fused_adamw_", "_fused_adam_"))
        return Op(f"aten::{name}", (tensors, tensors, tensors, tensors, [], steps), dict(ADAM), overload="default")
    return Op("aten::_fused_sgd_", (tensors, tensors, tensors), dict(SGD), overload="default")


def _foreach(draw: Draw, tensors: list[Value]) -> Op:
    numbers: list[Value] = [0.25] * len(tensors)
    if draw.chance(0.06):
        # The step counts, which are on the device if the update is fused.
        return Op("aten::_foreach_add_", ([Tensor((), "float32") for _ in tensors], 1), overload="Scalar")
    calls: tuple[tuple[str, str, tuple[Value, ...]], ...] = (
        ("add_", "List", (tensors, tensors)),
        ("add", "List", (tensors, tensors)),
        ("add_", "Scalar", (tensors, 1e-8)),
        ("mul_", "Scalar", (tensors, 0.999)),
        ("mul", "Scalar", (tensors, 0.999)),
        ("mul_", "Tensor", (tensors, Tensor((), "float32"))),
        ("lerp_", "Scalar", (tensors, tensors, 0.1)),
        ("addcmul_", "Scalar", (tensors, tensors, tensors, 0.001)),
        ("sqrt", "default", (tensors,)),
        ("div_", "ScalarList", (tensors, numbers)),
        ("addcdiv_", "ScalarList", (tensors, tensors, tensors, numbers)),
        ("addcdiv_", "Scalar", (tensors, tensors, tensors, -0.01)),
        ("maximum_", "List", (tensors, tensors)),
        ("mul_", "ScalarList", (tensors, numbers)),
        ("norm", "Scalar", (tensors, 2)),
        ("copy_", "default", (tensors, tensors)),
        ("zero_", "default", (tensors,)),
    )
    name, overload, args = draw.one(calls)
    return Op(f"aten::_foreach_{name}", args, overload=overload)
