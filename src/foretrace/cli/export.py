"""`foretrace export`: a recording or a trace in a format that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.options import check_outputs, working


def export(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A recording, a trace, or a folder of them.")],
    chakra: Annotated[Path | None, typer.Option(help="Folder for Chakra traces, one file per rank.")] = None,
    perfetto: Annotated[Path | None, typer.Option(help="File for Perfetto or chrome://tracing.")] = None,
) -> None:
    """Write a recording or a trace for other tools."""
    if chakra is None and perfetto is None:
        from foretrace.errors import ForetraceError

        raise ForetraceError("nothing says where to write it", "Give --chakra DIR, --perfetto FILE, or both.")
    check_outputs([path], perfetto=perfetto, chakra=chakra)
    from foretrace.api import load

    with working("reading"):
        job = load(path)
    if chakra is not None:
        from foretrace.formats.chakra import write_chakra

        for written in write_chakra(job, chakra):
            print(written)
    if perfetto is not None:
        from foretrace.formats.perfetto import write_perfetto

        write_perfetto(job, perfetto)
        print(perfetto)
