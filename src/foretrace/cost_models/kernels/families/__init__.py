"""The kernel families, one file each. A new family is a file here and its line in `FAMILIES`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.errors import ForetraceError
from foretrace.graph import Indices, Op, Tf32
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case, Draw

__all__ = [
    "DRAWN", "FAMILIES", "HELD_OUT", "CallContext", "Description", "Family", "case_number", "check_families",
    "context_of", "family_of",
]  # fmt: skip


class LazyFamilies(Mapping[str, Family]):
    """Families by name, each imported when it is first asked for: pricing lookups loads no other family."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        self.classes = classes

    def __getitem__(self, name: str) -> Family:
        return _imported(self.classes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes)

    def __len__(self) -> int:
        return len(self.classes)

    def __contains__(self, name: object) -> bool:
        return name in self.classes


FAMILIES = LazyFamilies({
    "matrix": "gemm.Gemm",
    "convolutions": "convolutions.Convolutions",
    "attention": "attention.Attention",
    "lookups": "lookups.Lookups",
    "elementwise": "elementwise.Elementwise",
    "norms": "norms.Norms",
    "optimizers": "optimizers.Optimizers",
    "copies": "copies.Copies",
    "reductions": "reductions.Reductions",
    "indexing": "indexing.Indexing",
    "softmax": "softmax.Softmax",
    "sorting": "sorting.Sorting",
    "transfers": "transfers.Transfers",
    "joins": "concat.Concat",
    "losses": "losses.Losses",
    "dropout": "dropout.Dropout",
    "pooling": "pooling.Pooling",
    "fills": "fills.Fills",
    "compiled": "compiled.Compiled",
})  # fmt: skip
"""By name: the module and the class. No call is covered by two of them."""

DRAWN = LazyFamilies({name: family for name, family in FAMILIES.classes.items() if name != "compiled"})
"""The families whose cases are drawn one by one; compiled kernels are made of whole programs."""

HELD_OUT = "heldout-5"
"""The series of cases that models are scored on and never fitted to."""

_BY_OP: dict[str, list[Family]] = {}
"""The families that list an op, of those in use."""
_UNUSED = list(FAMILIES.classes.values())


@cache
def _imported(path: str) -> Family:
    module, _, name = path.partition(".")
    family: Family = getattr(import_module(f"{__name__}.{module}"), name)()
    for op in family.ops:
        _BY_OP.setdefault(op, []).append(family)
    _UNUSED.remove(path)
    return family


def family_of(op: Op) -> Family | None:
    """The family that covers a call, or None.

    Since no call is covered by two families, those whose modules are loaded are asked first.

    >>> from foretrace.graph import Tensor
    >>> matrix = Tensor((4, 4), "float32")
    >>> family_of(Op("aten::mm", (matrix, matrix))).name, family_of(Op("aten::cholesky", (matrix,)))
    ('matrix', None)
    """
    found = _in_use(op)
    while found is None and _UNUSED:
        loaded = (path for path in _UNUSED if f"{__name__}.{path.partition('.')[0]}" in sys.modules)
        _imported(next(loaded, _UNUSED[0]))
        found = _in_use(op)
    if found is None and op.name not in _BY_OP and FAMILIES["compiled"].accepts(op):
        return FAMILIES["compiled"]
    return found


def _in_use(op: Op) -> Family | None:
    return next((family for family in _BY_OP.get(op.name, ()) if family.accepts(op)), None)


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
