from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import foretrace as ft
from foretrace.analysis.measure import measure_step
from foretrace.analysis.memory import memory_over
from foretrace.graph import Graph, Job, Op, OpTable, Span, Storage, Tensor
from foretrace.graph.tables import percentiles
from foretrace.prediction.uncertainty import PERCENTILES
from tests.narrowing import present

EXAMPLES = Path(__file__).parents[2] / "examples"


def step(first_us: float) -> list[Op]:
    x = Tensor((1 << 26,), "float32", "cuda:0")  # long enough for the device to be the last to finish
    return [Op("aten::relu", (x,), outputs=(x,), start_us=first_us + i, end_us=first_us + i + 0.5) for i in range(3)]


def two_steps() -> Graph:
    """Each step makes a storage with its second op, which the third frees."""
    storages = {n: Storage(n, 4096, "cuda:0", birth=3 * n + 1, death=3 * n + 2) for n in (0, 1)}
    spans = [Span("one", 0.0, 10.0), Span("two", 100.0, 110.0)]
    return Graph(OpTable.of([*step(1.0), *step(101.0)]), storages=storages, steps=spans)


def test_memory_is_that_of_the_step_that_is_shown():
    whole = two_steps()
    shown = whole.between(100.0, 110.0)
    memory = present(memory_over(whole, shown, "two"))
    assert memory.us.tolist() == [101.0, 102.0, 103.0] and memory.nbytes.tolist() == [0, 4096, 0]


def test_what_the_allocator_said_counts_where_it_was_asked():
    graph = Graph(OpTable.of(step(0.0)), allocated=((1.0, 10), (2.0, 30)))
    assert present(memory_over(graph, graph)).nbytes.tolist() == [10, 30]


def test_a_source_without_storages_says_nothing_of_memory():
    graph = Graph(OpTable.of(step(0.0)))
    assert memory_over(graph, graph) is None and present(measure_step(graph).workings).memory() == []


def test_a_forecast_keeps_what_it_was_made_of():
    workings = present(ft.predict(Job([two_steps()]), on="h200", step="two").workings)
    assert [len(graph.ops) for graph in workings.graphs] == [3] and len(workings.sources[0]) == 3
    assert len(workings.samples_ms) and workings.memory()[0][1].nbytes.max() == 4096


def test_the_samples_have_the_range_of_the_step_also_where_ranks_begin_one_after_the_other():
    forecast = ft.predict(ft.load(EXAMPLES / "dlrm-4-ranks"), fabric="h200-8x")
    assert forecast.step_ms < 0.99 * present(forecast.span_ms)
    assert percentiles(present(forecast.workings).samples_ms, PERCENTILES) == pytest.approx(
        [present(forecast.low_ms), present(forecast.high_ms)], rel=1e-3
    )


def test_the_legs_of_the_critical_path_follow_each_other_to_the_end_of_the_step():
    forecast = ft.predict(Job([two_steps()]), on="h200", step="two")
    legs = present(forecast.workings).legs()
    assert (np.diff(legs.start) >= 0).all() and (legs.end[:-1] <= legs.start[1:] + 1e-9).all()
    assert abs(legs.end[-1] / 1e3 - forecast.step_ms) < 1e-6
    assert legs.on_device.any() and not legs.on_device.all()
