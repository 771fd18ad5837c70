"""Claim: `import foretrace` takes under 0.1 s and `foretrace --help` under 0.3 s, without numpy, torch or rich.

Each is run several times in a fresh interpreter and the median is held against the claim; the time of an interpreter
that does nothing is in both.

    python -m benchmarks.start_up
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from benchmarks.table import keep

RUNS = 15
HEAVY = {"numpy", "torch", "numba", "pandas", "rich"}
HELP = "import sys; sys.argv = ['foretrace', '--help']; from foretrace.cli.main import main; main()"
CASES = {
    "nothing": ("pass", None),
    "import foretrace": ("import foretrace", 0.1),
    "foretrace --help": (HELP, 0.3),
}


def seconds(code: str) -> float:
    """How long a fresh interpreter takes for it."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def heavy(code: str) -> list[str]:
    """Which of the heavy packages it imports."""
    look = "import atexit, sys; atexit.register(lambda: print('loaded', *sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{look}\n{code}"], capture_output=True, text=True, check=True)
    return sorted(HEAVY & set(done.stdout.splitlines()[-1].split()))


def main() -> int:
    rows = []
    for what, (code, limit) in CASES.items():
        seconds(code)  # once, so that all is in the disk's cache
        took, loaded = median(seconds(code) for _ in range(RUNS)), heavy(code)
        holds = not loaded and (limit is None or took < limit)
        rows.append({"what": what, "seconds": round(took, 4), "limit": limit, "heavy": loaded, "holds": holds})
    keep("start_up", rows)
    return not all(row["holds"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
