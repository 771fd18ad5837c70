"""The step as a function of how long its parts take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.api import load, observe
from foretrace.fleet.response import COMPONENTS, component_codes, step_response, with_waits
from foretrace.simulation.engine import simulate
from tests.narrowing import present

RECORDING = Path(__file__).parents[1] / "data/h200/dlrm_default_b512"


@pytest.fixture(scope="module")
def workings():
    return present(observe(load(RECORDING)).workings)


def test_tasks_with_their_waits_take_the_times_that_were_measured(workings):
    tasks = with_waits(workings)
    assert simulate(tasks).span == pytest.approx(workings.timeline.span)


@pytest.mark.parametrize("host, device", [(1.0, 0.9), (0.5, 1.0), (0.1, 1.3), (2.0, 0.4)])
def test_the_response_is_what_a_simulation_of_the_scaled_step_gives(workings, host, device):
    tasks, codes = with_waits(workings), component_codes(workings)
    factor = np.array([host if place < 6 else device if place < len(COMPONENTS) - 2 else 1.0 for place in range(23)])
    simulated = simulate(tasks, tasks.duration * factor[codes]).span / 1e3
    assert step_response(workings).ms(dict(zip(COMPONENTS, factor))) == pytest.approx(simulated, rel=0.01)


def test_it_is_never_longer_than_a_simulation(workings):
    response, tasks, codes = step_response(workings), with_waits(workings), component_codes(workings)
    draw = np.random.default_rng(1)
    for _ in range(10):
        factor = draw.uniform(0.2, 2.0, len(COMPONENTS))
        factor[-2:] = 1.0
        simulated = simulate(tasks, tasks.duration * factor[codes]).span / 1e3
        assert response.ms(dict(zip(COMPONENTS, factor))) <= simulated * (1 + 1e-4)


def test_a_profiled_step_is_brought_to_its_unprofiled_length_by_its_host_alone(workings):
    response = step_response(workings)
    shorter = 0.8 * response.ms()
    factor = response.host_factor(shorter)
    assert 0 < factor < 1 and response.with_host(factor).ms() == pytest.approx(shorter, rel=1e-3)
