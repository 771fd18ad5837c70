"""`foretrace ui`: a folder of recordings and forecasts, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ui(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Recordings, traces and forecasts lie in it.")] = Path(),
    host: Annotated[str, typer.Option(help="Where to listen; anything but this machine itself asks for a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Which port; 0 takes a free one.")] = 8173,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show a folder in the browser: list, open, compare, predict and ask what if."""
    from foretrace.graph import ForetraceError
    from foretrace.ui.folder import Folder
    from foretrace.ui.server import Server

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
