"""Ratios of kernel times: how many times as long calls take on a GPU as on the one whose kernels were calibrated.

They are fitted on tables that others measured (`foretrace.calibration.published`). A table has one layout of a GEMM, or
the forward of an attention; the ratio of that reference call is taken for the others of its size: layouts, biases and
backwards differ on other GPUs as they do on the calibrated one.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.decomposition import parts_of
from foretrace.cost_models.kernels.estimators.forests import Forest
from foretrace.cost_models.kernels.estimators.npz import read_arrays
from foretrace.cost_models.kernels.families import CallContext, family_of
from foretrace.cost_models.kernels.families.attention import CAUSAL, inputs_of
from foretrace.cost_models.kernels.families.gemm import ADDING, PACKED, product_sizes
from foretrace.cost_models.kernels.features import argument
from foretrace.cost_models.kernels.reliability import ErrorRange
from foretrace.errors import ForetraceError
from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.op import HALF_DTYPES, signature
from foretrace.graph.operators import ATTENTION_PREFIX
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device

CUDA = "cuda:0"
KINDS = ("bf16", "fp8", "grouped", "attention", "flash", "bf16_older")
"""GEMMs of 16-bit floats and of 8-bit ones, grouped GEMMs, and attention: of any library, and of FlashAttention 2; and
GEMMs of 16-bit floats by cuBLAS before `NEWER_CUBLAS`."""
OLDER = "bf16_older"
NEWER_CUBLAS = 12060
"""The CUDA runtime whose cuBLAS has other kernels on Hopper (``nvjet`` for ``sm90_xmma_gemm``), a fifth faster."""
ALIGNED = 8
"""Elements that sizes of a table's GEMMs are multiples of; where others are not, libraries have slower kernels."""


class Reference(NamedTuple):
    """The call whose ratio stands for another one."""

    kind: str
    op: Op


def is_older_cublas(cuda_runtime: int) -> bool:
    """Whether a trace's CUDA has the cuBLAS before `NEWER_CUBLAS`; not where it is unknown.

    >>> is_older_cublas(12040), is_older_cublas(12080), is_older_cublas(0)
    (True, False, False)
    """
    return 0 < cuda_runtime < NEWER_CUBLAS


def reference_of(op: Op, cuda_runtime: int = 0) -> list[Reference]:
    """The calls whose ratio may be taken for a call, the closest first; none where no table has its kind.

    >>> grad = Op("aten::mm", (Tensor((64, 512), "bfloat16", stride=(1, 64)), Tensor((512, 32), "bfloat16")))
    >>> [(kind, [each.shape for each in op.tensors]) for kind, op in reference_of(grad)]
    [('bf16', [(64, 512), (512, 32)])]
    """
    family = family_of(op)
    if family is None or family.name not in ("matrix", "attention"):
        return []
    if family.name == "attention":
        return _attention_references(op)
    tensors = op.tensors[1:] if op.name in ADDING else op.tensors
    a, b = tensors[:2]
    batch, m, n, k = product_sizes(a, b)
    if a.dtype.startswith("float8") or a.dtype == PACKED:
        return [Reference("fp8", linear(batch * m, n, k, "float8_e4m3fn"))]
    if a.dtype not in HALF_DTYPES:
        return []
    if op.name == "aten::_grouped_mm" and len(tensors) > 2:
        rows, inner = (m, k) if len(b.shape) == 3 else (k, m)
        return [Reference("grouped", grouped_linear(rows, tensors[2].numel, n, inner))]
    if n % ALIGNED or k % ALIGNED:
        return []
    linears = linear(batch * m, n, k)
    older = [Reference(OLDER, linears)] if is_older_cublas(cuda_runtime) else []
    return [*older, Reference("bf16", linears)]


def _attention_references(op: Op) -> list[Reference]:
    kind = op.name[len(ATTENTION_PREFIX) :]
    q, k, _ = inputs_of(op)
    if q.dtype not in HALF_DTYPES:
        return []
    causal = argument(op, CAUSAL[kind], "is_causal") is True
    query, key = (each.shape[:4] for each in (q, k))
    found = [Reference("attention", attention("cudnn", query, key, causal))]
    if kind.startswith("flash"):
        found.insert(0, Reference("flash", attention("flash", query, key, causal)))
    return found


def linear(m: int, n: int, k: int, dtype: str = "bfloat16") -> Op:
    """A linear layer without bias: x[m, k] times a weight[n, k], transposed."""
    x, weight = Tensor((m, k), dtype, CUDA, stride=(k, 1)), Tensor((k, n), dtype, CUDA, stride=(1, k))
    if dtype.startswith("float8"):
        scale = Tensor((), "float32", CUDA)
        return Op(
            "aten::_scaled_mm",
            (x, weight, scale, scale),
            {"out_dtype": Constant("dtype", "bfloat16")},
            overload="default",
            outputs=(Tensor((m, n), "bfloat16", CUDA),),
        )
    return Op("aten::mm", (x, weight), overload="default", outputs=(Tensor((m, n), dtype, CUDA),))


