"""A bar for what takes minutes, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from foretrace._progress import OnProgress, Progress


@contextmanager
def progress_bar(hidden: bool = False) -> Iterator[OnProgress]:
    """Shows the stages that it is on_progress of, unless hidden: from the first one on, until all is done."""
    with ExitStack() as shown:
        bar: Progress | None = None

        def on_progress(stage: Progress) -> None:
            nonlocal bar
            from rich.markup import escape

            if bar is None:
                bar = shown.enter_context(_bar(hidden))
                bar.add_task("")
            bar.update(bar.task_ids[0], description=escape(stage.text), completed=stage.seconds, total=stage.of or None)

        yield on_progress


def _bar(hidden: bool) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=hidden or not console.is_terminal)
