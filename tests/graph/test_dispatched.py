from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from foretrace.formats.load import load
from foretrace.graph import Graph, Op, OpTable
from foretrace.graph.dispatched import composites, dispatched, owner
from foretrace.graph.tables import ANNOTATION, NODE
from foretrace.loading import load as load_any

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


def test_an_overload_that_is_taken_apart_is_told_from_one_that_is_not() -> None:
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
    (graph,) = load([shared / "traces" / "h200" / "dlrm_default_b512"], None).graphs
    rows = dispatched(graph)
    belongs = owner(graph, rows)[graph.kernels.op]
    assert (belongs >= 0).all()
    innermost = graph.kernels.op
    assert np.all(graph.ops.start[rows[belongs]] <= graph.ops.start[innermost])


def test_a_trace_lists_the_calls_that_a_recording_of_the_same_step_holds(shared: Path) -> None:
    def plain(graph: Graph) -> list[str]:
        return [name.rstrip("_") for name in names(graph) if "detach" not in name]

    (traced,) = load([shared / "traces" / "h200" / "dlrm_default_b512"], None).graphs
    assert plain(traced) == plain(load_any(DATA / "dlrm_default_b512").graphs[0])
