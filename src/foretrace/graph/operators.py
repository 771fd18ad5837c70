"""Operators of PyTorch by their names. A recording is untrusted: what it names is called only if it is known here."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

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
