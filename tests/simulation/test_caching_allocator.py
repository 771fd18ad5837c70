"""PyTorch's caching allocator, simulated: the rules of its source, one by one."""

from itertools import pairwise
from random import Random

import pytest

from foretrace.errors import ForetraceError
from foretrace.simulation.caching_allocator import MIB, AllocatorSettings, Block, CachingAllocator, OutOfMemoryError


def reserved_mib(allocator: CachingAllocator) -> float:
    return allocator.reserved / MIB


def test_small_allocations_share_segments_of_two_mebibytes() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert reserved_mib(allocator) == 2
    allocator.allocate(1)
    assert reserved_mib(allocator) == 4 and allocator.allocated == 2 * MIB + 512


def test_medium_allocations_share_segments_of_twenty() -> None:
    allocator = CachingAllocator()
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert reserved_mib(allocator) == 20


def test_large_allocations_get_a_segment_of_their_own_in_steps_of_two() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(11 * MIB)
    assert reserved_mib(allocator) == 12
    assert block.nbytes == 12 * MIB  # a rest of one mebibyte is not split off


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    place = small.address
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(25 * MIB).address == place
    assert reserved_mib(allocator) == 70


def test_neighbours_that_are_free_are_one_block_again() -> None:
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]
    place = parts[0].address
    for part in (parts[1], parts[3], parts[2], parts[0]):
        allocator.free(part)
    assert allocator.allocate(19 * MIB).address == place and reserved_mib(allocator) == 20


def test_a_block_of_one_stream_is_not_given_to_another() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB, stream=0))
    allocator.allocate(30 * MIB, stream=1)
    assert reserved_mib(allocator) == 60


def test_a_cuda_graph_has_a_pool_of_its_own() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(30 * MIB, graph=1)
    assert reserved_mib(allocator) == 60


def test_blocks_above_the_split_size_are_not_split_and_not_given_to_small_requests() -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_size_mb=32))
    allocator.free(allocator.allocate(64 * MIB))
    allocator.allocate(20 * MIB)
    assert reserved_mib(allocator) == 84
    assert allocator.allocate(50 * MIB).nbytes == 64 * MIB  # within the rounding of 20


def test_a_limit_releases_what_is_cached_before_it_fails() -> None:
    allocator = CachingAllocator(limit=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert reserved_mib(allocator) == 80
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(40 * MIB)


def test_a_segment_that_is_partly_used_cannot_be_released() -> None:
    allocator = CachingAllocator(limit=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(10 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(70 * MIB)


def test_garbage_collection_releases_old_blocks_above_its_threshold() -> None:
    settings = AllocatorSettings(garbage_collection_threshold=0.5)
    allocator = CachingAllocator(settings, limit=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(30 * MIB, stream=1)
    assert reserved_mib(allocator) == 30


def test_an_expandable_segment_grows_instead_of_fragmenting() -> None:
    plain, expandable = CachingAllocator(), CachingAllocator(AllocatorSettings(expandable_segments=True))
    for allocator in (plain, expandable):
        for size in (20, 40, 60, 80, 100):
            allocator.free(allocator.allocate(size * MIB))
    assert reserved_mib(plain) == 300 and reserved_mib(expandable) == 100


def test_expandable_pages_in_the_middle_can_be_released() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True), limit=200 * MIB)
    blocks = [allocator.allocate(40 * MIB) for _ in range(4)]
    allocator.free(blocks[1])
    allocator.free(blocks[2])
    allocator.allocate(100 * MIB)
    assert reserved_mib(allocator) == 180


def test_options_are_read_as_pytorch_writes_them() -> None:
    read = AllocatorSettings.parse("backend:native, expandable_segments:True,garbage_collection_threshold:0.8")
    assert read == AllocatorSettings(expandable_segments=True, garbage_collection_threshold=0.8)
    assert AllocatorSettings.parse("") == AllocatorSettings()
    with pytest.raises(ForetraceError, match="max_split_size_mb can't be 'large'"):
        AllocatorSettings.parse("max_split_size_mb:large")


@pytest.mark.parametrize("text", ["", "expandable_segments:True", "max_split_size_mb:24", "roundup_power2_divisions:4"])
def test_blocks_never_overlap_and_all_memory_comes_back(text: str) -> None:
    random, living = Random(text), list[Block]()
    allocator = CachingAllocator(AllocatorSettings.parse(text), limit=2000 * MIB)
    for _ in range(3000):
        if living and random.random() < 0.5:
            allocator.free(living.pop(random.randrange(len(living))))
        elif len(living) < 100:
            nbytes = round(2 ** random.uniform(3, 24.5))
            living.append(allocator.allocate(nbytes, stream=random.randrange(2)))
            assert living[-1].nbytes >= nbytes
        spans = sorted((block.address, block.address + block.nbytes) for block in living)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert allocator.allocated == sum(block.nbytes for block in living) <= allocator.reserved
        assert allocator.reserved == sum(allocator.segments.values()) <= 2000 * MIB
    for block in living:
        allocator.free(block)
    allocator.release_cached()
    assert allocator.allocated == allocator.reserved == 0 and not allocator.segments
