"""Sweeps: all points, the best of them, and going on where one stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dlrm
import foretrace as ft
from foretrace._progress import Progress
from foretrace.graph import ForetraceError
from foretrace.graph.graph import cautions
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.parallelize import parallelize
from foretrace.whatif.advise import advise
from foretrace.whatif.points import REPEATED, Point, Sweep, with_pareto_front
from foretrace.whatif.sweep import _strange_batches, sweep
from tests.cli.samples import step_of_two_ops
from tests.narrowing import present
from tests.processes import PATIENCE_S, started
from tests.transforms.agreement import sketched
from tests.transforms.parallel.steps import gpt_step

SETS = {"batch": [64, 256], "pooling": [2, 4]}


def test_every_combination_is_a_point_of_each_platform() -> None:
    found = sweep(sketched(dlrm), ["h200", "h200:host=2"], SETS, {"h200": 3.6})
    assert len(found.points) == 8
    assert found.best is not None and "batch=256" in found.best.changes and found.best.platform == "h200:host=2"
    priced = next(point for point in found.points if point.platform == "h200")
    assert priced.cost == pytest.approx(3.6 * present(priced.sample_us) / 3600)
    times = [present(point.sample_us) for point in found.points]
    assert times == sorted(times)


@pytest.mark.parametrize("on", ["h200", "h100-hbm2e", "b200", "a100"])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_point_has_the_figures_of_a_prediction(on: str, ranks: int) -> None:
    """Under the software stack of its device, and within its power limit."""
    (point,) = sweep(gpt_step(batch=64), [on], {"data": [ranks]}).points
    report = ft.predict(parallelize(gpt_step(batch=64), data=ranks), on=on)
    assert point.step_ms == pytest.approx(report.step_ms)
    assert point.next_ms == pytest.approx(report.period_ms)
    assert point.energy_j == pytest.approx(report.energy_j)
    assert (point.memory_bytes, point.reserved_bytes) == (report.peak_memory_bytes, report.reserved_memory_bytes)
    stacks = {note for note in [*point.notes, *report.notes] if "stack" in note}
    assert stacks == {note for note in report.notes if "stack" in note}


def test_nobody_beats_a_point_of_the_front() -> None:
    points = sweep(sketched(dlrm), ["h200"], SETS).points
    sizes = [(present(point.sample_us), present(point.memory_bytes)) for point in points]
    front = [size for point, size in zip(points, sizes) if point.front]
    assert not any(other[0] < mine[0] and other[1] < mine[1] for mine in front for other in sizes)


def test_of_points_that_are_equally_fast_the_smallest_is_the_best() -> None:
    ends = [(2.0 + 1e-13, 8), (2.0, 9), (2.0 - 1e-13, 10)]
    points = [Point([f"pooling={n}"], "h200", next_ms=end, memory_bytes=n, samples=64) for end, n in ends]
    found = with_pareto_front(Sweep("step.py", points), {})
    assert [(point.memory_bytes, point.front) for point in found.points] == [(8, True), (9, False), (10, False)]


def test_the_best_point_keeps_to_a_limit_of_memory() -> None:
    free = sweep(sketched(dlrm), ["h200"], SETS)
    least = min(present(point.memory_bytes) for point in free.points)
    assert sweep(sketched(dlrm), ["h200"], SETS, memory_limit=1).best is None
    limited = sweep(sketched(dlrm), ["h200"], SETS, memory_limit=least)
    assert present(limited.best).memory_bytes == least
    assert all(point.fits == (present(point.memory_bytes) <= least) for point in limited.points)


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "points.jsonl"
    step = sketched(dlrm)
    whole = sweep(step, ["h200"], SETS, out=out)
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:2]) + "\n" + lines[2][: len(lines[2]) // 2])  # killed in the middle of a line
    done: list[float] = []
    again = sweep(step, ["h200"], SETS, out=out, on_progress=lambda progress: done.append(progress.of))
    assert done == [2, 2] and again.to_dict() == whole.to_dict()
    assert sum("point" in line for line in out.read_text().splitlines()) >= 4


@pytest.mark.parametrize(
    "line", ['{"source": "x"}', '{"point": {"changes": [], "platform": 3}}', '{"point": 7}', '{"a":' * 3000]
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, line: str) -> None:
    out = tmp_path / "points.jsonl"
    out.write_text(line + "\n")
    with pytest.raises(ForetraceError, match="something else than points"):
        sweep(sketched(dlrm), ["h200"], SETS, out=out)
    assert out.read_text() == line + "\n"


def test_one_platform_or_one_value_need_not_be_in_a_list(tmp_path: Path) -> None:
    out = tmp_path / "points.jsonl"
    (point,) = sweep(sketched(dlrm), "h200", {"batch": 64, "dtype": "bf16"}, out=str(out)).points
    assert (point.platform, point.changes) == ("h200", ["dtype=bf16", "batch=64"]) and out.exists()


def test_points_between_ranks_that_were_joined_otherwise_are_not_mixed(tmp_path: Path) -> None:
    out = tmp_path / "points.jsonl"
    step = sketched(dlrm)
    sweep(step, ["h200"], {"batch": [64]}, out=out)
    for otherwise in ({"fabric": "h200-nvswitch"}, {"gpus_per_node": 2}):
        found = sweep(step, ["h200"], {"batch": [64]}, out=out, **otherwise)
        assert len(found.points) == 1 and "connected by another fabric" in found.notes[0]
    assert len(out.read_text().splitlines()) == 3


def test_a_file_that_can_not_take_points_is_refused_before_any_is_predicted(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("dear diary")
    settings = tmp_path / "settings.json"
    settings.write_text('{\n  "a": 1\n}\n')
    for out, why in (
        (tmp_path, "can't be read"),
        (notes, "holds no sweep"),
        (settings, "holds no sweep"),
        (notes / "p", "can't be written"),
    ):
        with pytest.raises(ForetraceError, match=why):
            sweep(tmp_path / "nowhere.py", ["h200"], SETS, out=out)
    assert notes.read_text() == "dear diary"


def test_what_is_named_twice_is_one_point() -> None:
    assert len(sweep(sketched(dlrm), ["h200", "h200"], {"batch": [64, 64]}).points) == 1


def test_a_point_that_can_not_be_made_says_why_and_the_others_stay() -> None:
    found = sweep(sketched(dlrm), ["h200"], {"seq": [8], "batch": [64]})
    assert found.best is None and "sequence length of" in present(found.points[0].error)


def test_ways_to_share_a_step_are_swept_and_what_does_not_fit_is_left_out() -> None:
    sets = {"tensor": [1, 2, 3], "world": [4], "batch": [8, 16]}
    found = sweep(gpt_step(), ["h200"], sets, {"h200": 3.6})
    made, left = ([p for p in found.points if (p.error is None) == fine] for fine in (True, False))
    assert len(made) == 4 and {p.ranks for p in made} == {4} and {p.fabric for p in made} == {"h200-8x"}
    assert [p.error for p in left] == ["tensor=3 does not divide 4 ranks"] * 2
    for point in made:
        batch, ways = (int(change.partition("=")[2]) for change in point.changes[:2])
        assert point.samples == batch * 4 // ways
        assert point.cost == pytest.approx(4 * 3.6 * present(point.sample_us) / 3600)
    assert any("connected by h200-8x" in note for note in found.notes)


def test_a_point_of_a_job_is_what_predict_says_of_it() -> None:
    (point,) = sweep(gpt_step(), ["h200"], {"data": [2], "tensor": [2]}).points
    forecast = ft.predict(ft.parallelize(gpt_step(), data=2, tensor=2), on="h200")
    assert point.step_ms == pytest.approx(forecast.step_ms)
    assert point.next_ms == pytest.approx(forecast.step_ms_back_to_back)
    assert point.memory_bytes == forecast.peak_memory_bytes


def test_all_ranks_of_a_job_are_swept_together() -> None:
    job = ft.parallelize(sketched(dlrm), data=2, tables=True)
    (point,) = sweep(job, ["h200"], {"buckets": [0.01]}).points
    assert len(job.graphs) == point.ranks == 2
    assert point.step_ms == pytest.approx(ft.what_if(job, buckets=0.01).after.step_ms)


def test_more_ranks_have_to_be_worth_their_devices_where_nothing_is_priced() -> None:
    found = sweep(gpt_step(), ["h200"], {"data": [1, 8]})
    assert [point.front for point in found.points] == [True, True]  # the first is faster, the second has fewer devices


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), "3"])
def test_a_price_that_makes_no_sense_is_refused(price: Any) -> None:
    with pytest.raises(ForetraceError, match="no price of h200"):
        sweep(sketched(dlrm), ["h200"], SETS, {"h200": price})


def test_a_platform_at_hand_is_not_swept() -> None:
    with pytest.raises(ForetraceError, match="can't take a Platform"):
        sweep(sketched(dlrm), [ft.load_platform("h200")])  # type: ignore[list-item]


def test_a_price_of_nobody_is_refused() -> None:
    with pytest.raises(ForetraceError, match="a price is given for a100"):
        sweep(sketched(dlrm), ["h200"], SETS, {"a100": 1.0})


def below(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return []
    return [*children, *(each for child in children for each in below(child))]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def workers(pid: int) -> list[int]:
    return [child for child in below(pid) if b"spawn_main" in command_of(child)]


def test_an_interrupted_sweep_ends_without_a_word(tmp_path: Path) -> None:
    words = ["sweep", str(tmp_path), "--set", "batch=" + ",".join(map(str, range(1, 99))), "--workers", "2"]
    command = [sys.executable, "-m", "foretrace", *words]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        patience = time.monotonic() + PATIENCE_S
        while len(workers(running.pid)) < 2:
            assert running.poll() is None and time.monotonic() < patience
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the workers as well
        assert running.communicate(timeout=PATIENCE_S) == ("", "") and running.returncode == 130


def test_what_is_wrong_with_a_file_is_told_by_whichever_process_reads_it(tmp_path: Path) -> None:
    with pytest.raises(ForetraceError, match="nowhere does not exist"):
        sweep(tmp_path / "nowhere", ["h200"], SETS, workers=2)


def test_a_ray_cluster_gives_the_same_points_and_loses_none_with_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    script = tmp_path / "step.py"
    script.write_text(
        "import dlrm\n\ndef make_step(device='cuda'):\n    return dlrm.make_step('tiny', device=device)\n"
    )
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    here = sweep(script, ["h200"], SETS, workers=1)
    ray.init(num_cpus=2, log_to_driver=False)
    lost: list[int] = []

    def kill_a_worker(progress: Progress) -> None:
        if not lost:
            lost.append(next(pid for pid in below(os.getpid()) if b"Swept" in command_of(pid)))
            os.kill(lost[0], signal.SIGKILL)

    monkeypatch.setattr("foretrace.whatif.workers.connect_ray", lambda address: ray)
    there = sweep(script, ["h200"], SETS, workers=2, ray="local", on_progress=kill_a_worker)
    assert lost and there.to_dict() == here.to_dict()


def test_a_step_at_hand_stays_here() -> None:
    with pytest.raises(ForetraceError, match="can't be sent to a Ray cluster"):
        sweep(sketched(dlrm), ["h200"], SETS, ray="local")


def test_a_script_that_guards_nothing_is_run_once(tmp_path: Path) -> None:
    trace, asks = tmp_path / "trace.json", tmp_path / "asks.py"
    trace.write_text(json.dumps(step_of_two_ops()))
    asks.write_text(
        "import foretrace as ft\n"
        "print('asked')\n"
        f"found = ft.sweep({str(trace)!r}, sets={{'dtype': ['bf16', 'fp16']}}, workers=2)\n"
        "print(len(found.points))\n"
    )
    ran = subprocess.run([sys.executable, str(asks)], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "asked\n2\n"), ran.stderr


def test_a_batch_that_takes_far_too_long_is_a_caution() -> None:
    points = [Point([f"batch={n}"], "h200", step_ms=ms, samples=n) for n, ms in ((8, 1.0), (16, 48.0))]
    assert cautions(_strange_batches(points)) and not _strange_batches(points[:1])
    assert not _strange_batches([points[0], replace(points[1], step_ms=1.9)])


def test_a_slower_gpu_that_takes_less_energy_is_on_the_front():
    points = [
        Point([], "fast", next_ms=1.0, memory_bytes=9, samples=8, energy_j=2.0),
        Point([], "frugal", next_ms=2.0, memory_bytes=9, samples=8, energy_j=1.0),
        Point([], "neither", next_ms=3.0, memory_bytes=9, samples=8, energy_j=3.0),
    ]
    found = with_pareto_front(Sweep("step.py", points), {})
    assert [(point.platform, point.sample_j, point.front) for point in found.points] == [
        ("fast", 0.25, True),
        ("frugal", 0.125, True),
        ("neither", 0.375, False),
    ]
    points[2].energy_j = None
    assert [point.front for point in with_pareto_front(Sweep("step.py", points), {}).points] == [True, False, False]


def test_the_cautions_of_a_step_are_those_of_its_points_however_many_notes_there_are() -> None:
    step = sketched(dlrm)
    warned = replace(step, notes=[*step.notes, "the step has no backward: train.py:3"])
    found = sweep(warned, "h200", {"batch": [64, 256]})
    assert cautions(found.notes) == ["the step has no backward: train.py:3"]
    noisy = [replace(point, notes=[*map(str, range(9)), *point.notes]) for point in found.points]
    assert cautions(with_pareto_front(Sweep("step", noisy), {}).notes) == cautions(found.notes)


def test_money_is_that_of_repeated_steps_in_predictions_sweeps_and_advice() -> None:
    def build() -> Callable[[], None]:
        model = torch.nn.Linear(8192, 8192, device="cuda", dtype=torch.bfloat16)
        given = torch.ones(16384, 8192, device="cuda", dtype=torch.bfloat16)
        return lambda: model(given).sum().backward()

    step = sketch(build, device="cuda")
    alone = ft.predict(step, "a100", price=1.8, kernels="model")
    assert alone.sustained_ms and alone.sustained_ms > 1.02 * alone.period_ms  # the power limit is felt
    found = sweep(step, "a100", {"batch": [16384]}, {"a100": 1.8})
    (point,) = found.points
    assert point.samples == 16384 and point.sustained_ms == pytest.approx(alone.sustained_ms, rel=1e-3)
    assert point.cost == pytest.approx(present(alone.price_of_1000) * 1000 / point.samples, rel=1e-3)
    assert REPEATED in found.notes
    advice = advise(step, "a100", price=1.8, goal="cheapest")
    as_it_is = next(plan for plan in advice.plans if not plan.changes)
    assert as_it_is.cost == pytest.approx(point.cost) and REPEATED in advice.notes
    assert as_it_is.sustained_ms == point.sustained_ms
    costs = [present(plan.cost) for plan in advice.plans]
    assert costs == sorted(costs)
