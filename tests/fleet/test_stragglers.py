"""What stragglers cost a job, from span logs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from foretrace.errors import ForetraceError
from foretrace.fleet.span_log import COLUMNS
from foretrace.fleet.stragglers import find_stragglers


def log(path: Path, slow: dict[tuple[int, int], float], steps: int = 3) -> Path:
    """A span log of two data-parallel ranks and two stages; micro-batches of some workers take longer."""
    rows = []
    for step in range(steps):
        for dp in (0, 1):
            clock = [0.0, 0.0]
            for stage in (0, 1):
                took = slow.get((dp, stage), 1.0)
                for batch in (0, 1):
                    if stage == 1:
                        rows.append((dp, 1, 2 + dp, step, "forward-recv", clock[1], 0.1, batch, -1, -1))
                        clock[1] += 0.1
                    rows.append(
                        (dp, stage, 2 * stage + dp, step, "forward-compute", clock[stage], took, batch, 0, stage)
                    )
                    clock[stage] += took
                    if stage == 0:
                        rows.append((dp, 0, dp, step, "forward-send", clock[0], 0.1, batch, -1, -1))
                for kind in ("grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"):
                    rows.append((dp, stage, 2 * stage + dp, step, kind, clock[stage], 0.2, 0, 0, -1))
                    clock[stage] += 0.2
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    return path


def test_equal_workers_have_no_stragglers(tmp_path):
    report = find_stragglers(log(tmp_path / "spans.csv", {}))
    assert report.slowdown == pytest.approx(1.0, abs=0.05) and report.workers == 4 and report.steps == 3


def test_a_slow_worker_is_found_and_what_it_costs(tmp_path):
    report = find_stragglers(log(tmp_path / "spans.csv", {(1, 0): 3.0}))
    assert report.slowdown > 1.3
    assert report.slowest_workers == [1] and report.by_worker[0].rank == 1
    assert report.without_workers == pytest.approx(1.0, abs=0.35)
    assert next(iter(report.by_optype)) == "forward-compute"
    heat = [max(row) for row in report.heat]
    assert heat.index(max(heat)) == 1


def test_a_slow_last_stage_is_found(tmp_path):
    report = find_stragglers(log(tmp_path / "spans.csv", {(0, 1): 2.0, (1, 1): 2.0}))
    assert next(iter(report.by_stage)) == report.last_stage == 1 and report.without_last_stage > 0.9


@pytest.mark.parametrize("job", ["AR", "ST"])
def test_published_jobs_have_their_authors_figures(shared, job):
    folder = shared / "public/stragglers"
    if not folder.is_dir():
        pytest.skip("the published span logs are not here")
    report = find_stragglers(folder / f"trace-{job}.parquet")
    theirs, workers, stage = (
        json.loads((folder / f"{name}-{job}.json").read_text()) for name in ("result", "mw", "ms")
    )
    close = {"rel": 1e-4}
    assert report.slowdown == pytest.approx(theirs["blocking_slowdown"], **close)
    assert report.ideal_s == pytest.approx(workers["tideal"], **close)
    assert report.without_workers == pytest.approx(workers["Mw"], **close)
    assert report.without_last_stage == pytest.approx(stage["Ms"], **close)
    for ours, name in ((report.by_dp_rank, "dp_rank"), (report.by_stage, "stage"), (report.by_optype, "optype")):
        published = {key.partition(",")[0]: value for key, value in theirs[f"blocking_decompose_by_{name}"].items()}
        assert {str(key): value for key, value in ours.items()} == pytest.approx(published, **close)
    by_step = {int(step): value for step, value in theirs["blocking_step_slowdown"].items()}
    assert report.by_step == pytest.approx(by_step, **close)


def test_a_log_that_lacks_something_says_what(tmp_path):
    path = tmp_path / "spans.csv"
    path.write_text("rank,step\n0,1\n")
    with pytest.raises(ForetraceError, match="has no column dp_rank"):
        find_stragglers(path)
    lines = log(path, {}).read_text().splitlines()
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(ForetraceError, match="not every step of every worker has one optimizer"):
        find_stragglers(path)
    for cell, odd, why in (
        (",1.0,", ",nan,", "a time that is none"),
        (",1.0,", ",x,", "holds no numbers"),
        ("0,0,0,0,", "0,99999999,0,0,", "no stage"),
        ("optimizer", "\udcff", "can't be read|holds no text"),
        ("dp_rank", "\udcff", "can't be read|holds no text"),
    ):
        path.write_bytes("\n".join(lines).replace(cell, odd, 1).encode(errors="surrogateescape"))
        with pytest.raises(ForetraceError, match=why):
            find_stragglers(path)
    (tmp_path / "spans.parquet").write_bytes(b"PAR1")
    with pytest.raises(ForetraceError, match="can't be read"):
        find_stragglers(tmp_path / "spans.parquet")
