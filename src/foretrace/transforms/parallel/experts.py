"""Expert parallel: each rank holds some of the experts of every mixture, and tokens are sent to them and back.

A mixture of experts is recognized by its batched or grouped GEMMs, with a weight of (experts, inputs, outputs). The
tokens that such a GEMM reads are sent to the ranks of their experts (all_to_all), so that each rank has all ranks'
tokens for its own experts; what leaves the mixture is sent back. Backward does the reverse.

Of batched GEMMs each expert has as many tokens. Those of grouped ones are sorted by expert, and none is dropped: ranks
are taken to have as many each, sort what arrives by expert, and back before it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.graph.op import contiguous_strides, with_tensors
from foretrace.transforms.draft import Draft, ProcessGroup, allocation, call_like, freed_after_last_use
from foretrace.transforms.parallel.splitting import Key, key_of
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import weights_of

BATCHED_GEMMS = ("aten::bmm", "aten::baddbmm")
GROUPED_GEMM = "aten::_grouped_mm"
NO_TOKENS = 0
"""In place of the token dimension: a weight of the experts, or its gradient, has none."""


def with_experts(draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup) -> tuple[list[EditedCall], set[int]]:
    """The calls of a step with its experts on the ranks of a group, and the storages of the experts' weights."""
    ops = [call.op for call in calls]
    experts = _expert_weights(ops, set(weights_of(ops, draft.graph.source).weights), draft.graph.source, group.size)
    dropless = any(op.name == GROUPED_GEMM for op in ops)
    if dropless:
        draft.notes.append("experts of each rank are taken to get as many tokens as those of the others")
    mixture = (_Dropless if dropless else _Mixture)(draft, group, experts)
    made = [one for call in calls for one in mixture.apply(call)]
    for call in made:  # what was sent lives on in what arrived
        call.op.frees = tuple(storage for storage in call.op.frees if storage not in mixture.moved)
    freed_after_last_use(made, mixture.moved)
    return made, set(experts)


def expert_count(ops: Sequence[Op]) -> int:
    """How many experts the mixtures of a step have; 1 where it has none, or none that can be split."""
    try:
        return min(_expert_weights(ops, set(weights_of(ops).weights), "", 1).values())
    except ForetraceError:
        return 1


def _expert_weights(ops: Sequence[Op], weights: set[int], source: str, ranks: int) -> dict[int, int]:
    """Weights with a dimension for the experts, and the number of experts."""
    found = {
        t.storage: t.shape[0]
        for op in ops
        if op.phase == "forward" and op.name in (*BATCHED_GEMMS, GROUPED_GEMM)
        for t in op.tensors
        if t.storage in weights and len(t.shape) == 3
    }
    if not found:
        raise ForetraceError(
            f"{source or 'the graph'} has no experts",
            "They are recognized by aten::bmm or aten::_grouped_mm with a weight of (experts, inputs, outputs).",
        )
    odd = next((op for op in ops for t in op.tensors if found.get(t.storage, ranks) % ranks), None)
    if odd is not None:
        count = next(found[t.storage] for t in odd.tensors if t.storage in found)
        where = f" of {odd.module}" if odd.module else ""
        raise ForetraceError(
            f"the {count} experts{where} can't be divided over {ranks} ranks",
            "Give a number of ranks that divides them.",
        )
    return found


