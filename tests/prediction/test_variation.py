"""How much a measured step varies."""

import numpy as np
import pytest

from foretrace.graph import Graph, Job, Timings
from foretrace.prediction.predict import predict_on_own_machine
from foretrace.prediction.uncertainty import host_spread, kernel_spreads, typical_host_spread
from tests.analysis.builders import Call, launch, rank

STEADY = tuple(100.0 for _ in range(9))
SHAKY = tuple(100.0 * 1.2**turn for turn in (-1, 0, 1) for _ in range(3))


def measured(*plain_ms: float, kernels: tuple[float, ...] = (50.0,) * 6) -> Graph:
    """A host of 1 ms, and kernels of one kind that take so long."""
    work = [launch(t, t + 1, (t + 10.0, t + 10.0 + us)) for t, us in zip(range(0, 6000, 100), kernels)]
    graph = rank(Call("aten::mm", 0.0, 1000.0), *work)
    graph.unprofiled = Timings(synced_ms=plain_ms)
    return graph


def test_a_host_varies_as_its_plain_steps_did() -> None:
    assert host_spread(measured(*STEADY)) == 0.0
    assert host_spread(measured(*SHAKY)) == pytest.approx(np.log(1.2) / 1.2816, rel=0.01)


def test_a_host_of_which_few_plain_steps_are_known_varies_as_a_typical_one() -> None:
    assert host_spread(measured(90.0, 110.0)) == typical_host_spread()


def test_kernels_of_a_kind_tell_how_far_they_lie_apart() -> None:
    kind, spreads = kernel_spreads(measured(kernels=(45.0, 50.0, 50.0, 50.0, 55.0)).kernels)
    assert kind.tolist() == [0] * 5 and 0.03 < spreads[0] < 0.08
    assert kernel_spreads(measured(kernels=()).kernels)[1].tolist() == []


def test_the_range_of_a_job_on_its_own_machine_holds_what_its_host_varies_by() -> None:
    sure, unsure = (predict_on_own_machine(Job([measured(*plain)])) for plain in (STEADY, SHAKY))
    assert sure.low_ms == pytest.approx(sure.step_ms) == sure.high_ms
    assert unsure.low_ms < 0.9 * unsure.step_ms and unsure.high_ms > 1.1 * unsure.step_ms
    assert any("the host varies by 14 %, as the unprofiled steps did" in note for note in unsure.notes)
