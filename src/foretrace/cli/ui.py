"""`foretrace ui`: a folder of recordings and predictions in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ui(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of recordings, traces, predictions.")] = Path(),
    host: Annotated[str, typer.Option(help="Address to listen on; all but 127.0.0.1 need a token.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8173,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Show the recordings and forecasts of a folder in the browser.

    List, open, predict, compare, and ask what if.
    """
    from foretrace.errors import ForetraceError
    from foretrace.ui import Folder, Server

    try:
        server = Server(Folder(folder), host, port)
    except (OSError, OverflowError) as error:
        raise ForetraceError(
            f"{host}:{port} can't be listened on ({getattr(error, 'strerror', None) or error})",
            "Another one may run there: give another --port, or 0 for a free one.",
        ) from None
    print(f"{server.address}   shows {server.folder.root}; stop it with Ctrl-C", flush=True)
    if open_browser:
        import webbrowser

        webbrowser.open(server.address)
    with server:
        server.serve_forever()
