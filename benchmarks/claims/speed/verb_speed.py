"""Claim: `foretrace show`, `predict` and `check` answer at once: a DLRM step takes under 0.6 s, a BERT step under 1 s.

The whole process counts, the interpreter's start and all imports included; kernels are modelled. Steps are a small, a
middling and a large one that an H200 recorded, as traces of PyTorch; `check` takes a recording, which has plain steps
to hold the forecast against. Each is run several times, in turns, after a first run that brings the files into the
disk's cache. Seconds are those of the processor, so that others on the machine matter little: their median is held
against the claim.

    python -m benchmarks.claims.speed.verb_speed
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.lib.process import FORETRACE, output, shared
from benchmarks.lib.table import keep

RUNS = 9
SMALL_S, LARGE_S = 0.6, 1.0
TRACES = {"dlrm_default_b2048": SMALL_S, "resnet50_b64_fp32": LARGE_S, "bert_base_b64_s512_bf16": LARGE_S}
RECORDING = Path(__file__).resolve().parents[3] / "tests" / "data" / "h200" / "dlrm_default_b512"
MODELLED = ("--on", "h200", "--kernels", "model")


def main() -> int:
    folder = shared("traces/h200")
    commands = {("show", name): ["show", str(folder / name)] for name in TRACES}
    commands |= {("predict", name): ["predict", str(folder / name), *MODELLED] for name in TRACES}
    commands |= {("check", RECORDING.name): ["check", str(RECORDING), "--on", "h200"]}
    took: dict[tuple[str, str], list[float]] = {what: [] for what in commands}
    for turn in range(RUNS + 1):
        for what, words in commands.items():
            seconds = processor_seconds([FORETRACE, *words])
            if turn:
                took[what].append(seconds)
    rows = []
    for (verb, step), times in took.items():
        seconds, limit = round(median(times), 3), TRACES.get(step, SMALL_S)
        rows.append({"verb": verb, "step": step, "seconds": seconds, "limit": limit, "holds": seconds < limit})
    keep("verb_speed", rows)
    return int(not all(row["holds"] for row in rows))


def processor_seconds(command: Sequence[str]) -> float:
    """Those of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
