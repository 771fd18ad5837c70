"""What every benchmark does with its rows: print a table, keep a JSON with the machine and the date."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
H200 = "one NVIDIA H200, a Xeon with 16 cores, Python 3.12, torch 2.11.0+cu130"
XEON = "a Xeon with 16 cores, Python 3.12, torch 2.11.0"
RTX_4090 = "one RTX 4090, torch 2.9.1, by the authors of timm"
"""Machines that truth was measured on: a benchmark that reads it names one of them as its ``MEASURED_ON``."""


def keep(
    name: str,
    rows: Sequence[dict[str, Any]],
    out: Path = RESULTS,
    hide: Sequence[str] = (),
    verdict: str | None = None,
) -> None:
    """Print rows as a table and write them to ``out/name.json``; call it again as more rows come in.

    The verdict says what of a claim does not hold, and by how much; the page of results shows it before the table.
    """
    columns = [column for column in rows[0] if column not in hide]
    texts = [[text_of(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *texts)]
    for line in [columns, *texts]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
    print(flush=True)
    out.mkdir(parents=True, exist_ok=True)
    kept = {"benchmark": name, "date": time.strftime("%Y-%m-%d"), "machine": machine(), "rows": list(rows)}
    if verdict:
        kept["verdict"] = verdict
        print(verdict)
    (out / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    torch: Any = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch") if find_spec("torch") else None,
        "gpu": gpu,
    }


def _cpu() -> str | None:
    """What the processor calls itself, where the system tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def text_of(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(text_of, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
