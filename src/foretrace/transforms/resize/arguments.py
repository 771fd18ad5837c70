"""Size changes, and the integer arguments of a call that may hold the size.

In ``view(x, [64, 512, 768])`` any of the numbers may be the batch, or a multiple of it. An interpretation is the set of
integers that change, by their position among all values of the arguments. For an op whose rule is known (a view has as
many elements as its base), only interpretations that follow the rule are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

from foretrace.graph.op import Tensor
from foretrace.transforms.dataflow import Argument, SlotCall, is_sequence

Interpretation: TypeAlias = frozenset[int]
UNCHANGED: Interpretation = frozenset()
VIEWS = ("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::_reshape_alias")
EXPAND, SLICE = "aten::expand", "aten::slice"
NORMS = tuple(f"aten::{name}{end}" for name in ("native_layer_norm", "_fused_rms_norm") for end in ("", "_backward"))
MAX_INTERPRETATIONS = 40
"""Tried for one call before all candidates at once: their number is exponential in the candidates."""


@dataclass(frozen=True)
class SizeChange:
    """A size that changes from old to new, and the numbers that may hold it.

    >>> SizeChange(8, 16).of(24), SizeChange(8, 16).holds(24), SizeChange(8, 16).holds(12)
    (48, True, False)
    """

    old: int
    new: int
    last: bool = False
    """Whether the last of several candidates is the likeliest. A batch comes first, a width last."""
    parts: bool = False
    """Whether the size may be split into factors: a width into heads and head size, which changes if `last` is set."""
    sums: dict[int, int] = field(default_factory=dict)
    """Sizes of concatenated tensors, found by the search: how many times each holds the size, besides other parts."""

    def of(self, size: int) -> int:
        """The new value of a size that holds the old one; other sizes stay."""
        if size in self.sums:
            return size + self.sums[size] * (self.new - self.old)
        if not self.holds(size):
            return size
        return self.new + 1 if size == self.old + 1 and not self.parts else size * self.new // self.old

    def holds(self, value: object) -> bool:
        """Whether a number may hold the size: as a multiple, or plus one, since offsets have one entry more."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return False
        if value in self.sums:
            return True
        if self.parts:
            return value * self.new % self.old == 0
        return value % self.old == 0 or (value == self.old + 1 and self.old > 2)

    def candidates(self, sizes: Iterable[tuple[int, int]]) -> list[int]:
        """Positions of the sizes that may hold it, likeliest first: the size itself, then multiples.

        >>> SizeChange(8, 16).candidates(enumerate([24, 8, 5]))
        [1, 0]
        >>> SizeChange(8, 16, last=True).candidates(enumerate([8, 8]))
        [1, 0]
        """
        holding = [(place, size) for place, size in sizes if self.holds(size)]
        if self.last:
            holding.reverse()
        if not self.parts:
            holding.sort(key=lambda item: 0 if item[1] == self.old else 1 if item[1] % self.old == 0 else 2)
        elif not self.last:
            # A whole width comes last among sizes; where it is split, the number of parts comes first.
            whole = [item for item in reversed(holding) if item[1] % self.old == 0]
            holding = [*whole, *(item for item in holding if item not in whole)]
        return [place for place, _ in holding]

    def add_sum(self, size: int, now: int) -> bool:
        """Register a size that changed because some of its parts hold the size; False if that can't explain it."""
        times, rest = divmod(now - size, self.new - self.old)
        if rest or times < 1 or times * self.old >= size:
            return False
        self.sums[size] = times
        return True

    def probe(self, taken: Iterable[int]) -> SizeChange:
        """The same change to a size that nothing else in the step has, so that nothing fits by coincidence."""
        sizes = set(taken)
        times = next(prime for prime in (7, 11, 13, 17, 19, 23, 29) if self.old * prime not in sizes or prime == 29)
        return replace(self, new=self.old * times)


def interpretations(
    call: SlotCall, was: Tensor | None, now: Tensor | None, change: SizeChange
) -> Iterator[Interpretation]:
    """The interpretations of a call's integers, likeliest first.

    ``was`` and ``now`` are the call's first tensor before and after the change.
    """
    if was is not None and now is not None and len(call.args) > 1 and isinstance(call.args[1], (list, tuple)):
        sizes = [size for size in call.args[1] if isinstance(size, int)]
        if len(sizes) == len(call.args[1]):
            by_rule = None
            if call.op.name in VIEWS and call.made:
                by_rule = _of_view(sizes, next(iter(call.made.values())), was, now, change)
            elif call.op.name == EXPAND:
                by_rule = _of_expand(sizes, was, now, change)
            if by_rule is not None:
                # The tensor before the sizes counts as a position of its own.
                yield from (frozenset(dim + 1 for dim in dims) for dims in by_rule)
                return
    if call.op.name == SLICE and was is not None and now is not None:
        yield from _of_slice(list(integers_in(call.args)), was, now, change)
        return
    if call.op.name in NORMS and was is not None and now is not None:
        yield _of_norm(call, was, now)
        return
    yield from _subsets(UNCHANGED, change.candidates(enumerate(integers_in(call.args))))


