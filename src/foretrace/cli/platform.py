"""`foretrace platform`: the platforms there are, what each can do, and how two compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.choices import AsJson

platform = typer.Typer(no_args_is_help=True, help="Show, compare and complete platforms.")

Name = Annotated[str, typer.Argument(metavar="PLATFORM", help="A platform's name, or its folder.")]


@platform.command("list")
def list_(json: AsJson = False) -> None:
    """List the platforms that come with Foretrace, and your own."""
    from foretrace.platform.summary import Listing

    if json:
        from foretrace.report.json import as_json

        print(as_json(Listing()))
    else:
        from foretrace.report.terminal import print_platforms

        print_platforms(Listing())


@platform.command()
def show(
    name: Name,
    json: AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="How many rows of a long table.")] = 15,
) -> None:
    """Show what a platform is, how it was measured, and how good its models are."""
    from foretrace.platform.summary import Summary

    summary = Summary.named(name)
    if json:
        from foretrace.report.json import as_json

        print(as_json(summary))
    else:
        from foretrace.report.terminal import print_platform

        print_platform(summary, top)


@platform.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A platform's name, or its folder.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The one to hold against it.")],
    json: AsJson = False,
) -> None:
    """Compare two platforms, figure by figure."""
    from foretrace.platform.comparison import Comparison
    from foretrace.platform.summary import Summary

    comparison = Comparison(Summary.named(first), Summary.named(second))
    if json:
        from foretrace.report.json import as_json

        print(as_json(comparison))
    else:
        from foretrace.report.terminal import print_comparison

        print_comparison(comparison)


@platform.command()
def fabric(
    logs: Annotated[list[Path], typer.Option("--from", help="What nccl-tests printed; may be given several times.")],
    out: Annotated[Path, typer.Option(help="The platform's folder; made where there is none.")],
) -> None:
    """Give a platform the fabric that logs of nccl-tests or rccl-tests show."""
    from foretrace.fitting import fabric_from_logs

    fabric_from_logs(logs, out)
    print(f"foretrace: {out} has a fabric: `foretrace platform show {out}`", file=sys.stderr)
