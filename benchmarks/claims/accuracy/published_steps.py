"""Claim: step times that others published are predicted within 10 % (mean), worst 25 %, and lie in the range in 80 %.

Rows of torchtitan's, SimuMax's and vTrain's tables that no stack was fitted on, by the plain command: `foretrace
check-table` with the stack that ``auto`` takes. Programs are those of `benchmarks/models`. Biases of rows with 1, 2, 4
and 8 tensor parallel ranks must be no more than 8 % apart. Left out are torchtitan's steps of 256 GPUs and more, which
overlap tensor parallel communication asynchronously.

    python -m benchmarks.claims.accuracy.published_steps [torchtitan simumax …]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.lib.published_steps import PublishedStep, is_fitted, published
from benchmarks.lib.table import keep
from foretrace.platform.stack import AUTO
from foretrace.whatif.step_table import CheckedRow, TableStep

MEAN, WORST, INSIDE, APART = 0.10, 0.25, 0.8, 0.08
GIB = 2**30


def row(one: PublishedStep, found: CheckedRow) -> dict[str, Any]:
    """A published step and its forecast."""
    return {
        "source": one.source,
        "step": one.name,
        "stack": found.stack,
        "measured ms": found.row.ms,
        "predicted ms": found.predicted_ms,
        "low": found.low_ms,
        "high": found.high_ms,
        "off": found.off,
        "inside": found.inside,
        "tensor": tensor_ranks(one),
    }


def tensor_ranks(one: PublishedStep) -> int:
    """How many tensor parallel ranks a step has."""
    options = dict(word.partition("=")[::2] for word in one.row.parallel.split(","))
    return int(options.get("tensor", 1))


def bias(rows: list[dict[str, Any]]) -> float:
    """Geometric mean of forecasts over measured steps, less one."""
    return math.exp(sum(math.log1p(row["off"]) for row in rows) / len(rows)) - 1


def summaries(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each table, for each number of tensor parallel ranks, and for all rows.

    Those of two ranks hold all that are context parallel too: a second line leaves them out.
    """
    groups = {source: [r for r in rows if r["source"] == source] for source in dict.fromkeys(r["source"] for r in rows)}
    plain = [row for row in rows if "context" not in row["source"]]
    for label, some in (("", rows), (", without context parallelism", plain)):
        groups |= {
            f"tensor={n}{label}": [r for r in some if r["tensor"] == n] for n in sorted({r["tensor"] for r in some})
        }
    for name, some in {**groups, "all": rows}.items():
        off = [row["off"] for row in some]
        mean, inside = sum(map(abs, off)) / len(off), sum(row["inside"] for row in some) / len(some)
        step = f"{len(some)} rows: mean {mean:.1%}, inside {inside:.0%}, bias {bias(some):+.1%}"
        yield {**dict.fromkeys(rows[0]), "source": name, "step": step, "off": max(off, key=abs)}


def beyond(rows: list[dict[str, Any]]) -> list[str]:
    """What of the claim does not hold."""
    off = [abs(row["off"]) for row in rows]
    mean, inside = sum(off) / len(off), sum(row["inside"] for row in rows) / len(rows)
    biases = [bias([r for r in rows if r["tensor"] == n]) for n in {r["tensor"] for r in rows}]
    found = [f"the mean error is {mean:.1%}"] if mean > MEAN else []
    found += [f"the worst error is {max(off):.1%}"] if max(off) > WORST else []
    found += [f"{inside:.0%} lie in the range"] if inside < INSIDE else []
    apart = max(biases) - min(biases)
    return found + ([f"biases of 1 to 8 tensor parallel ranks are {apart:.1%} apart"] if apart > APART else [])


def main() -> int:
    """Print and keep the table; 1 where the claim does not hold."""
    rows: list[dict[str, Any]] = []
    for one in published():
        if is_fitted(one) or (sys.argv[1:] and one.source.split()[0] not in sys.argv[1:]):
            continue
        rows.append(row(one, TableStep(one.row).checked(AUTO, fitted=False)))
        print(rows[-1], file=sys.stderr, flush=True)
    lacking = beyond(rows)
    if not sys.argv[1:]:
        verdict = f"Does not hold: {', '.join(lacking)}" if lacking else None
        keep("published_steps", [*rows, *summaries(rows)], verdict=verdict)
    else:
        print(*summaries(rows), sep="\n")
    return bool(lacking)


if __name__ == "__main__":
    sys.exit(main())
