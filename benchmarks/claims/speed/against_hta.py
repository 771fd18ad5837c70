"""Claim: from the trace files of eight ranks to the critical path, Foretrace is at least 5 times faster than
HolisticTraceAnalysis, and needs less memory.

Both read `public/megatron_tp8_8xA100` on the same two cores of the same machine, each in a fresh process, in turns.
HolisticTraceAnalysis comes from PyPI into an environment of its own, reads the profiler traces of all ranks, and walks
the critical path of rank 0 alone, since it knows no path across ranks; a second line has it walk that of every rank.
Foretrace shows the whole job, once with the execution traces that lie beside the profiler traces and once without.

    python -m benchmarks.claims.speed.against_hta
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.lib.process import FORETRACE, medians, output, peak_mb, shared, use_two_cores
from benchmarks.lib.table import keep

RUNS = 5
FASTER = 5.0
VENV = Path(__file__).resolve().parents[3] / "build" / "hta-venv"

HTA = """
import json, sys, time
from hta.trace_analysis import TraceAnalysis
began = time.perf_counter()
files = dict(enumerate(sys.argv[2:]))
analysis = TraceAnalysis(trace_files=files)
for rank in range(int(sys.argv[1])):
    path, found = analysis.critical_path_analysis(rank=rank, annotation="ProfilerStep", instance_id=0)
    assert found
print(json.dumps({"analysis": time.perf_counter() - began}))
"""
OURS = """
import json, sys, time
from foretrace import load, observe
began = time.perf_counter()
assert observe(load(*sys.argv[1:])).critical_path_ms
print(json.dumps({"analysis": time.perf_counter() - began}))
"""


def hta_python() -> str:
    """The interpreter of an environment that has HolisticTraceAnalysis; made where it is absent."""
    python = VENV / "bin" / "python"
    if not (VENV / "installed").exists():
        print("installing HolisticTraceAnalysis into an environment of its own …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis", "pandas<3"], check=True)
        (VENV / "installed").touch()
    return str(python)


def analysis_seconds(command: list[str]) -> float:
    """Time of reading and analysing, what is imported not counted."""
    return median(json.loads(output(command).splitlines()[-1])["analysis"] for _ in range(3))


def main() -> int:
    folder = shared("public/megatron_tp8_8xA100")
    profiles = [str(folder / f"rank{rank}.kineto.json.gz") for rank in range(8)]
    python = hta_python()
    use_two_cores()
    version = output([python, "-c", "from importlib.metadata import version as v; print(v('HolisticTraceAnalysis'))"])
    hta, every_rank = f"HolisticTraceAnalysis {version.strip()}, path of rank 0", "the same, path of each rank"
    ours, profiles_alone = "foretrace show FOLDER --json", "foretrace show PROFILES --json"
    whole = {
        hta: [python, "-c", HTA, "1", *profiles],
        every_rank: [python, "-c", HTA, "8", *profiles],
        ours: [FORETRACE, "show", str(folder), "--json"],
        profiles_alone: [FORETRACE, "show", *profiles, "--json"],
    }
    inside = {
        **whole,
        ours: [sys.executable, "-c", OURS, str(folder)],
        profiles_alone: [sys.executable, "-c", OURS, *profiles],
    }
    took, rows = medians(whole, RUNS), []
    for name in whole:
        rows.append(
            {
                "what": name,
                "process s": round(took[name], 3),
                "analysis s": round(analysis_seconds(inside[name]), 3),
                "peak MB": round(peak_mb(whole[name])),
                "times faster": round(took[hta] / took[name], 2),
            }
        )
    keep("against_hta", rows)
    theirs, of_folder = rows[0], rows[2]
    return int(of_folder["times faster"] < FASTER or of_folder["peak MB"] >= theirs["peak MB"])


if __name__ == "__main__":
    sys.exit(main())
