"""What PyTorch, NCCL and RCCL call a collective, in our words."""

from __future__ import annotations

import re
from functools import lru_cache

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
