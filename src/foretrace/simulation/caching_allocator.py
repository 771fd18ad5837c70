"""PyTorch's CUDA caching allocator, simulated: which segments it reserves for a series of allocations and frees.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp``: size classes, best fit among the stream's free blocks,
splitting and merging, expandable segments, ``max_split_size_mb``, garbage collection, and what is released before an
allocation fails. Time is not simulated: a block is free as soon as it is freed, as on one stream.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from foretrace.errors import ForetraceError

MIB = 2**20
MIN_BLOCK = 512
"""Sizes are multiples of this."""
SMALL = 1 * MIB
"""Allocations up to here come from the pool of small blocks."""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
"""A segment for an allocation of less than `MIN_LARGE`; larger ones get a segment of their own size."""
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB
ALLOC_CONF_ADVICE = "It is written as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True,max_split_size_mb:128."
ADDRESSES = 1 << 46
"""Address space of an expandable segment: it is never full."""


class OutOfMemoryError(Exception):
    """An allocation that does not fit, after all that is cached was released."""


class AllocatorSettings(NamedTuple):
    """Settings of ``PYTORCH_CUDA_ALLOC_CONF`` that decide which memory is reserved.

    >>> AllocatorSettings.parse("expandable_segments:True,max_split_size_mb:128")
    AllocatorSettings(expandable_segments=True, max_split_size_mb=128, garbage_collection_threshold=0.0, ...)
    """

    expandable_segments: bool = False
    max_split_size_mb: int | None = None
    """Blocks of this size or more are never split."""
    garbage_collection_threshold: float = 0.0
    """Share of the limit from which on blocks that were not used for long are released; 0 for never."""
    max_non_split_rounding_mb: int = 20
    """By how much a block that is never split may be larger than what is asked for."""
    roundup_power2_divisions: int = 0
    """Sizes are rounded up to one of so many steps between two powers of two; 0 and 1 for none."""

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Read the text of the environment variable; options that have no say in what is reserved are skipped."""
        readers: dict[str, Callable[[str], object]] = {
            "expandable_segments": lambda value: {"true": True, "false": False}[value.lower()],
            "max_split_size_mb": int,
            "garbage_collection_threshold": float,
            "max_non_split_rounding_mb": int,
            "roundup_power2_divisions": int,
        }
        found = {}
        for option in filter(None, (part.strip() for part in text.split(","))):
            name, colon, value = (part.strip() for part in option.partition(":"))
            if not colon:
                raise ForetraceError(f"{name!r} is no option of the allocator with its value", ALLOC_CONF_ADVICE)
            if name in readers:
                try:
                    found[name] = readers[name](value)
                except (ValueError, KeyError):
                    raise ForetraceError(
                        f"the allocator's option {name} can't be {value!r}", ALLOC_CONF_ADVICE
                    ) from None
        return cls(**found)  # type: ignore[arg-type]

    def rounded(self, nbytes: int) -> int:
        """Bytes of the block that an allocation gets.

        >>> AllocatorSettings().rounded(700), AllocatorSettings(roundup_power2_divisions=4).rounded(5000)
        (1024, 5120)
        """
        divisions = self.roundup_power2_divisions
        if divisions > 1 and nbytes > MIN_BLOCK * divisions:
            power = 1 << (nbytes.bit_length() - 1)
            step = power // divisions
            return power if nbytes == power else -(-nbytes // step) * step
        return max(-(-nbytes // MIN_BLOCK), 1) * MIN_BLOCK


class Block:
    """A part of a segment, in use, free, or (of an expandable segment) without memory behind its addresses."""

    __slots__ = ("address", "before", "mapped", "nbytes", "next", "pool", "since", "used")

    def __init__(self, address: int, nbytes: int, pool: Pool, mapped: bool = True) -> None:
        self.address, self.nbytes, self.pool, self.mapped = address, nbytes, pool, mapped
        self.before: Block | None = None
        self.next: Block | None = None
        self.used = False
        self.since = 0
        """Searches in its pool when it became free: the difference to now is its age."""

    @property
    def is_whole_segment(self) -> bool:
        """Whether nothing else is in its segment."""
        return self.before is None and self.next is None

    def link(self, before: Block | None, after: Block | None) -> None:
        """Put it between two others of its segment."""
        self.before, self.next = before, after
        if before:
            before.next = self
        if after:
            after.before = self


@dataclass
class Pool:
    """Free blocks of one stream, small ones or large ones; a CUDA graph has pools of its own."""

    small: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    """Sizes and addresses, in order: the first that is large enough fits best."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """The same blocks by address."""
    unmapped: list[Block] = field(default_factory=list)
    searches: int = 0

    def put(self, block: Block) -> None:
        """Take in a block that became free."""
        block.since = self.searches
        insort(self.free, (block.nbytes, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Take a free block out."""
        del self.free[bisect_left(self.free, (block.nbytes, block.address))]
        del self.blocks[block.address]

    def at_least(self, nbytes: int) -> Iterator[Block]:
        """Free blocks of this size or more, smallest first."""
        for place in range(bisect_left(self.free, (nbytes, 0)), len(self.free)):
            yield self.blocks[self.free[place][1]]

    def all(self) -> list[Block]:
        """All free blocks, smallest first."""
        return [self.blocks[address] for _, address in self.free]


class CachingAllocator:
    """The memory of one device, as PyTorch reserves it.

    Parameters
    ----------
    settings
        What ``PYTORCH_CUDA_ALLOC_CONF`` says.
    limit
        Bytes that may be reserved; None for any number.

    >>> allocator = CachingAllocator()
    >>> block = allocator.allocate(3 * MIB)
    >>> allocator.allocated, allocator.reserved
    (3145728, 20971520)
    """

    def __init__(self, settings: AllocatorSettings | None = None, limit: int | None = None) -> None:
        self.settings = settings or AllocatorSettings()
        self.limit = limit
        self.reserved = self.allocated = self.peak_reserved = self.peak_allocated = 0
        self.segments: dict[int, int] = {}
        """Bytes of each segment by its address; of an expandable one, those that have memory."""
        self._pools: dict[tuple[bool, int, int], Pool] = {}
        self._next_address = ADDRESSES
        mib = self.settings.max_split_size_mb
        self._max_split = mib * MIB if mib else None

    def allocate(self, nbytes: int, stream: int = 0, graph: int = 0) -> Block:
        """A block of so many bytes; ``graph`` is the CUDA graph that is captured, 0 for none."""
        size = self.settings.rounded(nbytes)
        pool = self._pool(size <= SMALL, stream, graph)
        block = self._best_fit(pool, size) or self._new(pool, size)
        rest = block.nbytes - size
        if self._splits(pool, size, rest):
            block = self._split(block, size)
        block.used = True
        self.allocated += block.nbytes
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Give a block back: it is cached, not released."""
        block.used = False
        self.allocated -= block.nbytes
        for other in (block.before, block.next):
            self._merge(block, other)
        block.pool.put(block)

    def release_cached(self) -> None:
        """Release all that is cached and not part of a segment in use, as ``torch.cuda.empty_cache`` does."""
        for pool in self._pools.values():
            for block in pool.all():
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif block.is_whole_segment:
                    self._release(block)

    def _pool(self, small: bool, stream: int, graph: int) -> Pool:
        pool = self._pools.get((small, stream, graph))
        if pool is None:
            pool = self._pools[small, stream, graph] = Pool(small)
        return pool

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        pool.searches += 1
        fitting = pool.at_least(size)
        block = next(fitting, None)
        if block is None:
            return None
        if self.settings.expandable_segments:
            for other in fitting:
                if _extent(other) >= _extent(block):
                    break
                block = other
        limit = self._max_split
        if limit is not None:
            too_large = size + self.settings.max_non_split_rounding_mb * MIB
            if block.nbytes >= (limit if size < limit else too_large):
                return None
        pool.remove(block)
        return block

    def _new(self, pool: Pool, size: int) -> Block:
        """A block of new memory; cached memory is released where there is not enough."""
        if self.limit is not None and self.settings.garbage_collection_threshold:
            self._collect_garbage()
        nbytes = SMALL_SEGMENT if size <= SMALL else LARGE_SEGMENT if size < MIN_LARGE else _up(size, ROUND_LARGE)
        if not self._has_room(nbytes) and not (self._release_oversize(pool, size) and self._has_room(nbytes)):
            self.release_cached()
            if not self._has_room(nbytes):
                raise OutOfMemoryError(nbytes)
        if self.settings.expandable_segments:
            return self._expand(pool, size)
        address, self._next_address = self._next_address, self._next_address + nbytes
        self._reserve(address, nbytes)
        return Block(address, nbytes, pool)

    def _has_room(self, nbytes: int) -> bool:
        return self.limit is None or self.reserved + nbytes <= self.limit

    def _reserve(self, segment: int, nbytes: int) -> None:
        self.segments[segment] = self.segments.get(segment, 0) + nbytes
        if not self.segments[segment]:
            del self.segments[segment]
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _splits(self, pool: Pool, size: int, rest: int) -> bool:
        if pool.small or self.settings.expandable_segments:
            return rest >= MIN_BLOCK
        return rest > SMALL and (self._max_split is None or size < self._max_split)

    def _split(self, block: Block, size: int) -> Block:
        """Cut the first bytes off a block, which goes back to its pool."""
        first = Block(block.address, size, block.pool)
        first.link(block.before, block)
        block.address, block.nbytes = block.address + size, block.nbytes - size
        block.pool.put(block)
        return first

    def _merge(self, block: Block, other: Block | None) -> None:
        """Add a neighbour that is not in use to a block."""
        if other is None or other.used or other.mapped != block.mapped:
            return
        other.pool.remove(other) if other.mapped else other.pool.unmapped.remove(other)
        if block.before is other:
            block.address = other.address
            block.link(other.before, block.next)
        else:
            block.link(block.before, other.next)
        block.nbytes += other.nbytes

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self._reserve(block.address, -block.nbytes)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Release blocks that are never split: one that is large enough, else the largest; whether it was enough."""
        if self._max_split is None or self.settings.expandable_segments:
            return False
        wanted = max(size, self._max_split)
        enough = next(pool.at_least(wanted), None)
        if enough is not None:
            self._release(enough)
            return True
        released = 0
        for block in reversed(pool.all()):
            if released >= wanted or block.nbytes < self._max_split:
                break
            released += block.nbytes
            self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Release large blocks that are older than the average, until less than the threshold is reserved."""
        assert self.limit is not None
        target = self.reserved - self.settings.garbage_collection_threshold * self.limit
        cached = [b for (small, _, graph), pool in self._pools.items() if not small and not graph for b in pool.all()]
        cached = [block for block in cached if block.is_whole_segment and not self.settings.expandable_segments]
        while target > 0 and cached:
            ages = [block.pool.searches - block.since for block in cached]
            average = sum(ages) / len(ages)
            old = [block for block, age in zip(cached, ages) if age >= average]
            cached = [block for block, age in zip(cached, ages) if age < average]
            for block in old:
                target -= block.nbytes
                self._release(block)

    def _expand(self, pool: Pool, size: int) -> Block:
        """Put memory behind addresses of an expandable segment, at the lowest one where there is room."""
        start = None
        for block in sorted(pool.unmapped, key=lambda block: block.address):
            start = block.before if block.before and not block.before.used else block
            if _free_addresses(start, size) >= size:
                break
            start = None
        if start is None:
            start = Block(self._next_address, ADDRESSES, pool, mapped=False)
            self._next_address += ADDRESSES
            pool.unmapped.append(start)
        if not start.mapped:
            self._map(start, min(size, start.nbytes))
        while start.nbytes < size:
            following = start.next
            assert following is not None
            self._map(following, min(size - start.nbytes, following.nbytes))
            start = following
        pool.remove(start)
        return start

    def _map(self, block: Block, nbytes: int) -> None:
        page = SMALL_SEGMENT if block.pool.small else LARGE_SEGMENT
        mapped = min(_up(nbytes, page), block.nbytes)
        block.pool.unmapped.remove(block)
        if mapped < block.nbytes:
            rest = Block(block.address + mapped, block.nbytes - mapped, block.pool, mapped=False)
            rest.link(block, block.next)
            block.pool.unmapped.append(rest)
            block.nbytes = mapped
        block.mapped = True
        self._reserve(_segment(block), mapped)
        for other in (block.before, block.next):
            self._merge(block, other)
        block.pool.put(block)

    def _unmap(self, block: Block) -> None:
        """Take the memory from whole pages of a free block of an expandable segment."""
        page, pool = SMALL_SEGMENT if block.pool.small else LARGE_SEGMENT, block.pool
        origin = _segment(block)
        begin = origin + _up(block.address - origin, page)
        end = origin + (block.address + block.nbytes - origin) // page * page
        if end <= begin:
            return
        pool.remove(block)
        if begin > block.address:
            head = Block(block.address, begin - block.address, pool)
            head.link(block.before, block)
            pool.put(head)
        if end < block.address + block.nbytes:
            tail = Block(end, block.address + block.nbytes - end, pool)
            tail.link(block, block.next)
            pool.put(tail)
        block.address, block.nbytes, block.mapped = begin, end - begin, False
        self._reserve(origin, begin - end)
        for other in (block.before, block.next):
            self._merge(block, other)
        pool.unmapped.append(block)


def _up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


def _extent(block: Block) -> int:
    """Bytes of a block with the addresses behind it that it may grow into."""
    return block.nbytes + (block.next.nbytes if block.next and not block.next.mapped else 0)


def _free_addresses(block: Block | None, wanted: int) -> int:
    found = 0
    while block is not None and not block.used and found < wanted:
        found, block = found + block.nbytes, block.next
    return found


def _segment(block: Block) -> int:
    """Address of the expandable segment that a block lies in."""
    return block.address // ADDRESSES * ADDRESSES
