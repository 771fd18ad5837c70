"""Dropout and random numbers: a pass over memory with a generator's arithmetic in it."""

from __future__ import annotations

from foretrace.cost_models.kernels.family import Described, Facts, Family
from foretrace.cost_models.kernels.features import argument, dtype_argument, tensors_of, whole
from foretrace.cost_models.kernels.tensor_iterator import COLUMNS, output_of, pointwise
from foretrace.graph import Op, Tensor

IN_PLACE = ("aten::normal_", "aten::uniform_", "aten::bernoulli_", "aten::exponential_", "aten::random_",
            "aten::geometric_")  # fmt: skip
BY_SHAPE = ("aten::rand", "aten::randn", "aten::randint", "aten::randperm")
LIKE = ("aten::rand_like", "aten::randn_like", "aten::randint_like", "aten::bernoulli")


class Dropout(Family):
    """native_dropout and its backward, and fills with random numbers."""

    name = "dropout"
    ops = ("aten::native_dropout", "aten::native_dropout_backward", *IN_PLACE, *LIKE, *BY_SHAPE)
    columns = ("op", *COLUMNS)

    def takes(self, op: Op) -> bool:
        """Calls whose size is known."""
        return op.name in BY_SHAPE or bool(tensors_of(op))

    def describe(self, op: Op, facts: Facts) -> Described:
        """The walk over the tensors."""
        head = (PLACE[op.name],)
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


PLACE = {name: place for place, name in enumerate(Dropout.ops)}


def _made(op: Op) -> Tensor:
    """What a call makes that is told a shape, or a count; bounds of whole numbers come before it."""
    shape = next((whole(a) for a in op.args if isinstance(a, (list, tuple))), None)
    if shape is None:
        shape = whole(op.kwargs.get("size")) or [n for n in (argument(op, 0, "n"),) if isinstance(n, int)]
    default = "int64" if op.name in ("aten::randint", "aten::randperm") else "float32"
    return Tensor(tuple(shape), dtype_argument(op, default))
