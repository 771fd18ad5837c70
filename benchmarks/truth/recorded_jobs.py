"""Measures what `benchmarks.claims.usability.compiled_jobs` is held to: compiled training jobs, each recorded again and
again through the command line, several at a time.

On a GPU, with Triton; or on a CPU, with a C++ compiler.

    python -m benchmarks.truth.recorded_jobs OUT [--runs 20] [--at-once 16] [--seconds 150] [KIND …]

writes a line a run into ``OUT/recorded_jobs.jsonl``: its exit code, its losses beside those of runs without the
recorder, and whether the recording can be read and has the graphs of its programs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RESULT = "recorded_jobs.jsonl"
JOB = '''
import sys
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"

class Block(torch.nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.norm, self.wide, self.narrow = torch.nn.LayerNorm(32), torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.breaks = breaks

    def forward(self, given):
        made = torch.nn.functional.gelu(self.wide(self.norm(given)))
        if self.breaks:
            torch._dynamo.graph_break()
        return given + self.narrow(made)

class Whitened(torch.optim.Optimizer):
    """Preconditions gradients by their second moments, in compiled functions: what SOAP does."""

    def __init__(self, weights):
        super().__init__(weights, {"lr": 0.01})
        self.update = torch.compile(lambda moment, gradient: moment.mul(0.9).add_(gradient @ gradient.T, alpha=0.1))
        self.apply = torch.compile(lambda weight, moment, gradient: weight.sub_(0.01 * (moment @ gradient).tanh()))

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            gradient = weight.grad.view(len(weight), -1)
            state = self.state[weight]
            state["moment"] = self.update(state.get("moment", torch.eye(len(weight), device=device)), gradient)
            self.apply(weight.view(len(weight), -1), state["moment"], gradient)

torch.manual_seed(0)
kind = sys.argv[1]
model = torch.nn.Sequential(*(Block(kind == "graph breaks") for _ in range(3))).to(device)
chosen = Whitened if kind == "compiles inside the optimizer" else torch.optim.AdamW
optimizer = chosen(model.parameters())
given, run, update = torch.randn(16, 32).to(device), model, optimizer.step
if kind in ("model", "graph breaks"):
    run = torch.compile(model)
elif kind == "reduce-overhead":
    run = torch.compile(model, mode="reduce-overhead")
elif kind == "regional":
    for block in model:
        block.compile()
elif kind == "optimizer":
    update = torch.compile(lambda: optimizer.step())

def step():
    loss = run(given).square().mean()
    loss.backward()
    update()
    optimizer.zero_grad()
    return loss

once = torch.compile(step) if kind == "whole step" else step
print([once().item() for _ in range(24)])
'''
KINDS = (
    "model", "reduce-overhead", "regional", "graph breaks", "optimizer", "whole step", "compiles inside the optimizer",
)  # fmt: skip
SCHEDULE = ("--warmup", "4", "--plain", "4", "--profile", "2")
ALONE = 2
"""Runs without the recorder: they may differ among themselves."""
MESSAGE = 300
"""Characters of what a run that failed said."""


def called(*words: Any) -> subprocess.CompletedProcess[str]:
    """Run Python."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=environment)


def recorded(kind: str, script: Path, out: Path) -> dict[str, Any]:
    """Record one run of a job, and read the recording."""
    begun = time.monotonic()
    done = called("-m", "foretrace", "record", "--out", out, *SCHEDULE, "--", sys.executable, script, kind)
    row: dict[str, Any] = {"kind": kind, "exit": done.returncode, "losses": done.stdout.strip()}
    if done.returncode:
        row["said"] = done.stderr.strip()[-MESSAGE:]
    shown = called("-m", "foretrace", "show", out, "--json")
    row["readable"] = shown.returncode == 0 and bool(json.loads(shown.stdout))
    if shown.returncode == 0:
        from foretrace.record.recording import load_recording

        programs = load_recording(out).graphs[0].programs
        row |= {"programs": len(programs), "failed_programs": sum(bool(program.failed) for program in programs)}
    else:
        row["show_said"] = shown.stderr.strip()[-MESSAGE:]
    return {**row, "seconds": round(time.monotonic() - begun, 1)}


def alone(kind: str, script: Path) -> dict[str, Any]:
    """One run without the recorder."""
    done = called(script, kind)
    return {"kind": kind, "alone": True, "exit": done.returncode, "losses": done.stdout.strip()}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("kinds", nargs="*", metavar="KIND")
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--at-once", type=int, default=1)
    options.add_argument("--seconds", type=float, default=float("inf"), help="after this no further run is begun")
    chosen = options.parse_intermixed_args()
    kinds = chosen.kinds or KINDS
    chosen.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.at_once) as threads:
        script = Path(folder) / "train.py"
        script.write_text(JOB)

        def one(run: int, kind: str) -> None:
            if time.monotonic() > begun + chosen.seconds:
                return
            name = f"{kind}-{run}".replace(" ", "-")
            row = alone(kind, script) if run < ALONE else recorded(kind, script, Path(folder) / name)
            with (chosen.out / RESULT).open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(kind, {key: value for key, value in row.items() if key != "losses"}, flush=True)

        list(threads.map(lambda kind: called(script, kind), kinds))  # tunes the kernels that all runs then find
        runs = [threads.submit(one, run, kind) for run in range(ALONE + chosen.runs) for kind in kinds]
        for run in runs:
            run.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
