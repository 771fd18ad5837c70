"""The inputs of a step with another batch: which of them hold it, and what is in them then."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from foretrace.graph import Content, ForetraceError, Tensor
from foretrace.replay.literals import Name
from foretrace.replay.plan import Call, Input, Plan
from foretrace.replay.variables import dense_strides


@dataclass(frozen=True)
class Scale:
    """From one batch to another.

    >>> Scale(8, 16).of(24), Scale(8, 16).holds(24), Scale(8, 16).holds(12)
    (48, True, False)
    """

    old: int
    new: int

    def of(self, size: int) -> int:
        """A size that holds the batch, with the new one; others stay as they are."""
        return size // self.old * self.new if self.old and size % self.old == 0 else size

    def holds(self, value: object) -> bool:
        """Whether a number may hold the batch."""
        return isinstance(value, int) and not isinstance(value, bool) and value >= self.old and value % self.old == 0


def batch_of(plan: Plan) -> int:
    """The batch that a step was recorded with: the size that most inputs of the model begin with a multiple of."""
    data = (entry.tensor for entry in plan.inputs if _is_data(entry, plan) and not _is_statistic(entry.tensor))
    sizes = [tensor.shape[0] for tensor in data if tensor.shape]
    counts = Counter(size for size in sizes if size > 1)
    if not counts:
        raise ForetraceError(f"{plan.source} does not show its batch", "Say what it was: --batch NEW/OLD.")
    return max(counts, key=lambda size: log2(size) * sum(n for other, n in counts.items() if other % size == 0))


def check_batch(plan: Plan, old: int) -> None:
    """Refuse a recorded batch that no input has as a size, or begins with a multiple of."""
    data = [entry.tensor for entry in plan.inputs if _is_data(entry, plan)]
    firsts = [tensor.shape[0] for tensor in data if tensor.shape and not _is_statistic(tensor)]
    if any(old in tensor.shape for tensor in data) or (old > 1 and any(n and n % old == 0 for n in firsts)):
        return
    sizes = ", ".join(str(size) for size, _ in Counter(firsts).most_common(5)) or "nothing that holds a batch"
    raise ForetraceError(
        f"{plan.source} was not recorded with a batch of {old}: its inputs begin with {sizes}",
        "Leave out what was recorded, and it is found: --batch NEW.",
    )


def _is_data(entry: Input, plan: Plan) -> bool:
    """Whether an input is no parameter: nothing that the optimizer, or a call without the batch, works on."""
    if entry.memory is None or entry.tensor.storage in _trained(plan):
        return False
    first = next((call for call in plan.calls if entry.name in call.variables), None)
    return first is not None and first.phase in ("forward", "other")


def _is_statistic(tensor: Tensor) -> bool:
    """Whether a tensor is like those that norms keep: a number for each channel."""
    return len(tensor.shape) == 1 and not tensor.dtype.startswith("int")


def _trained(plan: Plan) -> set[int]:
    """Storages that the optimizer reads."""
    storages = {entry.name: entry.tensor.storage for entry in plan.inputs}
    for call in plan.calls:
        storages.update({name: tensor.storage for name, tensor in call.made.items()})
    read = (name for call in plan.calls if call.phase == "optimizer" for name in call.variables)
    return {storages[name] for name in read if storages.get(name, -1) >= 0}


def choices_of(entry: Input, plan: Plan, scale: Scale) -> list[Tensor]:
    """The ways an input may look with the new batch, likely ones first."""
    tensor = entry.tensor
    if not tensor.shape or not _is_data(entry, plan):
        return [tensor]
    options = []
    first = tensor.shape[0]
    if scale.holds(first):
        options.append(_longer(tensor, 0, scale.of(first)))
    elif len(tensor.shape) == 1 and tensor.dtype.startswith("int") and scale.holds(first - 1):
        options.append(_longer(tensor, 0, scale.of(first - 1) + 1))  # offsets, with the end of the last bag
    options.insert(0 if _is_statistic(tensor) else len(options), tensor)
    options += [_longer(tensor, dim, scale.of(n)) for dim, n in enumerate(tensor.shape) if dim and scale.holds(n)]
    return options


def _longer(tensor: Tensor, dim: int, size: int) -> Tensor:
    shape = (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
    dense = tensor.stride in (None, dense_strides(tensor.shape))
    return replace(tensor, shape=shape, stride=dense_strides(shape) if dense else tensor.stride)


def lengthened(plan: Plan, calls: list[Call], shapes: dict[Name, Tensor], scale: Scale) -> Plan:
    """The plan with these calls, and with inputs of these shapes."""
    share = scale.new / scale.old
    sizes: dict[int, int] = {}
    for tensor in (shapes[name] for call in calls for name in call.made):
        sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), _reach(tensor))
    inputs = []
    memories = {memory.name: replace(memory, nbytes=0) for memory in plan.memories}
    for entry in plan.inputs:
        tensor = shapes[entry.name]
        memory = entry.memory
        if memory is not None:
            grown = tensor.shape != entry.tensor.shape
            nbytes = max(_reach(tensor), 0 if grown else memory.nbytes)
            memory = memories.setdefault(memory.name, replace(memory, nbytes=0))
            memory.nbytes = max(memory.nbytes, nbytes)
        content = entry.content if tensor.shape == entry.tensor.shape else _resized(entry.content, share)
        inputs.append(replace(entry, tensor=tensor, memory=memory, content=content))
    return replace(
        plan,
        memories=list(memories.values()),
        inputs=inputs,
        calls=calls,
        sizes={**plan.sizes, **sizes},
        whole=False,
        received={number: _resized(content, share) for number, content in plan.received.items()},
        notes=[
            *plan.notes,
            f"a batch of {scale.new} instead of {scale.old}: the original's figures are not comparable",
        ],
    )


def _reach(tensor: Tensor) -> int:
    """Bytes from the start of its storage to its last element."""
    steps = tensor.stride or dense_strides(tensor.shape)
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, steps))
    return (last + 1) * tensor.itemsize if tensor.numel else 0


COUNTS = {"ids": ("unique", "nones"), "even": ("total",), "bags": ("total", "bags"), "offsets": ("last",)}
"""Figures of a content that grow with the batch."""
HISTOGRAMS = {"ids": "reuse", "offsets": "steps"}


def _resized(content: Content, share: float) -> Content:
    """The content for a tensor of another length."""
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