class _Mixture:
    """Follows tokens to the experts and back."""

    def __init__(self, draft: Draft, group: ProcessGroup, experts: dict[int, int]) -> None:
        self.draft, self.group, self.experts = draft, group, experts
        self.tokens: dict[Key, int] = {}
        """The token dimension of tensors on the experts' ranks."""
        self.arrived: dict[int, int] = {}
        """Storages of what arrived at the experts' ranks, by those of what was sent."""
        self.arrived_ids: dict[int, int] = {}
        """The same for the ids of tensors."""
        self.returned: dict[Key, Tensor] = {}
        """What was sent back."""
        self.moved: set[int] = set()
        """Storages that are sent, and those that receive."""

    def apply(self, call: EditedCall) -> list[EditedCall]:
        """A call, after the all_to_all calls that it needs."""
        op = call.op
        before: list[EditedCall] = []
        if op.name in BATCHED_GEMMS and any(self._at_experts(t) for t in op.tensors):
            sent = [t for t in op.tensors if not self._at_experts(t) and len(t.shape) == 3]
            before = [call for t in sent for call in self._all_to_all(t, op)]
        elif any(self._at_experts(t) for t in op.tensors) and not self._stays_at_experts(op):
            due = {key_of(t): t for t in op.tensors if self.tokens.get(key_of(t), NO_TOKENS) != NO_TOKENS}
            before = [call for key, t in due.items() if key not in self.returned for call in self._all_to_all(t, op)]
            return [*before, replace(call, op=with_tensors(op, lambda t: self.returned.get(key_of(t), t)))]
        self._propagate(op)
        return [*before, replace(call, op=with_tensors(op, self._on_rank))]

    def _at_experts(self, tensor: Tensor) -> bool:
        return tensor.storage in self.experts or key_of(tensor) in self.tokens

    def _stays_at_experts(self, op: Op) -> bool:
        """Whether a call works on tokens at their experts: all it reads is there, its results begin with experts."""
        counts = {t.shape[0] for t in op.tensors if self._at_experts(t)}
        elsewhere = any(len(t.shape) == 3 and not self._at_experts(t) for t in op.tensors)
        by_expert = all(t.shape and t.shape[0] in counts and len(t.shape) == 3 for t in op.produced)
        return op.phase == "optimizer" or (by_expert and not elsewhere)

    def _propagate(self, op: Op) -> None:
        if not any(self._at_experts(t) for t in op.tensors):
            return
        places = {key_of(t): self.tokens.get(key_of(t), NO_TOKENS) for t in op.tensors if self._at_experts(t)}
        at = next((place for place in places.values() if place != NO_TOKENS), NO_TOKENS)
        if op.name in BATCHED_GEMMS:
            left, right = (places[key_of(t)] for t in op.tensors[-2:])
            at = NO_TOKENS if left == 2 and right == 1 else 1 if left == 1 else 2 if right == 2 else NO_TOKENS
        elif op.name in ("aten::transpose", "aten::permute") and at != NO_TOKENS:
            at = 3 - at
        for tensor in op.produced:
            self.tokens[key_of(tensor)] = at
        if op.phase != "optimizer":
            return
        lists = [a for a in op.args if isinstance(a, list) and a and isinstance(a[0], Tensor)]
        for same in zip(*lists) if lists else [op.tensors]:
            if any(self._at_experts(t) for t in same):
                self.tokens |= {key_of(t): NO_TOKENS for t in same if t.shape}

    def _on_rank(self, tensor: Tensor) -> Tensor:
        """A tensor on this rank: its experts only, with the tokens of all ranks."""
        if not self._at_experts(tensor) or not tensor.shape:
            return tensor
        at = self.tokens.get(key_of(tensor), NO_TOKENS)
        shape = [tensor.shape[0] // self.group.size, *tensor.shape[1:]]
        if at != NO_TOKENS:
            shape[at] *= self.group.size
        storage, number = self.arrived.get(tensor.storage, tensor.storage), self.arrived_ids.get(tensor.id, tensor.id)
        return replace(tensor, shape=tuple(shape), stride=contiguous_strides(shape), id=number, storage=storage)

    def _all_to_all(self, tensor: Tensor, like: Op) -> list[EditedCall]:
        """Send tokens to their experts, or back."""
        key = key_of(tensor)
        if key in self.tokens:
            given, out = self._on_rank(tensor), self.draft.copy(tensor)
            self.returned[key] = out
        else:
            transposed = tensor.stride is not None and tensor.stride[1] < tensor.stride[2]
            self.tokens[key] = 2 if transposed else 1
            self.arrived[tensor.storage], self.arrived_ids[tensor.id] = self.draft.storage_id(), self.draft.tensor_id()
            given, out = tensor, self._on_rank(tensor)
        self.moved |= {given.storage, out.storage}
        return [EditedCall(allocation(out, like)), self.draft.collective("all_to_all", self.group, out, given, like)]


ROWS = 1
"""In place of the token dimension: rows sorted by expert, as many on each rank."""


class _Dropless(_Mixture):
    """Follows tokens to experts that take any number of them."""

    def apply(self, call: EditedCall) -> list[EditedCall]:
        """A call, after the all_to_all calls that it needs."""
        op = call.op
        at_experts = any(self._at_experts(t) for t in op.tensors)
        if not at_experts:
            return [call]
        if op.name == GROUPED_GEMM:
            sent = [t for t in op.tensors[:2] if not self._at_experts(t)]
            before = [one for t in sent for one in self._send(t, op)]
            for made in op.produced:
                self.tokens[key_of(made)] = ROWS if len(made.shape) == 2 else NO_TOKENS
            ends = op.tensors[2:3]  # where the rows of each expert end

            def on_rank(tensor: Tensor) -> Tensor:
                fewer = replace(tensor, shape=(tensor.shape[0] // self.group.size,)) if tensor in ends else tensor
                return self._on_rank(fewer)

            return [*before, replace(call, op=with_tensors(op, on_rank))]
        if not self._stays_at_experts(op):
            due = {key_of(t): t for t in op.tensors if self.tokens.get(key_of(t)) == ROWS}
            before = [one for key, t in due.items() if key not in self.returned for one in self._return(t, op)]
            return [*before, replace(call, op=with_tensors(op, lambda t: self.returned.get(key_of(t), t)))]
        if op.phase == "optimizer":
            self._propagate(op)
        else:
            at = ROWS if any(self.tokens.get(key_of(t)) == ROWS for t in op.tensors) else NO_TOKENS
            self.tokens |= {key_of(made): at for made in op.produced if made.shape}
        return [replace(call, op=with_tensors(op, self._on_rank))]

    def _stays_at_experts(self, op: Op) -> bool:
        """Whether a call works on rows at their experts, and on nothing else of as many rows."""
        rows = {max(t.shape[:2]) for t in op.tensors if self.tokens.get(key_of(t)) == ROWS}
        if op.phase == "optimizer" or not rows:
            return True
        written = {t.storage for t in op.produced}
        others = (t for t in op.tensors if t.shape and not self._at_experts(t) and t.storage not in written)
        return not any(rows & {*t.shape} for t in others) and all(rows & {*made.shape} for made in op.produced)

    def _on_rank(self, tensor: Tensor) -> Tensor:
        if tensor.storage in self.experts or self.tokens.get(key_of(tensor)) == NO_TOKENS:
            return super()._on_rank(tensor)
        storage, number = self.arrived.get(tensor.storage, tensor.storage), self.arrived_ids.get(tensor.id, tensor.id)
        return replace(tensor, id=number, storage=storage)

    def _send(self, tensor: Tensor, like: Op) -> list[EditedCall]:
        """Send rows to the ranks of their experts, and sort what arrives by expert."""
        self.tokens[key_of(tensor)] = ROWS
        self.arrived[tensor.storage], self.arrived_ids[tensor.id] = self.draft.storage_id(), self.draft.tensor_id()
        got = replace(self.draft.copy(tensor), stride=contiguous_strides(tensor.shape))
        self.moved |= {tensor.storage, got.storage, self.arrived[tensor.storage]}
        arrived = self._on_rank(tensor)
        exchange = self.draft.collective("all_to_all", self.group, got, tensor, like)
        return [EditedCall(allocation(got, like)), exchange, self._sorted(got, arrived, like)]

    def _return(self, tensor: Tensor, like: Op) -> list[EditedCall]:
        """Sort rows by the rank that they came from, and send them back."""
        made, given, out = self._on_rank(tensor), self.draft.copy(tensor), self.draft.copy(tensor)
        self.returned[key_of(tensor)] = out
        self.moved |= {made.storage, given.storage, out.storage}
        exchange = self.draft.collective("all_to_all", self.group, out, given, like)
        return [self._sorted(made, given, like), EditedCall(allocation(out, like)), exchange]

    def _sorted(self, given: Tensor, made: Tensor, like: Op) -> EditedCall:
        order = self.draft.tensor((max(given.shape),), "int64", given.device)
        return EditedCall(call_like("aten::index_select", (given, 0, order), (made,), like))
