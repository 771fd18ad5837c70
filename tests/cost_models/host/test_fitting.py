"""Fitting a host: one is made up, measurements are drawn from it, and the fit must find it again."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from foretrace.cost_models.host.fitting import fit_host, inside_us, nonnegative, step_us
from foretrace.cost_models.host.inside_ops import MeasuredStep
from foretrace.cost_models.host.pricing import HostCalls, t1_terms
from foretrace.graph import ForetraceError
from foretrace.platform.host import BetweenCalls, CallCost, ColdHost, Host
from foretrace.platform.measurements.host import Calls, HostRun, Profiled, StepAfterWait, StepTimes

WEIGHT = 3.0
"""What the made-up profiler puts on each launch."""
LIST = "aten::_foreach_add_"
COSTS = {
    "aten::mm": CallCost(12.0, 5.0, 4.0, 1.0, 0.0, 0.1),
    "aten::relu": CallCost(6.0, 5.0, 4.0, 1.0, 0.0, 0.1),
    "aten::_to_copy": CallCost(8.0, 5.0, 4.0, 1.0, 0.0, 0.1),
    "aten::view": CallCost(2.0, 5.0, 4.0, 0.0, 0.0, 0.1),
    LIST: CallCost(9.0, 5.0, 4.0, 1.0, 0.4, 0.1),
}
BEFORE = BetweenCalls(
    clearing=50.0, cleared=2.0, forward=100.0, forward_call=4.0, forward_view=6.0, forward_cast=7.0, backward=200.0,
    backward_call=3.0, backward_view=1.0, backward_parameter=5.0, optimizer=80.0, optimizer_call=1.0,
    optimizer_parameter=6.0, released=0.5, recomputed_forward=20.0, recomputed_backward=30.0, new_name=12.0,
)  # fmt: skip
RESTED = ColdHost(40.0, 80.0, 100.0, 20.0)
TRUE = Host(
    "true", COSTS, COSTS["aten::relu"], COSTS["aten::view"], BEFORE, 0.05, "made up", first=1.5, rested=RESTED
)  # fmt: skip


def made_up_calls(random: np.random.Generator) -> tuple[Calls, np.ndarray]:
    """Calls of a step of random length, and how many launches each makes."""
    forward, backward, parameters = random.integers(20, 300, 3).tolist()
    updates = 1 + parameters % 9
    names = [*random.choice([name for name in COSTS if name != LIST], forward + backward), *[LIST] * updates]
    phase = [0] * forward + [1] * backward + [2] * updates
    entered = [int(part == 1 and random.random() < 0.05) for part in phase]
    calls = Calls(names, phase, entered, [parameters if name == LIST else 0 for name in names])
    launches = np.array([0 if name == "aten::view" else random.integers(1, 4) for name in names])
    return calls, launches


def profile_of(calls: Calls, launches: np.ndarray) -> Profiled:
    """What a profiler would say, its weight on the launches."""
    costs = [COSTS[name] for name in calls.name]
    slower = np.where(HostCalls.measured(calls, launches).first, TRUE.first, 1.0).tolist()
    return Profiled(
        to_launch=[c.to_launch * s + c.tensor * n for c, s, n in zip(costs, slower, calls.tensors)],
        launching=[(c.launch + WEIGHT) * n for c, n in zip(costs, launches)],
        between=[c.between * max(n - 1, 0) for c, n in zip(costs, launches)],
        after=[c.after for c in costs],
        launches=launches.tolist(),
    )


def made_up_step(random: np.random.Generator) -> StepTimes:
    calls, launches = made_up_calls(random)
    columns = HostCalls.measured(calls, launches.astype(float))
    each = inside_us(columns, TRUE) + t1_terms(columns) @ np.array(astuple(BEFORE))
    clearing = BEFORE.clearing + BEFORE.cleared * columns.parameters
    phases = np.array([clearing, *(each[columns.phase == phase].sum() for phase in range(3))])
    phases[1] -= clearing
    plain = [(phases * factor).tolist() for factor in random.normal(1, 0.03, 9)]
    rested = [
        StepAfterWait(ms, (phases + np.log2(1 + ms) * np.array(astuple(RESTED))).tolist()) for ms in (1.0, 4.0, 60.0)
    ]
    return StepTimes(calls, plain, rested, [profile_of(calls, launches)] * 2)


@pytest.fixture(scope="module")
def run() -> HostRun:
    random = np.random.default_rng(0)
    made = HostRun({"cpu": "a processor", "device": "a device", "torch": "9.9", "made": "today"})
    made.steps = {str(number): made_up_step(random) for number in range(40)}
    made.single = Calls(["aten::mm", "aten::sort"], [0, 0], [0, 0], [0, 0])
    made.alone = [[36.0, 72.0]] * 3
    return made


@pytest.fixture(scope="module")
def host(run) -> Host:
    return fit_host([run], "found")


@pytest.mark.parametrize("name", COSTS)
def test_the_cost_of_each_name_is_found(host, name):
    assert host.calls[name].to_launch == pytest.approx(COSTS[name].to_launch, rel=0.05)
    assert host.calls[name].tensor == pytest.approx(COSTS[name].tensor, rel=0.05)


def test_the_profilers_weight_is_taken_off_the_launches(host):
    assert host.calls["aten::mm"].launch == pytest.approx(5.0, abs=0.7)


def test_steps_that_it_was_not_fitted_on_are_met(host):
    random = np.random.default_rng(1)
    for _ in range(10):
        subject = MeasuredStep.of(made_up_step(random))
        assert step_us(subject.calls, host) == pytest.approx(subject.typical.sum(), rel=0.05)


def test_clearing_gradients_is_told_from_the_forward(host):
    assert host.before.clearing == pytest.approx(50.0, abs=10.0)
    assert host.before.cleared == pytest.approx(2.0, rel=0.1)


def test_an_older_file_holds_clearing_in_the_forward(run):
    older = [
        StepTimes(step.calls, [[np.nan, sum(us[:2]), *us[2:]] for us in step.plain], profiled=step.profiled)
        for step in run.steps.values()
    ]
    found = fit_host([HostRun(run.machine, dict(zip(run.steps, older)))])
    for step in older[:10]:
        subject = MeasuredStep.of(step)
        assert step_us(subject.calls, found) == pytest.approx(np.nansum(subject.typical), rel=0.05)


def test_first_calls_of_a_name_take_longer(host):
    assert host.first == pytest.approx(1.5, rel=0.02)


def test_what_a_wait_adds_to_each_part_is_found(host):
    assert astuple(host.rested) == pytest.approx(astuple(RESTED), rel=0.25)


def test_the_common_spread_is_that_of_whole_steps(host):
    assert 0.02 < host.common < 0.06


def test_a_name_that_only_was_called_alone_costs_in_proportion(host):
    inside = {name: c.to_launch + c.launch + c.after for name, c in host.calls.items()}
    assert inside["aten::sort"] == pytest.approx(2 * inside["aten::mm"], rel=0.05)


def test_it_says_what_it_was_measured_on(host):
    assert host.name == "found"
    assert host.provenance.startswith("a processor, a device, torch 9.9, 9 repeats")


def test_a_call_that_no_profile_shows_is_taken_for_one_of_its_name(run):
    step = made_up_step(np.random.default_rng(2))
    hidden = step.calls.name.index("aten::mm")
    for column in (p for p in vars(step.profiled[0]).values()):
        column[hidden] = -1
    subject = MeasuredStep.of(step)
    assert len(subject.samples) == len(step.calls) - 1
    assert 1 <= subject.calls.launches[hidden] <= 3


def test_steps_of_a_run_that_was_stopped_early_do_not_count(run):
    cut = HostRun(run.machine, {**run.steps, "begun": StepTimes(Calls(["aten::mm"], [0], [0], [0]))})
    assert fit_host([cut]).before == fit_host([run]).before
    with pytest.raises(ForetraceError, match="no small step"):
        fit_host([HostRun(run.machine, {"begun": cut.steps["begun"]})])


def test_no_coefficient_is_below_zero_and_none_could_do_better():
    random = np.random.default_rng(3)
    for _ in range(20):
        rows, values = random.normal(size=(30, 6)), random.normal(size=30)
        found = nonnegative(rows, values)
        pull = rows.T @ (values - rows @ found)
        assert (found >= 0).all()
        assert np.abs(pull[found > 0]).max(initial=0.0) < 1e-6 and (pull[found == 0] < 1e-6).all()


def test_a_host_of_two_speeds_has_both_in_its_range(run, host):
    fast = {
        name: replace(
            step, plain=[[part / 1.5 for part in us] if turn % 3 == 0 else us for turn, us in enumerate(step.plain)]
        )
        for name, step in run.steps.items()
    }
    found = fit_host([replace(run, steps=fast)])
    assert 1.2816 * found.faster > np.log(1.4)
    assert host.faster < 0.5 * found.faster


def test_costs_of_compiled_programs_are_those_of_a_round_at_the_usual_pace(run):
    usual = [100.0, 2.0, 10.0, 4.0, 80.0]
    rounds = {name: replace(step, plain=[*step.plain, *(np.multiply(step.plain, 2.0).tolist()), *step.plain])
              for name, step in run.steps.items()}  # fmt: skip
    slowed = replace(run, steps=rounds, compiled=[usual, np.multiply(usual, 2.0).tolist(), usual])
    found = fit_host([slowed]).compiled
    assert found.measured
    assert [found.entry, found.argument, found.kernel, found.call, found.backward] == pytest.approx(usual, rel=0.02)
