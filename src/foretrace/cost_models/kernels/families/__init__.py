"""The kernel families, one file each. A new family is a file here and its line in `CLASSES`; CONTRIBUTING.md has an
example, and the few other places that may need a line (groups of reports, Tensor Cores, docs, measurements)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from foretrace._lazy import LazyMapping
from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.errors import ForetraceError
from foretrace.graph import Indices, Op, Tf32
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case, Draw

__all__ = [
    "CLASSES", "DRAWN", "FAMILIES", "HELD_OUT", "CallContext", "Description", "Family", "case_number", "check_families",
    "context_of", "family_of",
]  # fmt: skip


CLASSES = {
    "matrix": ("gemm.Gemm", "mm|mv"),
    "convolutions": ("convolutions.Convolutions", "convolution"),
    "attention": ("attention.Attention", "attention"),
    "lookups": ("lookups.Lookups", "embedding|index_select|add_$|sub_$|_coalesce"),
    "elementwise": ("elementwise.Elementwise", "^aten::"),
    "norms": ("norms.Norms", "(layer|rms|group|batch)_norm"),
    "optimizers": ("optimizers.Optimizers", "_foreach_|_fused_"),
    "copies": ("copies.Copies", "copy|clone|pad|contiguous|repeat|flip|roll|(slice|select)_backward"),
    "reductions": ("reductions.Reductions", "sum|mean|max|min|var|std|any|all|prod|count|median|norm"),
    "indexing": ("indexing.Indexing", "index|gather|scatter|take"),
    "softmax": ("softmax.Softmax", "softmax"),
    "sorting": ("sorting.Sorting", "sort|topk|cum|kth|unique|tri[lu]|nonzero|bincount|hist|bucket|select|multinomial"),
    "transfers": ("transfers.Transfers", "copy|scalar_dense|pin_memory"),
    "joins": ("concat.Concat", "::_?cat|stack"),
    "losses": ("losses.Losses", "loss|entropy|kl_div"),
    "dropout": ("dropout.Dropout", "dropout|rand|normal|uniform|bernoulli|exponential|geometric"),
    "pooling": ("pooling.Pooling", "pool|upsample"),
    "grouped_convolutions": ("grouped_convolutions.GroupedConvolutions", "convolution"),
    "decoding": ("decoding.Decoding", "attention"),
    "resampling": ("resampling.Resampling", "pool|upsample"),
    "recurrent": ("recurrent.Recurrent", "_rnn"),
    "fourier": ("fourier.Fourier", "_fft_"),
    "linear_algebra": ("linear_algebra.LinearAlgebra", "linalg|cholesky"),
    "grid_sampling": ("grid_sampling.GridSampling", "grid_sampler"),
    "fills": ("fills.Fills", "fill|full|zero|ones|scalar_tensor|arange|linspace|eye|_indices"),
    "compiled": ("compiled.Compiled", "^(?!aten::)"),
}
"""By name: the module and the class, and a pattern that all ops of the family match: it is imported for such an op."""


def _imported(name: str) -> Family:
    module, _, kind = CLASSES[name][0].partition(".")
    family: Family = getattr(import_module(f"{__name__}.{module}"), kind)()
    return family


FAMILIES = LazyMapping(CLASSES, _imported)
"""By name. No call is covered by two of them."""

DRAWN = LazyMapping([name for name in CLASSES if name != "compiled"], FAMILIES.__getitem__)
"""The families whose cases are drawn one by one; compiled kernels are made of whole programs."""

HELD_OUT = "heldout-5"
"""The series of cases that models are scored on and never fitted to."""


@cache
def _candidates(op: str) -> list[str]:
    return [name for name, (_, pattern) in CLASSES.items() if re.search(pattern, op)]


def family_of(op: Op) -> Family | None:
    """The family that covers a call, or None.

    >>> from foretrace.graph import Tensor
    >>> matrix = Tensor((4, 4), "float32")
    >>> family_of(Op("aten::mm", (matrix, matrix))).name, family_of(Op("aten::cholesky", (matrix,)))
    ('matrix', None)
    """
    return next((FAMILIES[name] for name in _candidates(op.name) if FAMILIES[name].matches(op)), None)


def context_of(
    family: Family, device: Device, indices: Indices | None, tf32: Tf32, pinned: bool = False
) -> CallContext:
    """The context of a family's calls in a step with these TF32 settings.

    >>> h200 = Device.named("h200")
    >>> [context_of(FAMILIES[name], h200, None, Tf32()).tf32 for name in ("convolutions", "matrix")]
    [True, False]
    """
    return CallContext(device, indices, tf32=family.may_use_tf32(tf32), pinned=pinned)


def case_number(family: str, number: int, most: int, kind: str, series: str = "") -> Case:
    """The case of a family that has this number in a series: always the same one."""
    shapes, turn = divmod(number, DRAWN[family].cases_per_shape)
    return DRAWN[family].case(Draw(f"{family} {series}{shapes}", most, kind, turn))


def check_families(names: Sequence[str]) -> None:
    """Refuse names that are no family."""
    for name in names:
        if name not in FAMILIES:
            raise ForetraceError(f"no family is called {name!r}", f"Known are: {', '.join(FAMILIES)}.")
