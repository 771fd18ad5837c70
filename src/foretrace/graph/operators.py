"""Properties of PyTorch operators by their names: which may be called, which communicate, which synchronize.

A recording is untrusted input: an operator that it names is called only if `operator_path` accepts it.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from foretrace.graph.op import HALF_DTYPES, Op, Tensor

NAMESPACES = {"aten": "", "prims": "", "c10d": "", "_c10d_functional": "", "fsdp": "torch.distributed.fsdp"}
"""Operators that come with PyTorch, and what has to be imported for them."""

REFUSED = frozenset(
    f"aten::{name}"
    for name in (
        "save", "from_file", "_print", "warn",
        "format", "percentFormat", "join", "replace", "expandtabs", "center", "ljust", "rjust", "zfill",
    )
)  # fmt: skip
"""Operators of these namespaces that open files, print, or build strings of unbounded length."""

GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
LINEAR = ("aten::mm", "aten::addmm")
"""What linear layers call."""
EMBEDDING_BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
LOOKUPS = (*EMBEDDING_BAGS, "aten::embedding")
FBGEMM = "fbgemm::"
"""How the names of FBGEMM's operators begin."""
ATTENTION_PREFIX = "aten::_scaled_dot_product_"
"""How the names of fused attention begin, forward and backward."""

LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
DUNDER_OPERATORS = frozenset(f"__{i}{name}__" for i in ("", "i") for name in ("and", "or", "xor", "lshift", "rshift"))
"""Operators whose names look like Python's special attributes."""


def operator_path(name: str, overload: str, namespaces: Iterable[str] = ()) -> str | None:
    """The attribute path of an operator below ``torch.ops``; None for one that must not be called.

    ``namespaces`` are allowed besides PyTorch's own.

    >>> operator_path("aten::add", "Tensor"), operator_path("aten::__and__", "Tensor")
    ('aten.add.Tensor', 'aten.__and__.Tensor')
    >>> operator_path("aten::relu", "")  # a trace may not name the overload: PyTorch finds it by the arguments
    'aten.relu'
    >>> [operator_path(name, "default") for name in ("os::system", "aten::x; import os", "aten::__class__")]
    [None, None, None]
    >>> operator_path("fbgemm::jagged_to_dense", "default", namespaces=["fbgemm"])
    'fbgemm.jagged_to_dense.default'
    """
    namespace, _, short = name.partition("::")
    if namespace not in NAMESPACES and namespace not in set(namespaces):
        return None
    if name in REFUSED or not (is_identifier(namespace) and (is_identifier(overload) or not overload)):
        return None
    if not (is_identifier(short) or short in DUNDER_OPERATORS):
        return None
    return f"{namespace}.{short}.{overload}".rstrip(".")


def is_identifier(text: str) -> bool:
    """Whether a text is a plain ASCII name: no Python keyword and no special attribute.

    >>> is_identifier("addmm"), is_identifier("a b"), is_identifier("__import__"), is_identifier("lambda")
    (True, False, False, False)
    """
    return bool(IDENTIFIER.fullmatch(text)) and not text.startswith("__") and not keyword.iskeyword(text)


