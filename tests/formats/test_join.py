"""Joining an execution trace with a profiler trace of the same rank, and matching their ops."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.formats.execution_trace import read_execution_trace
from foretrace.formats.join import align_sequences, join_traces, match_ops, match_steps
from foretrace.formats.kineto import read_kineto
from foretrace.graph import Collective, Graph, Op, OpTable, Span, Storage, Tensor

SIZES = (4, 8, 16)


def structure() -> Graph:
    ops = [Op("aten::mm", (Tensor((n,), "float32", id=n),)) for n in SIZES]
    return Graph(OpTable.of([*ops, Op("c10d::allreduce_"), Op("record_param_comms", parent=3)]))


def profile(step: int = 0, extra: tuple[str, ...] = ()) -> list[Op]:
    at = 100.0 * step
    ops = [Op(f"ProfilerStep#{step}", start_us=at, end_us=at + 99)]
    for i, name in enumerate(("aten::mm", *extra, "aten::mm", "aten::mm", "c10d::allreduce_", "record_param_comms")):
        parent = 4 + len(extra) if name == "record_param_comms" else 0
        ops.append(Op(name, start_us=at + 10 * i + 1, end_us=at + 10 * i + 2, parent=parent))
    return ops


def with_records(graph: Graph, records: list[int]) -> Graph:
    graph.ops.record = np.array(records, np.int64)
    return graph


def test_matched_ops_have_times_of_one_and_arguments_of_the_other():
    joined = join_traces(structure(), Graph(OpTable.of(profile())))
    ops = list(joined.ops)
    assert [op.start_us for op in ops[1:4]] == [1.0, 11.0, 21.0]
    assert [op.tensors[0].id for op in ops[1:4]] == list(SIZES)
    assert ops[0].name == "ProfilerStep#0"
    assert joined.notes == ["100.0 % of the execution trace's ops found in the profiler trace"]


def test_record_ids_decide_where_both_sides_have_them():
    seen = with_records(structure(), [7, 8, 9, 10, 11])
    timed = with_records(Graph(OpTable.of(profile())), [5, 9, 8, 7, 10, 11])
    assert match_steps(seen.ops, timed)[0].tolist() == [3, 2, 1, 4, 5]


def test_record_ids_of_another_run_are_not_believed():
    seen = with_records(structure(), [1, 2, 3, 4, 5])
    timed = with_records(Graph(OpTable.of(profile())), [1, 2, 3, 4, 5, 6])
    assert match_steps(seen.ops, timed)[0].tolist() == [1, 2, 3, 4, 5]


def test_each_step_of_a_longer_profile_gets_the_arguments():
    ops = profile(0) + [op_of(op, 6) for op in profile(1, ("aten::item",))] + [op_of(op, 13) for op in profile(2)]
    timed = Graph(OpTable.of(ops), steps=[Span(f"ProfilerStep#{i}", 100.0 * i, 100.0 * i + 99) for i in range(3)])
    joined = join_traces(structure(), timed)
    assert [op.tensors[0].id for op in joined.ops if op.name == "aten::mm"] == [*SIZES] * 3
    assert joined.ops[8].name == "aten::item"
    assert joined.ops[8].args == ()


def op_of(op: Op, first_row: int) -> Op:
    op.parent = op.parent + first_row if op.name not in (f"ProfilerStep#{i}" for i in range(3)) else -1
    return op


def test_collectives_take_over_size_group_and_members():
    seen = structure()
    seen.collectives = [Collective("all_reduce", "tp", 64, kernel=-1, op=4, ranks=(0, 1), dtype="bfloat16")]
    timed = Graph(OpTable.of(profile()))
    timed.collectives = [Collective("all_reduce", "", 0, kernel=12, op=5)]
    (collective,) = join_traces(seen, timed).collectives
    assert collective == Collective("all_reduce", "tp", 64, kernel=12, op=5, ranks=(0, 1), dtype="bfloat16")


def test_collectives_on_the_host_come_from_the_structure():
    seen = structure()
    seen.collectives = [Collective("all_reduce", "tp", 64, kernel=-1, op=4)]
    (collective,) = join_traces(seen, Graph(OpTable.of(profile()))).collectives
    assert (collective.kernel, collective.op) == (-1, 5)


def test_storages_are_born_and_die_at_rows_of_the_profile():
    seen = structure()
    seen.storages = {0: Storage(0, 64, "cuda:0", birth=1, death=3), 1: Storage(1, 8, "cuda:0", birth=-1, death=-1)}
    storages = join_traces(seen, Graph(OpTable.of(profile(extra=("aten::item",))))).storages
    assert (storages[0].birth, storages[0].death) == (3, 5)
    assert (storages[1].birth, storages[1].death) == (-1, -1)


def test_nesting_that_stamps_of_whole_microseconds_lost_comes_from_the_structure():
    seen = Graph(OpTable.of([Op("aten::item"), Op("aten::_local_scalar_dense", parent=0)]))
    timed = [Op(name, start_us=5.0, end_us=5.0) for name in ("aten::item", "aten::_local_scalar_dense")]
    assert join_traces(seen, Graph(OpTable.of(timed))).ops.parent.tolist() == [-1, 0]


def test_rows_picked_from_a_joined_graph_keep_their_arguments():
    joined = join_traces(structure(), Graph(OpTable.of(profile())))
    assert joined.between(5.0, 15.0).ops[0].tensors[0].id == SIZES[1]


PAIRS = (
    *(f"traces/h200/{name}/" for name in ("dlrm_ddp_b2048", "dlrm_mlperf_b2048", "resnet50_b64_fp32")),
    *(f"public/dlrm_8xV100/rank{rank}." for rank in (0, 5)),
    "public/megatron_tp2_2xV100/rank1.",
    "public/megatron_tp8_8xA100/rank6.",
)


@pytest.mark.parametrize("stem", PAIRS)
def test_traces_taken_at_once_match_almost_wholly(shared: Path, stem: str):
    seen = read_execution_trace(shared / f"{stem}et.json.gz")
    timed = read_kineto(shared / f"{stem}kineto.json.gz")
    (found,) = match_steps(seen.ops, timed)
    assert (found >= 0).mean() > 0.999
    by_name = match_ops(seen.ops, timed.ops)
    assert (by_name == found).mean() > 0.995
    joined = join_traces(seen, timed)
    named = [joined.ops.names[code] for code in joined.ops.name[found[found >= 0]]]
    assert named == [seen.ops.names[code] for code in seen.ops.name[found >= 0]]
    assert len(joined.kernels) == len(timed.kernels)


def test_steps_of_different_batch_sizes_match_by_name(shared: Path):
    seen = read_execution_trace(shared / "traces/h200/dlrm_default_b512/et.json.gz")
    timed = read_kineto(shared / "traces/h200/dlrm_default_b4096/kineto.json.gz")
    (found,) = match_steps(seen.ops, timed)
    assert (found >= 0).mean() == 1.0


def table(*rows: tuple[str, int] | str, thread: int = 0) -> OpTable:
    return OpTable.of(
        [Op(r, thread=thread) if isinstance(r, str) else Op(r[0], parent=r[1], thread=thread) for r in rows]
    )


def test_composite_calls_of_the_profile_are_passed_over():
    profile = table("aten::linear", ("aten::t", 0), ("aten::addmm", 0), "aten::relu", ("aten::clamp_min", 3))
    assert match_ops(table("aten::t", "aten::addmm", "aten::relu"), profile).tolist() == [1, 2, 3]


def test_internals_of_a_matched_call_are_not_matched():
    profile = table("aten::zeros", ("aten::empty", 0), ("aten::zero_", 0), "aten::empty")
    assert match_ops(table("aten::zeros", "aten::empty"), profile).tolist() == [0, 3]


def test_of_a_call_that_autocast_makes_again_after_casting_the_inner_one_is_matched():
    profile = table("aten::addmm", ("aten::to", 0), ("aten::_to_copy", 1), ("aten::copy_", 2), ("aten::addmm", 0))
    assert match_ops(table("aten::_to_copy", "aten::addmm"), profile).tolist() == [2, 4]


def test_of_a_call_that_makes_another_of_its_name_among_others_the_outer_one_is_matched():
    profile = table("aten::sort", ("aten::empty", 0), ("aten::sort", 0), ("aten::copy_", 0))
    assert match_ops(table("aten::sort"), profile).tolist() == [0]


def test_of_a_call_that_makes_several_of_its_name_the_outer_one_is_matched():
    profile = table("aten::roll", ("aten::roll", 0), ("aten::roll", 0), "aten::view")
    assert match_ops(table("aten::roll", "aten::view"), profile).tolist() == [0, 3]


def test_a_nested_structure_is_matched_inside_too():
    structure = table("aten::linear", ("aten::t", 0), ("aten::addmm", 0))
    profile = table("step", ("aten::linear", 0), ("aten::t", 1), ("aten::as_strided", 2), ("aten::addmm", 1))
    assert match_ops(structure, profile).tolist() == [1, 2, 4]


def test_a_call_that_only_one_side_has_does_not_shift_the_rest():
    layers = ["aten::mm", "aten::add", "aten::relu", "aten::mul"] * 20
    structure = [*layers[:30], "aten::detach", *layers[30:]]
    profile = [*layers[:50], "aten::item", "aten::mm", *layers[50:]]
    found = match_ops(table(*structure), table(*profile))
    assert found[30] == -1
    assert (found >= 0).sum() == len(layers)
    assert [profile[row] for row in found if row >= 0] == layers


def test_threads_are_paired_by_what_they_call():
    forward, backward = ["aten::mm", "aten::relu"] * 5, ["aten::mm", "aten::threshold_backward"] * 5
    structure = OpTable.of([Op(n, thread=1) for n in forward] + [Op(n, thread=2) for n in backward])
    profile = OpTable.of([Op(n, thread=77) for n in backward] + [Op(n, thread=11) for n in forward])
    assert match_ops(structure, profile).tolist() == [*range(10, 20), *range(10)]


def test_a_structure_of_one_thread_is_found_in_a_profile_of_two():
    profile = OpTable.of([Op("aten::mm", thread=1), Op("aten::mul", thread=2), Op("aten::add_", thread=1)])
    assert match_ops(table("aten::mm", "aten::mul", "aten::add_"), profile).tolist() == [0, 1, 2]


def test_nothing_matches_an_empty_side():
    assert match_ops(table(), table("aten::mm")).tolist() == []
    assert match_ops(table("aten::mm"), table()).tolist() == [-1]


names = st.lists(st.integers(0, 4), max_size=60)


@given(names, names)
def test_positions_rise_on_both_sides_and_names_agree(a: list[int], b: list[int]):
    pairs = align_sequences(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))


@given(names)
def test_equal_sequences_match_throughout(a: list[int]):
    assert align_sequences(a, a) == [(i, i) for i in range(len(a))]


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_a_few_changes_cost_a_few_matches(seed: int):
    draw = random.Random(seed)
    step = [draw.randrange(40) for _ in range(2000)]
    changed = list(step)
    for _ in range(20):
        changed.insert(draw.randrange(len(changed)), draw.randrange(40))
        del changed[draw.randrange(len(changed))]
    assert len(align_sequences(step, changed)) >= 2000 - 20 * 4


def test_unlike_sequences_are_walked_in_a_moment():
    draw = np.random.default_rng(0)
    began = time.process_time()
    align_sequences(draw.integers(0, 500, 50_000).tolist(), draw.integers(0, 500, 50_000).tolist())
    assert time.process_time() - began < 5.0