def _subsets(forced: Interpretation, candidates: list[int]) -> Iterator[Interpretation]:
    """The forced positions alone; then with one candidate, with two, and so on."""
    given = 0
    for count in range(len(candidates) + 1):
        for more in combinations(candidates, count):
            yield forced.union(more)
            given += 1
            if given > MAX_INTERPRETATIONS:
                yield forced.union(candidates)
                return


def _of_view(sizes: list[int], made: Tensor, was: Tensor, now: Tensor, change: SizeChange) -> Iterator[Interpretation]:
    """Sizes of a view: each group of its dimensions has as many elements as the group of the base."""
    options: list[list[Interpretation]] = [[UNCHANGED]]
    for base_dims, view_dims in dim_groups(was.shape, made.shape):
        old, new = (prod(tensor.shape[dim] for dim in base_dims) for tensor in (was, now))
        if old == new:
            continue
        fitting = [
            frozenset([dim]) if sizes[dim] != -1 else UNCHANGED
            for dim in change.candidates((dim, made.shape[dim]) for dim in view_dims)
            if change.of(made.shape[dim]) * old == made.shape[dim] * new
        ]
        both = frozenset(dim for dim in view_dims if change.holds(made.shape[dim]) and sizes[dim] != -1)
        options.append([*fitting, both])
    yield from _unions(options)


def _unions(options: list[list[Interpretation]]) -> Iterator[Interpretation]:
    """Unions of one interpretation from each list."""
    if not options:
        yield UNCHANGED
        return
    for rest in _unions(options[:-1]):
        for one in options[-1]:
            yield rest | one


def dim_groups(given: tuple[int, ...], made: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of a tensor and of its view, grouped so that both sides of a group have the same elements.

    >>> dim_groups((64, 768), (8, 8, 12, 64))
    [([0], [0, 1]), ([1], [2, 3])]
    """
    found: list[tuple[list[int], list[int]]] = []
    a = b = 0
    while a < len(given) or b < len(made):
        base_dims: list[int] = []
        view_dims: list[int] = []
        size, other = 1, 1
        while True:
            if size <= other and a < len(given) and (not base_dims or size != other):
                size *= given[a]
                base_dims.append(a)
                a += 1
            elif b < len(made) and (not view_dims or size != other):
                other *= made[b]
                view_dims.append(b)
                b += 1
            else:
                break
        found.append((base_dims, view_dims))
        if not base_dims and not view_dims:
            break
    return found


def _of_expand(sizes: list[int], was: Tensor, now: Tensor, change: SizeChange) -> Iterator[Interpretation]:
    """Sizes of an expand: those of the tensor follow it, those along which it is repeated are free."""
    shift = len(sizes) - len(was.shape)
    own = [dim for dim, size in enumerate(sizes) if dim >= shift and was.shape[dim - shift] == size and size != 1]
    forced = frozenset(dim for dim in own if now.shape[dim - shift] != was.shape[dim - shift])
    yield from _subsets(forced, change.candidates((dim, size) for dim, size in enumerate(sizes) if dim not in own))


def _of_slice(args: list[int], was: Tensor, now: Tensor, change: SizeChange) -> Iterator[Interpretation]:
    """Start and end of a slice move with the sliced dimension."""
    dim = args[1] if len(args) > 1 else 0
    if not -len(was.shape) <= dim < len(was.shape) or was.shape[dim] == now.shape[dim]:
        yield UNCHANGED
        return
    ends = [place for place in (2, 3) if place < len(args) and args[place] > 0 and change.holds(args[place])]
    for count in range(len(ends), -1, -1):
        yield from map(frozenset, combinations(ends, count))


def _of_norm(call: SlotCall, was: Tensor, now: Tensor) -> Interpretation:
    """The normalized shape of a norm is the last sizes of its input."""
    first = next((place for place, value in enumerate(call.args) if is_sequence(value)), 0)
    start = len(was.shape) - len(list(integers_in(call.args[first : first + 1])))
    return frozenset(first + dim - start for dim in range(start, len(was.shape)) if was.shape[dim] != now.shape[dim])


def integers_in(args: Any) -> Iterator[int]:
    """Every integer among arguments, in order; 0 for each other value."""
    for value in args:
        if is_sequence(value):
            yield from integers_in(value)
        else:
            yield value if isinstance(value, int) and not isinstance(value, bool) else 0


def with_interpretation(
    args: tuple[Argument, ...], interpretation: Interpretation, change: SizeChange
) -> tuple[Argument, ...]:
    """The arguments with the integers of an interpretation changed."""
    if not interpretation:
        return args
    place = -1

    def walk(value: Any) -> Any:
        nonlocal place
        if is_sequence(value):
            return [walk(item) for item in value]
        place += 1
        return change.of(value) if place in interpretation else value

    return tuple([walk(value) for value in args])
