"""Dispatcher calls in nested traces, and the kernels they launched."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import foretrace as ft
from foretrace.api import load as load_any
from foretrace.formats.load import load_traces
from foretrace.graph import Graph, KernelTable, Names, Op, OpTable, Tensor
from foretrace.graph.calls import composites, dispatched, enclosing_calls, recorded_kernels
from foretrace.graph.op import signature
from foretrace.graph.tables import ANNOTATION, COMPUTE, NODE

DATA = Path(__file__).parents[1] / "data" / "h200"


def names(graph: Graph) -> list[str]:
    return [graph.ops.names[graph.ops.name[row]] for row in dispatched(graph)]


def trace(*ops: Op) -> Graph:
    return Graph(OpTable.of(ops))


def test_the_list_of_composite_ops_is_that_of_the_installed_torch() -> None:
    torch = pytest.importorskip("torch")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    overloads: defaultdict[str, list[bool]] = defaultdict(list)
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        if name.startswith("aten::") and not overload.startswith("out") and not overload.endswith("out"):
            composite = has(full, "CompositeImplicitAutograd") and not has(full, "CUDA") and not has(full, "CPU")
            overloads[name].append(composite)
    always, sometimes = composites()
    changed = {name for name, apart in overloads.items() if all(apart) != (name in always)}
    changed |= {name for name, apart in overloads.items() if (any(apart) and not all(apart)) != (name in sometimes)}
    # A handful moves from one torch to the next; none of those that models call.
    assert len(changed) < 20
    assert not changed & {f"aten::{n}" for n in ("linear", "matmul", "to", "dropout", "embedding_bag", "layer_norm")}


def test_a_flat_graph_lists_its_calls_and_no_side_calls() -> None:
    assert names(trace(Op("aten::mm"), Op("cuda::event_record"), Op("aten::linear"))) == ["aten::mm", "aten::linear"]


def test_an_annotation_is_no_call_but_what_is_in_it_is() -> None:
    graph = trace(Op("Optimizer.step#SGD.step"), Op("aten::_foreach_add_", parent=0), Op("aten::zeros", parent=1))
    graph.ops.kind[0] = ANNOTATION
    assert names(graph) == ["aten::_foreach_add_"]


def test_a_decomposed_overload_is_distinguished_from_one_that_is_not() -> None:
    apart = trace(Op("aten::max"), Op("aten::maximum", parent=0), Op("aten::empty", parent=1))
    whole = trace(Op("aten::max"), Op("aten::empty", parent=0))
    assert names(apart) == ["aten::maximum"]
    assert names(whole) == ["aten::max"]


def test_autocast_shows_its_casts_and_the_call_they_are_for() -> None:
    graph = trace(
        Op("aten::addmm"),
        Op("aten::to", parent=0),
        Op("aten::_to_copy", parent=1),
        Op("aten::copy_", parent=2),
        Op("aten::addmm", parent=0),
    )
    assert names(graph) == ["aten::_to_copy", "aten::addmm"]


def test_handing_a_gradient_over_is_listed_as_a_recording_has_it() -> None:
    unsafe, inner = "aten::_sparse_coo_tensor_unsafe", "aten::_sparse_coo_tensor_with_dims_and_tensors"
    views = [Op(f"aten::{name}", parent=0) for name in ("detach", "_indices", "_values", "_values", "_indices")]
    graph = trace(Op("torch::autograd::AccumulateGrad"), *views, Op(unsafe, parent=0), Op(inner, parent=6))
    graph.ops.kind[0] = NODE
    assert names(graph) == ["aten::_indices", "aten::_values", unsafe]


def test_what_launches_outside_any_call_is_listed() -> None:
    graph = load_any(DATA / "dlrm_default_b512").graphs[0]
    ops = graph.ops
    row = int(graph.kernels.op[0])
    ops.kind[row] = ANNOTATION
    assert row in dispatched(graph)


def test_an_annotation_around_calls_is_no_call_although_it_launches_something_itself() -> None:
    graph = load_any(DATA / "dlrm_default_b512").graphs[0]
    first, second = (int(row) for row in np.unique(graph.kernels.op)[:2])
    graph.ops.kind[first], graph.ops.parent[second] = ANNOTATION, first
    assert first not in dispatched(graph) and second in dispatched(graph)


def test_every_kernel_of_a_trace_belongs_to_a_dispatched_call(shared: Path) -> None:
    (graph,) = load_traces([shared / "traces" / "h200" / "dlrm_default_b512"], None).graphs
    rows = dispatched(graph)
    belongs = enclosing_calls(graph, rows)[graph.kernels.op]
    assert (belongs >= 0).all()
    innermost = graph.kernels.op
    assert np.all(graph.ops.start[rows[belongs]] <= graph.ops.start[innermost])


def test_a_trace_lists_the_calls_that_a_recording_of_the_same_step_holds(shared: Path) -> None:
    def plain(graph: Graph) -> list[str]:
        return [name.rstrip("_") for name in names(graph) if "detach" not in name]

    (traced,) = load_traces([shared / "traces" / "h200" / "dlrm_default_b512"], None).graphs
    assert plain(traced) == plain(load_any(DATA / "dlrm_default_b512").graphs[0])


W, X, Y, G = (Tensor((512, 512), "float32", "cuda:0", id=n, storage=n) for n in range(4))
PRODUCT_US = (4000.0, 6000.0)
"""Far more than any model says."""


@pytest.fixture
def recorded() -> Graph:
    """A product, its gradient and an update, recorded on an H200."""
    ops = [
        Op("aten::mm", (X, W), outputs=(Y,), overload="default", phase="forward", start_us=0.0, end_us=5.0),
        Op("aten::mm", (X, Y), outputs=(G,), overload="default", phase="backward", start_us=5.0, end_us=10.0),
        Op("aten::add_", (W, G), outputs=(W,), overload="Tensor", phase="optimizer", start_us=10.0, end_us=15.0),
    ]
    rows, nothing = np.arange(3, dtype=np.int32), np.zeros(3, np.int64)
    start = np.array([10.0, 5000.0, 12000.0])
    kernels = KernelTable(
        name=np.array([0, 0, 1], np.int32), start=start, end=start + np.array([*PRODUCT_US, 3.0]),
        stream=np.full(3, 7, np.int32), kind=np.full(3, COMPUTE, np.int8), call=rows, op=rows,
        nbytes=nothing, grid=nothing, block=nothing, names=Names(["gemm", "add"]),
    )  # fmt: skip
    return Graph(OpTable.of(ops), kernels=kernels, device="NVIDIA H200")


def test_equal_calls_are_seen_at_their_median(recorded: Graph) -> None:
    seen = recorded_kernels(recorded)
    assert seen[signature(recorded.ops[0])] == (("gemm", 5000.0),)
    assert seen[signature(recorded.ops[2])] == (("add", 3.0),)


def test_a_graph_without_kernels_has_seen_nothing(recorded: Graph) -> None:
    assert recorded_kernels(Graph(recorded.ops)) == {}


def test_what_an_edit_leaves_as_it_was_takes_what_was_recorded(recorded: Graph) -> None:
    forecast = ft.predict(ft.parallelize(recorded, data=2).graphs[0], on="h200", fabric="h100-8x")
    assert forecast.device_active_ms == pytest.approx(10.0, rel=0.05)
    assert 0.9 < forecast.coverage["measured"] < 1.0, "the sums of gradients are new"
    assert any("still as they were recorded" in note for note in forecast.notes)


def test_where_models_are_asked_for_they_answer(recorded: Graph) -> None:
    forecast = ft.predict(ft.parallelize(recorded, data=2).graphs[0], on="h200", fabric="h100-8x", kernels="model")
    assert forecast.device_active_ms < 1.0 and forecast.coverage["measured"] == 0.0


def test_on_another_device_models_answer(recorded: Graph) -> None:
    recorded.device = "NVIDIA A100-SXM4-80GB"
    assert (
        ft.predict(ft.parallelize(recorded, data=2).graphs[0], on="h200", fabric="h100-8x").coverage["measured"] == 0.0
    )
