"""`foretrace calibrate`: measure the machine at hand into a platform."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.cli.progress import progress_bar

if TYPE_CHECKING:
    from foretrace.calibrating import Outcome
    from foretrace.graph import Graph


class What(StrEnum):
    """What to measure, or to fit what was measured."""

    ALL = "all"
    DEVICE = "device"
    HOST = "host"
    FABRIC = "fabric"
    FIT = "fit"


MINUTES = 10.0
LOOKED_AT = {
    "--minutes": (What.ALL, What.DEVICE, What.HOST, What.FABRIC),
    "--on": (What.ALL, What.DEVICE, What.HOST),
    "--family": (What.ALL, What.DEVICE),
    "--for": (What.ALL, What.DEVICE),
    "--raw": (What.FIT,),
}
"""By option: what it means something to."""


def calibrate(
    out: Annotated[Path, typer.Option(help="The platform's folder; what is measured there already is gone on with.")],
    what: Annotated[
        What, typer.Argument(help="The part to measure; or fit, to fit anew what was measured.")
    ] = What.ALL,
    minutes: Annotated[
        float | None, typer.Option(min=0, max=1440, help="How long to measure.", show_default=f"{MINUTES:g}")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(help="Measure this family of kernels only; may be given several times.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--for", metavar="WHAT", help="Measure exactly the calls of a recording, a trace or a script."),
    ] = None,
    on: Annotated[str | None, typer.Option(help="The device, like cuda:1 or cpu; the first GPU unless given.")] = None,
    raw: Annotated[
        Path | None, typer.Option(help="With fit: the measurements, where the platform does not keep them itself.")
    ] = None,
) -> None:
    """Measure the machine at hand into a platform that steps can be predicted on.

    Kernels on its GPU or CPU, calls on its host, collectives between ranks (under torchrun). Stop it whenever you like:
    what is measured is kept, and the same command goes on from there.
    """
    from foretrace.calibrating import SHARES, Outcome, is_first_rank
    from foretrace.calibrating import calibrate as measure
    from foretrace.fitting import fit, require_fitter
    from foretrace.platform.cases.families import check_families
    from foretrace.stages import Stage

    _check(what, {"--minutes": minutes, "--on": on, "--family": family, "--for": like, "--raw": raw})
    check_families(family or ())
    if what is What.FIT:
        require_fitter()
    parts = tuple(SHARES) if what is What.ALL else (what.value,)
    try:
        with _made(out), progress_bar(hidden=not is_first_rank()) as told:
            if what is What.FIT:
                outcome = Outcome(notes=fit(out, raw, told=lambda words: told(Stage(words))))
            else:
                outcome = measure(
                    out, parts, MINUTES if minutes is None else minutes, on, family or (), _step(like, on), told
                )
    except KeyboardInterrupt:
        now = f"`foretrace calibrate fit --out {out}` fits what is there"
        print(f"foretrace: stopped; the same command goes on with {out}, {now}", file=sys.stderr)
        raise
    if is_first_rank():
        _say(outcome, out)


def _check(what: What, options: dict[str, object]) -> None:
    """No option is given that would not be looked at."""
    from foretrace.graph import ForetraceError

    for option, given in options.items():
        if given is not None and what not in LOOKED_AT[option]:
            words = ", ".join(LOOKED_AT[option])
            raise ForetraceError(
                f"calibrate {what} does not look at {option}", f"Leave {option} out; it belongs to calibrate {words}."
            )


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The platform's folder, before anything is measured that could not be kept; gone again where nothing could be."""
    from foretrace.graph import ForetraceError

    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ForetraceError(f"{folder} can't be a folder ({error.strerror})", "Give another --out.") from None
    try:
        yield
    except ForetraceError:
        if new and not any(folder.iterdir()):
            folder.rmdir()
        raise


def _step(what: str | None, on: str | None) -> Graph | None:
    """The step whose calls are to be measured; a script is sketched for the device that measures them."""
    if what is None:
        return None
    from foretrace.platform.measure.machine import find_device
    from foretrace.predicting import read

    return read(what, find_device(on).type).graphs[0]


def _say(outcome: Outcome, out: Path) -> None:
    from rich.console import Console

    from foretrace.report.calibration import measured_families

    if outcome.families:
        Console(stderr=True).print(measured_families(outcome.families))
    for note in outcome.notes:
        print(f"foretrace: {note}", file=sys.stderr)
    print(f"foretrace: {out} is ready: `foretrace platform show {out}`", file=sys.stderr)
