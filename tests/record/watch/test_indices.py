"""How a step reads tables: counts and reuse, against numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from foretrace.graph import Indices
from foretrace.record.watch.indices import IndexWatch, statistics


def watched(*lookups: object) -> list[tuple[str, int, Indices]]:
    with IndexWatch() as watch:
        for lookup in lookups:
            lookup()  # type: ignore[operator]
    return watch.seen


def by_numpy(ids: np.ndarray) -> tuple[int, int, tuple[int, ...]]:
    """Count, unique and reuse, the slow and obvious way."""
    _, hits = np.unique(ids, return_counts=True)
    reuse: list[int] = []
    for k in range(64):
        within = (hits >= 2**k) & (hits < 2 ** (k + 1))
        reuse.append(int(within.sum()))
    while reuse and not reuse[-1]:
        reuse.pop()
    return ids.size, len(hits), tuple(reuse)


@given(st.lists(st.integers(0, 9), max_size=300))
def test_statistics_are_those_of_numpy(ids: list[int]) -> None:
    (found,) = statistics({"weight": torch.zeros(10, 2), "indices": torch.tensor(ids, dtype=torch.int64)})
    assert (found.count, found.unique, found.reuse) == by_numpy(np.array(ids, np.int64))
    assert (found.rows, found.bags) == (10, len(ids))


@pytest.mark.parametrize(("times", "place"), [(1, 0), (2, 1), (3, 1), (4, 2), (7, 2), (8, 3), (2**20 - 1, 19)])
def test_reuse_is_counted_in_powers_of_two(times: int, place: int) -> None:
    (found,) = statistics({"weight": torch.zeros(4, 1), "indices": torch.full((times,), 3)})
    assert found.reuse == (0,) * place + (1,)


def test_an_embedding_of_a_batch_of_sentences_has_a_bag_for_each_word() -> None:
    words = torch.tensor([[1, 2, 3], [1, 1, 0]])
    ((name, nth, found),) = watched(lambda: functional.embedding(words, torch.zeros(5, 2)))
    assert (name, nth) == ("aten::embedding", 0)
    assert (found.rows, found.count, found.unique, found.bags, found.pooling) == (5, 6, 4, 6, 1.0)
    assert found.reuse == (3, 1)


@pytest.mark.parametrize("include_last", [False, True])
def test_bags_are_counted_from_offsets(include_last: bool) -> None:
    bag = torch.nn.EmbeddingBag(10, 2, mode="sum", include_last_offset=include_last)
    offsets = torch.tensor([0, 3, 4, 8] if include_last else [0, 3, 4])
    ((name, _, found),) = watched(lambda: bag(torch.tensor([1, 1, 1, 5, 2, 2, 9, 0]), offsets))
    assert name == "aten::_embedding_bag"
    assert (found.bags, found.count, found.rows) == (3, 8, 10)
    assert found.pooling == pytest.approx(8 / 3)


def test_bags_of_one_size_come_as_rows_of_a_matrix() -> None:
    bag = torch.nn.EmbeddingBag(10, 2, mode="mean")
    ((_, _, found),) = watched(lambda: bag(torch.tensor([[1, 2, 3], [4, 4, 4]])))
    assert (found.bags, found.count, found.unique, found.reuse) == (2, 6, 4, (3, 1))


def test_a_lookup_of_nothing_counts_nothing() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    bag = torch.nn.EmbeddingBag(10, 2)
    lookup, bags = watched(lambda: functional.embedding(empty, bag.weight), lambda: bag(empty, torch.tensor([0, 0])))
    assert (lookup[2].count, lookup[2].unique, lookup[2].bags, lookup[2].reuse) == (0, 0, 0, ())
    assert (bags[2].count, bags[2].bags, bags[2].pooling) == (0, 2, 0.0)


@pytest.mark.parametrize(("dim", "rows"), [(0, 4), (1, 6), (-1, 6)])
def test_index_select_reads_along_its_dimension(dim: int, rows: int) -> None:
    ((name, _, found),) = watched(lambda: torch.zeros(4, 6).index_select(dim, torch.tensor([1, 1, 3])))
    assert (name, found.rows, found.count, found.unique) == ("aten::index_select", rows, 3, 2)


def test_each_lookup_is_told_by_its_place_among_those_of_its_name() -> None:
    weight, ids = torch.zeros(5, 2), torch.tensor([1])
    seen = watched(
        lambda: functional.embedding(ids, weight),
        lambda: weight.index_select(0, ids),
        lambda: functional.embedding(torch.tensor([2, 2]), weight),
    )
    assert [(name, nth) for name, nth, _ in seen] == [
        ("aten::embedding", 0), ("aten::index_select", 0), ("aten::embedding", 1),
    ]  # fmt: skip


def test_backward_reads_no_table() -> None:
    table = torch.nn.Embedding(5, 2)
    seen = watched(lambda: table(torch.tensor([1, 2])).sum().backward())
    assert [name for name, _, _ in seen] == ["aten::embedding"]


def test_ids_themselves_are_nowhere_in_what_is_kept() -> None:
    secret = torch.tensor([123_456, 123_456, 234_567])
    ((name, nth, found),) = watched(lambda: functional.embedding(secret, torch.zeros(300_000, 1)))
    kept = repr((name, nth, dataclasses.asdict(found)))
    assert "123456" not in kept and "234567" not in kept


def test_a_lookup_of_others_that_means_something_else_by_the_words_is_passed_over() -> None:
    """A custom op whose ``indices`` are no ids of rows: the job must not end by it."""
    with torch.library._scoped_library("foretrace_test", "DEF") as library:
        library.define("odd_lookup(Tensor indices, Tensor offsets, Tensor hash_size_cumsum) -> Tensor")
        library.impl("odd_lookup", lambda indices, offsets, sizes: indices + 1, "CPU")
        empty = torch.zeros(0, dtype=torch.int64)
        results = []
        seen = watched(lambda: results.append(torch.ops.foretrace_test.odd_lookup(torch.tensor([1]), empty, empty)))
    assert results[0].item() == 2 and seen == []


def test_masks_and_floats_are_no_ids() -> None:
    weight = torch.zeros(4, 2)
    assert statistics({"weight": weight, "indices": torch.ones(4, dtype=torch.bool)}) == []
    assert statistics({"weight": weight, "indices": torch.ones(4)}) == []
    assert statistics({"weight": weight}) == []
