"""Fills with a constant or a range: zeros, ones, full, arange."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import argument, dtype_argument, dtype_code, ints_in, log, tensors_of
from foretrace.cost_models.kernels.roofline import Work
from foretrace.cost_models.kernels.tensor_iterator import traverse
from foretrace.graph import Constant, Op, Tensor
from foretrace.platform.measurements.cases import Case, Draw

BY_SHAPE = ("aten::zeros", "aten::ones", "aten::full", "aten::new_zeros", "aten::new_ones", "aten::new_full",
            "aten::scalar_tensor")  # fmt: skip
BY_COUNT = ("aten::arange", "aten::linspace", "aten::eye", "aten::tril_indices", "aten::triu_indices")
LIKE = ("aten::zero_", "aten::fill_", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::fill",
        "aten::zero")  # fmt: skip


class Fills(Family):
    """New or existing memory set to one value, and ranges."""

    name = "fills"
    share = 0.5
    ops = (*LIKE, *BY_SHAPE, *BY_COUNT)
    columns = ("op", "bytes", "numel", "dtype", "even", "inner", "zero", "from_tensor")

    def accepts(self, op: Op) -> bool:
        """Calls whose output size is known."""
        return op.name not in LIKE or bool(tensors_of(op))

    def describe(self, op: Op, context: CallContext) -> Description:
        """Size and layout of the output; zeros over contiguous memory are a memset."""
        tensors = tensors_of(op)
        written = _written(op, tensors)
        way = traverse(written.shape, [written])
        zero = "zero" in op.name or (op.name.startswith(("aten::fill", "aten::full")) and _value(op) == 0)
        features = [
            self.op_codes[op.name], log(written.nbytes), log(written.numel), dtype_code(written.dtype), way.is_linear,
            log(way.inner), zero, len(tensors) > 1,
        ]  # fmt: skip
        return Description(features, Work(bytes=written.nbytes))

    def case(self, draw: Draw) -> Case:
        """A fill of a random kind."""
        dtype = draw.weighted({"float32": 5, "bfloat16": 3, "int64": 1})
        shape = draw.shape(draw.weighted({1: 2, 2: 3, 3: 2}), low=1)
        layout = draw.layout(shape)
        tensor = Tensor(shape, dtype, stride=None if layout and 0 in layout else layout)
        kind = Constant("dtype", dtype)
        ops = {
            "zero_": Op("aten::zero_", (tensor,), overload="default"),
            "fill_": Op("aten::fill_", (tensor, 0.5 if dtype != "int64" else 1), overload="Scalar"),
            "zeros": Op("aten::zeros", (list(shape),), {"dtype": kind, "device": DEVICE}, overload="default"),
            "full": Op("aten::full", (list(shape), 1), {"dtype": kind, "device": DEVICE}, overload="default"),
            "ones_like": Op("aten::ones_like", (tensor,), overload="default"),
            "zeros_like": Op("aten::zeros_like", (tensor,), overload="default"),
            "new_zeros": Op("aten::new_zeros", (tensor, list(shape)), overload="default"),
            "ones": Op("aten::ones", (list(shape),), {"dtype": kind, "device": DEVICE}, overload="default"),
            "set": Op("aten::fill_", (tensor, Tensor((), dtype)), overload="Tensor"),
            "arange": Op("aten::arange", (tensor.numel,), {"device": DEVICE}, overload="default"),
        }
        return Case(ops[draw.weighted(dict.fromkeys(ops, 1) | {"zero_": 3, "fill_": 2, "zeros": 3})])


def _written(op: Op, tensors: list[Tensor]) -> Tensor:
    if op.name in BY_COUNT:
        return Tensor((_count(op),), dtype_argument(op, "int64"))
    like = tensors[0] if tensors else Tensor((), "float32")
    if op.name in BY_SHAPE:
        shape = ints_in(argument(op, 1 if tensors else 0, "size"))
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


# Cases to measure

DEVICE = Constant("device", "")
"""The device that is measured."""