C10D_CALLS = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
"""Prefixes of the calls that start a collective."""
ON_HOST = ("gloo:", "mpi:")
"""Prefixes of the annotations of collectives that a thread of the host runs."""
COLLECTIVE_CALLS = (*C10D_CALLS, "_dtensor::")
"""Prefixes of all calls that communicate."""
_COLLECTIVE_KINDS = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("all2all", "all_to_all"),
    ("a2a", "all_to_all"),
    ("crossdevicereduce", "all_reduce"),
    ("quickreduce", "all_reduce"),
    ("arfusion", "all_reduce"),
    ("collectivepermute", "send"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send"),
    ("dispatch", "all_to_all"),
    ("combine", "all_to_all"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send"),
    ("recv", "recv"),
)
_NOT_LETTERS = re.compile(r"[^a-z0-9]")


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> str:
    """The kind of collective that a call or kernel of PyTorch, NCCL or RCCL performs; empty for none (a wait, an init).

    >>> [collective_kind(n) for n in ("_allgather_base", "c10d::allreduce_", "all_to_allv", "wait")]
    ['all_gather', 'all_reduce', 'all_to_all', '']
    >>> collective_kind("vllm::cross_device_reduce_1stage<half>")
    'all_reduce'
    """
    letters = _NOT_LETTERS.sub("", name.lower())
    return next((kind for word, kind in _COLLECTIVE_KINDS if word in letters), "")


_LIBRARY = re.compile(
    r"nccl|rccl|msccl|hccl|oneccl|nvshmem|internode|intranode|userbuffers|multimem(?!cpy|set|ory)|"
    r"(?<![a-z])(hcom_|ar_?fusion)"
)
_EXCHANGE = re.compile(
    "(?<!sm)all(reduce|gather)|reducescatter|alltoall|all2all|crossdevicereduce|quickreduce|moea2a|collectivepermute"
)
"""Of the name without separators."""
_INDUCTOR = re.compile(r"triton_(poi|red|per|tem|for)_")
"""Kernels of torch.compile, which are named after all calls that they are made of and next to."""


@lru_cache(maxsize=4096)
def communicates(kernel: str) -> bool:
    """Whether a kernel communicates with other ranks: of NCCL, RCCL, MSCCL++, NVSHMEM, DeepEP, or an engine's own.

    >>> [communicates(n) for n in ("ncclDevKernel_Generic", "cross_device_reduce_1stage<half>", "reduce_kernel<512>")]
    [True, True, False]
    >>> communicates("void deep_ep::internode::dispatch<false, 8>(int4*)"), communicates("mscclpp::allreduce7(int*)")
    (True, True)
    >>> [communicates(n) for n in ("small_reduce", "batch_compute", "trunc_clamp", "triton_poi_fused_all_reduce_0")]
    [False, False, False, False]
    """
    name = kernel.lower()
    if _INDUCTOR.match(name):
        return False
    return bool(_LIBRARY.search(name) or _EXCHANGE.search(name.replace("_", "").replace("-", "")))


DATA_DEPENDENT = frozenset({
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::masked_select",
    "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
    "aten::_coalesce", "aten::repeat_interleave",
})  # fmt: skip
"""Calls whose result, or its size, the host must read before it goes on."""
COPIES = ("aten::copy_", "aten::_to_copy")
MASK_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
MAY_SYNCHRONIZE = DATA_DEPENDENT.union(COPIES, MASK_INDEXING)
"""Calls that `waits_for_device` may be true of."""
SYNCHRONIZE = ("cuda::device_synchronize", "cuda::stream_synchronize", "cuda::event_synchronize")
MASK_DTYPES = ("bool", "uint8")


def waits_for_device(op: Op) -> bool:
    """Whether a call blocks the host until the device has finished its queued work (an implicit synchronization).

    >>> waits_for_device(Op("aten::_local_scalar_dense", (Tensor((), "float32", "cuda:0"),)))
    True
    >>> waits_for_device(Op("aten::_local_scalar_dense", (Tensor((), "float32", "cpu"),)))
    False
    """
    if op.name in DATA_DEPENDENT:
        return any(on_device(tensor.device) for tensor in op.tensors)
    if op.name in COPIES:
        third = op.args[2] if op.name == "aten::copy_" and len(op.args) > 2 else False
        crosses = len({on_device(t.device) for t in (*op.tensors, *op.produced) if t.device}) == 2
        return crosses and not op.kwargs.get("non_blocking", third) and all(tensor.numel for tensor in op.tensors)
    if op.name in MASK_INDEXING:
        return any(t.dtype in MASK_DTYPES and on_device(t.device) for t in op.tensors[1:])
    return False


def on_device(device: str) -> bool:
    """Whether a tensor's device is an accelerator.

    >>> on_device("cuda:0"), on_device("cpu"), on_device("")
    (True, False, False)
    """
    return bool(device) and not device.startswith(("cpu", "meta"))


SPARSE_CONSTRUCTORS = ("aten::_sparse_coo_tensor_unsafe", "aten::_sparse_coo_tensor_with_dims_and_tensors")
SPARSE_ACCESSORS = {"aten::_indices": 0, "aten::_values": 1}


def sparse_parts(ops: Sequence[Op]) -> dict[int, tuple[Tensor, Tensor]]:
    """Indices and values of each sparse tensor, by its id, where an op constructs it or reads both from it.

    >>> ids, rows = Tensor((1, 9), "int64", id=0, storage=0), Tensor((9, 4), "float32", id=1, storage=1)
    >>> gradient = Tensor((50, 4), "float32", id=2, layout="sparse_coo")
    >>> parts = sparse_parts([Op(SPARSE_CONSTRUCTORS[0], (ids, rows, [50, 4]), outputs=(gradient,))])
    >>> parts[2] == (ids, rows)
    True
    """
    found: dict[int, dict[int, Tensor]] = {}
    for op in ops:
        if op.name in SPARSE_CONSTRUCTORS:
            for made in op.produced:
                found[made.id] = dict(enumerate([t for t in op.tensors if t.layout == "strided"][-2:]))
        elif op.name in SPARSE_ACCESSORS:
            for whole, part in zip(op.tensors, op.produced):
                if part.layout == "strided":  # a damaged recording may have a tensor that is its own part
                    found.setdefault(whole.id, {}).setdefault(SPARSE_ACCESSORS[op.name], part)
    return {number: (parts[0], parts[1]) for number, parts in found.items() if len(parts) == 2}


def cudnn_takes_batch_norm(data: str, weight: str) -> bool:
    """Whether PyTorch runs batch norm by cuDNN for data and weights of these dtypes; else by its own kernels.

    >>> [cudnn_takes_batch_norm(*dtypes) for dtypes in (("float32", "float32"), ("float16", "float16"))]
    [True, False]
    """
    return "bfloat16" not in (data, weight) and (data != "float16" or weight == "float32")


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
    "c10d::", "_c10d_functional::", "c10d_functional::", "nccl:", "gloo:", "cuda::", "storage::", "profiler::",
    "prim::",
)  # fmt: skip
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
    for tensors in (op.tensors, op.produced):
        for tensor in tensors:  # a sparse one may have elements
            if (kind == "cpu" or tensor.device != "cpu") and (0 not in tensor.shape or tensor.layout != "strided"):
                return False
    return True


