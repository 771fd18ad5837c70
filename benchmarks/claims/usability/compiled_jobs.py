"""Claim: `foretrace record` harms no compiled job. Jobs that compile their model (by default, with reduce-overhead,
layer by layer, with graph breaks), the optimizer's step or the whole step, and one whose optimizer compiles parts of
its own update as SOAP does, are recorded again and again: none dies, none differs in its losses, every recording can
be read and has the graphs of its programs.

    python -m benchmarks.claims.usability.compiled_jobs [--runs 20] [KIND …]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.lib.table import keep
from foretrace.record.recording import load_recording

JOB = '''
import sys
import torch

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
            state["moment"] = self.update(state.get("moment", torch.eye(len(weight))), gradient)
            self.apply(weight.view(len(weight), -1), state["moment"], gradient)

torch.manual_seed(0)
kind = sys.argv[1]
model = torch.nn.Sequential(*(Block(kind == "graph breaks") for _ in range(3)))
chosen = Whitened if kind == "compiles inside the optimizer" else torch.optim.AdamW
optimizer = chosen(model.parameters())
given, run, update = torch.randn(16, 32), model, optimizer.step
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
HARM = ("died", "other_losses", "unreadable", "without_graphs")
SCHEDULE = ("--warmup", "4", "--plain", "4", "--profile", "2")


def outcome(kind: str, runs: int, folder: Path) -> dict[str, Any]:
    """What becomes of one kind of job in so many runs."""
    script = folder / "train.py"
    script.write_text(JOB)
    job = [sys.executable, str(script), kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(job, capture_output=True, text=True, check=True, env=environment).stdout
    row: dict[str, Any] = {"job": kind, "runs": runs, **dict.fromkeys(HARM, 0)}
    for run in range(runs):
        out = folder / f"{kind}-{run}".replace(" ", "-")
        command = [sys.executable, "-m", "foretrace", "record", "--out", str(out), *SCHEDULE, "--", *job]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        row["died"] += done.returncode != 0
        row["other_losses"] += done.stdout != alone
        shown = subprocess.run(
            [sys.executable, "-m", "foretrace", "show", str(out), "--json"], capture_output=True, text=True
        )
        row["unreadable"] += shown.returncode != 0 or not json.loads(shown.stdout)
        if shown.returncode == 0:
            programs = load_recording(out).graphs[0].programs
            row["without_graphs"] += not programs or any(program.failed for program in programs)
            row["programs"] = len(programs)
    return row


def main() -> int:
    """Record all kinds, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS])
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds or KINDS:
            rows.append(outcome(kind, options.runs, Path(folder)))
            harmed = sum(row[name] for row in rows for name in HARM)
            verdict = f"{harmed} recordings of compiled jobs do harm, or can't be read" if harmed else None
            keep("compiled_jobs", rows, verdict=verdict)
    return 1 if verdict else 0


if __name__ == "__main__":
    sys.exit(main())
