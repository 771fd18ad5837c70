"""Expert parallel: each rank keeps some of the experts of every mixture, and tokens travel to them and back.

A mixture is told by its products: many at once, with a weight that has a dimension for the experts (experts, inputs,
outputs). What such a product reads is sent to the ranks of its experts (all_to_all), so that each has all ranks' tokens
for its own; what leaves the mixture is sent back. Backward goes the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foretrace.graph import ForetraceError, Graph, Op, Tensor
from foretrace.graph.op import with_tensors
from foretrace.graph.tensor import contiguous_strides
from foretrace.transforms.draft import Draft, ProcessGroup, draft_of
from foretrace.transforms.parallel.splitting import Key, key_of
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import weights_of

PRODUCTS = ("aten::bmm", "aten::baddbmm")
NONE = 0
"""Instead of the dimension of tokens: a weight of the experts, or its gradient, has none."""


def expert_parallel(graph: Graph, ways: int) -> Graph:
    """The step of one of so many ranks that share the experts, each with its own batch.

    Parameters
    ----------
    graph
        The step of one rank, which has all experts.
    ways
        How many ranks.
    """
    draft = draft_of(graph, "expert parallel")
    group = ProcessGroup("experts", tuple(range(ways)))
    calls, _ = with_experts(draft, draft.calls, group)
    note = f"experts on {ways} ranks were not in the step that was given"
    return draft.graph_of(calls, 0, ways, note)


def with_experts(draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup) -> tuple[list[EditedCall], set[int]]:
    """The calls of a step with its experts on the ranks of a group; and the storages of these experts' gradients."""
    ops = [call.op for call in calls]
    found = weights_of(ops, draft.graph.source)
    experts = _experts(ops, set(found.weights), draft.graph.source, group.size)
    mixture = _Mixture(draft, group, experts)
    written = [one for call in calls for one in mixture.through(call)]
    own = {g.tensor.storage for g in found.gradients if mixture.tokens.get(key_of(g.tensor)) == NONE}
    return written, own


def _experts(ops: Sequence[Op], weights: set[int], source: str, ways: int) -> dict[int, int]:
    """Weights that have a dimension for the experts, and how many experts."""
    found = {
        t.storage: t.shape[0]
        for op in ops
        if op.phase == "forward" and op.name in PRODUCTS
        for t in op.tensors
        if t.storage in weights and len(t.shape) == 3
    }
    if not found:
        raise ForetraceError(
            f"{source or 'the graph'} has no experts",
            "They are told by aten::bmm with a weight of (experts, inputs, outputs).",
        )
    odd = next((op for op in ops for t in op.tensors if found.get(t.storage, ways) % ways), None)
    if odd is not None:
        count = next(found[t.storage] for t in odd.tensors if t.storage in found)
        where = f" of {odd.module}" if odd.module else ""
        raise ForetraceError(
            f"the {count} experts{where} can't be divided over {ways} ranks", "Give a number that divides them."
        )
    return found


class _Mixture:
    """Follows tokens into the experts and out of them."""

    def __init__(self, draft: Draft, group: ProcessGroup, experts: dict[int, int]) -> None:
        self.draft, self.group, self.experts = draft, group, experts
        self.tokens: dict[Key, int] = {}
        """Where the dimension of tokens is, of what lies with the experts."""
        self.there: dict[Key, Tensor] = {}
        """What arrived at the experts."""
        self.back: dict[Key, Tensor] = {}
        """What came back from them."""

    def through(self, call: EditedCall) -> list[EditedCall]:
        """A call, with the exchanges before it that it needs."""
        op = call.op
        before: list[EditedCall] = []
        if op.name in PRODUCTS and any(self._with_experts(t) for t in op.tensors):
            before = [self._exchange(t, op) for t in op.tensors if not self._with_experts(t) and len(t.shape) == 3]
        elif any(self._with_experts(t) for t in op.tensors) and not self._stays(op):
            due = {key_of(t): t for t in op.tensors if self.tokens.get(key_of(t), NONE) != NONE}
            before = [self._exchange(t, op) for key, t in due.items() if key not in self.back]
            return [*before, replace(call, op=with_tensors(op, lambda t: self.back.get(key_of(t), t)))]
        self._follow(op)
        return [*before, replace(call, op=with_tensors(op, self._placed))]

    def _with_experts(self, tensor: Tensor) -> bool:
        return tensor.storage in self.experts or key_of(tensor) in self.tokens

    def _stays(self, op: Op) -> bool:
        """Whether a call leaves tokens with their experts: all it reads is there, and all it makes begins with them."""
        counts = {t.shape[0] for t in op.tensors if self._with_experts(t)}
        strange = any(len(t.shape) == 3 and not self._with_experts(t) for t in op.tensors)
        apart = all(t.shape and t.shape[0] in counts and len(t.shape) == 3 for t in op.produced)
        return op.phase == "optimizer" or (apart and not strange)

    def _follow(self, op: Op) -> None:
        if not any(self._with_experts(t) for t in op.tensors):
            return
        places = {key_of(t): self.tokens.get(key_of(t), NONE) for t in op.tensors if self._with_experts(t)}
        at = next((place for place in places.values() if place != NONE), NONE)
        if op.name in PRODUCTS:
            left, right = (places[key_of(t)] for t in op.tensors[-2:])
            at = NONE if left == 2 and right == 1 else 1 if left == 1 else 2 if right == 2 else NONE
        elif op.name in ("aten::transpose", "aten::permute") and at != NONE:
            at = 3 - at
        for tensor in op.produced:
            self.tokens[key_of(tensor)] = at
        if op.phase == "optimizer":
            self._follow_update(op)

    def _follow_update(self, op: Op) -> None:
        lists = [a for a in op.args if isinstance(a, list) and a and isinstance(a[0], Tensor)]
        for same in zip(*lists) if lists else [op.tensors]:
            if any(self._with_experts(t) for t in same):
                self.tokens |= {key_of(t): NONE for t in same if t.shape}

    def _placed(self, tensor: Tensor) -> Tensor:
        """A tensor as it is on this rank."""
        if not self._with_experts(tensor) or not tensor.shape:
            return tensor
        at = self.tokens.get(key_of(tensor), NONE)
        shape = [tensor.shape[0] // self.group.size, *tensor.shape[1:]]
        if at != NONE:
            shape[at] *= self.group.size
        return replace(self.there.get(key_of(tensor), tensor), shape=tuple(shape), stride=contiguous_strides(shape))

    def _exchange(self, tensor: Tensor, like: Op) -> EditedCall:
        """Tokens to their experts, or back from them."""
        key = key_of(tensor)
        if key in self.tokens:
            home = self.draft.copy(tensor)
            self.back[key] = home
            return self.draft.collective("all_to_all", self.group, home, self._placed(tensor), like)
        transposed = tensor.stride is not None and tensor.stride[1] < tensor.stride[2]
        self.tokens[key], self.there[key] = 2 if transposed else 1, self.draft.copy(tensor)
        return self.draft.collective("all_to_all", self.group, self._placed(tensor), tensor, like)
