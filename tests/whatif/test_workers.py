"""Sweeps in several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import assert_killed_with, descendants, started, wait_until

SCRIPT = """
import torch

def make_step():
    layer = torch.nn.Linear(8, 8).to("cuda")
    given = torch.randn(3, 8, device="cuda")
    return lambda: layer(given).sum().backward()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_workers_end_with_a_sweep_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    batches = ",".join(str(3 * number) for number in range(1, 5000))
    command = [sys.executable, "-m", "foretrace", "sweep", str(tmp_path / "train.py"), "--set", f"batch={batches}"]
    out = tmp_path / "points.jsonl"
    with started([*command, "--workers", "2", "--out", str(out)], stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: out.is_file() and out.stat().st_size, "no point is done")
        assert_killed_with(process, descendants(process.pid))
