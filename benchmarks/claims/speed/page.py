"""Claim: the page of a BERT step is under 2 MB, that of a job of eight ranks under 10 MB, and both draw in under 2 s.

Both are forecasts with what was measured beside them: a BERT step traced on one H200, and a Megatron job traced on
eight A100s. The time is that of Chromium, from asking for the file to everything being drawn, the median of several
fresh tabs after one that is not counted.

    python -m benchmarks.claims.speed.page
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import foretrace as ft
from benchmarks.lib.browser import MISSING, chromium, opened
from benchmarks.lib.table import keep
from foretrace.report.pages import write_page

SHARED = Path(__file__).resolve().parents[3].parent / "shared"
CASES = {
    "BERT base, batch 64 x 512": (SHARED / "traces/h200/bert_base_b64_s512_bf16", "h200", 2.0),
    "Megatron GPT, 8 ranks": (SHARED / "public/megatron_tp8_8xA100", None, 10.0),
}
LIMIT_S = 2.0
TABS = 5


def main() -> int:
    if MISSING:
        print(MISSING)
        return 1
    rows = []
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name, (source, on, limit) in CASES.items():
            path = Path(folder) / "page.html"
            write_page(ft.predict(source, on), path)
            seconds = [drawn_after(browser, path) for _ in range(TABS + 1)][1:]
            megabytes, drawn = path.stat().st_size / 1e6, statistics.median(seconds)
            holds = megabytes < limit and drawn < LIMIT_S
            rows.append(
                {"page": name, "MB": megabytes, "limit MB": limit, "drawn s": drawn, "limit s": LIMIT_S, "holds": holds}
            )
    keep("page", rows)
    return int(not all(row["holds"] for row in rows))


def drawn_after(browser: object, path: Path) -> float:
    """Seconds until a fresh tab has drawn a page."""
    page, complaints = opened(browser, path.as_uri())
    assert not complaints, complaints
    seconds = float(page.locator("html").get_attribute("data-drawn")) / 1e3
    page.context.close()
    return seconds


if __name__ == "__main__":
    sys.exit(main())
