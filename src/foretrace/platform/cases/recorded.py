"""Cases of a step at hand: each of its distinct calls once, with what is known of the ids it reads rows by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from foretrace.graph import Constant, Indices, Op, Tensor, Tf32, Value
from foretrace.graph.codec import to_lines
from foretrace.graph.signature import ALIGNMENT, signature
from foretrace.platform.cases.case import Case, Ids

EXACT = "exact"
"""The family of calls that were measured because a step has them."""
USUAL = Tf32()
NOT_TIMED = ("c10d::", "c10d_functional::", "_c10d_functional::", "nccl:", "gloo:")
"""Calls that take more than one rank."""


def recorded_cases(ops: Sequence[Op], indices: Iterable[Indices] = (), tf32: Tf32 = USUAL) -> list[Case]:
    """The distinct calls among ops, in order.

    Parameters
    ----------
    ops
        Of a recording or a sketch.
    indices
        Statistics of the ids that ops were given; ``op`` is the position in ``ops``.
    tf32
        What the step's settings say of float32 on the matrix units.

    >>> square = Tensor((8, 8), "float32", "cuda:0", id=3, storage=5)
    >>> case, = recorded_cases([Op("aten::mm", (square, square)), Op("aten::mm", (square, square), phase="backward")])
    >>> case.op.tensors[0].id, case.op.tensors[0].storage == case.op.tensors[1].storage
    (-1, True)
    """
    found: dict[str, Case] = {}
    for case in case_of_each(ops, indices, tf32):
        if case is not None:
            found.setdefault(case_key(case), case)
    return list(found.values())


def case_of_each(ops: Sequence[Op], indices: Iterable[Indices] = (), tf32: Tf32 = USUAL) -> list[Case | None]:
    """For each op the case that it is, the same one for equal calls; None for what can't be timed alone.

    >>> first, again, none = case_of_each([Op("aten::relu"), Op("aten::relu"), Op("c10d::allreduce_")])
    >>> first is again, none is None
    (True, True)
    """
    spreads = _Spreads(indices)
    made: dict[Hashable, Case] = {}
    cases: list[Case | None] = []
    for place, op in enumerate(ops):
        ids = spreads.of(place, op)
        if op.is_side_call or op.name.startswith(NOT_TIMED):
            cases.append(None)
            continue
        key = signature(op), ids
        if key not in made:
            made[key] = Case(plain(op), ids, tf32=_may_use_tf32(op.name, tf32))
        cases.append(made[key])
    return cases


def _may_use_tf32(name: str, tf32: Tf32) -> bool:
    return tf32.convolutions if "convolution" in name else tf32.products and "mm" in name


def case_key(case: Case) -> str:
    """Equal for calls that take equally long.

    >>> case_key(Case(Op("aten::relu"))) == case_key(Case(Op("aten::relu", phase="forward")))
    True
    """
    ids = ""
    if case.ids:
        # Tables alike come out a little different each time.
        shares = [round(share, 2) for share in case.ids.reuse if share >= 0.01]
        ids = f"{case.ids.count} {case.ids.skew} {shares} {case.ids.distinct:.1e} {case.ids.tables}"
    return f"{next(to_lines([plain(case.op)]))} {ids} {case.tf32} {case.pinned}"


def plain(op: Op) -> Op:
    """The call alone: not where it was made, and of its tensors only what a call can tell.

    Tensors that share memory still do; memory that none of them reaches is left out.

    >>> plain(Op("aten::relu", (Tensor((8,), "int8", "cuda:1", offset=1024, storage=7),), phase="forward")).tensors
    [Tensor(shape=(8,), dtype='int8', device='', stride=None, offset=0, id=-1, storage=-1, layout='strided')]
    """
    views = op.tensors
    shared = [s for s, count in Counter(t.storage for t in views).items() if count > 1 and s >= 0]
    # One piece of memory seen as two dtypes is no view that a call could be given again.
    shared = [s for s in shared if len({t.dtype for t in views if t.storage == s}) == 1]
    begins = {s: min(t.offset for t in views if t.storage == s) // ALIGNMENT * ALIGNMENT for s in shared}

    def bare(value: Value) -> Value:
        if isinstance(value, Tensor):
            known = value.storage in begins
            return Tensor(
                value.shape,
                value.dtype,
                device="cpu" if value.device == "cpu" else "",
                stride=value.stride,
                offset=value.offset - begins[value.storage] if known else value.offset % ALIGNMENT,
                storage=shared.index(value.storage) if known else -1,
                layout=value.layout,
            )
        if isinstance(value, (list, tuple)) and not isinstance(value, Constant):
            return [bare(item) for item in value]
        return value

    kwargs = {name: bare(value) for name, value in op.kwargs.items()}
    return Op(op.name, tuple(bare(value) for value in op.args), kwargs, overload=op.overload)


class _Spreads:
    """How the ids of each call are spread, as far as lookups before it tell: a gradient has its lookup's ids."""

    def __init__(self, indices: Iterable[Indices]) -> None:
        self._given = {found.op: found for found in indices}
        self._storages: dict[int, Ids] = {}
        self._sparse: dict[int, Ids] = {}

    def of(self, place: int, op: Op) -> Ids | None:
        """The spread of this call's ids; it is remembered for the calls that are given the same ones, or its result."""
        whole = [t for t in op.tensors if t.dtype in ("int64", "int32") and t.layout == "strided"]
        ids = self._of_statistics(place, whole) or self._of_arguments(op, whole)
        if ids is None and op.name.startswith("aten::_sparse_coo_tensor") and whole:
            ids = Ids(whole[0].shape[-1])
        if ids is not None:
            self._sparse |= {t.id: ids for t in op.produced if t.layout != "strided"}
        return ids

    def _of_statistics(self, place: int, whole: list[Tensor]) -> Ids | None:
        found = self._given.get(place)
        if found is None or not found.unique:
            return None
        shares = tuple(rows / found.unique for rows in found.reuse)
        ids = Ids(found.count, reuse=shares, distinct=found.unique)
        self._storages |= {t.storage: ids for t in whole if t.numel == found.count and t.storage >= 0}
        return ids

    def _of_arguments(self, op: Op, whole: list[Tensor]) -> Ids | None:
        spread = [self._sparse[t.id] for t in op.tensors if t.layout != "strided" and t.id in self._sparse]
        spread += [self._storages[t.storage] for t in whole if t.storage in self._storages]
        return spread[0] if spread else None
