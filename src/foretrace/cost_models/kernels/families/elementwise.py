"""Element-wise and broadcast calls: bytes, arithmetic, and whether the operands can be read straight through."""

from __future__ import annotations

from foretrace.cost_models.kernels.family import Described, Facts, Family
from foretrace.cost_models.kernels.features import tensors_of
from foretrace.cost_models.kernels.tensor_iterator import COLUMNS, output_of, pointwise
from foretrace.graph import Op

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
"""Calls by how much arithmetic an element takes."""

CLASS = {name: place for place, names in enumerate(ARITHMETIC.values()) for name in names}
PLACE = {name: place for place, name in enumerate(CLASS)}
PLAIN = {f"aten::{name}{ending}": (name, bool(ending)) for name in CLASS for ending in ("", "_")}
"""Names of calls, each with its name without the prefix, and whether it works in place."""
TRUTH = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "isnan", "isinf", "isfinite")
COPYING = ("masked_fill",)
"""Calls that copy their operand and then work in place on the copy."""


class Elementwise(Family):
    """One number out for each number in."""

    name = "elementwise"
    ops = tuple(PLAIN)
    columns = ("arithmetic", "in_place", "number", "copies", "scalars", "op", *COLUMNS)

    def takes(self, op: Op) -> bool:
        """All but sparse operands."""
        tensors = tensors_of(op)
        return bool(tensors) and all(t.layout == "strided" for t in tensors)

    def describe(self, op: Op, facts: Facts) -> Described:
        """Arithmetic, and the walk over the operands."""
        name, in_place = PLAIN[op.name]
        reads = tensors_of(op)
        scalars = sum(t.numel == 1 for t in reads)
        head = (CLASS[name], in_place, _exponent(op, name), name in COPYING, scalars, PLACE[name])
        if in_place:
            return pointwise(head, reads, reads[:1])
        dtype = "bool" if name in TRUTH else _promoted([t.dtype for t in reads if t.shape] or [reads[0].dtype], name)
        made = output_of(reads, dtype)
        described = pointwise(head, reads, [made])
        if name not in COPYING:
            return described
        work = described.work
        return Described(described.features, work._replace(bytes=work.bytes + 2 * made.nbytes))


def _promoted(dtypes: list[str], name: str) -> str:
    if name == "where":
        dtypes = dtypes[1:] or dtypes
    wide = [d for d in dtypes if d == "float32"]
    floats = [d for d in dtypes if "float" in d]
    return (wide or floats or dtypes)[0]


def _exponent(op: Op, name: str) -> float:
    """The exponent of a power, which decides what is computed; nothing elsewhere."""
    if name == "pow" and len(op.args) > 1 and isinstance(op.args[1], (int, float)):
        return min(float(op.args[1]), 4.0)
    return -1.0
