"""A step with another size: found once how it goes through the calls, then made for any size."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import expm1, log2
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Content, Graph, Indices
from foretrace.graph.op import Op
from foretrace.graph.operators import operator_path
from foretrace.graph.tensor import Tensor
from foretrace.transforms.dataflow import Call, Dataflow
from foretrace.transforms.resize.arguments import SizeChange, with_interpretation
from foretrace.transforms.resize.propagation import InputChoice, PropagationError, find_propagation, propagate
from foretrace.transforms.resize.shapes import StepShapes
from foretrace.transforms.step import ChangedCall, StepTemplate, layout_key

GUESSED = ("batch", "seq", "hidden")
"""Sizes that no single input shows, so that a user may say what was recorded: ``batch=64/16``."""


class Resizable:
    """A flat step of which one size can be any.

    Parameters
    ----------
    graph
        The step, flat.
    step
        Its calls over slots.
    what
        The name of the size, for errors.
    scale
        From the recorded size to one that is wanted.
    choices
        Inputs that may change.
    roomy
        Inputs with room for every size that will be asked for: they stay as they are, though the search changes them.
    """

    def __init__(
        self,
        graph: Graph,
        step: Dataflow,
        what: str,
        scale: SizeChange,
        choices: Sequence[InputChoice],
        roomy: Collection[int] = (),
    ) -> None:
        self._graph, self._step, self._what, self._scale = graph, step, what, scale
        sizes = {size for call in step.calls for tensor in call.made.values() for size in tensor.shape}
        probe = scale.probe(sizes)
        try:
            self._found = find_propagation(step, choices, probe)
        except PropagationError as stuck:
            raise self._refused("NEW", f"another {what} than {scale.old}", stuck) from None
        if not self._found.inputs:
            raise ForetraceError(
                f"no input of {graph.title} holds a {what} of {scale.old}",
                f"It is made within the step, or was another: {what}=NEW/OLD says which.",
            )
        rows = [place for place, call in enumerate(step.calls) if call.row >= 0]
        self._shapes = StepShapes(step, probe, certain=True)
        tensors = propagate(self._shapes, self._found, probe)
        self._moving = [p for p in rows if self._found.kinds[p] >= 0 or _moves(step.calls[p], tensors)]
        self._script = StepTemplate(graph, [step.calls[place] for place in rows], [step.calls[p] for p in self._moving])
        self._found.inputs = {slot: dims for slot, dims in self._found.inputs.items() if slot not in roomy}

    def _refused(self, new: int | str, wanted: str, stuck: PropagationError) -> ForetraceError:
        advice = f"The {self._what} was taken to be {self._scale.old}"
        if self._what in GUESSED:
            advice += f"; say another with {self._what}={new}/OLD"
        return ForetraceError(f"{wanted} can't be carried through {stuck}", f"{advice}.")

    def to(self, new: int) -> Graph:
        """The step with that size."""
        scale = replace(self._scale, new=new)
        if new == scale.old:
            return self._graph
        try:
            tensors = propagate(self._shapes, self._found, scale)
        except PropagationError as stuck:
            raise self._refused(new, f"{self._what}={new}", stuck) from None
        retyped = [
            ChangedCall(call, with_interpretation(call.args, self._found.interpretations[place], scale), call.kwargs)
            for place, call in ((place, self._step.calls[place]) for place in self._moving)
        ]
        made = self._script.instantiate(retyped, tensors)
        made.contents = dict(self._graph.contents)
        for slot, tensor in self._step.inputs.items():
            if tensor.id in made.contents and tensor.numel and tensors[slot].shape != tensor.shape:
                share = tensors[slot].numel / tensor.numel
                made.contents[tensor.id] = resized_content(made.contents[tensor.id], share)
        made.indices = [_indices(known, self._graph.ops[known.op], made.ops[known.op]) for known in made.indices]
        made.collectives = [
            replace(c, nbytes=_exchanged(c.nbytes, self._graph.ops[c.op], made.ops[c.op])) if c.op >= 0 else c
            for c in made.collectives
        ]
        made.notes += [f"{self._what}: {new:,} instead of {scale.old:,}", *self._unsure(tensors)]
        return made

    def _unsure(self, tensors: dict[int, Tensor]) -> Iterator[str]:
        """Notes on operators that PyTorch does not know: they read another size, and are taken to make the same."""
        moving = (self._step.calls[place] for place in self._moving)
        unknown = (call for call in moving if call.made and operator_path(call.op.name, call.op.overload) is None)
        for name in dict.fromkeys(call.op.name for call in unknown if _resized(call, tensors) == {"read"}):
            yield f"nobody can ask {name} for its sizes: what it makes is taken to stay as large as it was"


def _moves(call: Call, tensors: dict[int, Tensor]) -> bool:
    """Whether something that a call reads or makes lies elsewhere now, or otherwise."""
    seen = (*zip(call.reads, call.op.tensors), *call.made.items())
    return any(layout_key(tensors[slot]) != layout_key(was) for slot, was in seen)


def _resized(call: Call, tensors: dict[int, Tensor]) -> set[str]:
    """On which sides of a call something has another shape now."""
    sides = {"read": zip(call.reads, call.op.tensors), "made": call.made.items()}
    return {side for side, seen in sides.items() if any(tensors[slot].shape != was.shape for slot, was in seen)}


def _indices(known: Indices, was: Op, now: Op) -> Indices:
    """Statistics of the ids of a call whose tensors have other shapes."""

    def change(size: int) -> int:
        for old, new in zip(was.tensors, now.tensors):
            if old.shape != new.shape:
                for before, after in zip(old.shape, new.shape):
                    if before == size:
                        return after
                if old.numel == size:
                    return new.numel
        return size

    rows, count, bags = change(known.rows), change(known.count), change(known.bags)
    return (
        known
        if (rows, count, bags) == (known.rows, known.count, known.bags)
        else resized_indices(known, rows, count, bags)
    )


def _exchanged(nbytes: int, was: Op, now: Op) -> int:
    """Bytes of a collective whose tensors have other shapes."""
    before, after = (sum(tensor.nbytes for tensor in op.tensors) for op in (was, now))
    return round(nbytes * after / before) if before else nbytes


def check_size(what: str, size: int) -> int:
    """The size, if it is one."""
    if not isinstance(size, int) or size < 1:
        raise ForetraceError(f"a {what} of {size} makes no sense", "It is a whole number, 1 or more.")
    return size


# --- was transforms.contents: What is known of the ids and values in tensors, for tensors of another length.

COUNTS = {"ids": ("unique", "nones"), "even": ("total",), "bags": ("total", "bags"), "offsets": ("last",)}
"""Figures of a content that grow with its tensor."""
HISTOGRAMS = {"ids": "reuse", "offsets": "steps"}


def resized_content(content: Content, share: float) -> Content:
    """The content for a tensor that is so many times as long.

    >>> resized_content(Content("offsets", {"first": 0, "last": 100, "steps": [0, 10]}), 2.0).facts["last"]
    200
    """
    facts: dict[str, Any] = dict(content.facts)
    if content.kind == "values":
        whole = all(isinstance(value, int) for value in facts["values"])
        return Content("constant", {"value": facts["values"][0] if facts["values"] else 0}) if whole else _spread(facts)
    for word in COUNTS.get(content.kind, ()):
        if word in facts:
            facts[word] = round(facts[word] * share)
    if (word := HISTOGRAMS.get(content.kind, "")) in facts:
        facts[word] = [round(count * share) for count in facts[word]]
        if content.kind == "ids":
            facts["unique"] = sum(facts[word])
    return Content(content.kind, facts)


def _spread(facts: dict[str, Any]) -> Content:
    low, high = float(min(facts["values"])), float(max(facts["values"]))
    return Content("uniform", {"low": low, "high": high})


def resized_indices(indices: Indices, rows: int, count: int, bags: int) -> Indices:
    """The reuse of rows where a table, or the number of ids asked of it, is another.

    As many rows are hit as would be by ids drawn evenly from the rows that the recorded ids seem drawn from.

    >>> resized_indices(Indices(0, rows=1000, count=1000, unique=632, bags=10, reuse=(368, 264)), 1000, 2000, 20).unique
    864
    """
    share = count / max(indices.count, 1)
    pool = _pool(indices) * rows / max(indices.rows, 1)
    unique = min(rows, count, max(1, round(-pool * expm1(-count / pool)))) if count else 0
    spread = share * indices.unique / max(unique, 1)
    shift = log2(spread) if spread > 0 else 0.0
    reuse = _moved(indices.reuse, shift, unique)
    return replace(indices, rows=rows, count=count, unique=unique, bags=bags, reuse=reuse)


def _pool(indices: Indices) -> float:
    """Rows from which so many ids, drawn evenly, would hit as many different ones as they did."""
    if indices.unique >= indices.count:
        return float(max(indices.rows, indices.count))
    low, high = 1.0, float(max(indices.rows, 2))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if -middle * expm1(-indices.count / middle) < indices.unique else (low, middle)
    return high


def _moved(reuse: tuple[int, ...], shift: float, unique: int) -> tuple[int, ...]:
    """A histogram of so many rows, each hit 2^shift times as often."""
    total = sum(reuse)
    if not total or not unique:
        return ()
    bins = [0.0] * (len(reuse) + 64)
    for place, count in enumerate(reuse):
        at = max(place + shift, 0.0)
        low = int(at)
        bins[low] += count * (1 - (at - low))
        bins[low + 1] += count * (at - low)
    counts = [round(count * unique / total) for count in bins]
    while counts and not counts[-1]:
        counts.pop()
    if counts:
        counts[0] += unique - sum(counts)
    return tuple(counts)
