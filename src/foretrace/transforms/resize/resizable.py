"""Resizable: a step of which one size can be set to any value; and index statistics of resized tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import expm1, log2
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Content, Graph, Indices
from foretrace.graph.op import Op, Tensor
from foretrace.graph.operators import operator_path
from foretrace.transforms.dataflow import Dataflow, SlotCall
from foretrace.transforms.resize.arguments import SizeChange, with_interpretation
from foretrace.transforms.resize.propagation import InputChoice, PropagationError, PropagationSearch, propagate
from foretrace.transforms.resize.shapes import StepShapes
from foretrace.transforms.step import StepTemplate, layout_key

GUESSED = ("batch", "seq", "hidden")
"""Sizes whose recorded value is guessed, so that a user may state it: ``batch=64/16``."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm")
"""Matrix products, which a batch goes through, as it does through convolutions."""


class Resizable:
    """A flat step of which one size can be set: the propagation is found once, then applied to any size.

    ``what`` names the size in messages, ``change`` goes from the recorded size to a wanted one, ``choices`` are inputs
    that may change. Inputs that are ``large_enough`` hold every size to be set: they stay as they are, though the
    search changes them. Sizes to be set are those of so many equal ``parts`` together: of micro-batches.
    """

    def __init__(
        self,
        graph: Graph,
        step: Dataflow,
        what: str,
        change: SizeChange,
        choices: Sequence[InputChoice],
        large_enough: Collection[int] = (),
        parts: int = 1,
    ) -> None:
        self._graph, self._step, self._what, self._change, self._parts = graph, step, what, change, parts
        sizes = {size for call in step.calls for tensor in call.made.values() for size in tensor.shape}
        probe = change.probe(sizes)
        try:
            self._found = PropagationSearch(step, choices, probe).result()
        except PropagationError as error:
            raise self._refused("NEW", f"another {what} than {change.old}", error) from None
        if not self._found.inputs:
            raise ForetraceError(
                f"no input of {graph.title} holds a {what} of {change.old}",
                f"It is made within the step, or had another value: {what}=NEW/OLD states it.",
            )
        places = [place for place, call in enumerate(step.calls) if call.row >= 0]
        self._shapes = StepShapes(step, probe, certain=True)
        tensors = propagate(self._shapes, self._found, probe)
        self._changing = [p for p in places if self._found.kinds[p] >= 0 or _changes(step.calls[p], tensors)]
        self._caution = self._unchanged_layers(tensors) if what == "batch" else []
        calls, changing = ([step.calls[place] for place in some] for some in (places, self._changing))
        self._template = StepTemplate(graph, calls, changing)
        self._found.inputs = {slot: dims for slot, dims in self._found.inputs.items() if slot not in large_enough}

    def _refused(self, new: int | str, wanted: str, error: PropagationError) -> ForetraceError:
        advice = f"The recorded {self._what} was taken to be {self._change.old}"
        if self._what in GUESSED:
            advice += f"; state another with {self._what}={new}/OLD"
        return ForetraceError(f"{wanted} can't be propagated through {error}", f"{advice}.")

    def _unchanged_layers(self, tensors: dict[int, Tensor]) -> list[str]:
        """A caution where most matrix products and convolutions keep their sizes; raises where all of them do.

        Then something else was resized than the batch that the layers are given, or only a part of the way to them.
        """
        layers = [call for call in self._step.calls if call.op.phase != "optimizer" and _is_product(call.op.name)]
        resized = sum(bool(_resized_sides(call, tensors)) for call in layers)
        stopped = ", ".join(self._unsupported(tensors))
        if layers and not resized:
            raise ForetraceError(
                f"no matrix product or convolution of {self._graph.title}, of {len(layers):,}, changes with a batch of "
                f"{self._change.old}{stopped and f'; the meta device does not support {stopped}'}",
                "The layers are given something else, or what lies before them can't be resized. If the recorded batch "
                "was another, state it: --batch-was OLD, or batch=NEW/OLD.",
            )
        most = 2 * resized < len(layers)
        which = f"only {resized:,} of {len(layers):,} matrix products and convolutions change with it"
        return [f"the batch may be another: {which}; state it with --batch-was"] if most else []

    def to(self, new: int) -> Graph:
        """The step with that size."""
        if new % self._parts:
            raise ForetraceError(
                f"a {self._what} of {new:,} can't be divided between the {self._parts} micro-batches of the step",
                f"Give a multiple of {self._parts}.",
            )
        change = replace(self._change, new=new // self._parts)
        if change.new == change.old:
            return self._graph
        try:
            tensors = propagate(self._shapes, self._found, change)
        except PropagationError as error:
            raise self._refused(new, f"{self._what}={new}", error) from None
        changed = [
            replace(call, args=with_interpretation(call.args, self._found.interpretations[place], change))
            for place, call in ((place, self._step.calls[place]) for place in self._changing)
        ]
        made = self._template.instantiate(changed, tensors)
        made.contents = dict(self._graph.contents)
        for slot, tensor in self._step.inputs.items():
            if tensor.id in made.contents and tensor.numel and tensors[slot].shape != tensor.shape:
                factor = tensors[slot].numel / tensor.numel
                made.contents[tensor.id] = resized_content(made.contents[tensor.id], factor)
        made.indices = [_indices_of(known, self._graph.ops[known.op], made.ops[known.op]) for known in made.indices]
        made.collectives = [
            replace(c, nbytes=_collective_bytes(c.nbytes, self._graph.ops[c.op], made.ops[c.op])) if c.op >= 0 else c
            for c in made.collectives
        ]
        unsupported = [
            f"the meta device does not support {name}: its results are assumed to keep their sizes"
            for name in self._unsupported(tensors)
        ]
        made.notes += [f"{self._what}: {new:,} instead of {change.old * self._parts:,}", *unsupported, *self._caution]
        return made

    def _unsupported(self, tensors: dict[int, Tensor]) -> list[str]:
        """Custom operators whose arguments changed, and whose results are assumed not to."""
        changing = (self._step.calls[place] for place in self._changing)
        custom = (call for call in changing if call.made and operator_path(call.op.name, call.op.overload) is None)
        return list(dict.fromkeys(call.op.name for call in custom if _resized_sides(call, tensors) == {"read"}))


def _is_product(name: str) -> bool:
    return name.removeprefix("aten::").rstrip("_") in PRODUCTS or "convolution" in name


def check_size(what: str, size: int) -> int:
    """The size; raises unless it is a positive integer."""
    if not isinstance(size, int) or size < 1:
        raise ForetraceError(f"{what} can't be {size}", "Give a whole number, 1 or more.")
    return size


def _changes(call: SlotCall, tensors: dict[int, Tensor]) -> bool:
    """Whether the shape or place of a tensor of a call has changed."""
    seen = (*zip(call.reads, call.op.tensors), *call.made.items())
    return any(layout_key(tensors[slot]) != layout_key(was) for slot, was in seen)


def _resized_sides(call: SlotCall, tensors: dict[int, Tensor]) -> set[str]:
    """Which sides of a call, ``read`` and ``made``, have tensors of another shape now."""
    sides = {"read": zip(call.reads, call.op.tensors), "made": call.made.items()}
    return {side for side, seen in sides.items() if any(tensors[slot].shape != was.shape for slot, was in seen)}


def _indices_of(known: Indices, was: Op, now: Op) -> Indices:
    """Index statistics of a lookup whose tensors have other shapes."""

    def new(size: int) -> int:
        for old_tensor, new_tensor in zip(was.tensors, now.tensors):
            if old_tensor.shape != new_tensor.shape:
                for before, after in zip(old_tensor.shape, new_tensor.shape):
                    if before == size:
                        return after
                if old_tensor.numel == size:
                    return new_tensor.numel
        return size

    sizes = rows, count, bags = new(known.rows), new(known.count), new(known.bags)
    return known if sizes == (known.rows, known.count, known.bags) else resized_indices(known, rows, count, bags)


def _collective_bytes(nbytes: int, was: Op, now: Op) -> int:
    """Bytes of a collective whose tensors have other shapes."""
    before, after = (sum(tensor.nbytes for tensor in op.tensors) for op in (was, now))
    return round(nbytes * after / before) if before else nbytes


CONTENT_COUNTS = {"ids": ("unique", "nones"), "even": ("total",), "bags": ("total", "bags"), "offsets": ("last",)}
"""Parameters of a content that grow with its tensor."""
CONTENT_HISTOGRAMS = {"ids": "reuse", "offsets": "steps"}


def resized_content(content: Content, factor: float) -> Content:
    """The content of a tensor that is longer by a factor.

    >>> resized_content(Content("offsets", {"first": 0, "last": 100, "steps": [0, 10]}), 2.0).facts["last"]
    200
    """
    facts: dict[str, Any] = dict(content.facts)
    if content.kind == "values":
        return _content_like(facts["values"])
    for name in CONTENT_COUNTS.get(content.kind, ()):
        if name in facts:
            facts[name] = round(facts[name] * factor)
    if (name := CONTENT_HISTOGRAMS.get(content.kind, "")) in facts:
        facts[name] = [round(count * factor) for count in facts[name]]
        if content.kind == "ids":
            facts["unique"] = sum(facts[name])
    return Content(content.kind, facts)


def _content_like(values: list[Any]) -> Content:
    """A content for more values like some that are known exactly."""
    if all(isinstance(value, int) for value in values):
        return Content("constant", {"value": values[0] if values else 0})
    return Content("uniform", {"low": float(min(values)), "high": float(max(values))})


def resized_indices(indices: Indices, rows: int, count: int, bags: int) -> Indices:
    """Index statistics for a table of other rows, or for another number of ids.

    The recorded ids look as if drawn uniformly from a pool of rows; the new number of distinct rows is what that many
    uniform draws would give.

    >>> resized_indices(Indices(0, rows=1000, count=1000, unique=632, bags=10, reuse=(368, 264)), 1000, 2000, 20).unique
    864
    """
    pool = _uniform_pool(indices) * rows / max(indices.rows, 1)
    unique = min(rows, count, max(1, round(-pool * expm1(-count / pool)))) if count else 0
    reuse_factor = count / max(indices.count, 1) * indices.unique / max(unique, 1)
    shift = log2(reuse_factor) if reuse_factor > 0 else 0.0
    reuse = _shifted(indices.reuse, shift, unique)
    return replace(indices, rows=rows, count=count, unique=unique, bags=bags, reuse=reuse)


def _uniform_pool(indices: Indices) -> float:
    """Rows from which as many uniform draws would give as many distinct ones as recorded."""
    if indices.unique >= indices.count:
        return float(max(indices.rows, indices.count))
    low, high = 1.0, float(max(indices.rows, 2))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if -middle * expm1(-indices.count / middle) < indices.unique else (low, middle)
    return high


def _shifted(reuse: tuple[int, ...], shift: float, unique: int) -> tuple[int, ...]:
    """A reuse histogram of so many rows, each read 2^shift times as often."""
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
