"""Ops that launch no kernel: views, allocations, queries of a tensor, communication."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.graph import Op, Tensor

LAUNCH_FREE_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "transpose_", "permute", "expand",
        "slice", "select", "narrow", "as_strided", "as_strided_", "unsqueeze", "unsqueeze_", "squeeze", "squeeze_",
        "detach", "detach_", "alias", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes",
        "unbind", "chunk", "unfold", "diagonal", "movedim", "swapaxes", "view_as_real", "view_as_complex", "_conj",
        "_neg_view", "real", "imag", "T", "mT", "empty", "empty_like", "empty_strided", "empty_quantized",
        "new_empty", "new_empty_strided", "resize_", "resize", "set_", "lift", "lift_fresh", "is_same_size",
        "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_pinned", "_has_compatible_shallow_copy_type",
        "record_stream", "_indices", "_values", "indices", "values", "_nnz", "is_coalesced", "_coalesced_",
        "_coalesced", "sparse_dim", "dense_dim", "_sparse_coo_tensor_with_dims",
        "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe", "sparse_resize_",
        "_nested_view_from_buffer", "is_contiguous", "dim", "size", "stride", "result_type", "is_nonzero", "_version",
        "_fw_primal", "requires_grad_", "retain_grad", "_assert_async", "_assert_tensor_metadata",
        "_cudnn_init_dropout_state", "scalar_tensor", "promote_types", "can_cast", "is_complex", "is_floating_point",
        "_validate_sparse_coo_tensor_args", "_validate_compressed_sparse_indices", "_pin_memory", "pin_memory",
    )
)  # fmt: skip
"""Their outputs share the memory of the inputs, or are not initialized."""

LAUNCH_FREE_PREFIXES = (
    "c10d::",
    "_c10d_functional::",
    "c10d_functional::",
    "nccl:",
    "gloo:",
    "cuda::",
    "storage::",
    "profiler::",
    "prim::",
)
"""Prefixes of further ones: communication is priced by the fabric, the others only synchronize or annotate."""


def launches_nothing(op: Op, kind: str) -> bool:
    """Whether a call launches no kernel on a device of this kind.

    >>> from foretrace.graph import Tensor
    >>> on_host = Tensor((4,), "float32", device="cpu")
    >>> launches_nothing(Op("aten::view"), "cuda"), launches_nothing(Op("aten::add", (on_host,)), "cuda")
    (True, True)
    """
    if op.name in LAUNCH_FREE_OPS or op.name.startswith(LAUNCH_FREE_PREFIXES):
        return True
    return not (_any_work(op.tensors, kind) or _any_work(op.produced, kind))


def _any_work(tensors: Sequence[Tensor], kind: str) -> bool:
    """Whether any is on a device of this kind and has elements; a sparse one may have some."""
    for tensor in tensors:
        if (kind == "cpu" or tensor.device != "cpu") and (0 not in tensor.shape or tensor.layout != "strided"):
            return True
    return False
