"""Jobs on several ranks: one folder each, with the collectives they share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foretrace.graph import Constant, Graph, Job
from foretrace.record.folder import read_ops
from foretrace.record.recording import load_recording
from tests.record.jobs import foretrace

pytestmark = pytest.mark.slow

NAMES = ("ddp", "fsdp", "hybrid")
GPT_BYTES = 134_912 * 4
"""Of the tiny example's weights: those of its embeddings and head are shared."""


@pytest.fixture
def job(request: pytest.FixtureRequest, on_two_ranks: Callable[[str], Path]) -> Job:
    return load_recording(on_two_ranks(request.param))


every = pytest.mark.parametrize("job", NAMES, indirect=True)


def calls(graph: Graph) -> list[tuple[str, int, str, tuple[int, ...]]]:
    return [(c.kind, c.nbytes, c.group, c.ranks) for c in graph.collectives]


@every
def test_each_rank_has_its_folder(job: Job) -> None:
    assert [graph.rank for graph in job.graphs] == [0, 1]
    assert (job.world, job.missing) == (2, [])
    assert {graph.notes[0] for graph in job.graphs} == {"100.0 % of the recorded calls found in the profile"}
    assert len({graph.steps[0].name for graph in job.graphs}) == 1


@every
def test_ranks_tell_the_same_collectives_in_the_same_order(job: Job) -> None:
    one, other = (calls(graph) for graph in job.graphs)
    assert one == other and len(one) > 0
    assert {ranks for _, _, _, ranks in one} == {(0, 1)}
    assert all(group in job.graphs[0].groups for _, _, group, _ in one)


@pytest.mark.parametrize(("job", "reduction"), [("ddp", "sum"), ("fsdp", "avg"), ("hybrid", "sum")], indirect=["job"])
def test_a_reduction_is_told_and_no_argument_is_opaque(job: Job, reduction: str) -> None:
    ops = [op for op in job.graphs[0].ops if op.name.startswith("c10d::")]
    constants = [value for op in ops for value in (*op.args, *op.outputs) if isinstance(value, Constant)]
    assert "object" not in {constant.kind for constant in constants}
    reducing = [op for op in ops if "reduce" in op.name]
    assert reducing and all(Constant("reduce_op", reduction) in op.args for op in reducing)


@every
def test_collectives_take_their_time_from_gloo(job: Job) -> None:
    for graph in job.graphs:
        rows = [collective.op for collective in graph.collectives]
        assert all(graph.ops[row].name.startswith("gloo:") for row in rows)
        assert (graph.ops.end[rows] > graph.ops.start[rows]).all()


@every
def test_ranks_of_one_machine_are_on_one_clock(job: Job) -> None:
    assert job.notes == []
    one, other = job.graphs
    assert one.origin_ns == other.origin_ns
    assert one.ops.start[0] < np.nanmax(other.ops.end) and other.ops.start[0] < np.nanmax(one.ops.end)


@pytest.mark.parametrize("job", ["ddp"], indirect=True)
def test_data_parallel_ranks_reduce_every_gradient_once(job: Job) -> None:
    (reduced,) = job.graphs[0].collectives
    assert (reduced.kind, reduced.nbytes, reduced.dtype) == ("all_reduce", GPT_BYTES, "float32")


@pytest.mark.parametrize("job", ["fsdp"], indirect=True)
def test_sharded_ranks_gather_weights_twice_and_scatter_gradients_once(job: Job) -> None:
    kinds = [kind for kind, _, _, _ in calls(job.graphs[0])]
    assert kinds == ["all_gather"] * 5 + ["reduce_scatter"] * 3, "two blocks, and what is left of the model"
    scattered = sum(nbytes for kind, nbytes, _, _ in calls(job.graphs[0]) if kind == "reduce_scatter")
    assert scattered == GPT_BYTES
    assert any(op.name == "storage::resize_" for op in job.graphs[0].ops), "weights are let go between uses"


@pytest.mark.parametrize("job", ["hybrid"], indirect=True)
def test_sharded_tables_exchange_ids_vectors_and_gradients(job: Job) -> None:
    found = calls(job.graphs[0])
    assert [kind for kind, _, _, _ in found].count("all_to_all") == 3
    ids, vectors, gradients = (nbytes for kind, nbytes, _, _ in found if kind == "all_to_all")
    assert ids == 4 * 128 * 4 * 8, "128 samples of 4 tables with 4 ids each"
    assert vectors == gradients == 2 * 2 * 128 * 16 * 4, "2 tables on a rank, 128 samples of each of 2 ranks, 16 wide"
    for graph in job.graphs:
        assert [(found.rows, found.count, found.bags) for found in graph.indices] == [(10_000, 1024, 256)] * 2


@every
def test_each_work_is_waited_for_or_left_to_c_plus_plus(job: Job) -> None:
    for graph in job.graphs:
        issued = [v.value for op in graph.ops for v in op.outputs if isinstance(v, Constant) and v.kind == "work"]
        waited = [op.args[0].value for op in graph.ops if op.name == "c10d::wait"]  # type: ignore[union-attr]
        assert len(set(issued)) == len(issued) == len(graph.collectives)
        assert set(waited) <= set(issued) and len(set(waited)) == len(waited)


@pytest.mark.parametrize("name", NAMES)
def test_show_tells_of_both_ranks(name: str, on_two_ranks: Callable[[str], Path]) -> None:
    done = foretrace("show", on_two_ranks(name), "--json")
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["world"] == 2 and reported["missing"] == []
    assert set(reported["step_ms"]) == set(reported["wait_ms"]) == {"0", "1"}
    assert set(reported["transfer_ms"]) == {collective["kind"] for collective in reported["collectives"]}
    assert sum(collective["count"] for collective in reported["collectives"]) == len(
        load_recording(on_two_ranks(name)).graphs[0].collectives
    )
    assert foretrace("show", on_two_ranks(name)).returncode == 0


def test_both_ranks_of_a_data_parallel_job_call_the_same(on_two_ranks: Callable[[str], Path]) -> None:
    one, other = (read_ops(on_two_ranks("ddp") / f"rank-{number}") for number in range(2))
    assert [(op.name, op.phase, op.module) for op in one] == [(op.name, op.phase, op.module) for op in other]
