"""What was found, in the terminal: the answer first, then the tables behind it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType

from foretrace.report.changes import changes
from foretrace.report.check import check_blocks
from foretrace.report.forecast import forecast_blocks
from foretrace.report.headline import headline
from foretrace.report.job import scaling_blocks
from foretrace.report.json import Document
from foretrace.report.replay import replay_blocks
from foretrace.report.sections import sections
from foretrace.report.sharding import sharding_blocks
from foretrace.report.suite import suite_blocks
from foretrace.report.sweep import sweep_blocks
from foretrace.report.whatif import whatif_blocks


def print_observation(observation: Document, top: int, console: Console | None = None) -> None:
    """Print what was seen of a step, with at most ``top`` rows a table."""
    words = observation.to_dict()
    _print([headline(words), *sections(words, top)], console)


def print_difference(difference: Document, top: int, console: Console | None = None) -> None:
    """Print what changed from one step to another, with at most ``top`` rows a table."""
    _print(changes(difference.to_dict(), top), console)


def print_forecast(forecast: Document, top: int, console: Console | None = None) -> None:
    """Print what a step will take, with at most ``top`` rows a table."""
    _print(forecast_blocks(forecast.to_dict(), top), console)


def print_scaling(scaling: Document, top: int | None = None, console: Console | None = None) -> None:
    """Print how a step takes longer as its job grows, with at most ``top`` rows where a number is given."""
    _print(scaling_blocks(scaling.to_dict(), top), console)


def print_whatif(whatif: Document, top: int, console: Console | None = None) -> None:
    """Print what a change of a step changes, with at most ``top`` rows a table."""
    _print(whatif_blocks(whatif.to_dict(), top), console)


def print_sweep(sweep: Document, top: int, console: Console | None = None) -> None:
    """Print the points of a sweep, with at most ``top`` rows a table."""
    _print(sweep_blocks(sweep.to_dict(), top), console)


def print_check(check: Document, top: int, console: Console | None = None) -> None:
    """Print how far a forecast is off, with at most ``top`` rows a table."""
    _print(check_blocks(check.to_dict(), top), console)


def print_replay(replay: Document, top: int, console: Console | None = None) -> None:
    """Print a replay beside its original, with at most ``top`` rows a table."""
    _print(replay_blocks(replay.to_dict(), top), console)


def print_suite(suite: Document, top: int, console: Console | None = None) -> None:
    """Print the replays of a suite, with at most ``top`` rows a table."""
    _print(suite_blocks(suite.to_dict(), top), console)


def print_sharding(sharding: Document, top: int, console: Console | None = None) -> None:
    """Print a plan for embedding tables, with at most ``top`` rows a table."""
    _print(sharding_blocks(sharding.to_dict(), top), console)


def print_platform(summary: Document, top: int) -> None:
    """Print what a platform is, with at most ``top`` rows of a long table."""
    from foretrace.report.platform import one_platform  # here as below, since it brings all that platforms are made of

    _print(one_platform(summary.to_dict(), top), None)


def print_fabric(summary: Document, top: int) -> None:
    """Print what a fabric is, with at most ``top`` rows of a long table."""
    from foretrace.report.platform import one_fabric

    _print(one_fabric(summary.to_dict(), top), None)


def print_platforms(listing: Document) -> None:
    """Print which platforms, GPUs and fabrics there are."""
    from foretrace.report.platform import device_list, fabric_list, platform_list

    words = listing.to_dict()
    tables = [platform_list(words["platforms"]), device_list(words["devices"]), fabric_list(words["fabrics"])]
    _print(tables, None)


def print_comparison(comparison: Document) -> None:
    """Print two platforms side by side."""
    from foretrace.report.platform import compared

    _print([compared(comparison.to_dict())], None)


def _print(blocks: Iterable[RenderableType], console: Console | None) -> None:
    console = console or Console(highlight=False, emoji=False)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        console.print(block, crop=False)
