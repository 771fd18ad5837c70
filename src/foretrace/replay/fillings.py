"""What fills the inputs of a benchmark: what was recorded, else what their readers need, else something harmless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foretrace.graph import Content, Graph, Op, Tensor
from foretrace.graph.graph import Fact
from foretrace.graph.operators import COLLECTIVE_CALLS
from foretrace.replay.plan import Plan
from foretrace.replay.roles import roles

FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool | None]] = {
    "values": (("values",), (), None),
    "constant": (("value",), (), None),
    "normal": (("mean", "std", "low", "high"), ("zeros",), True),
    "uniform": (("low", "high"), ("zeros",), True),
    "either": (("one", "other", "share"), (), None),
    "triangle": (("below", "above"), (), None),
    "arange": (("start", "step", "period"), (), False),
    "tril": (("side", "offset", "row"), (), False),
    "offsets": (("first", "last", "steps"), (), False),
    "ids": (("low", "high"), ("unique", "reuse", "sorted", "none", "nones"), False),
    "even": (("total", "whole"), (), False),
    "bags": (("total", "bags"), (), False),
}
"""Figures that each kind needs and may have, and whether it is one of floats; None for one of anything."""
NEEDED = ("ids", "even", "bags", "tril")
"""Kinds without which readers fail."""
HISTOGRAMS, MOST_BINS = ("reuse", "steps"), 63
WHOLE = ("start", "step", "period", "first", "last", "unique", "none", "nones", "total", "bags")
NEVER_NEGATIVE = ("std", "unique", "nones", "period", "total", "bags")
LARGEST = 1 << 62

SMALL_NUMBERS = Content("normal", {"mean": 0.0, "std": 0.02, "low": -0.1, "high": 0.1})


def with_contents(plan: Plan, graph: Graph, ops: Sequence[Op], rows: Sequence[int]) -> Plan:
    """The plan with a content for each input; says for how many nobody recorded one.

    ``rows`` are those of the ops in the graph's table.
    """
    indices = {found.op: found for found in graph.indices}
    needed = roles(ops, {place: indices[row] for place, row in enumerate(rows) if row in indices})
    guessed = 0
    for given in plan.inputs:
        recorded = suited(graph.contents.get(given.tensor.id), given.tensor)
        role = suited(needed.get(given.tensor.storage), given.tensor)
        given.content = recorded or role or harmless(given.tensor)
        guessed += recorded is None
    for call in plan.recorded:
        if call.name.startswith(COLLECTIVE_CALLS):
            brought = (suited(needed.get(tensor.storage), tensor) for tensor in ops[call.number].tensors)
            content = next((content for content in brought if content is not None and content.kind in NEEDED), None)
            if content is not None:
                plan.received[call.number] = content
    if guessed:
        plan.notes.append(f"{guessed} of {len(plan.inputs)} inputs hold values made up from what their readers need")
    return plan


def suited(content: Content | None, tensor: Tensor) -> Content | None:
    """The content, as far as a tensor can hold it; None where it can't, or where its figures make no sense.

    >>> pairs = Content("tril", {"side": 5, "offset": -1, "row": 0})
    >>> suited(pairs, Tensor((10,), "int64")) == pairs, suited(pairs, Tensor((2, 10), "int64")).facts["row"]
    (True, 2)
    >>> suited(Content("normal", {"mean": 0.0, "std": 1.0, "low": -1.0, "high": 1.0}), Tensor((3,), "int64"))
    """
    if content is None or content.kind not in FACTS or tensor.layout != "strided":
        return None
    needed, optional, floating = FACTS[content.kind]
    facts = content.facts
    if not set(needed) <= set(facts) <= {*needed, *optional}:
        return None
    if floating is not None and floating != tensor.dtype.startswith(("float", "bfloat")):
        return None
    if content.kind == "values":
        values = facts["values"]
        known = isinstance(values, list) and all(isinstance(value, (bool, int, float)) for value in values)
        return content if known and len(values) == tensor.numel else None  # type: ignore[arg-type]
    if content.kind == "tril":
        return _pairs(content, tensor)
    return content if _sound(facts, tensor) else None


def _sound(facts: Mapping[str, Fact], tensor: Tensor) -> bool:
    """Whether figures can be what somebody counted in such a tensor."""
    numbers = {name: fact for name, fact in facts.items() if isinstance(fact, (bool, int, float))}
    lists = {name: fact for name, fact in facts.items() if isinstance(fact, list)}
    if not all(name in HISTOGRAMS and _histogram(fact, tensor.numel) for name, fact in lists.items()):
        return False
    if any(name in WHOLE and not isinstance(fact, int) for name, fact in numbers.items()):
        return False
    if any(isinstance(fact, int) and abs(fact) >= LARGEST for fact in numbers.values()):
        return False
    if any(numbers.get(name, 0) < 0 for name in NEVER_NEGATIVE) or not numbers.get("period", 1):
        return False
    if numbers.get("unique", 0) + numbers.get("nones", 0) > tensor.numel:
        return False
    return numbers.get("low", 0) <= numbers.get("high", numbers.get("low", 0))


def _histogram(counts: Sequence[float], most: int) -> bool:
    """Whether it is a histogram of no more than so many things."""
    return len(counts) <= MOST_BINS and all(isinstance(n, int) and n >= 0 for n in counts) and sum(counts) <= most


def _pairs(content: Content, tensor: Tensor) -> Content | None:
    """Pairs below a diagonal where there is room for them: one coordinate, or both."""
    side, offset = content.facts["side"], content.facts["offset"]
    if not isinstance(side, int) or offset not in (-1, 0):
        return None
    count = side * (side + 1 + 2 * int(offset)) // 2
    if tensor.numel == 2 * count:
        return Content("tril", {**content.facts, "row": 2})
    return content if tensor.numel == count and content.facts["row"] in (0, 1) else None


def harmless(tensor: Tensor) -> Content:
    """Something any op can work with.

    >>> harmless(Tensor((3,), "int64")).facts, harmless(Tensor((3,), "bfloat16")).kind
    ({'value': 0}, 'normal')
    """
    if tensor.dtype.startswith(("float", "bfloat", "complex")):
        return SMALL_NUMBERS
    return Content("constant", {"value": tensor.dtype == "bool" or 0})
