"""Nesting from times alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.formats.call_tree import call_order, innermost, parents, steps_by_row
from foretrace.graph import Op, OpTable

Interval = tuple[int, int, int]
"""Start, end and row of the parent."""


@st.composite
def trees(draw: st.DrawFn) -> list[Interval]:
    """Intervals that nest, in the order they start."""
    rows: list[Interval] = []

    def grow(start: int, end: int, parent: int, depth: int) -> None:
        rows.append((start, end, parent))
        me, at = len(rows) - 1, start
        while depth and at + 2 <= end and len(rows) < 60 and draw(st.booleans()):
            child = draw(st.integers(at, end - 1))
            child_end = draw(st.integers(child + 1, end))
            # A child as long as its parent is indistinguishable from it: leave one out.
            if (child, child_end) != (start, end):
                grow(child, child_end, me, depth - 1)
            at = child_end

    at = 0
    for _ in range(draw(st.integers(1, 4))):
        end = at + draw(st.integers(1, 200))
        grow(at, end, -1, 5)
        at = end
    return rows


@given(trees())
def test_a_tree_of_intervals_is_found_again(rows: list[Interval]) -> None:
    start, end, parent = (np.array(column, float) for column in zip(*rows))
    found = parents(np.zeros(len(rows), np.int32), start, end)
    assert found.tolist() == parent.tolist()


@given(trees(), trees())
def test_threads_do_not_disturb_each_other(one: list[Interval], other: list[Interval]) -> None:
    start, end, parent = (np.array(column, float) for column in zip(*one, *other))
    thread = np.array([0] * len(one) + [1] * len(other), np.int32)
    order = call_order(start, end)
    found = parents(thread[order], start[order], end[order])
    place = np.argsort(order)
    offset = np.where(thread == 1, len(one), 0)
    expected = [place[int(p) + o] if p >= 0 else -1 for p, o in zip(parent, offset)]
    assert found[place].tolist() == expected


@given(trees(), st.lists(st.floats(0, 900), min_size=1, max_size=20))
def test_the_innermost_row_is_the_shortest_one_open(rows: list[Interval], times: list[float]) -> None:
    start, end, parent = (np.array(column, float) for column in zip(*rows))
    thread, at = np.zeros(len(rows), np.int32), np.array(times)
    found = innermost(thread, start, end, parent.astype(np.int32), np.zeros(len(at), np.int32), at)
    for time, row in zip(times, found):
        open_rows = [i for i, (first, last, _) in enumerate(rows) if first <= time < last]
        if open_rows:
            assert row == max(open_rows)
        else:
            assert row == -1 or end[row] == time


def test_a_longer_row_that_starts_at_the_same_time_is_the_parent() -> None:
    start, end = np.array([0.0, 0.0, 0.0]), np.array([2.0, 9.0, 5.0])
    order = call_order(start, end)
    assert order.tolist() == [1, 2, 0]
    assert parents(np.zeros(3, np.int32), start[order], end[order]).tolist() == [-1, 0, 1]


def test_a_row_that_sticks_out_by_rounding_does_not_hold_its_parents_sibling() -> None:
    start, end = np.array([0.0, 1.0, 10.0]), np.array([10.0, 11.0, 20.0])
    assert parents(np.zeros(3, np.int32), start, end).tolist() == [-1, 0, -1]


def test_rows_that_cross_keep_what_starts_inside_them() -> None:
    start, end = np.array([0.0, 5.0, 12.0]), np.array([10.0, 50.0, 14.0])
    assert parents(np.zeros(3, np.int32), start, end).tolist() == [-1, 0, 1]


def test_a_moment_at_the_end_of_a_row_belongs_to_it_where_nothing_else_is_open() -> None:
    rows = np.zeros(2, np.int32), np.array([0.0, 1.0]), np.array([9.0, 4.0]), np.array([-1, 0], np.int32)
    assert innermost(*rows, np.zeros(2, np.int32), np.array([4.0, 9.0])).tolist() == [0, 0]


def test_steps_without_times_reach_to_what_their_thread_does_next():
    rows = [
        Op("ProfilerStep#1"), Op("aten::mm", parent=0), Op("aten::mm", thread=1), Op("ProfilerStep#2"),
        Op("aten::mm", parent=3), Op("aten::mm", thread=1), Op("ProfilerStep#3"),
    ]  # fmt: skip
    assert [tuple(step) for step in steps_by_row(OpTable.of(rows))] == [
        ("ProfilerStep#1", 0, 3),
        ("ProfilerStep#2", 3, 6),
    ]
