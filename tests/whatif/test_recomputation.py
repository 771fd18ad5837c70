"""The least recomputation with which a step fits."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

import foretrace as ft
import gpt
from benchmarks.lib.checkpoint_plans import make_step
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.platform.registry import load_platform
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.step import flatten
from foretrace.transforms.structure.kept_results import kept_results
from foretrace.whatif.changes import edit_step
from foretrace.whatif.fitting import fullest_need
from foretrace.whatif.recomputation import forward_us
from tests.narrowing import present

SHAPE = gpt.Shape(layers=6, heads=4, dim=256, vocabulary=512, seq=512, batch=16)


@pytest.fixture(scope="module")
def step() -> Graph:
    return sketch(partial(make_step, shape=SHAPE), device="cuda")


def reserved_mib(graph: Graph) -> float:
    need = present(fullest_need(Job([graph]), load_platform("h200").device))
    return present(need.reserved) / 2**20


def test_a_step_recomputes_as_little_as_its_memory_allows(step: Graph) -> None:
    plain, least = reserved_mib(step), reserved_mib(edit_step(step, ["checkpoint=*"]))
    times = []
    for share in (0.2, 0.5, 0.8):
        budget = least + share * (plain - least)
        found = ft.what_if(step, on="h200", checkpoint=f"{budget:.0f}MiB")
        assert present(found.after.reserved_memory_bytes) / 2**20 <= budget
        assert found.changes and all(change.startswith("checkpoint=") for change in found.changes)
        times.append(found.after.device_active_ms)
    all_again = ft.what_if(step, on="h200", checkpoint="*").after.device_active_ms
    assert all_again > times[0] > times[1] > times[2] > ft.predict(step, on="h200").device_active_ms


def test_nothing_is_recomputed_where_the_device_has_the_memory(step: Graph) -> None:
    found = ft.what_if(step, on="h200", checkpoint="auto")
    assert found.changes == [] and found.speedup == 1
    assert any("fits without recomputation" in note for note in found.notes)


def test_a_budget_that_no_recomputation_meets_says_what_the_least_one_needs(step: Graph) -> None:
    with pytest.raises(ForetraceError, match=r"even if all blocks are recomputed: it reserves 0\.\d\d GiB"):
        ft.what_if(step, on="h200", checkpoint="10MiB")


def test_choices_for_a_block_go_from_its_input_alone_to_all_that_backward_reads(step: Graph) -> None:
    choices = kept_results(flatten(step), forward_us(step, load_platform("h200")))
    assert len(choices) == SHAPE.layers
    for found in choices.values():
        assert found[0].names == () and found[-1].names is None and len(found) > 3
        spared = [(one.us - other.us) / (other.nbytes - one.nbytes) for one, other in pairwise(found)]
        assert spared == sorted(spared, reverse=True), "each further byte spares less"
