"""Claim: two and four Ray workers make the same index of 1,000 recordings as one process, bit by bit, and sooner.

Recordings are recorded steps, each with other timings. They are added by one process, and by as many workers of a Ray
cluster that is started for it on this machine. Workers share its cores: more of them than cores are not faster.

    python -m benchmarks.claims.fleet.fleet_ray [--count N] [RECORDINGS…]
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.claims.fleet.fleet_scale import timed, variants
from benchmarks.lib.fleet import recorded_steps
from benchmarks.lib.table import keep

COUNT, RAY_WORKERS = 1000, (2, 4)
CLUSTER = """
import sys, ray
print(ray.init(num_cpus=int(sys.argv[1]), log_to_driver=False).address_info["address"], flush=True)
sys.stdin.read()
"""


def main(arguments: list[str]) -> int:
    count = int(arguments.pop(arguments.index("--count") + 1)) if "--count" in arguments else COUNT
    paths = recorded_steps([Path(one) for one in arguments if one != "--count"])
    if not paths:
        print("no recorded steps are here: give folders of recordings")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Path(folder), paths, count)
    keep("fleet_ray", rows)
    return int(not all(row["same index"] for row in rows))


def measured(folder: Path, paths: list[Path], count: int) -> list[dict[str, Any]]:
    runs, rows = variants(folder / "runs", paths, count), list[dict[str, Any]]()
    for workers in (1, *RAY_WORKERS):
        store = folder / f"store-{workers}"
        if workers == 1:
            took, cpu, _ = timed("add", store, runs, "--workers", 1)
        else:
            with cluster(workers) as address:
                took, cpu, _ = timed("add", store, runs, "--workers", workers, "--ray", address)
        index = hashlib.sha256((store / "index.parquet").read_bytes()).hexdigest()
        rows.append(
            {
                "what": f"{count:,} by {'one process' if workers == 1 else f'{workers} Ray workers'}",
                "seconds": round(took, 1),
                "times as fast": round(rows[0]["seconds"] / took, 2) if rows else 1.0,
                "index": index[:16],
                "same index": not rows or index[:16] == rows[0]["index"],
            }
        )
        if workers == 1:
            rows[0]["processor seconds a recording"] = round(cpu / count, 3)
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


@contextmanager
def cluster(workers: int) -> Iterator[str]:
    """A Ray cluster of this machine with so many workers, and its address; the token is one of its own."""
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    command = [sys.executable, "-c", CLUSTER, str(workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
