"""Claim: `foretrace show` understands every published trace: none crashes, over 99.5 % of the device time that was
launched in a trace has an owner, and the critical path is nowhere shorter than what it explains, the device span.

Folders are shown as jobs, then every file by itself: profiler, execution and Chakra traces, from V100 to H200 and
MI300X, one to eight ranks. Device time whose launch came before a trace began is counted and said, not guessed. The
path begins with the host, so it is a little longer than the span from first to last kernel.

    python -m benchmarks.claims.accuracy.all_sets
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.lib.process import shared
from benchmarks.lib.table import keep
from foretrace import load, observe
from foretrace.formats.load import format_of

OWNED, WHOLE_PATH = 99.5, 0.99
MULTI_RANK = ("dlrm_8xV100", "megatron_tp2_2xV100", "megatron_tp8_8xA100")


def shown(name: str, path: Path) -> dict[str, Any]:
    """What show says about a folder or a file."""
    try:
        job = load(path)
        seen = observe(job)
    except Exception as error:  # whatever it is, it is what the claim denies
        return {"set": name, "error": f"{type(error).__name__}: {error}"}
    kernel_ms = sum(float((g.kernels.end - g.kernels.start).sum()) for g in job.graphs) / 1e3
    before_ms = sum(seen.by_rank("launched_before_ms").values())
    return {
        "set": name,
        "ranks": len(job.graphs),
        "step ms": round(seen.step_ms, 2),
        "span ms": round(seen.device_span_ms, 2),
        "path ms": round(seen.critical_path_ms, 2),
        "path / span": round(seen.critical_path_ms / seen.device_span_ms, 3) if seen.device_span_ms else None,
        "attributed %": round(100 * seen.attributed, 3),
        "launched before %": round(100 * before_ms / kernel_ms, 1) if kernel_ms else None,
        "error": None,
    }


def alone(files: list[Path]) -> list[dict[str, Any]]:
    """One row for each kind of trace: the worst that show says of any of its files alone."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        by_kind.setdefault(str(format_of(file)), []).append(shown(file.name, file))
    rows = []
    for kind, each in sorted(by_kind.items()):
        row: dict[str, Any] = {"set": f"{len(each)} {kind}s, each alone: the worst", "ranks": 1}
        for column in ("path / span", "attributed %"):
            row[column] = min((seen[column] for seen in each if seen.get(column) is not None), default=None)
        row["error"] = next((seen["error"] for seen in each if seen["error"]), None)
        rows.append(row)
    return rows


def holds(row: dict[str, Any]) -> bool:
    path = row.get("path / span")
    return row["error"] is None and row["attributed %"] > OWNED and (path is None or path >= WHOLE_PATH)


def main() -> int:
    public, h200 = shared("public"), shared("traces/h200")
    folders = [*(public / name for name in MULTI_RANK), *sorted(h200.iterdir())]
    single = sorted((public / "single_rank").iterdir())
    rows = [shown(path.name.split(".kineto")[0], path) for path in [*folders, *single]]
    files = [file for folder in folders for file in sorted(folder.glob("*.gz"))]
    rows += alone([*files, *single])
    keep("all_sets", rows)
    return int(not all(holds(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
