"""`foretrace gate`: a performance gate for CI, which needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.options import OtherFabric, PerNode, Platform, Top, What, check_outputs, what_of
from foretrace.cli.progress import progress_bar
from foretrace.report import Format, show

BaselineFile = Annotated[Path, typer.Option(help="The file with the figures to compare with.")]
Update = Annotated[bool, typer.Option("--update", help="Write these figures as the new baseline, and exit with 0.")]
FailOver = Annotated[
    str, typer.Option(metavar="SHARE", help="Fail where a figure is worse by more than this: 2%, or 0.02.")
]
Markdown = Annotated[Path | None, typer.Option(help="Write the result to this file, for a comment on a pull request.")]
World = Annotated[
    int | None, typer.Option(min=1, help="Number of ranks that the script sees, all running the same step.")
]
FAILED = 1


def gate(
    words: What,
    on: Platform = "h200",
    baseline: BaselineFile = Path("perf.json"),
    update: Update = False,
    fail_over: FailOver = "2%",
    world: World = None,
    fabric: OtherFabric = None,
    gpus_per_node: PerNode = None,
    markdown: Markdown = None,
    format: Format = "tables",
    top: Top = 10,
) -> None:
    """Fail where the predicted step got worse than a baseline.

    The exit code is then 1.

    Step, device time, kernels, launches, waits, compiled programs and memory are predicted, not measured: the same
    script has the same figures on every machine. What got worse is named by op, module and line of the script.
    """
    what = what_of(words)
    from foretrace.whatif.gate import Baseline, compare, parse_share, predicted_baseline

    share = parse_share(fail_over)
    check_outputs([what, on, fabric], markdown=markdown, **({"baseline": baseline} if update else {}))
    before = None if update else Baseline.read(baseline)
    with progress_bar() as on_progress:
        now = predicted_baseline(what, on, world, fabric, gpus_per_node, on_progress)
    if before is None:
        now.write(baseline)
        before = now
    before.check(baseline, now)
    found = compare(before, now, share)
    if markdown is not None:
        from foretrace.output import MARKDOWN, open_output
        from foretrace.report.whatif import as_markdown

        with open_output(markdown, MARKDOWN) as file:
            file.write(as_markdown(found).encode())

    show(found, format, top=top)
    if not found.passed:
        raise typer.Exit(FAILED)
