"""The device work of a step on a platform: as it was recorded there, or as models say."""

from __future__ import annotations

from dataclasses import replace

from foretrace.forecast.flat import Flat
from foretrace.forecast.modelled import modelled_work
from foretrace.forecast.work import Work, launched, measured_work
from foretrace.graph import ForetraceError, Graph
from foretrace.platform.platform import Platform

CHOICES = ("measured", "model")


def device_work(step: Flat, platform: Platform, kernels: str | None = None) -> tuple[Work, list[str]]:
    """The device work of a step on a platform, and what the reader should know of it.

    Parameters
    ----------
    step
        The step's dispatcher calls.
    platform
        Where the step shall run.
    kernels
        ``"measured"`` takes the times in the graph, ``"model"`` what the platform's models say. Left out, the graph's
        times are taken where it was recorded on this very device; of an edited one those of calls that are unchanged;
        and elsewhere those that no model knows better.
    """
    if kernels not in (None, *CHOICES):
        raise ForetraceError(f"kernel times can't be {kernels!r}", "Say model or measured.")
    calls = step.calls
    if kernels == "measured" and not len(calls.kernels):
        raise ForetraceError(
            f"{calls.source or 'the graph'} holds no measured kernels", "Leave --kernels out, or say model."
        )
    if as_measured(calls, platform, kernels):
        here = calls.device == platform.device.matches
        other = [] if here else [f"kernel times are those measured on {calls.device or 'another device'}"]
        return measured_work(calls), [*other, *_left_out(calls)]
    if kernels == "model":
        return modelled_work(step._replace(calls=replace(calls, seen={})), platform, recorded=False)
    work, notes = modelled_work(step, platform, recorded=True)
    return work, [*notes, *_kept(calls, platform)]


def as_measured(calls: Graph, platform: Platform, kernels: str | None) -> bool:
    """Whether kernels take what they took when they were recorded."""
    here = calls.device == platform.device.matches
    return kernels == "measured" or (kernels is None and here and len(calls.kernels) > 0)


def _kept(calls: Graph, platform: Platform) -> list[str]:
    """What an edit left of the recorded kernels."""
    if not calls.seen or calls.device != platform.device.matches or platform.carry:
        return []
    return ["calls that are still as they were recorded take what they took, the others what models say"]


def _left_out(calls: Graph) -> list[str]:
    """What was seen to run, but not launched."""
    lost = ~launched(calls)
    if not lost.any():
        return []
    ms = float((calls.kernels.end - calls.kernels.start)[lost].sum()) / 1e3
    return [f"{int(lost.sum())} kernels ({ms:.2f} ms) that nobody is seen to launch in this step are left out"]
