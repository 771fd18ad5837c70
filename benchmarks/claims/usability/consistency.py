"""Claim: no two figures of a result disagree. In 1,000 random results of `predict`, `whatif`, `sweep`, `--world`,
`show`, `diff`, `check` and `shard`, what the screen, the JSON and the page say is the same; parts add up to their whole
(idle and active time, causes, changes along the critical path, ranks of a plan); no rank takes longer than the step; a
step lies in its range; what fits is smaller than the memory; the best point is the fastest that fits; and faster or
slower is judged for each sample.

    python -m benchmarks.claims.usability.consistency [--count 1000] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from benchmarks.lib.consistency import KINDS, random_cases
from benchmarks.lib.table import keep


def main() -> int:
    """Draw results, check and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cases, wrong = Counter[str](), Counter[str]()
    for number, kind, problems in random_cases(options.count, options.seed):
        cases[kind] += 1
        wrong[kind] += bool(problems)
        if problems:
            print(number, *problems, sep="\n  ", flush=True)
    rows = [{"result": kind, "cases": cases[kind], "that disagree": wrong[kind]} for kind in KINDS]
    whole = {"result": "all", "cases": cases.total(), "that disagree": wrong.total()}
    verdict = f"figures of {wrong.total()} results disagree" if wrong.total() else None
    keep("consistency", [*rows, whole], verdict=verdict)
    return int(bool(wrong.total()))


if __name__ == "__main__":
    sys.exit(main())
