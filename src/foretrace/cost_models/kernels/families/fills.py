"""Writing one value, or a row of numbers."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import argument, dtype_argument, dtype_code, log, tensors_of, whole
from foretrace.cost_models.kernels.tensor_iterator import walk
from foretrace.graph import Op, Tensor

BY_SHAPE = ("aten::zeros", "aten::ones", "aten::full", "aten::new_zeros", "aten::new_ones", "aten::new_full",
            "aten::scalar_tensor")  # fmt: skip
BY_COUNT = ("aten::arange", "aten::linspace", "aten::eye", "aten::tril_indices", "aten::triu_indices")
LIKE = ("aten::zero_", "aten::fill_", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::fill",
        "aten::zero")  # fmt: skip


class Fills(Family):
    """zeros, ones, full, fill, arange."""

    name = "fills"
    ops = (*LIKE, *BY_SHAPE, *BY_COUNT)
    columns = ("op", "bytes", "numel", "dtype", "even", "inner", "zero", "from_tensor")

    def takes(self, op: Op) -> bool:
        """Calls whose size is known."""
        return op.name not in LIKE or bool(tensors_of(op))

    def describe(self, op: Op, facts: Facts) -> Described:
        """Size and layout of what is written; zeros over dense memory are a memset."""
        tensors = tensors_of(op)
        written = _written(op, tensors)
        way = walk(written.shape, [written])
        zero = "zero" in op.name or (op.name.startswith(("aten::fill", "aten::full")) and _value(op) == 0)
        features = [
            PLACE[op.name], log(written.nbytes), log(written.numel), dtype_code(written.dtype), way.even,
            log(way.inner), zero, len(tensors) > 1,
        ]  # fmt: skip
        return Described(features, Work(bytes=written.nbytes))


PLACE = {name: place for place, name in enumerate(Fills.ops)}


def _written(op: Op, tensors: list[Tensor]) -> Tensor:
    if op.name in BY_COUNT:
        return Tensor((_count(op),), dtype_argument(op, "int64"))
    like = tensors[0] if tensors else Tensor((), "float32")
    if op.name in BY_SHAPE:
        shape = whole(argument(op, 1 if tensors else 0, "size"))
        return Tensor(tuple(shape), dtype_argument(op, like.dtype))
    return Tensor(like.shape, dtype_argument(op, like.dtype), stride=like.stride)


def _value(op: Op) -> object:
    return argument(op, 1, "value", argument(op, 1, "fill_value"))


def _count(op: Op) -> int:
    numbers = [float(a) for a in op.args if isinstance(a, (int, float)) and math.isfinite(a)]
    if not numbers:
        return 1
    if op.name in ("aten::tril_indices", "aten::triu_indices"):
        return int(math.prod(numbers[:2]))
    if op.name != "aten::arange":
        return int(numbers[-1] if op.name == "aten::linspace" else math.prod(numbers[:2]))
    start, end, step = (0.0, *numbers, 1.0) if len(numbers) == 1 else (*numbers, 1.0)[:3]
    return max(1, math.ceil((end - start) / step)) if step else 1
