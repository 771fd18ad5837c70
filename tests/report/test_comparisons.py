from __future__ import annotations

from typing import Any

import pytest

from foretrace.analysis.compare import Check, OpMiss, PathChange, StepDifference, TimeChange
from foretrace.analysis.report import PathRow, StepReport
from foretrace.prediction.scaling import Scaling, ScalingRow
from foretrace.report.terminal import print_report
from foretrace.whatif.points import Point, Sweep
from foretrace.whatif.what_if import WhatIf


def shown(result, page, top=10):
    print_report(result, top, page)
    return page.file.getvalue()


def row(name, before, after):
    return TimeChange(name, (before, after), (0.0, 0.0), (1, 1), after - before)


@pytest.fixture
def difference():
    return StepDifference(
        before="a.json",
        after="b.json",
        step_ms=(10.0, 12.5),
        device_active_ms=(4.0, 5.0),
        by_op=[row("aten::mm", 1.0, 3.0), row("aten::same", 1.0, 1.0), row("aten::relu", 2.0, 1.5)],
        by_family=[row("matrix product", 1.0, 3.0)],
        new=["aten::new"],
    )


def test_the_step_before_and_after_comes_first(difference, page):
    lines = shown(difference, page).splitlines()
    assert lines[0] == "a.json → b.json"
    assert "10.0 → 12.5 ms (+25 %)" in lines[1]


def test_cautions_come_first_and_a_device_without_a_record_is_no_zero(difference, page):
    difference.cautions, difference.device_active_ms = ["b.json: its 5 launches have no kernels in the trace"], (4.0, 0)
    text = shown(difference, page)
    assert "its 5 launches have no kernels" in text.splitlines()[1]
    assert "device" not in text.split("Slower, by op")[0]


def test_a_critical_path_that_changes_otherwise_than_the_step_is_named(difference, page):
    difference.critical_path = [PathChange("kernel", (10.0, 12.5), 2.5)]
    assert not [line for line in shown(difference, page).splitlines() if line.startswith("  path")]
    difference.critical_path = [PathChange("kernel", (11.0, 15.0), 4.0)]
    text = shown(difference, page)
    assert "11.0 → 15.0 ms (+36 %)  the critical path; it goes on" in text and "add up to +4.00 ms" in text


def test_slower_and_faster_ops_are_separate_and_equal_ones_left_out(difference, page):
    text = shown(difference, page)
    slower, faster = text.split("Slower, by op")[1].split("Faster, by op")
    assert "aten::mm" in slower and "+2.00" in slower
    assert "aten::relu" in faster and "-0.500" in faster
    assert "aten::same" not in text


def test_two_equal_steps_are_called_equal(difference, page):
    difference.by_op = [row("aten::mm", 1.0, 1.0)]
    assert "No op got slower or faster" in shown(difference, page)


def test_new_ops_are_named(difference, page):
    assert "Only in the second: aten::new" in shown(difference, page)


def test_hostile_names_are_only_names(difference, page):
    difference.by_op[0].name = "[/]"
    difference.new = ["[red]\x1b[2J"]
    text = shown(difference, page)
    assert "[/]" in text and r"[red]\x1b[2J" in text


@pytest.fixture
def check():
    return Check(
        source="run",
        platform="h200",
        step_ms=(11.0, 10.0),
        step_ms_back_to_back=(9.9, 10.0),
        range_ms=(9.5, 12.0),
        inside=True,
        device_active_ms=(5.0, 5.1),
        peak_memory_bytes=(2**30, 2**31),
        kernels=(100, 101),
        coverage={"measured": 0.0, "model": 1.0, "fallback": 0.0},
        by_op=[OpMiss("aten::mm", (1.5, 1.0), (0.2, 0.3), (4, 4), 0.4)],
    )


def test_predicted_and_measured_stand_side_by_side_with_how_far_off(check, page):
    lines = shown(check, page).splitlines()
    assert lines[0] == "run on h200: predicted, measured"
    assert "11.0, 10.0 ms" in lines[1] and "+10.0 %; inside the range 9.50 – 12.0" in lines[1]
    assert "-1.0 %" in lines[2]


def test_a_range_that_misses_is_shown(check, page):
    check.inside = False
    assert "OUTSIDE the range" in shown(check, page)


def test_misses_carry_their_sign(check, page):
    text = shown(check, page).split("Largest errors first")[1]
    assert "aten::mm" in text and "+0.400" in text


def test_what_was_not_measured_is_left_out(check, page):
    check.device_active_ms = check.kernels = check.peak_memory_bytes = check.step_ms_back_to_back = None
    text = shown(check, page)
    assert "memory" not in text and "next" not in text and "device" not in text.split("Largest")[0]