def grouped_linear(rows: int, groups: int, n: int, k: int) -> Op:
    """One linear layer per expert, over the rows routed to it."""
    x, experts = Tensor((rows, k), "bfloat16", CUDA), Tensor((groups, k, n), "bfloat16", CUDA, stride=(n * k, 1, k))
    return Op("aten::_grouped_mm", (x, experts, Tensor((groups,), "int32", CUDA)), overload="default")


def attention(style: str, query: Sequence[int], key: Sequence[int], causal: bool) -> Op:
    """Attention forward over tensors of batch, heads, length and width, as `scaled_dot_product_attention` calls it."""
    q, k, v = (
        Tensor((b, h, s, d), "bfloat16", CUDA, stride=(h * s * d, d, h * d, 1)) for b, h, s, d in (query, key, key)
    )
    rest = (0.0, causal) if style == "flash" else (None, False, 0.0, causal)
    return Op(
        f"aten::_scaled_dot_product_{style}_attention",
        (q, k, v, *rest),
        {"scale": query[3] ** -0.5},
        overload="default",
    )


@dataclass(frozen=True, eq=False)
class RatioModel:
    """A forest that predicts the logarithm of the ratio, and how far off it is."""

    forest: Forest
    errors: ErrorRange

    def price(self, features: Floats) -> Floats:
        """For each row the ratio, and the logarithms of its 10th and its 90th percentile over it."""
        ratio = np.exp(self.forest.predict(features))
        low, high, _ = self.errors.around(features, np.stack([ratio, ratio], axis=1), np.zeros((len(ratio), 0)))
        return np.stack([ratio, low, high], axis=1)

    def write(self, folder: Path, kind: str) -> None:
        """Write it to ``<kind>.npz``: plain numbers."""
        columns = np.array(features_of(_SAMPLES[kind], Device.named("h200"))[1])
        arrays: dict[str, Any] = {"columns": columns, **self.forest.arrays("forest"), **self.errors.arrays()}
        np.savez_compressed(folder / f"{kind}.npz", **arrays)

    @classmethod
    def read(cls, path: Path) -> RatioModel:
        """Read what `write` wrote; a damaged file, or one of other features, is refused."""
        columns = features_of(_SAMPLES[path.stem], Device.named("h200"))[1]
        try:
            arrays = read_arrays(path)
            if tuple(arrays["columns"].tolist()) != columns:
                raise ValueError("it was fitted for other features than this Foretrace has")
            return cls(Forest.from_arrays(arrays, "forest", len(columns)), ErrorRange.from_arrays(arrays, 0))
        except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise ForetraceError(
                f"{path} is no fitted model ({error})",
                "Restore it, or import its tables again: foretrace calibrate import.",
            ) from None


_SAMPLES = {
    "bf16": linear(1, 1, 1),
    "fp8": linear(1, 1, 1, "float8_e4m3fn"),
    "grouped": grouped_linear(1, 1, 1, 1),
    "attention": attention("cudnn", (1, 1, 1, 8), (1, 1, 1, 8), False),
    "flash": attention("flash", (1, 1, 1, 8), (1, 1, 1, 8), False),
    OLDER: linear(1, 1, 1),
}


def features_of(op: Op, device: Device) -> tuple[Sequence[float], tuple[str, ...]]:
    """Features of a reference call on a device, and their names."""
    family = family_of(op)
    assert family is not None
    return family.describe(op, CallContext(device)).features, family.columns


class CallRatios(NamedTuple):
    """Ratios of some calls, by their positions."""

    place: NDArray[np.intp]
    ratio: Floats
    low: Floats
    """Logarithms of the 10th percentile over the ratio, and of the 90th."""
    high: Floats


@lru_cache(maxsize=64)
def _model(path: Path, changed: int) -> RatioModel:
    return RatioModel.read(path)


def ratios_of(ops: Sequence[Op], folder: Path, device: Device, cuda_runtime: int = 0) -> CallRatios:
    """The ratios of calls whose kind was in a table."""
    paths = {path.stem: path for path in folder.glob("*.npz")}
    calls: defaultdict[str, defaultdict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(list))
    rows: defaultdict[str, list[Sequence[float]]] = defaultdict(list)
    for place, op in enumerate(ops):
        parts = parts_of(op)
        references = reference_of(parts[0], cuda_runtime) if len(parts) == 1 else []
        found = next((each for each in references if each.kind in paths), None)
        if found:
            alike = calls[found.kind][signature(found.op)]
            if not alike:
                rows[found.kind].append(features_of(found.op, device)[0])
            alike.append(place)
    found_rows = [np.zeros((0, 4))]
    for kind, features in rows.items():
        columns = np.array(features, np.float64)
        priced = _model(paths[kind], paths[kind].stat().st_mtime_ns).price(columns)
        for each, row in zip(calls[kind].values(), priced):
            found_rows.append(np.array([(place, *row) for place in each]))
    place, ratio, low, high = np.concatenate(found_rows).T
    return CallRatios(place.astype(np.intp), ratio, low, high)
