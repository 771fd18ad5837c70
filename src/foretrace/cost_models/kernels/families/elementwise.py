"""Elementwise and broadcast calls: bytes, arithmetic, and whether operands are contiguous."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import tensors_of
from foretrace.cost_models.kernels.tensor_iterator import POINTWISE_COLUMNS, output_of, pointwise
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.measurements.cases import Case, Draw, Shape

ARITHMETIC = {
    "light": (
        "add", "sub", "rsub", "mul", "neg", "abs", "relu", "maximum", "minimum", "clamp", "clamp_min", "clamp_max",
        "threshold_backward", "sigmoid_backward", "tanh_backward", "where", "masked_fill", "addcmul", "lerp",
        "square", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and",
        "bitwise_or", "bitwise_not", "__and__", "__or__", "sign", "floor", "ceil", "round", "isnan", "isinf",
        "isfinite", "heaviside", "hardtanh", "hardtanh_backward", "leaky_relu", "leaky_relu_backward", "relu6",
        "hardsigmoid_backward", "signbit", "sgn", "logical_xor", "bitwise_xor", "__lshift__", "__rshift__", "trunc",
        "nan_to_num", "copysign", "fmax", "fmin",
    ),
    "division": (
        "div", "reciprocal", "sqrt", "rsqrt", "addcdiv", "hardswish", "hardsigmoid", "hardswish_backward",
        "floor_divide", "true_divide", "remainder", "fmod",
    ),
    "transcendental": (
        "exp", "log", "sigmoid", "tanh", "silu", "silu_backward", "sin", "cos", "exp2", "log2", "log1p", "expm1",
        "erf", "log_sigmoid_forward", "log_sigmoid_backward", "elu", "elu_backward", "softplus",
        "softplus_backward", "atan", "mish", "mish_backward", "tan", "log10", "logit", "glu", "glu_backward",
        "xlogy", "celu", "selu",
    ),
    "heavy": (
        "gelu", "gelu_backward", "pow", "erfc", "erfinv", "lgamma", "digamma", "atan2",
    ),
}  # fmt: skip
"""Calls by arithmetic per element."""

ARITHMETIC_CLASS = {name: place for place, names in enumerate(ARITHMETIC.values()) for name in names}
NAME_CODES = {name: place for place, name in enumerate(ARITHMETIC_CLASS)}
CALLS = {f"aten::{name}{ending}": (name, bool(ending)) for name in ARITHMETIC_CLASS for ending in ("", "_")}
"""Names of calls, each with its bare name, and whether it works in place."""
BOOLEAN = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "isnan", "isinf", "isfinite")
COPYING = ("masked_fill",)
"""Calls that copy their operand and then work in place on the copy."""


class Elementwise(Family):
    """Pointwise arithmetic, comparisons, activations and their gradients."""

    name = "elementwise"
    share = 5
    ops = tuple(CALLS)
    columns = ("arithmetic", "in_place", "number", "copies", "scalars", "op", *POINTWISE_COLUMNS)

    def accepts(self, op: Op) -> bool:
        """Calls on strided tensors; sparse updates are lookups."""
        tensors = tensors_of(op)
        return bool(tensors) and all(t.layout == "strided" for t in tensors)

    def describe(self, op: Op, context: CallContext) -> Description:
        """Arithmetic, and the traversal of the operands."""
        name, in_place = CALLS[op.name]
        given = tensors_of(op)
        reads = given[:-1] or given if isinstance(op.kwargs.get("out"), Tensor) else given  # ``out`` is only written
        scalars = sum(t.numel == 1 for t in reads)
        own = (ARITHMETIC_CLASS[name], in_place, _exponent(op, name), name in COPYING, scalars, NAME_CODES[name])
        if in_place:
            return pointwise(own, reads, reads[:1])
        dtype = "bool" if name in BOOLEAN else _promoted([t.dtype for t in reads if t.shape] or [reads[0].dtype], name)
        made = output_of(reads, dtype)
        described = pointwise(own, reads, [made])
        if name not in COPYING:
            return described
        work = described.work
        return Description(described.features, work._replace(bytes=work.bytes + 2 * made.nbytes))

    def case(self, draw: Draw) -> Case:
        """A random elementwise call."""
        return Case(draw.weighted(_KINDS)(draw))


def _promoted(dtypes: list[str], name: str) -> str:
    if name == "where":
        dtypes = dtypes[1:] or dtypes
    wide = [d for d in dtypes if d == "float32"]
    floats = [d for d in dtypes if "float" in d]
    return (wide or floats or dtypes)[0]


def _exponent(op: Op, name: str) -> float:
    """The exponent of a power, which decides what is computed; -1 for other calls."""
    if name == "pow" and len(op.args) > 1 and isinstance(op.args[1], (int, float)):
        return min(float(op.args[1]), 4.0)
    return -1.0


# Cases to measure

UNARY = (
    "relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "neg", "abs", "reciprocal",
    "erf", "sin", "cos", "hardswish", "hardsigmoid", "floor", "sgn", "log1p", "leaky_relu", "elu", "softplus",
)  # fmt: skip
GRADIENTS = ("gelu_backward", "tanh_backward", "sigmoid_backward", "silu_backward", "hardswish_backward")
INTEGER_CALLS = (
    ("add", "Tensor"), ("sub", "Tensor"), ("mul", "Tensor"), ("eq", "Scalar"), ("ne", "Scalar"), ("lt", "Scalar"),
    ("ge", "Scalar"),
)  # fmt: skip
MASK_CALLS = (
    ("logical_not", "default"),
    ("bitwise_not", "default"),
    ("bitwise_and", "Tensor"),
    ("bitwise_or", "Tensor"),
)
IN_PLACE = (("mul_", "Scalar", 0.9), ("add_", "Scalar", 1e-8), ("div_", "Scalar", 8), ("masked_fill_", "Scalar", 0.0))
BINARY = {
    "add": 8, "mul": 6, "sub": 2, "div": 3, "add_": 4, "mul_": 2, "div_": 1, "maximum": 1, "minimum": 1, "eq": 1,
    "lt": 1, "ge": 1, "pow": 1,
}  # fmt: skip
WITH_SCALAR = (
    ("mul", "Scalar", 0.5),
    ("div", "Scalar", 49),
    ("pow", "Tensor_Scalar", 3.0),
    ("pow", "Tensor_Scalar", 2),
)


def _operand(draw: Draw) -> Tensor:
    tensor = draw.activation()
    return Tensor(tensor.shape, tensor.dtype, stride=draw.layout(tensor.shape))


def _unary(draw: Draw) -> Op:
    name, x = draw.one((*UNARY, "hardtanh")), _operand(draw)
    if name.endswith("_"):
        x = Tensor(x.shape, x.dtype)
    if name == "hardtanh":
        return Op("aten::hardtanh", (x, 0.0, 6.0), overload="default")
    tanh: dict[str, Value] = {"approximate": "tanh"} if name == "gelu" and draw.chance(0.5) else {}
    return Op(f"aten::{name}", (x,), tanh, overload="default")


def _gradient(draw: Draw) -> Op:
    grad = _operand(draw)
    saved = grad if draw.chance(0.8) else Tensor(grad.shape, grad.dtype)
    if draw.chance(0.5):
        return Op("aten::threshold_backward", (grad, saved, 0), overload="default")
    if draw.chance(0.15):
        return Op("aten::hardtanh_backward", (grad, saved, 0.0, 6.0), overload="default")
    name = draw.one(GRADIENTS)
    tanh: dict[str, Value] = {"approximate": "tanh"} if name == "gelu_backward" and draw.chance(0.5) else {}
    return Op(f"aten::{name}", (grad, saved), tanh, overload="default")


def _binary(draw: Draw) -> Op:
    name, a = draw.weighted(BINARY), _operand(draw)
    if name == "add_" and draw.chance(0.3):
        return Op("aten::add_", (Tensor(a.shape, a.dtype),) * 2, {"alpha": -0.01}, overload="Tensor")
    if name.endswith("_") and a.stride is not None and 0 in a.stride:
        a = Tensor(a.shape, a.dtype)
    style = draw.weighted({"same": 10, "dense": 2, "broadcast": 6, "mixed": 4})
    b = {
        "same": a,
        "dense": Tensor(a.shape, a.dtype),
        "broadcast": Tensor(_broadcastable(draw, a.shape), a.dtype),
        "mixed": Tensor(
            a.shape if draw.chance(0.7) else _broadcastable(draw, a.shape),
            "bfloat16" if a.dtype == "float32" else "float32",
        ),
    }[style]
    if style == "mixed" and name.endswith("_") and a.dtype != "float32":
        a, b = Tensor(a.shape, "float32"), Tensor(b.shape, a.dtype)
    if style == "broadcast" and not name.endswith("_") and draw.chance(0.2):
        a, b = b, a
    overload = "Tensor_Tensor" if name == "pow" else "default" if name in ("maximum", "minimum") else "Tensor"
    return Op(f"aten::{name}", (a, b), overload=overload)


def _broadcastable(draw: Draw, shape: Shape) -> Shape:
    """A shape that broadcasts to this one: a row, a column, some dimensions of size one, or a scalar."""
    if not shape:
        return ()
    style = draw.weighted({"end": 4, "column": 2, "holes": 3, "number": 2})
    if style == "number":
        return ()
    if style == "end":
        return shape[-1:]
    if style == "column":
        return (*shape[:-1], 1)
    return tuple(1 if draw.chance(0.5) else size for size in shape)


def _with_scalar(draw: Draw) -> Op:
    name, overload, number = draw.one(WITH_SCALAR)
    if draw.chance(0.5):
        # Python's operators: the number becomes a zero-dimensional tensor inside the call.
        return Op(f"aten::{draw.one(('add', 'mul', 'div'))}", (_operand(draw), 0.5), overload="Tensor")
    return Op(f"aten::{name}", (_operand(draw), number), overload=overload)


def _integers_and_masks(draw: Draw) -> Op:
    """Positions, labels and masks: integers and booleans."""
    shape = draw.activation().shape
    if draw.chance(0.4):
        name, overload = draw.one(MASK_CALLS)
        mask = Tensor(shape, "bool")
        return Op(f"aten::{name}", (mask, mask) if overload == "Tensor" else (mask,), overload=overload)
    numbers = Tensor(shape, "int64")
    if draw.chance(0.3) and len(shape) > 1:
        # A causal mask: each query's position against each key's.
        column, row = (*shape[:-1], 1), (*(1,) * (len(shape) - 1), shape[-1])
        return Op(f"aten::{draw.one(('le', 'gt'))}", (Tensor(column, "int64"), Tensor(row, "int64")), overload="Tensor")
    name, overload = draw.one(INTEGER_CALLS)
    return Op(f"aten::{name}", (numbers, 1), overload=overload)


def _in_place(draw: Draw) -> Op:
    """The update of one parameter by a for-loop optimizer; a mask written into a bias."""
    a = Tensor(draw.activation().shape, draw.dtype())
    if draw.chance(0.4):
        name = draw.one(("lerp_", "addcmul_", "addcdiv_"))
        if name == "lerp_":
            return Op("aten::lerp_", (a, a, 0.1), overload="Scalar")
        return Op(f"aten::{name}", (a, a, a), overload="default")
    name, overload, number = draw.one(IN_PLACE)
    args: tuple[Value, ...] = (a, Tensor(a.shape, "bool"), number) if name == "masked_fill_" else (a, number)
    return Op(f"aten::{name}", args, overload=overload)


def _ternary(draw: Draw) -> Op:
    a = _operand(draw)
    name = draw.one(("where", "masked_fill", "addcmul", "addcdiv", "lerp", "clamp"))
    if name == "where":
        mask_shape = a.shape if draw.chance(0.6) else _broadcastable(draw, a.shape)
        return Op("aten::where", (Tensor(mask_shape, "bool"), a, a), overload="self")
    if name == "masked_fill":
        mask_shape = a.shape if draw.chance(0.5) else _broadcastable(draw, a.shape)
        return Op("aten::masked_fill", (a, Tensor(mask_shape, "bool"), -1e4), overload="Scalar")
    if name == "clamp":
        return Op("aten::clamp", (a, -0.5, 0.5), overload="default")
    if name == "lerp":
        return Op("aten::lerp", (a, a, 0.1), overload="Scalar")
    return Op(f"aten::{name}", (a, a, a), overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {
    _unary: 7,
    _gradient: 5,
    _binary: 14,
    _with_scalar: 4,
    _ternary: 3,
    _integers_and_masks: 3,
    _in_place: 2,
}
