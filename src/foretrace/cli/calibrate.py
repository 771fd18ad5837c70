"""`foretrace calibrate`: measure this machine into a platform."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from foretrace.cli.progress import progress_bar

if TYPE_CHECKING:
    from foretrace.calibration.machine import Outcome
    from foretrace.graph import Graph


What = Literal["all", "cpu", "device", "host", "fabric", "fit", "import"]
Tables = Literal["aiconfigurator", "vidur", "xla", "aiter", "nccl-tests"]
"""Projects whose tables are read."""
MINUTES, CPU_MINUTES = 10.0, 3.0
APPLIES_TO = {
    "--minutes": ("all", "cpu", "device", "host", "fabric"),
    "--on": ("all", "device", "host"),
    "--family": ("all", "cpu", "device"),
    "--for": ("all", "cpu", "device"),
    "--raw": ("fit",),
    "--prior": ("all", "device", "fit"),
    "DIR": ("import",),
    "--from": ("import",),
    "--gpu": ("import",),
}
"""The parts that each option applies to."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a full disk, or of a folder that is not writable."""


def calibrate(
    what: Annotated[
        What,
        typer.Argument(
            help="The part to measure; or cpu, to measure this machine's CPU as the platform `cpu`; or fit, to fit the "
            "measurements again; or import, to make a platform of published tables."
        ),
    ] = "all",
    tables: Annotated[Path | None, typer.Argument(metavar="DIR", help="With import: the folder of the tables.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the platform; measurements in it are continued. Optional for cpu."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1440,
            help="Time for all parts, fitting included.",
            show_default=f"{MINUTES:g}; of cpu {CPU_MINUTES:g}",
        ),
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(help="Measure this family of kernels only; may be given several times.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--for", metavar="WHAT", help="Measure exactly the calls of a recording, a trace or a script."),
    ] = None,
    on: Annotated[str | None, typer.Option(help="The device, like cuda:1 or cpu; default: the first GPU.")] = None,
    raw: Annotated[
        Path | None, typer.Option(help="With fit: folder of the measurements, if not inside the platform's folder.")
    ] = None,
    source: Annotated[Tables | None, typer.Option("--from", help="With import: who published the tables.")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="With import: the GPU, where the folder has tables of several.")
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The platform that kernel models start from, by name or folder; none to start from nothing.",
            show_default="what is known of this GPU",
        ),
    ] = None,
) -> None:
    """Measure this machine, to predict steps on it.

    Kernels on its GPU or CPU, calls on its host, collectives between ranks (under torchrun). It may be stopped at any
    time: the same command continues.
    """
    from foretrace.calibration.fitting import KEPT, fit, require_fitter
    from foretrace.calibration.machine import SHARES, Outcome, exclusive, is_first_rank
    from foretrace.calibration.machine import calibrate as measure
    from foretrace.cost_models.kernels.families import check_families
    from foretrace.errors import ForetraceError
    from foretrace.platform.platform import check_out
    from foretrace.platform.prior import AUTO, NONE
    from foretrace.platform.registry import CPU, REFERENCE, load_platform, user_platforms

    options = {
        "--minutes": minutes, "--on": on, "--family": family, "--for": like, "--raw": raw, "--prior": prior,
    }  # fmt: skip
    _check(what, {**options, "DIR": tables, "--from": source, "--gpu": gpu})
    check_families(family or ())
    if prior not in (None, AUTO, NONE):
        load_platform(prior, host=REFERENCE)  # before anything is measured
    if out is None and what != "cpu":
        raise ForetraceError("--out is missing", "Name the platform's folder: foretrace calibrate --out my-platform.")
    out = out or user_platforms() / CPU
    check_out(out)
    if what in ("fit", "cpu", "import"):
        require_fitter()
    if what == "import":
        _import(tables, source, gpu, out)
        return
    parts = {"all": tuple(SHARES), "cpu": ("device", "host")}.get(what, (what,))
    if what == "cpu":
        on = "cpu"
    if minutes is None:
        minutes = CPU_MINUTES if what == "cpu" else MINUTES
    try:
        with _created(out), progress_bar(hidden=not is_first_rank()) as on_progress:
            if what == "fit":
                with exclusive(out):
                    outcome = Outcome(notes=fit(out, raw, on_progress=on_progress, prior=prior or KEPT))
            else:
                until = time.monotonic() + 60 * minutes
                step = _step(like, on)
                outcome = measure(out, parts, minutes, on, family or (), step, on_progress, until, prior or AUTO)
    except KeyboardInterrupt:
        print(f"foretrace: stopped; {_how_to_continue(out)}", file=sys.stderr)
        raise
    if is_first_rank():
        _print_outcome(outcome, out)


