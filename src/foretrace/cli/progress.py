"""A progress bar on a terminal's standard error, for what takes long."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace._progress import OnProgress, Progress


@contextmanager
def progress_bar(hidden: bool = False) -> Iterator[OnProgress]:
    """Show what is being done, unless hidden: from the first report on, until all is done."""
    with ExitStack() as shown:
        bar: Any = None

        def show(progress: Progress) -> None:
            nonlocal bar
            if hidden or not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR")):
                return  # before rich is imported
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import Progress as Bar

            if bar is None:
                console = Console(stderr=True)
                bar = shown.enter_context(Bar(console=console, transient=True, disable=not console.is_terminal))
                bar.add_task("")
            text, done, of = progress
            bar.update(bar.task_ids[0], description=escape(text), completed=done, total=of or None)

        yield show
