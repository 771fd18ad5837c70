"""Sweeps in the terminal: every row is told from the others, in eighty columns."""

from __future__ import annotations

import pytest

from foretrace.questions.sweep_points import Point, Sweep
from foretrace.report.terminal import print_sweep


def points(platforms, **figures):
    changes = [[f"pooling={p}", f"batch={b}"] for p in (20, 100) for b in (1024, 16384)]
    times = {"step_ms": 1234.5, "next_ms": 1230.1, "device_ms": 1200.2, "sample_us": 120.4}
    figures |= {"memory_bytes": 10**11, "fits": True}
    return [Point(each, name, **times, **figures) for each in changes for name in platforms]


def shown(found, page):
    print_sweep(Sweep("step.py", found), 20, page)
    return page.file.getvalue().splitlines()


def test_every_point_has_a_row_of_its_own_in_eighty_columns(page):
    lines = shown(points(["h200", "a100"]), page)
    rows = [line for line in lines if "1,234" in line or "1,235" in line]
    settings = {tuple(row.split()[:3]) for row in rows[-8:]}
    assert len(settings) == 8 and ("100", "16384", "a100") in settings
    assert max(map(len, lines)) <= 80 and not any("million" in line for line in lines)


@pytest.mark.parametrize("cost", [None, 0.000123])
def test_long_names_of_platforms_give_way_and_figures_stay(page, cost):
    lines = shown(points(["h200:hbm=1.5,host=2", "/machines/" + "x" * 80], cost=cost), page)
    rows = [line for line in lines if line.lstrip().startswith(("20 ", "100 "))]
    assert len(rows) == 8
    for row in rows:
        assert "1,230" in row and "93.1 GiB" in row and "yes" in row and ("0.000123" in row) == (cost is not None)
        assert any(name in row for name in ("h200:hbm=", "/machines/"))


def test_where_no_point_can_be_made_nobody_speaks_of_memory(page):
    lines = shown([Point(["seq=8"], "h200", error="it has no sequence")], page)
    assert any("no point can be made" in line for line in lines) and not any("fits in" in line for line in lines)