def _check(what: What, options: dict[str, object]) -> None:
    """Refuse options that do not apply to the part."""
    from foretrace.errors import ForetraceError

    for option, given in options.items():
        if given is not None and what not in APPLIES_TO[option]:
            parts = ", ".join(APPLIES_TO[option])
            raise ForetraceError(
                f"calibrate {what} does not use {option}", f"Leave {option} out; it belongs to calibrate {parts}."
            )
    minutes = options["--minutes"]
    if isinstance(minutes, float) and not minutes > 0:
        raise ForetraceError(f"--minutes {minutes:g} is no time to measure in", "Give a number above 0, up to 1440.")
    if options["--for"] and options["--family"]:
        raise ForetraceError("with --for no families are measured", "Give --for or --family, one after the other.")


def _import(tables: Path | None, source: Tables | None, gpu: str | None, out: Path) -> None:
    """Make a platform of published tables, and say what they tell."""
    from foretrace.errors import ForetraceError
    from foretrace.report.formatting import printable

    if tables is None or source is None:
        raise ForetraceError(
            "calibrate import takes the folder of the tables, and who published them",
            "Say for instance: foretrace calibrate import tables --from aiconfigurator --gpu h100 --out my-h100.",
        )
    with _created(out), progress_bar() as on_progress:
        if source == "nccl-tests":
            from foretrace.calibration.fabric import import_collectives

            notes = import_collectives(tables, gpu, out)
        else:
            from foretrace.calibration.published import import_tables

            imported = import_tables(tables, source, gpu, out, on_progress)
            notes = imported.notes + [
                f"{kind}: {found.rows:,} rows, {found.gmae:.1%} off on layers that were held out"
                for kind, found in imported.kinds.items()
            ]
    for note in notes:
        print(f"foretrace: {printable(note)}", file=sys.stderr)
    print(f"foretrace: {out} is ready: `foretrace platform show {out}`", file=sys.stderr)


@contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Create the platform's folder before anything is measured; remove it again where nothing was."""
    from foretrace.errors import ForetraceError

    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ForetraceError(f"{folder} can't be a folder ({error.strerror})", "Give another --out.") from None
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        advice = "Make room or give another --out: the same command goes on with what is there."
        raise ForetraceError(f"nothing more can be written to {folder} ({error.strerror})", advice) from None
    finally:
        if new and not any(path.is_file() for path in folder.rglob("*")):
            rmtree(folder)


def _how_to_continue(out: Path) -> str:
    """What to do after it was stopped, if anything is measured: that takes some seconds, of a host a round."""
    from foretrace.calibration.fitting import measured_parts
    from foretrace.platform.platform import RAW

    if not measured_parts(out / RAW):
        return "nothing was measured yet"
    return f"the same command goes on with {out}, `foretrace calibrate fit --out {out}` fits what is there"


def _step(what: str | None, on: str | None) -> Graph | None:
    """The step whose calls are to be measured; a script is sketched for the device that measures them."""
    if what is None:
        return None
    from foretrace.api import read
    from foretrace.calibration.timing.device import find_device

    return read(what, find_device(on).type).graphs[0]


def _print_outcome(outcome: Outcome, out: Path) -> None:
    from rich.console import Console

    from foretrace.platform.platform import lacks_models
    from foretrace.report.formatting import printable
    from foretrace.report.platform import measured_families

    if outcome.families:
        Console(stderr=True).print(measured_families(outcome.families))
    for note in outcome.notes:
        print(f"foretrace: {printable(note)}", file=sys.stderr)
    state = "not ready: no kernel has a model" if lacks_models(out) else f"ready: `foretrace platform show {out}`"
    print(f"foretrace: {out} is {state}", file=sys.stderr)
