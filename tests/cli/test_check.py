from __future__ import annotations

import json
from pathlib import Path

RECORDING = Path(__file__).parents[1] / "data" / "h200" / "dlrm_default_b512"


def test_the_prediction_is_compared_with_the_unprofiled_steps(foretrace):
    ran = foretrace("check", RECORDING, "--on", "h200", "--json")
    assert ran.code == 0, ran.err
    words = json.loads(ran.out)
    predicted, measured = words["step_ms"]
    assert predicted > 0 and measured > 0
    assert words["device_active_ms"][1] > 0 and words["kernels"][1] == 116
    sizes = [abs(row["miss_ms"]) for row in words["by_op"]]
    assert sizes == sorted(sizes, reverse=True)


def test_the_tables_show_misses(foretrace):
    ran = foretrace("check", RECORDING, "--top", "3")
    assert ran.code == 0, ran.err
    assert "predicted, measured" in " ".join(ran.out.split()) and "Largest errors first" in ran.out


def test_a_trace_without_plain_steps_is_refused(foretrace, trace):
    ran = foretrace("check", trace)
    assert ran.code == 2 and "Traceback" not in ran.err


def test_a_recording_of_cpus_is_not_checked_on_a_gpu(foretrace):
    ran = foretrace("check", RECORDING.parents[3] / "examples" / "dlrm-4-ranks", "--on", "h200")
    assert ran.code == 2 and "recorded on a CPU" in ran.err and "foretrace calibrate cpu" in ran.err
