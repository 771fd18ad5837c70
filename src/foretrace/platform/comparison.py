"""Two platforms side by side: every figure that both have, and how many times larger it is on the second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foretrace.platform.summary import COMMON, OnPaper, Summary

Words = dict[str, Any]
Figure = tuple[str, str, str, float]
"""Part, name, unit, value."""


@dataclass(frozen=True)
class Comparison:
    """Two platforms, figure by figure.

    >>> same = Comparison(Summary.named("h200"), Summary.named("h200")).to_dict()
    >>> {row["ratio"] for row in same["figures"]}
    {1.0}
    """

    first: Summary | OnPaper
    second: Summary | OnPaper

    def to_dict(self) -> Words:
        """Its words, as documented in docs/platform.md."""
        one, other = self.first.to_dict(), self.second.to_dict()
        values = {figure[:3]: figure[3] for figure in figures(other)}
        rows = [
            {
                "part": part,
                "name": name,
                "unit": unit,
                "values": [value, values[part, name, unit]],
                "ratio": values[part, name, unit] / value if value else None,
            }
            for part, name, unit, value in figures(one)
            if values.get((part, name, unit), 0.0) or (value and (part, name, unit) in values)
        ]
        return {"platforms": [one["name"], other["name"]], "figures": rows}


def figures(words: Words) -> Iterator[Figure]:
    """All figures of a platform that are worth comparing."""
    parts = {"device": _device, "host": _host, "fabric": _fabric}
    for part, of in parts.items():
        if words[part]:
            for name, unit, value in of(words[part]):
                if value is not None:
                    yield part, name, unit, float(value)


def _device(words: Words) -> Iterator[tuple[str, str, float | None]]:
    yield "processors", "", words["sms"]
    yield "clock", "MHz", words["clock_mhz"]
    yield "memory", "GB", words["memory_gb"]
    yield "cache", "MB", words["l2_mb"]
    yield "memory rate, peak", "GB/s", words["memory_gbps"]
    yield "memory rate, reached", "GB/s", words["measured"]["memory_gbps"]
    for dtype, rate in words["peak_tflops"].items():
        yield f"{dtype} products, peak", "TFLOP/s", rate
    for dtype, rate in words["measured"]["tflops"].items():
        yield f"{dtype} products, reached", "TFLOP/s", rate
    yield "gap between kernels", "us", words["measured"]["kernel_gap_us"]
    yield "launch to kernel", "us", words["measured"]["launch_latency_us"]


def _fabric(words: Words) -> Iterator[tuple[str, str, float | None]]:
    for curve in words["curves"]:
        where = f"{curve['kind']}, {curve['ranks']} ranks on {curve['nodes']} nodes"
        yield f"{where}: latency", "us", curve["latency_us"]
        yield f"{where}: bandwidth", "GB/s", curve["gbps"]


def _host(words: Words) -> Iterator[tuple[str, str, float | None]]:
    for phase in ("forward", "backward", "optimizer"):
        yield f"between {phase} calls", "us", words["between"][f"{phase}_call"]
    for name, us in words["calls"].items():
        if name in COMMON:
            yield name, "us", us
