"""Claim: a gate fails for every edit of an example that makes its step slower or larger by over 1 %, and for none that
changes nothing of it; the same script gives the same bytes, run after run.

Each edit is one replacement in an example, as `benchmarks.lib.script_mutations` lists them. ``worse`` is by how much
the figure grew that did so most; an edit that changes no figure by over 1 % need not be caught.

    python -m benchmarks.claims.usability.gate
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.lib.script_mutations import SAME, SLOWER, mutated
from benchmarks.lib.table import keep
from foretrace.analysis.compare import exact
from foretrace.api import predict
from foretrace.record.sketch.sketch import sketch
from foretrace.whatif.gate import Baseline, compare

EXAMPLES = Path(__file__).parents[3] / "examples"
FAIL_OVER = 0.01
RUNS = 10


def predicted(folder: Path, source: str) -> Baseline:
    """The figures of a script, as ``foretrace gate`` has them; sketched here, without a process for each."""
    script = folder / "train.py"
    script.write_text(source)
    module = sys.modules["train"] = ModuleType("train")
    exec(compile(source, str(script), "exec"), module.__dict__)  # its classes must be new ones each time
    report = predict(sketch(partial(module.make_step, device="cuda"), device="cuda"), "h200")
    return Baseline.of(report, "train.py", "h200", folder, "")


def main() -> int:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sys.path.insert(0, str(EXAMPLES))  # they share a module
        sources = {name: (EXAMPLES / f"{name}.py").read_text() for name in ("gpt", "resnet", "dlrm", "bert")}
        before = {name: predicted(folder, source) for name, source in sources.items()}
        again = [json.dumps(exact(predicted(folder, sources["dlrm"]))) for _ in range(RUNS)]
        same_bytes = len({*again, json.dumps(exact(before["dlrm"]))}) == 1
        for changes, mutations in ((True, SLOWER), (False, SAME)):
            for mutation in mutations:
                now = predicted(folder, mutated(mutation, sources[mutation.example]))
                gate = compare(before[mutation.example], now, FAIL_OVER)
                grew = max(figure.change if figure.change is not None else figure.after for figure in gate.figures)
                line = gate.calls[0].line if gate.calls else ""
                right = (gate.passed == (grew <= FAIL_OVER)) if changes else gate.passed and not gate.calls
                row = {"example": mutation.example, "edit": mutation.what, "changes": changes, "worse": grew}
                rows.append({**row, "failed": not gate.passed, "line": line, "right": right})
                print(
                    mutation.example,
                    mutation.what,
                    f"{grew:.2%}",
                    "failed" if not gate.passed else "passed",
                    flush=True,
                )
    missed = [row["edit"] for row in rows if not row["right"]]
    unseen = [row["edit"] for row in rows if row["changes"] and not row["failed"]]
    print(f"{len(SLOWER)} edits that change the step, {len(SAME)} that do not; under 1 %: {unseen}; wrong: {missed}")
    verdict = None if not missed and same_bytes else f"Does not hold: {', '.join(missed) or 'bytes differ'}"
    keep("gate", rows, verdict=verdict)
    return bool(missed) or not same_bytes


if __name__ == "__main__":
    sys.exit(main())