MAX_HEAD_SIZE = {"cudnn": 128, "flash": 256}
"""Of implementations that take half precision only. The efficient one takes any head size."""


def attention_backends(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False, dropout: float = 0.0
) -> list[str]:
    """Implementations that PyTorch may run an attention with on Hopper and later GPUs, the preferred one first.

    The checks of ``sdp_utils.cpp`` on dtypes and sizes; only cuDNN's and flash take fewer heads of keys and values.

    >>> [attention_backends(*[Tensor((8, 12, 512, 64), dtype)] * 3)[0] for dtype in ("bfloat16", "float32")]
    ['cudnn', 'efficient']
    """
    found = ["math"]
    sizes = [tensor.shape for tensor in (q, k, v)]
    if any(len(shape) != 4 or 0 in shape for shape in sizes) or len({shape[0] for shape in sizes}) != 1:
        return found
    (_, heads, rows, head_size), (_, k_heads, columns, k_size), (_, v_heads, _, v_size) = sizes
    half, grouped = q.dtype in HALF_DTYPES, not heads == k_heads == v_heads
    alignment = 8 if half else 4
    if head_size == k_size and not (head_size % alignment or v_size % alignment or grouped) and q.dtype != "float64":
        found.insert(0, "efficient")
    square = not causal or rows == columns
    if half and mask is None and head_size == k_size == v_size <= MAX_HEAD_SIZE["flash"] and square:
        found.insert(0, "flash")
    if half and _cudnn_takes_attention(q.shape, columns, v_size, mask, dropout):
        found.insert(0, "cudnn")
    return found


def _cudnn_takes_attention(q: Sequence[int], columns: int, v_size: int, mask: Tensor | None, dropout: float) -> bool:
    batch, heads, rows, size = q
    if max(size, v_size) > MAX_HEAD_SIZE["cudnn"] and (size, v_size) != (192, 128):
        return False
    if size % 8 or v_size % 8 or columns == 1 or (dropout and rows == 1):
        return False
    if mask is None:
        return True
    broadcast = zip(mask.shape, (batch, heads, rows, columns)[-len(mask.shape) :])
    return len(mask.shape) in (2, 4) and all(given in (1, whole) for given, whole in broadcast)
