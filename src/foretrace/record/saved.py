"""Taking out what only watching adds.

Where a tensor passes through Python, autograd detaches it when it saves it for backward, and again when it takes it
out. In a plain step it does neither. The first kind of detach follows right after the op whose result it saves, and
nothing but backward uses it. The second kind is called by a generated node such as ``ReluBackward0``.
"""

from __future__ import annotations

import re

from foretrace.graph import Op, Storage

GENERATED_NODE = re.compile(r"Backward\d+$")


def without_saves(ops: list[Op], storages: dict[int, Storage]) -> list[Op]:
    """The ops without autograd's own detaches.

    Births and deaths of storages, frees, and modules that were entered go to the ops that stay.

    >>> from foretrace.graph import Tensor
    >>> y, saved = Tensor((4,), "float32", id=1, storage=1), Tensor((4,), "float32", id=2, storage=1)
    >>> relu = Op("aten::relu", outputs=(y,), phase="forward")
    >>> detach = Op("aten::detach", (y,), outputs=(saved,), phase="forward")
    >>> use = Op("aten::threshold_backward", (saved,), phase="backward")
    >>> [op.name for op in without_saves([relu, detach, use], {})]
    ['aten::relu', 'aten::threshold_backward']
    """
    saves = _saves(ops)
    if not saves:
        return ops
    kept: list[Op] = []
    place: list[int] = []
    pending: tuple[int, ...] = ()
    entered = 0
    for row, op in enumerate(ops):
        place.append(len(kept))
        if row in saves:
            pending += op.frees
            entered += op.entered
            continue
        op.frees, pending = pending + op.frees, ()
        op.entered, entered = entered + op.entered, 0
        kept.append(op)
    place.append(len(kept))
    for storage in storages.values():
        storage.birth = place[storage.birth] if storage.birth >= 0 else -1
        storage.death = place[storage.death] if storage.death >= 0 else -1
    return kept


def _saves(ops: list[Op]) -> set[int]:
    """Rows of the detaches that autograd made to save something or to take it out again."""
    used_in_forward = {t.id for op in ops if op.phase == "forward" and op.name != "aten::detach" for t in op.tensors}
    saves: set[int] = set()
    fresh: set[int] = set()
    for row, op in enumerate(ops):
        given, made = {t.id for t in op.tensors}, {t.id for t in op.produced}
        unpacked = bool(GENERATED_NODE.search(op.node))
        if op.name == "aten::detach" and (unpacked or (given <= fresh and not made & used_in_forward)):
            saves.add(row)
            fresh |= made
        else:
            fresh = made
    return saves
