"""`foretrace platform`: the platforms there are, what each can do, and how two compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from foretrace.report import Format
from foretrace.report import show as show_result

platform = typer.Typer(no_args_is_help=True, help="List, show and compare platforms; fit fabrics.")

Name = Annotated[str, typer.Argument(metavar="PLATFORM", help="A platform's name, or its folder; or a fabric's name.")]


@platform.command("list")
def list_(format: Format = "tables") -> None:
    """List all platforms, GPUs and fabrics.

    Platforms that come with Foretrace, your own, GPUs that are known by their description, and fabrics for jobs of
    several ranks.
    """
    from foretrace.platform.summary import Listing

    show_result(Listing(), format)


@platform.command()
def show(
    name: Name,
    format: Format = "tables",
    top: Annotated[int, typer.Option(min=1, help="How many rows of a long table.")] = 15,
) -> None:
    """Show a platform or a fabric.

    What it is, how it was measured, and how far off its models are.
    """
    from foretrace.platform.fabric import fabrics
    from foretrace.platform.registry import platform_folders
    from foretrace.platform.summary import FabricSummary, Summary

    is_fabric = name in fabrics() and name not in platform_folders()
    summary = FabricSummary(name) if is_fabric else Summary.named(name)

    show_result(summary, format, top=top)


@platform.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A platform's name, or its folder.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    format: Format = "tables",
) -> None:
    """Compare two platforms, figure by figure."""
    from foretrace.platform.summary import Comparison, Summary

    comparison = Comparison(Summary.named(first), Summary.named(second))

    show_result(comparison, format)


@platform.command()
def fabric(
    sources: Annotated[
        list[Path],
        typer.Option(
            "--from", help="Output of nccl-tests or rccl-tests, or a recording of all ranks; may be repeated."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the platform; created if absent.")],
    links: Annotated[
        str | None, typer.Option(help="Its links: a name from `foretrace platform list`, or a file.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="For a recording: ranks on each node; default: all.")
    ] = None,
) -> None:
    """Fit a fabric to measured collectives.

    They come from the output of nccl-tests or rccl-tests, or from the recording of a job.
    """
    from foretrace.calibration.fabric import make_fabric
    from foretrace.platform.platform import check_out
    from foretrace.platform.registry import platform_folders

    check_out(out)
    make_fabric(sources, out, links, gpus_per_node)
    shown = f"./{out}" if str(out) in platform_folders() else out  # a name comes before a folder
    print(f"foretrace: {out} has a fabric: `foretrace platform show {shown}`", file=sys.stderr)
