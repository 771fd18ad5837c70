"""The families of kernels, one file each. A new one is a file here and a line in `FAMILIES`."""

from foretrace.cost_models.kernels.families.attention import Attention
from foretrace.cost_models.kernels.families.compiled import Compiled
from foretrace.cost_models.kernels.families.concat import Joins
from foretrace.cost_models.kernels.families.convolutions import Convolutions
from foretrace.cost_models.kernels.families.copies import Copies
from foretrace.cost_models.kernels.families.dropout import Dropout
from foretrace.cost_models.kernels.families.elementwise import Elementwise
from foretrace.cost_models.kernels.families.fills import Fills
from foretrace.cost_models.kernels.families.gemm import MatrixProduct
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
from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.graph import Indices, Op, Tf32
from foretrace.platform.device import Device

__all__ = ["FAMILIES", "Described", "Facts", "Family", "Work", "facts_of", "family_of"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        MatrixProduct(), Convolutions(), Attention(), Lookups(), Elementwise(), Transfers(), Copies(), Joins(),
        Reductions(), Softmax(), Norms(), Losses(), Dropout(), Pooling(), Indexing(), Sorting(), Optimizers(), Fills(),
        Compiled(),
    )
}  # fmt: skip

_BY_OP: dict[str, list[Family]] = {}
for _family in FAMILIES.values():
    for _op in _family.ops:
        _BY_OP.setdefault(_op, []).append(_family)


def family_of(op: Op) -> Family | None:
    """The family that answers for a call; None where nobody does.

    >>> from foretrace.graph import Tensor
    >>> matrix = Tensor((4, 4), "float32")
    >>> family_of(Op("aten::mm", (matrix, matrix))).name, family_of(Op("aten::cholesky", (matrix,)))
    ('matrix', None)
    """
    named = _BY_OP.get(op.name) or [FAMILIES[Compiled.name]]
    return next((family for family in named if family.takes(op)), None)


def facts_of(family: Family, device: Device, indices: Indices | None, tf32: Tf32) -> Facts:
    """What holds for a family's calls in a step with these settings.

    >>> h200 = Device.named("h200")
    >>> [facts_of(FAMILIES[name], h200, None, Tf32()).tf32 for name in ("convolutions", "matrix")]
    [True, False]
    """
    by_family = {Convolutions.name: tf32.convolutions, MatrixProduct.name: tf32.products}
    return Facts(device, indices, tf32=by_family.get(family.name, False))
