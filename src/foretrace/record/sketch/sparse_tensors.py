"""Sparse tensors in a sketch: gradients of lookups, and sparse matrices.

Fake gradients hold no rows, so that kernels pass over them: what they should hold is noted with them, in ``rows``. Fake
matrices hold as many elements as real ones would; PyTorch's fake kernels lose their number, and it is restored here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor
from torch.utils._mode_utils import no_dispatch

from foretrace.record.sketch.values import EVEN
from foretrace.record.watch.tensors import COMPRESSED

if TYPE_CHECKING:
    from foretrace.record.sketch.fake_step import FakeStepMode

aten = torch.ops.aten
CONVERSIONS = {
    aten._to_sparse.default: torch.sparse_coo, aten._to_sparse_csr.default: torch.sparse_csr,
    aten._to_sparse_csc.default: torch.sparse_csc,
}  # fmt: skip


class SparseTensors:
    """Calls on sparse tensors whose results PyTorch's fake kernels do not know, or leave empty."""

    def __init__(self, mode: FakeStepMode) -> None:
        self._mode = mode
        self._known = {
            aten.is_coalesced.default: self._is_coalesced,
            aten._coalesce.default: self._coalesced,
            aten.sparse_mask.default: self._masked,
            aten._indices.default: lambda sparse: self._part(sparse, 0),
            aten._values.default: lambda sparse: self._part(sparse, 1),
            aten._sparse_coo_tensor_with_dims_and_tensors.default: self._made,
            aten.sparse_compressed_tensor.comp_plain_value_size: self._made_compressed,
            aten._sparse_compressed_tensor_unsafe.default: self._made_compressed,
            aten._sparse_sum.dim: self._summed,
            aten.add_.Tensor: self._added,
            **dict.fromkeys((aten.mm.default, aten.mv.default), self._product),
            **dict.fromkeys(
                (aten.addmm.default, aten._sparse_addmm.default), lambda added, *pair, **_: self._product(*pair)
            ),
            **{func: self._converting(func, layout) for func, layout in CONVERSIONS.items()},
        }

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a call on sparse tensors, None where PyTorch knows it."""
        handler: Any = self._known.get(func)
        return handler(*args, **kwargs) if handler else None

    def filled(self, args: Any, made: Any) -> Any:
        """A sparse result with as many elements as its operands have together, where it was left empty."""
        given = [each for each in args if isinstance(each, FakeTensor) and each.layout == made.layout]
        with no_dispatch():
            if made._nnz() or not (found := sum(each._nnz() for each in given)):
                return made
            if made.layout in COMPRESSED:
                return self._compressed(made.shape, found, made)
            filled = self._matrix(made.shape, min(found, math.prod(made.shape)), made, made.sparse_dim())
        if len(given) == 1 and made.shape == given[0].shape and hasattr(given[0], "places"):
            filled.places = given[0].places
        return filled

    # Gradients.

    def _gradient(self, like: Any, rows: tuple[Any, Any], shape: Any = None) -> Any:
        shape = list(like.shape if shape is None else shape)
        indices, values = rows[0].new_empty((1, 0)), rows[1].new_empty((0, *shape[1:]))
        made: Any = aten._sparse_coo_tensor_with_dims_and_tensors(
            1, len(shape) - 1, shape, indices, values, dtype=like.dtype, layout=torch.sparse_coo, device=like.device
        )
        made.rows = rows
        return made

    def _coalesced_rows(self, sparse: Any) -> tuple[Any, Any]:
        """Each row once: as many as ids hit that are drawn evenly, since ids are unknown."""
        assumptions = self._mode.assumptions
        known = hasattr(sparse, "rows")  # noted where it was accumulated
        if assumptions.in_step and not known:
            raise DynamicOutputShapeException(aten._coalesce.default)
        assumptions.known(frozenset({EVEN}), self._mode.calls)
        hit = _hit(sparse.rows[0].shape[1] if known else 1, sparse.shape[0])
        with self._mode:
            values = torch.empty((hit, *sparse.shape[1:]), dtype=sparse.dtype, device=sparse.device)
            return values.new_empty((1, hit), dtype=torch.int64), values

    def _added(self, dense: Any, other: Any, **_: Any) -> Any:
        """A dense tensor to which a sparse one is added: PyTorch would add real zeros, as large as the table."""
        if not isinstance(other, FakeTensor) or other.layout == torch.strided or dense.layout != torch.strided:
            return None
        self._mode.values.overwrite(dense)
        return dense

    # Matrices.

    def _matrix(self, shape: Any, count: int, like: Any, dims: int = 2, coalesced: bool = False) -> Any:
        with no_dispatch():
            places = torch.empty(dims, count, dtype=torch.int64, device="meta")
            values = torch.empty(count, *shape[dims:], dtype=like.dtype, device="meta")
            made = aten._sparse_coo_tensor_with_dims_and_tensors(
                dims, len(shape) - dims, list(shape), places, values, dtype=like.dtype, layout=torch.sparse_coo,
                device="meta", is_coalesced=coalesced,
            )  # fmt: skip
        return FakeTensor(self._mode, made, like.fake_device)

    def _compressed(self, shape: Any, count: int, like: Any, layout: torch.layout | None = None) -> Any:
        layout = layout or like.layout
        lines = shape[-2] if layout == torch.sparse_csr else shape[-1]
        with no_dispatch():
            ends, places = (torch.empty(each, dtype=torch.int64, device="meta") for each in (lines + 1, count))
            values = torch.empty(count, dtype=like.dtype, device="meta")
            made = aten._sparse_compressed_tensor_unsafe(
                ends, places, values, list(shape), dtype=like.dtype, layout=layout, device="meta"
            )
        return FakeTensor(self._mode, made, like.fake_device)

    def _made(self, dims: int, dense: int, shape: Any, places: Any, values: Any, **options: Any) -> Any:
        if dims == 1:
            return self._gradient(values, (places, values), shape) if places.shape[1] else None
        made = self._matrix(shape, places.shape[1], values, dims, bool(options.get("is_coalesced")))
        made.places = places
        return made

    def _made_compressed(self, ends: Any, places: Any, values: Any, shape: Any, **options: Any) -> Any:
        with no_dispatch():
            parts = (torch.empty(each.shape, dtype=each.dtype, device="meta") for each in (ends, places, values))
            made = aten._sparse_compressed_tensor_unsafe(
                *parts, list(shape), dtype=values.dtype, layout=options["layout"], device="meta"
            )
        return FakeTensor(self._mode, made, values.fake_device)

    def _converting(self, func: Any, layout: torch.layout) -> Any:
        """What makes a sparse matrix of a dense one whose values are known, or of another sparse one."""

        def convert(tensor: Any, *dense: Any, **options: Any) -> Any:
            wanted = options.get("layout") or layout
            if tensor.layout == torch.strided:
                values = self._read(tensor)
                if values is None:
                    raise DynamicOutputShapeException(func)
                with no_dispatch():
                    count = int(values.count_nonzero())
            else:
                with no_dispatch():
                    count = tensor._nnz()
            if wanted == torch.sparse_coo:
                return self._matrix(tensor.shape, count, tensor, tensor.dim(), coalesced=True)
            return self._compressed(tensor.shape, count, tensor, wanted)

        return convert

    def _product(self, one: Any, other: Any) -> Any:
        if one.layout not in COMPRESSED or other.layout != torch.strided:
            return None
        with self._mode:
            return other.new_empty((one.shape[0], *other.shape[1:]))

    def _summed(self, sparse: Any, dims: Any) -> Any:
        left = [size for dim, size in enumerate(sparse.shape) if dim not in [each % sparse.dim() for each in dims]]
        if sparse.sparse_dim() < sparse.dim() or not left:
            return None
        with no_dispatch():
            count = sparse._nnz()
        self._mode.assumptions.known(frozenset({EVEN}), self._mode.calls)
        return self._matrix(left, _hit(count, math.prod(left)), sparse, len(left), coalesced=True)

    def _is_coalesced(self, sparse: Any) -> bool:
        if sparse.sparse_dim() == 1:
            return False  # duplicate ids are unknown
        with no_dispatch():
            return bool(aten.is_coalesced(sparse))

    def _coalesced(self, sparse: Any) -> Any:
        if sparse.sparse_dim() == 1:
            return self._gradient(sparse, self._coalesced_rows(sparse))
        dims, places = sparse.sparse_dim(), getattr(sparse, "places", None)
        known = self._read(places) if places is not None else None
        if known is None:
            self._mode.assumptions.known(frozenset({EVEN}), self._mode.calls)
        with no_dispatch():
            distinct = _hit(sparse._nnz(), math.prod(sparse.shape[:dims])) if known is None else _distinct(known)
        return self._matrix(sparse.shape, distinct, sparse, dims, coalesced=True)

    def _read(self, fake: Any) -> torch.Tensor | None:
        """The values of a tensor, noted with what they rest on."""
        values = self._mode.values
        if assumed := values.assumed(fake):
            self._mode.assumptions.known(assumed, self._mode.calls)
        return values.of(fake)

    def _masked(self, dense: Any, mask: Any) -> Any:
        if mask.layout in COMPRESSED:
            with no_dispatch():
                return self._compressed(mask.shape, mask._nnz(), mask)
        if mask.sparse_dim() > 1:
            with no_dispatch():
                return self._matrix(mask.shape, mask._nnz(), dense, mask.sparse_dim(), coalesced=True)
        rows = getattr(mask, "rows", None)
        if rows is None:
            return None
        with self._mode:
            return self._gradient(mask, (rows[0], torch.empty_like(rows[1])))

    def _part(self, sparse: Any, which: int) -> Any:
        rows = getattr(sparse, "rows", None)
        return None if rows is None else rows[which]


def _hit(drawn: int, places: int) -> int:
    """How many places are hit by so many draws that are even."""
    return round(-places * math.expm1(-drawn / places)) if places else 0


def _distinct(places: torch.Tensor) -> int:
    return int(places.unique(dim=1).shape[1])
