"""Cases to measure: single calls, drawn at random by a kernel family or taken from a recorded step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from foretrace.graph import Constant, Indices, Op, Tensor, Tf32, Value
from foretrace.graph.op import ALIGNMENT, signature

T = TypeVar("T")
Shape = tuple[int, ...]

EXACT = "exact"
"""Where the measured calls of a recorded step are stored, next to the families' files."""
NOT_TIMED = ("c10d::", "c10d_functional::", "_c10d_functional::", "nccl:", "gloo:")
"""Calls that take more than one rank."""
DTYPES = {"bfloat16": 9, "float32": 8, "float16": 3}
"""Floating-point dtypes of training steps, with how often each is drawn."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Distribution of row ids over a table: a power law, or a histogram of hits per row.

    >>> Ids(count=1000, skew=1.05).reuse
    ()
    """

    count: int
    skew: float = 0.0
    """Exponent of a power law over the rows; 0 is uniform."""
    reuse: tuple[float, ...] = ()
    """Where given: ``reuse[k]`` is the share of the accessed rows with 2^k to 2^(k+1) - 1 hits."""
    distinct: int = 0
    """Number of distinct rows, where it is known apart from the histogram."""
    tables: int = 1
    """Tables concatenated into one; each has an equal part of the ids, distributed alike."""


@dataclass(frozen=True, slots=True)
class Case:
    """A dispatcher call to time. A tensor without a device is on the measured one.

    >>> Case(Op("aten::relu", (Tensor((8,), "float32"),), overload="default")).op.name
    'aten::relu'
    """

    op: Op
    ids: Ids | None = None
    """Distribution of the ids among the arguments, for calls that read or write rows by id."""
    tf32: bool = False
    """Whether float32 GEMMs and convolutions may use TF32 Tensor Cores."""
    pinned: bool = False
    """Whether host tensors are in pinned memory."""


