"""Sketches the steps that forecasts are scored on: none of them runs. Where there is a GPU, PyTorch's own estimate too.

A sketch is kept as a recording without times, so that it is loaded like one. What
`torch.distributed._tools.RuntimeEstimator` says of a step, by its cost model, stands beside it in ``estimate.json``; it
wants a GPU, and fails on some steps.

    python -m benchmarks.truth.sketched OUT [--processes 8] [--zoo | --compiled] [STEP …]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.lib.compiled_steps import IN_MODES
from benchmarks.lib.workloads import ALL, Step, built
from benchmarks.lib.zoo import ZOO
from foretrace.graph import Graph
from foretrace.record import folder as files
from foretrace.record.sketch.fake_step import ModuleMover
from foretrace.record.sketch.sketch import sketch

STEPS = {**ALL, **ZOO, **IN_MODES}
ESTIMATE = "estimate.json"
COST_MODEL = "operator-level-cost-model"


def estimate(make: Callable[[], Step]) -> dict[str, Any]:
    """What PyTorch's estimator says that a step takes, in milliseconds; or why it does not."""
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    try:
        with FakeTensorMode(allow_non_fake_inputs=True), patch.object(torch.nn.Module, "_apply", ModuleMover().apply):
            step = make()
            step()  # the first one makes the optimizer's state
            estimator = RuntimeEstimator()
            with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")), estimator(COST_MODEL):
                step()
        return {"ms": estimator.total_runtime}
    except Exception as error:  # whatever it fails on: the step is then said to fail
        return {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}


def keep_sketch(graph: Graph, folder: Path) -> None:
    """Write a sketch as a recording that holds no times."""
    rank = folder / "rank-0"
    rank.mkdir(parents=True)
    files.write_structure(rank, graph.ops, graph.storages)
    nothing: dict[str, Any] = {"synced_ms": [], "back_to_back_ms": [], "groups": {}, "slowdown": {"profile": None}}
    files.write_rank(rank, {"rank": 0, "world": 1, "device": "", "torch": torch.__version__, **nothing})
    files.write_job(folder, {"world": 1, "by": "benchmarks.truth.sketched"})


def sketched(name: str, out: Path) -> str:
    """Sketch a step into a folder of its own; what became of it, in words."""
    begun = time.monotonic()
    try:
        keep_sketch(sketch(partial(built, STEPS[name]), device="cuda"), out / name)
        if torch.cuda.is_available():
            (out / name / ESTIMATE).write_text(json.dumps(estimate(STEPS[name])))
    except Exception as error:  # one that can't be sketched here is said and left out
        return f"{name} left out: {type(error).__name__}: {str(error)[:200]}"
    return f"{name} {time.monotonic() - begun:.1f} s"


def _sketched(given: tuple[str, Path]) -> str:
    torch.set_num_threads(1)
    return sketched(*given)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("steps", nargs="*")
    options.add_argument("--zoo", action="store_true", help="the steps of benchmarks.lib.zoo")
    options.add_argument("--compiled", action="store_true", help="the steps of benchmarks.lib.compiled_steps")
    options.add_argument("--processes", type=int, default=8)
    chosen = options.parse_intermixed_args()
    steps = chosen.steps or list(IN_MODES if chosen.compiled else ZOO if chosen.zoo else ALL)
    left = [(name, chosen.out) for name in steps if not (chosen.out / name).exists()]
    with multiprocessing.get_context("spawn").Pool(min(chosen.processes, len(left) or 1)) as pool:
        for said in pool.imap_unordered(_sketched, left):
            print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
