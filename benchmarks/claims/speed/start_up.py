"""Claim: `import foretrace` takes under 0.1 s and `foretrace --help` under 0.3 s, without numpy, torch or rich.

Each is run several times in a fresh interpreter, in turns, and the median is held against the claim; the time of an
interpreter that does nothing is in both.

    python -m benchmarks.claims.speed.start_up
"""

from __future__ import annotations

import sys

from benchmarks.lib.process import medians, output
from benchmarks.lib.table import keep

RUNS = 15
HEAVY = {"numpy", "torch", "numba", "pandas", "rich"}
HELP = "import sys; sys.argv = ['foretrace', '--help']; from foretrace.cli.main import main; main()"
CASES = {
    "nothing": ("pass", None),
    "import foretrace": ("import foretrace", 0.1),
    "foretrace --help": (HELP, 0.3),
}


def heavy(code: str) -> list[str]:
    """Which of the heavy packages it imports."""
    look = "import atexit, sys; atexit.register(lambda: print('loaded', *sys.modules))"
    loaded = output([sys.executable, "-c", f"{look}\n{code}"]).splitlines()[-1]
    return sorted(HEAVY & set(loaded.split()))


def main() -> int:
    took = medians({what: [sys.executable, "-c", code] for what, (code, _) in CASES.items()}, RUNS)
    rows = []
    for what, (code, limit) in CASES.items():
        loaded = heavy(code)
        holds = not loaded and (limit is None or took[what] < limit)
        rows.append({"what": what, "seconds": round(took[what], 4), "limit": limit, "heavy": loaded, "holds": holds})
    keep("start_up", rows)
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
