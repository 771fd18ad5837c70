"""Structures and profiles of the same step, matched by names in order."""

import random
import time
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.formats.join import aligned, match
from foretrace.graph import Op, OpTable


def table(*rows: tuple[str, int] | str, thread: int = 0) -> OpTable:
    return OpTable.of(
        [Op(r, thread=thread) if isinstance(r, str) else Op(r[0], parent=r[1], thread=thread) for r in rows]
    )


def test_composite_calls_of_the_profile_are_passed_over():
    profile = table("aten::linear", ("aten::t", 0), ("aten::addmm", 0), "aten::relu", ("aten::clamp_min", 3))
    assert match(table("aten::t", "aten::addmm", "aten::relu"), profile).tolist() == [1, 2, 3]


def test_internals_of_a_matched_call_are_not_matched():
    profile = table("aten::zeros", ("aten::empty", 0), ("aten::zero_", 0), "aten::empty")
    assert match(table("aten::zeros", "aten::empty"), profile).tolist() == [0, 3]


def test_of_a_call_that_autocast_makes_again_after_casting_the_inner_one_is_matched():
    profile = table("aten::addmm", ("aten::to", 0), ("aten::_to_copy", 1), ("aten::copy_", 2), ("aten::addmm", 0))
    assert match(table("aten::_to_copy", "aten::addmm"), profile).tolist() == [2, 4]


def test_of_a_call_that_makes_another_of_its_name_among_others_the_outer_one_is_matched():
    profile = table("aten::sort", ("aten::empty", 0), ("aten::sort", 0), ("aten::copy_", 0))
    assert match(table("aten::sort"), profile).tolist() == [0]


def test_a_nested_structure_is_matched_inside_too():
    structure = table("aten::linear", ("aten::t", 0), ("aten::addmm", 0))
    profile = table("step", ("aten::linear", 0), ("aten::t", 1), ("aten::as_strided", 2), ("aten::addmm", 1))
    assert match(structure, profile).tolist() == [1, 2, 4]


def test_a_call_that_only_one_side_has_does_not_shift_the_rest():
    layers = ["aten::mm", "aten::add", "aten::relu", "aten::mul"] * 20
    structure = [*layers[:30], "aten::detach", *layers[30:]]
    profile = [*layers[:50], "aten::item", "aten::mm", *layers[50:]]
    found = match(table(*structure), table(*profile))
    assert found[30] == -1
    assert (found >= 0).sum() == len(layers)
    assert [profile[row] for row in found if row >= 0] == layers


def test_threads_are_paired_by_what_they_call():
    forward, backward = ["aten::mm", "aten::relu"] * 5, ["aten::mm", "aten::threshold_backward"] * 5
    structure = OpTable.of([Op(n, thread=1) for n in forward] + [Op(n, thread=2) for n in backward])
    profile = OpTable.of([Op(n, thread=77) for n in backward] + [Op(n, thread=11) for n in forward])
    assert match(structure, profile).tolist() == [*range(10, 20), *range(10)]


def test_a_structure_of_one_thread_is_found_in_a_profile_of_two():
    profile = OpTable.of([Op("aten::mm", thread=1), Op("aten::mul", thread=2), Op("aten::add_", thread=1)])
    assert match(table("aten::mm", "aten::mul", "aten::add_"), profile).tolist() == [0, 1, 2]


def test_nothing_matches_an_empty_side():
    assert match(table(), table("aten::mm")).tolist() == []
    assert match(table("aten::mm"), table()).tolist() == [-1]


names = st.lists(st.integers(0, 4), max_size=60)


@given(names, names)
def test_positions_rise_on_both_sides_and_names_agree(a: list[int], b: list[int]):
    pairs = aligned(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))


@given(names)
def test_equal_sequences_match_throughout(a: list[int]):
    assert aligned(a, a) == [(i, i) for i in range(len(a))]


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_a_few_changes_cost_a_few_matches(seed: int):
    draw = random.Random(seed)
    step = [draw.randrange(40) for _ in range(2000)]
    changed = list(step)
    for _ in range(20):
        changed.insert(draw.randrange(len(changed)), draw.randrange(40))
        del changed[draw.randrange(len(changed))]
    assert len(aligned(step, changed)) >= 2000 - 20 * 4


def test_unlike_sequences_are_walked_in_a_moment():
    draw = np.random.default_rng(0)
    began = time.process_time()
    aligned(draw.integers(0, 500, 50_000).tolist(), draw.integers(0, 500, 50_000).tolist())
    assert time.process_time() - began < 5.0
