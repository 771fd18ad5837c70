"""Operators of PyTorch by their names. A recording is untrusted: what it names is called only if it is known here."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor

NAMESPACES = {"aten": "", "prims": "", "c10d": "", "_c10d_functional": "", "fsdp": "torch.distributed.fsdp"}
"""Operators that come with PyTorch, and what has to be imported for them."""

REFUSED = frozenset(
    f"aten::{name}"
    for name in (
        "save", "from_file", "_print", "warn",
        "format", "percentFormat", "join", "replace", "expandtabs", "center", "ljust", "rjust", "zfill",
    )
)  # fmt: skip
"""Operators of these namespaces that open files, speak to the user, or write texts as long as one likes."""

COMMUNICATES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
"""How the names of collectives begin."""

LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
OPERATOR_WORDS = frozenset(f"__{i}{name}__" for i in ("", "i") for name in ("and", "or", "xor", "lshift", "rshift"))
"""Operators whose names begin like Python's own attributes."""


def target(name: str, overload: str, more: Iterable[str] = ()) -> str | None:
    """How an operator is written below ``torch.ops``; None for one that must not be called.

    >>> target("aten::add", "Tensor"), target("aten::__and__", "Tensor")
    ('aten.add.Tensor', 'aten.__and__.Tensor')
    >>> target("aten::relu", "")  # the trace does not say which overload: PyTorch finds it by the arguments
    'aten.relu'
    >>> target("os::system", "default"), target("aten::x; import os", ""), target("aten::__class__", "default")
    (None, None, None)
    >>> target("fbgemm::jagged_to_dense", "default", more=["fbgemm"])
    'fbgemm.jagged_to_dense.default'
    """
    namespace, _, short = name.partition("::")
    if namespace not in NAMESPACES and namespace not in set(more):
        return None
    if name in REFUSED or not (is_word(namespace) and (is_word(overload) or not overload)):
        return None
    if not (is_word(short) or short in OPERATOR_WORDS):
        return None
    return f"{namespace}.{short}.{overload}".rstrip(".")


def is_word(text: str) -> bool:
    """Whether a text is a plain name that Python has no meaning of its own for.

    >>> is_word("addmm"), is_word("a b"), is_word("__import__"), is_word("lambda"), is_word("naïve")
    (True, False, False, False, False)
    """
    return bool(WORD.fullmatch(text)) and not text.startswith("__") and not keyword.iskeyword(text)


# --- was graph.waiting: Calls that return only when the device has done what it was given so far, told from their arguments.

READS_A_VALUE = frozenset({
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::masked_select",
    "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
    "aten::_coalesce", "aten::repeat_interleave",
})  # fmt: skip
"""Calls whose result or size the host must know before it goes on."""
COPIES = ("aten::copy_", "aten::_to_copy")
BY_MASK = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
WAITING = READS_A_VALUE.union(COPIES, BY_MASK)
SYNCHRONIZE = ("cuda::device_synchronize", "cuda::stream_synchronize", "cuda::event_synchronize")
MASKS = ("bool", "uint8")


def waits_for_device(op: Op) -> bool:
    """Whether a call returns only when the device has done what it was given so far.

    >>> from foretrace.graph import Tensor
    >>> waits_for_device(Op("aten::_local_scalar_dense", (Tensor((), "float32", "cuda:0"),)))
    True
    >>> waits_for_device(Op("aten::_local_scalar_dense", (Tensor((), "float32", "cpu"),)))
    False
    """
    if op.name in READS_A_VALUE:
        return any(on_device(tensor.device) for tensor in op.tensors)
    if op.name in COPIES:
        return _crosses(op) and not _non_blocking(op) and all(tensor.numel for tensor in op.tensors)
    if op.name in BY_MASK:
        return any(t.dtype in MASKS and on_device(t.device) for t in op.tensors[1:])
    return False


def on_device(device: str) -> bool:
    """Whether a tensor's device is none of the host's.

    >>> on_device("cuda:0"), on_device("cpu"), on_device("")
    (True, False, False)
    """
    return bool(device) and not device.startswith(("cpu", "meta"))


def _crosses(op: Op) -> bool:
    """Whether a copy goes from the host to a device or back."""
    sides = {on_device(t.device) for t in (*op.tensors, *op.produced) if t.device}
    return len(sides) == 2


def _non_blocking(op: Op) -> bool:
    flag = op.kwargs.get("non_blocking", op.args[2] if op.name == "aten::copy_" and len(op.args) > 2 else False)
    return bool(flag)


# --- was graph.sparse: What sparse tensors are made of, as the calls around them tell.

JOINS = ("aten::_sparse_coo_tensor_unsafe", "aten::_sparse_coo_tensor_with_dims_and_tensors")
PARTS = {"aten::_indices": 0, "aten::_values": 1}


def sparse_parts(ops: Sequence[Op]) -> dict[int, tuple[Tensor, Tensor]]:
    """Indices and values of each sparse tensor, by its id, where a call put them together or took them apart.

    >>> ids, rows = Tensor((1, 9), "int64", id=0, storage=0), Tensor((9, 4), "float32", id=1, storage=1)
    >>> gradient = Tensor((50, 4), "float32", id=2, layout="sparse_coo")
    >>> parts = sparse_parts([Op(JOINS[0], (ids, rows, [50, 4]), outputs=(gradient,))])
    >>> parts[2] == (ids, rows)
    True
    """
    apart: dict[int, dict[int, Tensor]] = {}
    for op in ops:
        if op.name in JOINS:
            for made in op.produced:
                apart[made.id] = dict(enumerate([t for t in op.tensors if t.layout == "strided"][-2:]))
        elif op.name in PARTS:
            for whole, part in zip(op.tensors, op.produced):
                if part.layout == "strided":  # a damaged recording may have a tensor that is its own part
                    apart.setdefault(whole.id, {}).setdefault(PARTS[op.name], part)
    return {number: (parts[0], parts[1]) for number, parts in apart.items() if len(parts) == 2}


# --- was graph.collectives: What PyTorch, NCCL and RCCL call a collective, in our words; and which call asks for which.

EXCHANGES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
"""How the names of calls begin that ask for a collective."""
_KINDS = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("all2all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send"),
    ("recv", "recv"),
)
_NOT_LETTERS = re.compile(r"[^a-z0-9]")


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> str:
    """The kind of collective a name stands for; empty where it stands for none (a wait, an init).

    >>> [collective_kind(n) for n in ("_allgather_base", "c10d::allreduce_", "all_to_allv", "wait")]
    ['all_gather', 'all_reduce', 'all_to_all', '']
    """
    letters = _NOT_LETTERS.sub("", name.lower())
    return next((kind for word, kind in _KINDS if word in letters), "")


def cudnn_takes_batch_norm(data: str, weight: str) -> bool:
    """Whether PyTorch runs batch norm by cuDNN for data and weights of these dtypes; else by its own kernels.

    >>> [cudnn_takes_batch_norm(*dtypes) for dtypes in (("float32", "float32"), ("float16", "float16"))]
    [True, False]
    """
    return "bfloat16" not in (data, weight) and (data != "float16" or weight == "float32")
