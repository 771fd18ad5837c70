"""What a tensor held before the step, in a few figures: enough to make another like it, never its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Fact: TypeAlias = "bool | int | float | list[int] | list[float]"


@dataclass(frozen=True, slots=True)
class Content:
    """A kind of content and its figures.

    ====================  =======================================================================================
    kind                  figures
    ====================  =======================================================================================
    ``values``            ``values``: a handful of numbers, exactly (a step count, a loss scale)
    ``constant``          ``value``
    ``normal``            ``mean``, ``std``, ``low``, ``high``, ``zeros`` (share of exact zeros)
    ``uniform``           ``low``, ``high``, ``zeros``
    ``either``            ``one``, ``other``, ``share`` of the other: targets, masks
    ``triangle``          ``below``, ``above``: a causal mask
    ``arange``            ``start``, ``step``, ``period``
    ``tril``              ``side``, ``offset``, ``row``: pairs below a square's diagonal; coordinate 0, 1 or (2) both
    ``offsets``           ``first``, ``last``, ``steps`` (histogram of the differences in powers of two)
    ``ids``               ``low``, ``high``, ``unique``, ``reuse`` (as in `Indices`), ``sorted``; so many ``nones``
    ====================  =======================================================================================

    >>> Content("constant", {"value": 1.0}).kind
    'constant'
    """

    kind: str
    facts: dict[str, Fact] = field(default_factory=dict)
