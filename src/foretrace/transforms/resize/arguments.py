"""Numbers among the arguments of a call that may hold a size, and the ways to read them.

A reading is the set of numbers that change, by their place among all numbers of the arguments. Where the op has a rule
of its own (a view has as many elements as what it is a view of), only readings that keep to it are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

from foretrace.graph.tensor import Tensor
from foretrace.transforms.dataflow import Argument, Call, is_sequence

Interpretation: TypeAlias = frozenset[int]
VIEWS = ("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::_reshape_alias")
EXPANDS, SLICES = "aten::expand", "aten::slice"
NORMS = tuple(f"aten::{name}{end}" for name in ("native_layer_norm", "_fused_rms_norm") for end in ("", "_backward"))
MOST_READINGS = 40
"""Ways to read the numbers of one call."""
UNCHANGED: Interpretation = frozenset()


def interpretations(call: Call, was: Tensor | None, now: Tensor | None, scale: SizeChange) -> Iterator[Interpretation]:
    """The ways to read a call's numbers, likely ones first.

    ``was`` and ``now`` are what its first tensor looked like, and what it looks like with the new size.
    """
    if was is not None and now is not None and len(call.args) > 1 and isinstance(call.args[1], (list, tuple)):
        sizes = [size for size in call.args[1] if isinstance(size, int)]
        if len(sizes) == len(call.args[1]):
            ways = None
            if call.op.name in VIEWS and call.made:
                ways = _of_view(sizes, next(iter(call.made.values())), was, now, scale)
            elif call.op.name == EXPANDS:
                ways = _of_expand(sizes, was, now, scale)
            if ways is not None:
                # The tensor before the sizes counts as a place of its own.
                yield from (frozenset(dim + 1 for dim in way) for way in ways)
                return
    if call.op.name == SLICES and was is not None and now is not None:
        yield from _of_slice(list(integers_in(call.args)), was, now, scale)
        return
    if call.op.name in NORMS and was is not None and now is not None:
        yield _of_norm(call, was, now)
        return
    yield from _free(UNCHANGED, scale.likely(enumerate(integers_in(call.args))))


def _free(forced: Interpretation, places: list[int]) -> Iterator[Interpretation]:
    """The forced numbers alone; then with one more, with two, and so on."""
    given = 0
    for count in range(len(places) + 1):
        for more in combinations(places, count):
            yield forced.union(more)
            given += 1
            if given > MOST_READINGS:
                yield forced.union(places)
                return


def _of_view(sizes: list[int], made: Tensor, was: Tensor, now: Tensor, scale: SizeChange) -> Iterator[Interpretation]:
    """A view's sizes follow those that they were made of: each group of them has as many elements as before."""
    ways: list[list[Interpretation]] = [[UNCHANGED]]
    for ours, theirs in groups(was.shape, made.shape):
        old, new = (prod(tensor.shape[dim] for dim in ours) for tensor in (was, now))
        if old == new:
            continue
        fitting = [
            frozenset([dim]) if sizes[dim] != -1 else UNCHANGED
            for dim in scale.likely((dim, made.shape[dim]) for dim in theirs)
            if scale.of(made.shape[dim]) * old == made.shape[dim] * new
        ]
        both = frozenset(dim for dim in theirs if scale.holds(made.shape[dim]) and sizes[dim] != -1)
        ways.append([*fitting, both])
    yield from _products(ways)


def _products(ways: list[list[Interpretation]]) -> Iterator[Interpretation]:
    if not ways:
        yield UNCHANGED
        return
    for rest in _products(ways[:-1]):
        for one in ways[-1]:
            yield rest | one


