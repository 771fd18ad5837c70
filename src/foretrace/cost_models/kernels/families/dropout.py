"""Dropout and random numbers: a pass over memory with the generator's arithmetic in it."""

from __future__ import annotations

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import argument, dtype_argument, ints_in, tensors_of
from foretrace.cost_models.kernels.tensor_iterator import POINTWISE_COLUMNS, output_of, pointwise
from foretrace.graph import Constant, Op, Tensor, Value
from foretrace.platform.measurements.cases import Case, Draw, strides

IN_PLACE = ("aten::normal_", "aten::uniform_", "aten::bernoulli_", "aten::exponential_", "aten::random_",
            "aten::geometric_")  # fmt: skip
BY_SHAPE = ("aten::rand", "aten::randn", "aten::randint", "aten::randperm")
LIKE = ("aten::rand_like", "aten::randn_like", "aten::randint_like", "aten::bernoulli")


class Dropout(Family):
    """native_dropout and its backward, and fills with random numbers."""

    name = "dropout"
    share = 1
    ops = ("aten::native_dropout", "aten::native_dropout_backward", *IN_PLACE, *LIKE, *BY_SHAPE)
    columns = ("op", *POINTWISE_COLUMNS)

    def accepts(self, op: Op) -> bool:
        """Calls whose size is known."""
        return op.name in BY_SHAPE or bool(tensors_of(op))

    def describe(self, op: Op, context: CallContext) -> Description:
        """The traversal of the tensors."""
        head = (self.op_codes[op.name],)
        if op.name in BY_SHAPE:
            return pointwise(head, [], [_made(op)])
        tensors = tensors_of(op)
        first = tensors[0]
        if op.name in IN_PLACE:
            return pointwise(head, [], [first])
        made = output_of([first], first.dtype)
        if op.name == "aten::native_dropout":
            return pointwise(head, [first], [made, Tensor(made.shape, "bool", stride=made.stride)])
        return pointwise(head, tensors, [made])

    def case(self, draw: Draw) -> Case:
        """A dropout, its gradient, or a fill with random numbers."""
        name, x = draw.weighted(KINDS), draw.activation()
        order = strides(x.shape, (1, 0, 2)) if len(x.shape) == 3 and draw.chance(0.2) else None
        if name == "native_dropout":
            op = Op("aten::native_dropout", (Tensor(x.shape, x.dtype, stride=order), 0.1, True), overload="default")
        elif name == "native_dropout_backward":
            mask = Tensor(x.shape, "bool", stride=order)
            op = Op("aten::native_dropout_backward", (x, mask, 1 / 0.9), overload="default")
        elif name == "rand":
            options: dict[str, Value] = {"dtype": Constant("dtype", x.dtype), "device": Constant("device", "")}
            op = Op("aten::rand", (list(x.shape),), options, overload="default")
        elif name == "bernoulli_":
            op = Op("aten::bernoulli_", (x, 0.9), overload="float")
        else:
            op = Op(f"aten::{name}", (x, 0.0, 1.0), overload="default")
        return Case(op)


def _made(op: Op) -> Tensor:
    """The output of a call that is given a shape or a count; the bounds of randint come before it."""
    shape = next((ints_in(a) for a in op.args if isinstance(a, (list, tuple))), None)
    if shape is None:
        shape = ints_in(op.kwargs.get("size")) or [n for n in (argument(op, 0, "n"),) if isinstance(n, int)]
    default = "int64" if op.name in ("aten::randint", "aten::randperm") else "float32"
    return Tensor(tuple(shape), dtype_argument(op, default))


# Cases to measure

KINDS = {"native_dropout": 6, "native_dropout_backward": 6, "bernoulli_": 1, "uniform_": 1, "normal_": 1, "rand": 1}
