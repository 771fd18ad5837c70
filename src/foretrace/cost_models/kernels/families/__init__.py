"""The kernel families, one file each. A new family is a file here and its line in `FAMILIES`."""

from collections.abc import Sequence

from foretrace.cost_models.kernels.families.attention import Attention
from foretrace.cost_models.kernels.families.compiled import Compiled
from foretrace.cost_models.kernels.families.concat import Concat
from foretrace.cost_models.kernels.families.convolutions import Convolutions
from foretrace.cost_models.kernels.families.copies import Copies
from foretrace.cost_models.kernels.families.dropout import Dropout
from foretrace.cost_models.kernels.families.elementwise import Elementwise
from foretrace.cost_models.kernels.families.fills import Fills
from foretrace.cost_models.kernels.families.gemm import Gemm
from foretrace.cost_models.kernels.families.indexing import Indexing
from foretrace.cost_models.kernels.families.lookups import Lookups
from foretrace.cost_models.kernels.families.losses import Losses
from foretrace.cost_models.kernels.families.norms import Norms
from foretrace.cost_models.kernels.families.optimizers import Optimizers
from foretrace.cost_models.kernels.families.pooling import Pooling
from foretrace.cost_models.kernels.families.reductions import Reductions
from foretrace.cost_models.kernels.families.softmax import Softmax
from foretrace.cost_models.kernels.families.sorting import Sorting
from foretrace.cost_models.kernels.families.transfers import Transfers
from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.errors import ForetraceError
from foretrace.graph import Indices, Op, Tf32
from foretrace.platform.cases import Case, Draw
from foretrace.platform.device import Device

__all__ = [
    "DRAWN", "FAMILIES", "HELD_OUT", "CallContext", "Description", "Family", "case_number", "check_families",
    "context_of", "family_of",
]  # fmt: skip

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Gemm(), Convolutions(), Attention(), Lookups(), Elementwise(), Norms(), Optimizers(), Copies(), Reductions(),
        Indexing(), Softmax(), Sorting(), Transfers(), Concat(), Losses(), Dropout(), Pooling(), Fills(), Compiled(),
    )
}  # fmt: skip
"""By name. No call is covered by two of them."""

DRAWN = {name: family for name, family in FAMILIES.items() if family.share}
"""The families whose cases are drawn one by one; compiled kernels are made of whole programs."""

HELD_OUT = "heldout-5"
"""The series of cases that models are scored on and never fitted to."""

_BY_OP: dict[str, list[Family]] = {}
for _family in FAMILIES.values():
    for _op in _family.ops:
        _BY_OP.setdefault(_op, []).append(_family)


def family_of(op: Op) -> Family | None:
    """The family that covers a call, or None.

    >>> from foretrace.graph import Tensor
    >>> matrix = Tensor((4, 4), "float32")
    >>> family_of(Op("aten::mm", (matrix, matrix))).name, family_of(Op("aten::cholesky", (matrix,)))
    ('matrix', None)
    """
    named = _BY_OP.get(op.name) or [FAMILIES[Compiled.name]]
    return next((family for family in named if family.accepts(op)), None)


def context_of(family: Family, device: Device, indices: Indices | None, tf32: Tf32) -> CallContext:
    """The context of a family's calls in a step with these TF32 settings.

    >>> h200 = Device.named("h200")
    >>> [context_of(FAMILIES[name], h200, None, Tf32()).tf32 for name in ("convolutions", "matrix")]
    [True, False]
    """
    return CallContext(device, indices, tf32=family.may_use_tf32(tf32))


def case_number(family: str, number: int, most: int, kind: str, series: str = "") -> Case:
    """The case of a family that has this number in a series: always the same one.

    >>> case_number("matrix", 7, 4096, "cpu") == case_number("matrix", 7, 4096, "cpu")
    True
    >>> case_number("matrix", 7, 4096, "cpu") == case_number("matrix", 7, 4096, "cpu", series=HELD_OUT)
    False
    """
    shapes, turn = divmod(number, DRAWN[family].cases_per_shape)
    return DRAWN[family].case(Draw(f"{family} {series}{shapes}", most, kind, turn))


def check_families(names: Sequence[str]) -> None:
    """Refuse names that are no family."""
    for name in names:
        if name not in FAMILIES:
            raise ForetraceError(f"no family is called {name!r}", f"Known are: {', '.join(FAMILIES)}.")