def test_a_scaling_curve_is_a_line_a_size(page):
    rows = [
        ScalingRow(world, "h100-8x", ms, 4.0, 6.0, 3.0, 0.5, 0.1, efficiency)
        for world, ms, efficiency in ((1, 4.0, 1.0), (1024, 5.0, 0.8))
    ]
    text = shown(Scaling("train.py", "h200", rows, ["weak scaling"]), page, None)
    assert "1 to 1,024 ranks" in text and "80 % of the speed of 1 rank" in text
    assert "1,024" in text and "weak scaling" in text
    assert "… and 1 row more" in shown(Scaling("train.py", "h200", rows), page, 1).removeprefix(text)


def points(platforms, **figures):
    changes = [[f"pooling={p}", f"batch={b}"] for p in (20, 100) for b in (1024, 16384)]
    times: dict[str, Any] = {"step_ms": 1234.5, "next_ms": 1230.1, "device_active_ms": 1200.2, "sample_us": 120.4}
    figures |= {"memory_bytes": 10**11, "fits": True}
    return [Point(each, name, **times, **figures) for each in changes for name in platforms]


def swept(found, page):
    return shown(Sweep("step.py", found), page, 20).splitlines()


def test_every_point_has_a_row_of_its_own_in_eighty_columns(page):
    lines = swept(points(["h200", "a100"]), page)
    rows = [line for line in lines if "1,234" in line or "1,235" in line]
    settings = {tuple(row.split()[:3]) for row in rows[-8:]}
    assert len(settings) == 8 and ("100", "16384", "a100") in settings
    assert max(map(len, lines)) <= 80 and not any("million" in line for line in lines)


@pytest.mark.parametrize("cost", [None, 0.000123])
def test_long_names_of_platforms_give_way_and_figures_stay(page, cost):
    lines = swept(points(["h200:hbm=1.5,host=2", "/machines/" + "x" * 80], cost=cost), page)
    rows = [line for line in lines if line.lstrip().startswith(("20 ", "100 "))]
    assert len(rows) == 8
    for row in rows:
        assert "1,230" in row and "93.1 GiB" in row and "yes" in row and ("0.000123" in row) == (cost is not None)
        assert any(name in row for name in ("h200:hbm=", "/machines/"))


def test_where_no_point_can_be_made_memory_is_not_mentioned(page):
    lines = swept([Point(["seq=8"], "h200", error="it has no sequence")], page)
    assert any("no point can be made" in line for line in lines) and not any("fits in" in line for line in lines)


def predicted(step_ms, samples=None, kernel_ms=1.0):
    path = [PathRow("T2", "aten::mm", 0, step_ms - kernel_ms, 0.5), PathRow("kernel", "gemm", 0, kernel_ms, 0.5)]
    return StepReport(
        source="train.py", platform="h200", step_ms=step_ms, step_ms_back_to_back=step_ms, samples=samples,
        low_ms=0.9 * step_ms, high_ms=1.1 * step_ms, critical_path=path,
    )  # fmt: skip


def test_a_what_if_says_how_many_times_as_fast_the_step_is(page):
    text = " ".join(shown(WhatIf(["optimizer=fused"], predicted(4.0), predicted(2.0)), page).split())
    assert "step 4.00 → 2.00 ms (-50 %) 2.00 times as fast; 80 %: 3.60 – 4.40 → 1.80 – 2.20" in text


def test_steps_of_other_batches_are_judged_by_the_sample(page):
    lines = shown(WhatIf(["batch=8"], predicted(4.0, 16), predicted(2.1, 8)), page).splitlines()
    assert "sample" in lines[1] and "250 → 262 us (+5 %)" in lines[1] and "0.95 times as fast per sample" in lines[1]
    assert "4.00 → 2.10 ms (-47 %)" in lines[2] and "of 16 → 8 samples" in lines[2]
    assert sum("times as fast" in line for line in lines) == 1


def test_changes_along_the_critical_path_add_up_to_that_of_the_step(page):
    found = WhatIf(["batch=8"], predicted(4.0), predicted(2.5, kernel_ms=0.5))
    assert sum(row.change_ms for row in found.difference.critical_path) == -1.5
    text = shown(found, page)
    assert "the changes add up to -1.50 ms" in text
    rows = text.split("add up to")[1].splitlines()[2:4]
    assert [row.split()[0] for row in rows] == ["T2", "kernel"] and "-1.00" in rows[0] and "-0.500" in rows[1]


def test_time_by_op_is_said_to_overlap(difference, page):
    assert "Slower, by op: sum of host and device time, which overlap" in shown(difference, page)
