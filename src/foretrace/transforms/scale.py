"""A size that changes, and the numbers that may hold it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Scale:
    """From one size to another.

    >>> Scale(8, 16).of(24), Scale(8, 16).holds(24), Scale(8, 16).holds(12)
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

        >>> Scale(8, 16).of(9), Scale(8, 16).of(5)
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

        >>> Scale(8, 16).likely(enumerate([24, 8, 5])), Scale(8, 16, last=True).likely(enumerate([8, 8]))
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

    def probe(self, taken: Iterable[int]) -> Scale:
        """The same change to a size that nothing else has, so that nothing fits by chance."""
        sizes = set(taken)
        times = next(prime for prime in (7, 11, 13, 17, 19, 23, 29) if self.old * prime not in sizes or prime == 29)
        return replace(self, new=self.old * times)
