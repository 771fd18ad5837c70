"""Pairs of changes: each does to a changed step what it does to one that was sketched so, or says truly why not."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
import torch

import gpt
from foretrace import predict
from foretrace.analysis.memory import peak_memory
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.parallelize import parallelize
from foretrace.whatif.changes import CASTS_STAY, EditedJob, parallel_options
from foretrace.whatif.grammar import read_changes, read_parallel
from tests.narrowing import present
from tests.transforms.agreement import assert_same

NATIVE: dict[str, dict[str, Any]] = {
    "dtype=bf16": {"half": True},
    "checkpoint=*": {"recompute": True},
    "optimizer=fused": {"optimizer": "fused"},
}
"""Changes of a step, and the options of a script that does so itself."""
SHARED = (
    "data=4", "data=4,sharded", "tensor=2", "tensor=2,sequence", "tensor=2,sequence,overlap",
    "pipeline=2,microbatches=2", "data=2,sharded,tensor=2,sequence",
    "tensor=2,sequence,pipeline=2,microbatches=4", "data=2,sharded,pipeline=2,microbatches=4", "context=2",
    "data=2,zero1,pipeline=2,microbatches=2",
)  # fmt: skip
FUSE = "fuse=elementwise"


@cache
def sketched(world: int = 1, half: bool = False, **options: Any) -> Graph:
    def build() -> Any:
        torch.set_default_dtype(torch.bfloat16 if half else torch.float32)
        try:
            return gpt.make_step("tiny", device="cuda", **options)
        finally:
            torch.set_default_dtype(torch.float32)

    return sketch(build, device="cuda", world=world)


def changed(*changes: str, parallel: str = "", **options: Any) -> Job:
    asked = [*read_changes(changes), *(read_parallel(parallel) if parallel else ())]
    return EditedJob(Job([sketched(**options)])).by(asked)


def calls(graph: Graph) -> list[tuple[Any, ...]]:
    return [(op.name, op.phase, *((t.shape, t.dtype) for t in (*op.tensors, *op.produced))) for op in graph.ops]


@pytest.mark.parametrize(("first", "second"), list(combinations(NATIVE, 2)))
def test_two_changes_of_a_step_are_the_step_that_does_both_in_either_order(first: str, second: str) -> None:
    truth = sketched(**NATIVE[first], **NATIVE[second])
    for order in ((first, second), (second, first)):
        assert_same(changed(*order).graphs[0], truth)


@pytest.mark.parametrize(("change", "parallel"), list(product(NATIVE, SHARED)))
def test_a_changed_step_is_shared_as_one_that_was_sketched_so(change: str, parallel: str) -> None:
    ours, theirs = changed(change, parallel=parallel), changed(parallel=parallel, **NATIVE[change])
    for one, other in zip(ours.graphs, theirs.graphs, strict=True):
        assert calls(one) == calls(other)
        assert peak_memory(one) == peak_memory(other)


@pytest.mark.parametrize(("change", "library"), list(product(NATIVE, ("ddp", "fsdp"))))
def test_a_changed_step_of_many_ranks_calls_what_the_library_does(change: str, library: str) -> None:
    ours = changed(change, parallel="data=4,sharded" if library == "fsdp" else "data=4").graphs[0]
    theirs = sketched(world=4, **{library: True}, **NATIVE[change])
    named = [(c.kind, c.nbytes, c.dtype) for c in ours.collectives]
    assert named == [(c.kind, c.nbytes, c.dtype) for c in theirs.collectives if c.kind != "broadcast"]
    for phase in ("forward", "backward"):
        work = [Counter(one for one in calls(g) if one[1] == phase and "mm" in one[0]) for g in (ours, theirs)]
        assert work[0] == work[1]


@pytest.mark.parametrize("parallel", SHARED)
def test_fused_chains_change_neither_communication_nor_gemms_and_raise_no_memory(parallel: str) -> None:
    fused, plain = changed(FUSE, parallel=parallel, dtype="bf16"), changed(parallel=parallel, dtype="bf16")
    early = parallelize(changed(FUSE, dtype="bf16"), **parallel_options(read_parallel(parallel)))
    for ours, before, plain_graph in zip(fused.graphs, early.graphs, plain.graphs, strict=True):
        sent = [(c.kind, c.nbytes, c.ranks) for c in plain_graph.collectives]
        assert [(c.kind, c.nbytes, c.ranks) for c in ours.collectives] == sent
        assert Counter(c.kind for c in before.collectives) == Counter(kind for kind, *_ in sent)
        work = [Counter(one for one in calls(graph) if "mm" in one[0]) for graph in (ours, before, plain_graph)]
        assert work[0] == work[1] == work[2]
        assert any(op.name.startswith("triton") for op in ours.ops)
        assert present(peak_memory(ours)) <= 1.01 * present(peak_memory(plain_graph))


@pytest.mark.parametrize("change", NATIVE)
def test_chains_of_a_changed_step_are_fused(change: str) -> None:
    options = {"dtype": "bf16"} if change != "dtype=bf16" else {}
    if change == "dtype=bf16":  # nothing is cast any more, and norms and GEMMs stand between the element-wise calls
        with pytest.raises(ForetraceError, match="no two consecutive element-wise calls"):
            changed(change, FUSE, **options)
        return
    truth = changed(FUSE, **options, **NATIVE[change])
    assert calls(changed(change, FUSE, **options).graphs[0]) == calls(truth.graphs[0])


@pytest.mark.parametrize("change", ["checkpoint=*", "optimizer=fused", FUSE])
def test_a_compiled_step_is_not_changed_and_the_reason_is_said(change: str) -> None:
    with pytest.raises(ForetraceError, match="is compiled: its kernels were fused for this very step"):
        changed(change, compile=True)


def test_a_compiled_step_in_another_type_takes_about_as_long_as_one_that_was_compiled_so() -> None:
    ours, theirs = changed("dtype=bf16", compile=True).graphs[0], sketched(half=True, compile=True)
    found, truth = (predict(graph, "h200") for graph in (ours, theirs))
    assert found.device_active_ms == pytest.approx(truth.device_active_ms, rel=0.03)
    assert CASTS_STAY in ours.notes


@pytest.mark.parametrize("parallel", ["tensor=2", "data=4,sharded", "pipeline=2,microbatches=2"])
def test_a_compiled_step_is_not_split_and_the_reason_is_said(parallel: str) -> None:
    with pytest.raises(ForetraceError, match="is compiled: its kernels were fused for this very step"):
        changed(parallel=parallel, compile=True)


def test_a_compiled_step_is_replicated() -> None:
    assert changed(parallel="data=4", compile=True).world == 4