def groups(given: tuple[int, ...], made: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of a tensor and of a view of it that hold the same elements.

    >>> groups((64, 768), (8, 8, 12, 64))
    [([0], [0, 1]), ([1], [2, 3])]
    """
    found: list[tuple[list[int], list[int]]] = []
    a = b = 0
    while a < len(given) or b < len(made):
        ours: list[int] = []
        theirs: list[int] = []
        size, other = 1, 1
        while True:
            if size <= other and a < len(given) and (not ours or size != other):
                size *= given[a]
                ours.append(a)
                a += 1
            elif b < len(made) and (not theirs or size != other):
                other *= made[b]
                theirs.append(b)
                b += 1
            else:
                break
        found.append((ours, theirs))
        if not ours and not theirs:
            break
    return found


def _of_expand(sizes: list[int], was: Tensor, now: Tensor, scale: SizeChange) -> Iterator[Interpretation]:
    """Sizes that were the tensor's own stay its own; those along which it is repeated are free."""
    shift = len(sizes) - len(was.shape)
    own = [dim for dim, size in enumerate(sizes) if dim >= shift and was.shape[dim - shift] == size and size != 1]
    forced = frozenset(dim for dim in own if now.shape[dim - shift] != was.shape[dim - shift])
    yield from _free(forced, scale.likely((dim, size) for dim, size in enumerate(sizes) if dim not in own))


def _of_slice(args: list[int], was: Tensor, now: Tensor, scale: SizeChange) -> Iterator[Interpretation]:
    """Where a slice begins and ends moves with the dimension that it is cut from."""
    dim = args[1] if len(args) > 1 else 0
    if not -len(was.shape) <= dim < len(was.shape) or was.shape[dim] == now.shape[dim]:
        yield UNCHANGED
        return
    ends = [place for place in (2, 3) if place < len(args) and args[place] > 0 and scale.holds(args[place])]
    for count in range(len(ends), -1, -1):
        yield from map(frozenset, combinations(ends, count))


def _of_norm(call: Call, was: Tensor, now: Tensor) -> Interpretation:
    """The sizes over which a norm goes are the last ones of what it is given."""
    first = next((place for place, value in enumerate(call.args) if is_sequence(value)), 0)
    start = len(was.shape) - len(list(integers_in(call.args[first : first + 1])))
    return frozenset(first + dim - start for dim in range(start, len(was.shape)) if was.shape[dim] != now.shape[dim])


def integers_in(args: Any) -> Iterator[int]:
    """Every number among arguments, in order; what is none counts as 0."""
    for value in args:
        if is_sequence(value):
            yield from integers_in(value)
        else:
            yield value if isinstance(value, int) and not isinstance(value, bool) else 0


def with_interpretation(args: tuple[Argument, ...], reading: Interpretation, scale: SizeChange) -> tuple[Argument, ...]:
    """The arguments with the numbers of a reading changed.

    >>> with_interpretation(([8, 16, 3], 8), frozenset([1]), SizeChange(8, 24))
    ([8, 48, 3], 8)
    """
    return tuple(_changed(args, lambda place: place in reading, scale)) if reading else args


def _changed(args: Any, wanted: Callable[[int], bool], scale: SizeChange) -> list[Any]:
    place = -1

    def walk(value: Any) -> Any:
        nonlocal place
        if is_sequence(value):
            return [walk(item) for item in value]
        place += 1
        return scale.of(value) if wanted(place) else value

    return [walk(value) for value in args]


# --- was transforms.scale: A size that changes, and the numbers that may hold it.


@dataclass(frozen=True)
class SizeChange:
    """From one size to another.

    >>> SizeChange(8, 16).of(24), SizeChange(8, 16).holds(24), SizeChange(8, 16).holds(12)
    (48, True, False)
    """

    old: int
    new: int
    last: bool = False
    """Whether, of several numbers that may hold the size, the last is likeliest. A batch comes first, a width last."""
    parts: bool = False
    """Whether the size may be cut into factors: a width into heads and their size, which changes if `last` is set."""
    sums: dict[int, int] = field(default_factory=dict)
    """Sizes of joined tensors, found on the way: each holds the size so many times, and something else besides."""

    def of(self, size: int) -> int:
        """A size that holds the old one, with the new one; others stay as they are.

        >>> SizeChange(8, 16).of(9), SizeChange(8, 16).of(5)
        (17, 5)
        """
        if size in self.sums:
            return size + self.sums[size] * (self.new - self.old)
        if not self.holds(size):
            return size
        return self.new + 1 if size == self.old + 1 and not self.parts else size * self.new // self.old

    def holds(self, value: object) -> bool:
        """Whether a number may hold the size: once, several times, or plus one, as offsets have one entry more."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return False
        if value in self.sums:
            return True
        if self.parts:
            return value * self.new % self.old == 0
        return value % self.old == 0 or (value == self.old + 1 and self.old > 2)

    def likely(self, sizes: Iterable[tuple[int, int]]) -> list[int]:
        """Places of sizes that may hold it, likely ones first: the size itself, then multiples.

        >>> SizeChange(8, 16).likely(enumerate([24, 8, 5])), SizeChange(8, 16, last=True).likely(enumerate([8, 8]))
        ([1, 0], [1, 0])
        """
        holding = [(place, size) for place, size in sizes if self.holds(size)]
        if self.last:
            holding.reverse()
        if not self.parts:
            holding.sort(key=lambda item: self._unlike(item[1]))
        elif not self.last:
            # Whole widths come last among sizes; where it is cut, what counts its parts comes first.
            whole = [item for item in reversed(holding) if item[1] % self.old == 0]
            holding = [*whole, *(item for item in holding if item not in whole)]
        return [place for place, _ in holding]

    def _unlike(self, size: int) -> int:
        return 0 if size == self.old else 1 if size % self.old == 0 else 2

    def add(self, size: int, now: int) -> bool:
        """Note a size that changed because parts of it hold the size; False where that can't explain the change."""
        times, rest = divmod(now - size, self.new - self.old)
        if rest or times < 1 or times * self.old >= size:
            return False
        self.sums[size] = times
        return True

    def probe(self, taken: Iterable[int]) -> SizeChange:
        """The same change to a size that nothing else has, so that nothing fits by chance."""
        sizes = set(taken)
        times = next(prime for prime in (7, 11, 13, 17, 19, 23, 29) if self.old * prime not in sizes or prime == 29)
        return replace(self, new=self.old * times)