class Draw:
    """Random sizes, shapes and layouts as training steps have them; the same seed gives the same ones.

    Parameters
    ----------
    seed
        Any text.
    most
        Elements of the largest tensor of a case, approximately.
    kind
        The device's kind, ``cuda`` or ``cpu``: some calls exist on one of them only.
    turn
        Which of the calls that share a seed and its shapes: 0 is a forward, 1 its backward.

    >>> Draw("a", most=4096, kind="cuda").size(16, 64) == Draw("a", most=4096, kind="cuda").size(16, 64)
    True
    """

    def __init__(self, seed: str, most: int, kind: str, turn: int = 0) -> None:
        self.random = Random(seed)
        self.most = most
        self.kind = kind
        self.turn = turn

    def one(self, choices: Sequence[T]) -> T:
        """One of several, all equally likely."""
        return self.random.choice(choices)

    def weighted(self, weights: dict[T, int]) -> T:
        """One of several, with probability proportional to its weight."""
        return self.random.choices(list(weights), list(weights.values()))[0]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def whole(self, low: int, high: int) -> int:
        """An integer from the log-uniform distribution, both ends included."""
        high = max(low, high)
        return min(high, int(math.exp(self.random.uniform(math.log(low), math.log(high + 1)))))

    def size(self, low: int, high: int) -> int:
        """A dimension: often a power of two or a multiple of 64 or 8, sometimes any number.

        >>> 16 <= Draw("b", most=4096, kind="cuda").size(16, 100) <= 100
        True
        """
        number = self.whole(low, high)
        style = self.random.random()
        if style < 0.3:
            number = 2 ** round(math.log2(number))
        elif style < 0.85:
            step = 64 if style < 0.6 else 8
            number = round(number / step) * step or number
        return max(low, min(max(low, high), number))

    def dtype(self) -> str:
        """A floating-point dtype, as often as training steps use it."""
        return self.weighted(DTYPES)

    def shape(self, dims: int, low: int = 1024, high: int | None = None) -> Shape:
        """Sizes whose product lies between two numbers of elements, log-uniform.

        >>> math.prod(Draw("c", most=4096, kind="cuda").shape(3)) <= 4096
        True
        """
        high = min(high or self.most, self.most)
        left = self.whole(min(low, high), high)
        sizes = []
        for rest in range(dims - 1, 0, -1):
            # The last dimension of a tensor is seldom tiny: the ones before it take their part first.
            taken = self.size(1, max(1, int(left ** (1 / (rest + 1) * self.random.uniform(0.3, 1.7)))))
            taken = min(taken, left)
            sizes.append(taken)
            left //= taken
        return (*sizes, max(1, left if self.chance(0.3) else self.size(max(1, left // 2), left)))

    def activation(self, dtype: str | None = None) -> Tensor:
        """An activation: contiguous, of rank 1 to 4; sometimes a loss, a norm or a tiny vector."""
        if self.chance(0.05):
            return Tensor(self.one(((), (1,), (self.whole(1, min(1024, self.most)),))), dtype or self.dtype())
        dims = self.weighted({1: 1, 2: 3, 3: 4, 4: 2})
        return Tensor(self.shape(dims), dtype or self.dtype())

    def layout(self, shape: Shape) -> Shape | None:
        """Strides of a tensor as views leave them: mostly contiguous, else transposed, sliced or broadcast."""
        if len(shape) < 2 or self.chance(0.7):
            return None
        style = self.weighted({"transposed": 10, "sliced": 4, "broadcast": 1})
        if style == "sliced" and math.prod(shape) * 8 <= self.most:
            # Part of each row of a wider tensor: a head's half in a rotary embedding, one of several projections.
            return strides((*shape[:-1], shape[-1] * self.one((2, 2, 3, self.whole(2, 8)))))
        if style == "broadcast":
            # The gradient of a mean, or a tensor broadcast to a batch.
            known = strides(shape)
            return (0, *known[1:]) if self.chance(0.4) else (*strides(shape[:-2]), 0, 0)
        order = list(range(len(shape)))
        if len(shape) == 4 and self.chance(0.7):
            order = self.one(([0, 2, 3, 1], [0, 2, 1, 3]))  # channels last; heads still interleaved in a row
        else:
            first = self.random.randrange(len(shape) - 1)
            second = self.random.randrange(first + 1, len(shape))
            order[first], order[second] = order[second], order[first]
        return strides(shape, order)


def strides(shape: Shape, order: Sequence[int] | None = None) -> Shape:
    """Strides of a dense tensor whose dimensions lie in memory in this order, outermost first.

    >>> strides((4, 8)), strides((4, 8), (1, 0))
    ((8, 1), (1, 4))
    """
    result, step = [0] * len(shape), 1
    for dim in reversed(order if order is not None else range(len(shape))):
        result[dim] = step
        step *= shape[dim]
    return tuple(result)


def recorded_cases(ops: Sequence[Op], indices: Iterable[Indices] = (), tf32: Tf32 | None = None) -> list[Case]:
    """The distinct calls among the ops of a step, in order.

    ``op`` of the indices is the position in ``ops``.
    """
    found: dict[str, Case] = {}
    for case in case_of_each(ops, indices, tf32):
        if case is not None:
            found.setdefault(case_key(case), case)
    return list(found.values())


def case_of_each(ops: Sequence[Op], indices: Iterable[Indices] = (), tf32: Tf32 | None = None) -> list[Case | None]:
    """The case of each op, the same one for equal calls; None for what can't be timed alone.

    >>> first, again, none = case_of_each([Op("aten::relu"), Op("aten::relu"), Op("c10d::allreduce_")])
    >>> first is again, none is None
    (True, True)
    """
    tf32 = tf32 or Tf32()
    distributions = _IdDistributions(indices)
    made: dict[Hashable, Case] = {}
    cases: list[Case | None] = []
    for place, op in enumerate(ops):
        ids = distributions.of(place, op)
        if op.is_side_call or op.name.startswith(NOT_TIMED):
            cases.append(None)
            continue
        key = signature(op), ids
        if key not in made:
            may_use = tf32.convolutions if "convolution" in op.name else tf32.gemms and "mm" in op.name
            made[key] = Case(stripped(op), ids, tf32=may_use)
        cases.append(made[key])
    return cases


def case_key(case: Case) -> str:
    """A key that is equal for calls that take equally long.

    >>> case_key(Case(Op("aten::relu"))) == case_key(Case(Op("aten::relu", phase="forward")))
    True
    """
    from foretrace.graph.codec import to_lines

    ids = ""
    if case.ids:
        # Histograms of similar tables differ slightly each time.
        shares = [round(share, 2) for share in case.ids.reuse if share >= 0.01]
        ids = f"{case.ids.count} {case.ids.skew} {shares} {case.ids.distinct:.1e} {case.ids.tables}"
    return f"{next(to_lines([stripped(case.op)]))} {ids} {case.tf32} {case.pinned}"


def stripped(op: Op) -> Op:
    """The call without its place in the step, and its tensors without ids and unshared storages.

    Tensors that share a storage still do; the part of a storage that none of them reaches is left out.

    >>> stripped(Op("aten::relu", (Tensor((8,), "int8", "cuda:1", offset=1024, storage=7),), phase="forward")).tensors
    [Tensor(shape=(8,), dtype='int8', device='', stride=None, offset=0, id=-1, storage=-1, layout='strided', stored=-1)]
    """
    views = op.tensors
    shared = [s for s, count in Counter(t.storage for t in views).items() if count > 1 and s >= 0]
    # One storage viewed as two dtypes can't be recreated for a call.
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


class _IdDistributions:
    """The id distribution of each call of a step, as far as earlier lookups tell: a gradient has its lookup's ids."""

    def __init__(self, indices: Iterable[Indices]) -> None:
        self._given = {found.op: found for found in indices}
        self._storages: dict[int, Ids] = {}
        self._sparse: dict[int, Ids] = {}

    def of(self, place: int, op: Op) -> Ids | None:
        """The distribution of this call's ids, remembered for calls that take the same ids, or this call's result."""
        integers = [t for t in op.tensors if t.dtype in ("int64", "int32") and t.layout == "strided"]
        ids = self._of_statistics(place, integers) or self._of_arguments(op, integers)
        if ids is None and op.name.startswith("aten::_sparse_coo_tensor") and integers:
            ids = Ids(integers[0].shape[-1])
        if ids is not None:
            self._sparse |= {t.id: ids for t in op.produced if t.layout != "strided"}
        return ids

    def _of_statistics(self, place: int, integers: list[Tensor]) -> Ids | None:
        found = self._given.get(place)
        if found is None or not found.unique:
            return None
        shares = tuple(rows / found.unique for rows in found.reuse)
        ids = Ids(found.count, reuse=shares, distinct=found.unique)
        self._storages |= {t.storage: ids for t in integers if t.numel == found.count and t.storage >= 0}
        return ids

    def _of_arguments(self, op: Op, integers: list[Tensor]) -> Ids | None:
        known = [self._sparse[t.id] for t in op.tensors if t.layout != "strided" and t.id in self._sparse]
        known += [self._storages[t.storage] for t in integers if t.storage in self._storages]
        return known[0] if known else None
