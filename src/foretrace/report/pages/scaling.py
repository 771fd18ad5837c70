"""The page of a scaling curve: the step as its job grows."""

from __future__ import annotations

from foretrace.forecast.jobs.scaling import Scaling
from foretrace.report.job import scaling_speed
from foretrace.report.numbers import ms, plural
from foretrace.report.pages.sheet import Sheet


def scaling_page(curve: Scaling) -> Sheet:
    """The page.

    >>> from foretrace.forecast.forecast import Forecast
    >>> from foretrace.forecast.jobs.scaling import scaling_of
    >>> curve = scaling_of([Forecast(world=1, step_ms=4.0), Forecast(world=2, step_ms=5.0)])
    >>> "80 % of the speed of 1 rank" in scaling_page(curve).html()
    True
    """
    words = curve.to_dict()
    rows = words["scaling"]
    smallest, largest = rows[0], rows[-1]
    return Sheet(
        "scaling.html",
        f"{curve.source or 'the step'} on {smallest['world']} to {largest['world']} ranks",
        {"scaling": {"kind": "scaling", "rows": rows}},
        {
            "words": words,
            "step": ms(largest["step_ms"]),
            "on": plural(largest["world"], "rank"),
            "speed": scaling_speed(words),
        },
    )
