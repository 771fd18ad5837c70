"""Progress on standard error: a spinner and a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from foretrace.cli.options import in_background

if TYPE_CHECKING:
    from foretrace._progress import OnProgress, Progress

LOG_EVERY_S = 10.0
"""Between two lines in a log."""


@contextmanager
def progress_bar(hidden: bool = False) -> Iterator[OnProgress]:
    """Show what is being done, unless hidden: from the first report on, until all is done."""
    with ExitStack() as shown:
        bar: Any = None
        latest: list[Progress] = []

        def show(progress: Progress) -> None:
            nonlocal bar
            if hidden:
                return
            latest.append(progress)
            if not _is_terminal():  # before rich is imported
                if len(latest) == 1:
                    shown.enter_context(_logged(latest))
                return
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            if bar is None:
                console = Console(stderr=True)
                columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
                made = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
                bar = shown.enter_context(made)
                bar.add_task("")
            text, done, of = progress
            bar.update(bar.task_ids[0], description=escape(text), completed=done, total=of or None)

        yield show


def _is_terminal() -> bool:
    return sys.stderr.isatty() or bool(os.environ.get("FORCE_COLOR"))


def _logged(latest: list[Progress]) -> AbstractContextManager[None]:
    """Print the latest report now and then."""

    def log(done: threading.Event) -> None:
        began = time.monotonic()
        while not done.wait(LOG_EVERY_S):
            text, made, of = latest[-1]
            how_far = f"{made:,.0f} of {of:,.0f}, " if of else ""
            print(f"foretrace: {text} … {how_far}{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    return in_background(log)
