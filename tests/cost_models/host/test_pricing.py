"""What a step's calls cost the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretrace.api import load
from foretrace.cost_models.host.pricing import (
    LARGE_STEP,
    SMALL_STEP,
    HostCalls,
    of_large_step,
    price_host,
)
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.graph.calls import dispatched
from foretrace.platform.host import TERMS, BetweenCalls, CallCost, ColdHost, Host
from foretrace.platform.registry import SHIPPED

NOTHING = BetweenCalls(*[0.0] * len(TERMS))
CALL = CallCost(to_launch=6.0, launch=4.0, between=3.0, after=1.0, tensor=0.5, spread=0.2)
VIEW = CallCost(to_launch=2.0, launch=4.0, between=3.0, after=0.0, tensor=0.0, spread=0.1)
HOST = Host("made up", {"aten::mm": CALL}, CALL, VIEW, NOTHING, common=0.12, provenance="")
SOME = Tensor((2,), "float32")


def priced(ops, launches, host=HOST):
    rows = np.arange(len(ops), dtype=np.int32)
    return price_host(Graph(OpTable.of(ops)), rows, np.array(launches, np.int32), host)


def between(**costs):
    return replace(HOST, before=replace(NOTHING, **costs))


def test_calls_cost_by_name_and_unknown_ones_by_whether_they_launch():
    costs = priced([Op("aten::mm"), Op("custom::new"), Op("custom::look")], [2, 1, 0])
    assert costs.to_launch.tolist() == [6.0, 6.0, 2.0]
    assert costs.launch.tolist() == [4.0, 4.0, 4.0] and costs.between.tolist() == [3.0] * 3
    assert costs.spread.tolist() == [0.2, 0.2, 0.1] and costs.common == 0.12


def test_long_lists_take_longer():
    short, long = (Op("aten::_foreach_add_", ([SOME] * n, [SOME] * n)) for n in (2, 100))
    assert priced([short, long], [1, 1]).to_launch.tolist() == [7.0, 56.0]


def test_the_first_call_of_a_name_in_a_phase_takes_longer():
    ops = [Op("aten::mm", phase=phase) for phase in ("forward", "forward", "backward", "backward")]
    costs = priced(ops, [1] * 4, replace(between(new_name=3.0), first=1.5))
    assert costs.to_launch.tolist() == [9.0, 6.0, 9.0, 6.0]
    assert costs.before.tolist() == [3.0, 0.0, 3.0, 0.0]


def test_gradients_are_cleared_before_the_first_call():
    ops = [
        Op("aten::mm", phase="forward"),
        Op("aten::mm", phase="forward"),
        Op("aten::_foreach_add_", ([SOME] * 6,), phase="optimizer"),
    ]
    assert priced(ops, [1] * 3, between(clearing=10.0, cleared=2.0)).before.tolist() == [22.0, 0.0, 0.0]


def test_what_a_wait_adds_falls_on_names_that_are_new_to_a_phase():
    ops = [Op(name, phase="forward") for name in ("aten::mm", "aten::mm", "aten::relu")] + [
        Op("aten::mm", phase="backward")
    ]
    costs = priced(ops, [1] * 4, replace(HOST, rested=ColdHost(clearing=1.0, forward=10.0, backward=20.0)))
    assert costs.cold_penalty.tolist() == [6.0, 0.0, 5.0, 20.0]


def test_what_happens_once_a_phase_stands_before_its_first_call():
    ops = [Op("aten::mm", phase=phase) for phase in ("forward", "forward", "backward", "backward", "optimizer")]
    costs = priced(ops, [1] * 5, between(forward=10.0, backward=20.0, optimizer=5.0))
    assert costs.before.tolist() == [10.0, 0.0, 20.0, 0.0, 5.0]


def test_a_step_that_accumulates_gradients_wakes_autograd_each_time():
    ops = [Op("aten::mm", phase=phase) for phase in ("forward", "backward", "forward", "backward")]
    assert priced(ops, [1] * 4, between(backward=20.0)).before.tolist() == [0.0, 20.0, 0.0, 20.0]


def test_forward_tells_launches_views_and_casts_apart():
    ops = [Op(name, phase="forward") for name in ("aten::mm", "aten::view", "aten::_to_copy")]
    costs = priced(ops, [1, 0, 1], between(forward_call=3.0, forward_view=5.0, forward_cast=7.0))
    assert costs.before.tolist() == [3.0, 5.0, 7.0]


@pytest.mark.parametrize(
    "updates",
    [
        [Op("aten::_foreach_add_", ([SOME] * 6,), phase="optimizer")],
        [Op("aten::add_", (SOME,), phase="optimizer")] * 6,
        [
            *[Op("aten::_local_scalar_dense", (SOME,), phase="optimizer")] * 12,
            Op("aten::_foreach_add_", ([SOME] * 6,), phase="optimizer"),
        ],
    ],
)
def test_parameters_are_counted_by_lists_or_by_repeats(updates):
    ops = [Op("aten::mm", phase="backward"), *updates]
    costs = priced(ops, [1] * len(ops), between(backward_parameter=2.0, optimizer_parameter=10.0))
    assert costs.before[0] == 12.0
    assert costs.before[1:].sum() == pytest.approx(60.0)


def test_blocks_that_are_computed_again_cost_in_both_directions():
    block = [Op("aten::mm", phase="forward", entered=3), Op("aten::relu", phase="forward", entered=1)]
    again = [replace(op, phase="backward") for op in block]
    ops = [*block, *again, Op("aten::t", phase="backward"), *again, Op("aten::mm", phase="backward")]
    costs = priced(ops, [1] * len(ops), between(recomputed_forward=5.0, recomputed_backward=7.0))
    assert costs.before.tolist() == [5.0, 5.0, 7.0, 0.0, 0.0, 7.0, 0.0, 0.0]


def test_a_block_that_keeps_some_results_is_computed_again_once():
    names = ("mm", "relu", "addmm", "view", "gelu", "t")
    block = [Op(f"aten::{name}", phase="forward", entered=1) for name in names]
    again = [replace(op, phase="backward") for op in block if op.name != "aten::addmm"]
    ops = [*block, *again, Op("aten::gelu_backward", phase="backward")]
    costs = priced(ops, [1] * len(ops), between(recomputed_backward=7.0, forward_call=1.0, backward_call=2.0))
    assert costs.before.tolist() == [1.0] * 6 + [8.0] + [1.0] * 4 + [2.0]


def test_calls_that_are_made_again_in_backward_are_python_as_forward_is():
    forward, again = (Op("aten::mm", phase=phase, entered=1) for phase in ("forward", "backward"))
    ops = [forward, again, Op("aten::relu_backward", phase="backward")]
    costs = priced(ops, [1] * len(ops), between(forward_call=3.0, backward_call=4.0))
    assert costs.before.tolist() == [3.0, 3.0, 4.0]


def test_other_calls_are_python_as_forward_is():
    assert priced([Op("aten::mm", phase="other")], [1], between(forward_call=3.0)).before.tolist() == [3.0]


def test_of_a_nested_trace_only_the_given_rows_are_priced():
    ops = OpTable.of([Op("aten::linear"), Op("aten::t", parent=0), Op("aten::mm", parent=0)])
    costs = price_host(Graph(ops), np.array([1, 2], np.int32), np.array([0, 1], np.int32), HOST)
    assert costs.to_launch.tolist() == [2.0, 6.0]


def test_an_empty_step_costs_nothing():
    assert len(priced([], []).before) == 0


def test_the_same_step_costs_the_same_recorded_and_traced(shared, request):
    host = Host.read(SHIPPED / "h200" / "host.json")
    totals = []
    for folder in (shared / "traces" / "h200", request.config.rootpath / "tests" / "data" / "h200"):
        graph = load(folder / "dlrm_default_b512").graphs[0]
        rows = dispatched(graph)
        launches = (np.arange(len(rows)) % 2).astype(np.int32)
        assert HostCalls.of(graph, rows, launches).parameters == 22
        costs = price_host(graph, rows, launches, host)
        totals.append(costs.before.sum() + costs.to_launch.sum())
    assert totals[0] == pytest.approx(totals[1], rel=0.02)


def test_a_forward_without_gradients_costs_less_around_its_launches():
    host = replace(HOST, inference=0.5)
    forward = [Op("aten::mm", phase="forward"), Op("aten::relu", phase="forward")]
    alone, trained = (
        priced(ops, [1] * len(ops), host) for ops in (forward, [*forward, Op("aten::mm", phase="backward")])
    )
    assert (alone.to_launch * 2).tolist() == trained.to_launch[:2].tolist()
    assert alone.launch.tolist() == trained.launch[:2].tolist()


@pytest.mark.parametrize(
    ("calls", "factor"), [(SMALL_STEP, 1.0), (LARGE_STEP, Host.large_step), (2000, Host.large_step)]
)
def test_eager_calls_of_a_large_model_take_longer_than_alone(calls, factor):
    alone = priced([Op("aten::mm")] * calls, [2] * calls)
    large = of_large_step(alone, np.ones(calls, bool))
    for part in ("before", "gap", "to_launch", "between", "after"):
        assert getattr(large, part) == pytest.approx(factor * getattr(alone, part))
    assert large.launch.tolist() == alone.launch.tolist(), "the driver does not know how large the model is"


def test_a_host_whose_large_steps_were_measured_says_how_much_longer_they_take():
    assert Host.read(SHIPPED / "h200" / "host.json").large_step == 1.0
    calls = 2 * LARGE_STEP
    alone = priced([Op("aten::mm")] * calls, [1] * calls)._replace(large_step=1.0)
    assert of_large_step(alone, np.ones(calls, bool)).to_launch.tolist() == alone.to_launch.tolist()


def test_calls_of_compiled_programs_neither_make_a_model_large_nor_take_longer():
    calls = 2 * LARGE_STEP
    alone = priced([Op("aten::mm")] * calls, [1] * calls)
    eager = np.arange(calls) < SMALL_STEP
    assert of_large_step(alone, eager).to_launch.tolist() == alone.to_launch.tolist()
    eager = np.arange(calls) < LARGE_STEP
    longer = of_large_step(alone, eager).to_launch / alone.to_launch
    assert longer == pytest.approx(np.where(eager, Host.large_step, 1.0))
