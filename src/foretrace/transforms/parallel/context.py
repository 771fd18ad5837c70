"""Context parallel: each rank works on a part of every sequence; only attention needs the parts of the others.

With ``ring`` keys and values travel from rank to rank while attention on those that are there already is computed, and
partial results are merged by their log-sum-exp, as PyTorch's ``context_parallel`` with ``alltoall`` rotation does; with
``all-gather`` they are gathered at once, its default. Of causal attention each rank has a part from the head of the
sequence and one from the tail, so that all have the same work. With ``all-to-all`` heads are traded for the sequence
before attention and back after it, as DeepSpeed-Ulysses does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.graph.op import Constant, Value, contiguous_strides
from foretrace.graph.operators import ATTENTION_PREFIX
from foretrace.transforms.draft import Draft, ProcessGroup, allocation, call_like, freed_after_last_use
from foretrace.transforms.parallel.schedules import ALL_GATHER, ALL_TO_ALL, data_tensors, on_part
from foretrace.transforms.parallel.split_rules import ATTENTION, RULES, elementwise
from foretrace.transforms.parallel.splitting import ConflictError, Key, Splitting, key_of, preexisting_tensors
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import FULL, weights_of

SEQUENCE, HEADS = 2, 1
"""Dimensions of queries, keys and values."""
FORWARD = {
    "flash_attention": 4, "efficient_attention": 6, "cudnn_attention": 6, "fused_attention_overrideable": 5,
    "flash_attention_for_cpu": 4,
}  # fmt: skip
"""Kinds of attention, and the position of ``is_causal`` among the arguments."""
BACKWARD = {
    "flash_attention": 11, "efficient_attention": 11, "cudnn_attention": 14, "fused_attention_overrideable": 14,
    "flash_attention_for_cpu": 7,
}  # fmt: skip
SAVED = {"efficient_attention": 5}
"""Position of the result among the arguments of backward, where it is not `SAVED_BY_MOST`; log-sum-exp follows it."""
SAVED_BY_MOST = 4


def attention_kind(op: Op) -> str:
    """Which attention a call is, forward or backward; empty for other calls.

    >>> attention_kind(Op("aten::_scaled_dot_product_flash_attention_backward")), attention_kind(Op("aten::mm"))
    ('flash_attention', '')
    """
    kind = op.name.removeprefix(ATTENTION_PREFIX).removesuffix("_backward")
    return kind if op.name.startswith(ATTENTION_PREFIX) and kind in ATTENTION else ""


def split_sequences(ops: Sequence[Op], ranks: int, kind: str, source: str = "") -> list[Op]:
    """The calls of a step on one of several equal parts of each sequence; attention on the part alone."""
    length = _sequence_length(ops, ranks, kind, source)
    preexisting = preexisting_tensors(ops)
    wanted = _sequences(ops, length, preexisting)
    if not wanted:
        raise ForetraceError(
            f"{source or 'the graph'} reads no sequences of {length}, the length that attention sees",
            "Context parallel splits what the step is given. Leave out context.",
        )
    splittable: set[Key] = set()
    while True:
        splitting = Splitting(ranks, RULES, elementwise, wanted, preexisting, splittable)
        untrained = set(preexisting) - weights_of(ops, source).weights.keys()
        made: list[Op] = []
        reduced: dict[tuple[int, ...], int] = {}
        try:
            for op in ops:
                made.append(on_part(splitting, op, reduced))
                if op.phase != "optimizer" and all(t.storage in untrained for t in op.tensors):
                    untrained |= {t.storage for t in op.produced}
                    splittable |= {key_of(t) for t in op.produced}  # masks and positions: ranks take what they need
        except ConflictError as error:
            raise splitting.refused(error, "context parallel") from None
        if not splitting.again:
            return made


def _sequence_length(ops: Sequence[Op], ranks: int, kind: str, source: str) -> int:
    """The length of the sequences that most attention is over; raises where the ranks can't share it."""
    calls = [op for op in ops if attention_kind(op)]
    lengths = Counter(op.tensors[0].shape[SEQUENCE] for op in calls if op.phase == "forward")
    if not lengths:
        raise ForetraceError(
            f"{source or 'the graph'} calls no scaled_dot_product_attention, which context parallel ranks share",
            "Attention that is written out can't be shared. Leave out context.",
        )
    length = lengths.most_common(1)[0][0]
    halves = 2 if kind != ALL_TO_ALL and any(_is_causal(op) for op in calls) else 1
    if length % (halves * ranks):
        each = "two parts for each of " if halves > 1 else ""
        raise ForetraceError(
            f"sequences of {length} can't be divided into {each}{ranks} context parallel ranks",
            "Give a number that divides them.",
        )
    masked = next((op for op in calls if _mask(op) is not None), None)
    if masked is not None:
        raise ForetraceError(
            f"context parallel: attention in {masked.module or 'the step'} takes a mask, of which no rank has all",
            "Give is_causal=True in its place, as PyTorch's context_parallel requires.",
        )
    return length


def _sequences(ops: Sequence[Op], length: int, preexisting: dict[int, Tensor]) -> dict[Key, int]:
    """What a step is given that has a dimension of the sequence's length: token ids, else activations."""
    ids = (op.args[1] for op in ops if op.name == "aten::embedding" and op.phase == "forward")
    found = {key_of(t): len(t.shape) - 1 for t in ids if isinstance(t, Tensor) and t.shape and t.shape[-1] == length}
    if found:
        return found
    data = [t for t in data_tensors(ops, preexisting) if length in t.shape[:2] and len(t.shape) > 1]
    return {key_of(t): 1 if t.shape[1] == length else 0 for t in data}


def share_attention(draft: Draft, calls: Sequence[EditedCall], group: ProcessGroup, kind: str) -> list[EditedCall]:
    """The calls of a step on its part of each sequence, with attention over the whole of it."""
    sharing = _AllToAll(draft, group) if kind == ALL_TO_ALL else _Ring(draft, group, gathers=kind == ALL_GATHER)
    made: list[EditedCall] = []
    for call in calls:
        if not attention_kind(call.op):
            made.append(call)
            continue
        shared = sharing.backward(call.op) if call.op.name.endswith("_backward") else sharing.forward(call.op)
        first = shared[0].op
        first.frees = (*call.op.frees, *first.frees)
        made += shared
    for call in made if sharing.exchanged else ():
        if not sharing.exchanged.isdisjoint(call.op.frees):
            call.op = replace(call.op, frees=tuple(s for s in call.op.frees if s not in sharing.exchanged))
    freed_after_last_use(made, sharing.temporary | sharing.exchanged, sharing.held)
    return made


def _is_causal(op: Op) -> bool:
    places = BACKWARD if op.name.endswith("_backward") else FORWARD
    place = places[attention_kind(op)]
    return bool(op.args[place]) if place < len(op.args) else bool(op.kwargs.get("is_causal", False))


def _mask(op: Op) -> Tensor | None:
    """The mask of a forward; those of backward are the same."""
    given = [*op.args[3:5], op.kwargs.get("attn_bias"), op.kwargs.get("attn_mask")]
    masks = (value for value in given if isinstance(value, Tensor) and len(value.shape) > 1)
    return None if op.name.endswith("_backward") else next(masks, None)


def _dense_like(tensor: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor of another shape whose dimensions lie in memory as those of a tensor do."""
    strides, step = [0] * len(shape), 1
    known = tensor.stride or contiguous_strides(tensor.shape)
    for dim in sorted(range(len(shape)), key=lambda dim: (known[dim], -dim)):
        strides[dim], step = step, step * shape[dim]
    return tuple(strides)


class _Sharing:
    """Puts the calls together that stand for one call of attention, named as PyTorch names them."""

    def __init__(self, draft: Draft, group: ProcessGroup) -> None:
        self.draft, self.group, self.ranks = draft, group, group.size
        self.made: list[EditedCall] = []
        self.like = Op("")
        self.temporary: set[int] = set()
        """Storages that are freed after their last use."""
        self.exchanged: set[int] = set()
        """Storages of what is given to attention, and that backward no longer reads."""
        self.held: dict[int, int] = {}
        """Storages that variables of a loop hold until its next turn, by a storage that is made then."""
        self.saved: dict[int, list[Tensor]] = {}
        """What each forward keeps for backward, by the storage of its result."""

    def begin(self, op: Op) -> None:
        self.made, self.like = [], op

    def call(self, name: str, args: tuple[object, ...], outputs: tuple[object, ...], overload: str = "default") -> None:
        op = call_like(name, args, outputs, self.like)
        op.overload = overload
        self.made.append(EditedCall(op))

    def new(self, shape: Sequence[int], like: Tensor, dtype: str = "", stride: tuple[int, ...] | None = None) -> Tensor:
        """A tensor that is freed after its last use."""
        made = self.draft.tensor(shape, dtype or like.dtype, like.device)
        self.temporary.add(made.storage)
        return made if stride is None else replace(made, stride=stride)

    def elementwise(self, name: str, one: Tensor, other: Tensor | None = None) -> Tensor:
        """A call with one or two arguments, of the larger one's shape."""
        given = [one] if other is None else [one, other]
        largest = max(given, key=lambda t: t.numel)
        made = self.new(largest.shape, largest, FULL, _dense_like(largest, largest.shape))
        self.call(f"aten::{name}", tuple(given), (made,), "default" if other is None else "Tensor")
        return made

    def add_to(self, whole: Tensor, part: Tensor) -> None:
        self.call("aten::add_", (whole, part), (whole,), "Tensor")

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        if tensor.dtype == dtype:
            return tensor
        made = self.new(tensor.shape, tensor, dtype, _dense_like(tensor, tensor.shape))
        self.cast_into(made, tensor)
        return made

    def cast_into(self, made: Tensor, tensor: Tensor) -> None:
        op = call_like("aten::_to_copy", (tensor,), (made,), self.like, dtype=Constant("dtype", made.dtype))
        self.made.append(EditedCall(op))

    def saved_for(self, op: Op) -> tuple[int, list[Tensor]]:
        """What forward saved for a backward, and where the arguments of that name the result of forward."""
        at = SAVED.get(attention_kind(op), SAVED_BY_MOST)
        out = op.args[at]
        assert isinstance(out, Tensor)
        return at, self.saved[out.storage]

    def contiguous(self, tensor: Tensor) -> Tensor:
        if tensor.stride in (None, contiguous_strides(tensor.shape)):
            return tensor
        made = self.new(tensor.shape, tensor)
        self.call("aten::clone", (tensor,), (made,))
        return made

    def viewed(self, tensor: Tensor, shape: Sequence[int], offset: int = 0) -> Tensor:
        """Some elements of a contiguous tensor, in another shape."""
        view = self.draft.view(tensor, shape, tensor.offset + offset)
        self.call("aten::view", (tensor, list(shape)), (view,))
        return view

    def halves(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of the head and of the tail of the sequence."""
        shape = list(tensor.shape)
        shape[SEQUENCE] //= 2
        step = (tensor.stride or contiguous_strides(tensor.shape))[SEQUENCE]
        offset = tensor.offset + step * shape[SEQUENCE]
        head = replace(tensor, shape=tuple(shape), id=self.draft.tensor_id())
        tail = replace(head, offset=offset, id=self.draft.tensor_id())
        self.call("aten::split", (tensor, shape[SEQUENCE], SEQUENCE), ([head, tail],), "Tensor")
        return head, tail

    def concat(self, parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        made = self.new(shape, parts[0])
        self.call("aten::cat", (list(parts), dim), (made,))
        return made

    def joined(self, *parts: Tensor) -> Tensor:
        """The elements of some tensors, one after the other."""
        return self.concat([self.viewed(part, (part.numel,)) for part in map(self.contiguous, parts)])

    def separated(self, tensor: Tensor, like: Sequence[Tensor], offset: int = 0) -> list[Tensor]:
        """What was `joined`."""
        found = []
        for one in like:
            found.append(self.viewed(tensor, one.shape, offset))
            offset += one.numel
        return found

    def exchange(self, kind: str, given: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Start a collective; what reads its result waits for it."""
        out = self.new(shape or given.shape, given)
        self.made.append(EditedCall(allocation(out, self.like)))
        self.made.append(self.draft.collective(kind, self.group, out, given, self.like))
        return out

    def attention(self, changed: dict[int, Tensor], outputs: tuple[Value, ...], causal: bool) -> None:
        """The call of attention, with other tensors at some positions."""
        op, backward = self.like, self.like.name.endswith("_backward")
        args = [changed.get(place, value) for place, value in enumerate(op.args)]
        place = (BACKWARD if backward else FORWARD)[attention_kind(op)]
        if place < len(args):
            args[place] = causal
        kwargs = {**op.kwargs, **({"is_causal": causal} if "is_causal" in op.kwargs else {})}
        self.made.append(EditedCall(replace(op, args=tuple(args), kwargs=kwargs, outputs=outputs, frees=())))


class _Ring(_Sharing):
    """Ring attention as the first rank of the group computes it.

    Of causal attention it has half of its queries for the keys of each other rank; the last rank has all queries for
    half of the keys. Both are as much work.
    """

    def __init__(self, draft: Draft, group: ProcessGroup, gathers: bool) -> None:
        super().__init__(draft, group)
        self.gathers = gathers

    def travelling(self, keys: Tensor, values: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        """Keys and values of one rank after the other; the next ones are on their way while the caller works."""
        keys, values = self.contiguous(keys), self.contiguous(values)
        arrived: Tensor | None = None
        for step in range(self.ranks):
            if step:
                assert arrived is not None
                offset = step * (keys.numel + values.numel) if self.gathers else 0
                keys, values = self.separated(arrived, (keys, values), offset)
            if step < self.ranks - 1:
                sent = self.joined(keys, values)
                if not self.gathers:
                    arrived = self.exchange("permute", sent)
                elif arrived is None:
                    arrived = self.exchange("all_gather", sent, (self.ranks * sent.numel,))
            yield keys, values

    def forward(self, op: Op) -> list[EditedCall]:
        """Attention to the keys of one rank after the other, merged into one result."""
        self.begin(op)
        queries, keys, values = op.tensors[:3]
        out, lse, *others = op.outputs
        assert isinstance(out, Tensor) and isinstance(lse, Tensor)
        causal = _is_causal(op)
        merged: tuple[Tensor, Tensor] | None = None
        for step, (k, v) in enumerate(self.travelling(keys, values)):
            part = causal and step > 0
            q = self.halves(queries)[1] if part else queries
            made = self._partial(out, q), self._partial(lse, q)
            rest = others if step == self.ranks - 1 else [self._stand_in(other) for other in others]
            self.attention({0: q, 1: k, 2: v}, (*made, *rest), causal and step == 0)
            block = self.cast(made[0], FULL), self._as_column(self.cast(made[1], FULL))
            merged = block if merged is None else self._merge(merged, block, part)
        assert merged is not None
        kept = self.cast(merged[0], out.dtype)
        self.saved[out.storage] = [kept, self.viewed(merged[1], lse.shape)]
        self.call("aten::clone", (kept,), (out,))
        return self.made

    def _partial(self, whole: Tensor, queries: Tensor) -> Tensor:
        shape = list(whole.shape)
        if queries.shape[SEQUENCE] < self.like.tensors[0].shape[SEQUENCE]:
            shape[SEQUENCE] //= 2
        return self.new(shape, whole, stride=_dense_like(whole, shape))

    def _stand_in(self, value: Value) -> Value:
        return self.new(value.shape, value) if isinstance(value, Tensor) else value

    def _as_column(self, lse: Tensor) -> Tensor:
        """Log-sum-exp with a dimension for the elements of a head."""
        return lse if len(lse.shape) > 3 else self.viewed(lse, (*lse.shape, 1))

    def _merge(self, merged: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], part: bool) -> tuple[Tensor, Tensor]:
        (whole_out, whole_lse), (block_out, block_lse) = merged, block
        lse = self.halves(whole_lse)[1] if part else whole_lse
        out = self.halves(whole_out)[1] if part else whole_out
        weight = self.elementwise("sigmoid", self.elementwise("sub", block_lse, lse))
        out = self.elementwise("sub", out, self.elementwise("mul", weight, self.elementwise("sub", out, block_out)))
        weight = self.elementwise("log_sigmoid_forward", self.elementwise("sub", lse, block_lse))
        lse = self.elementwise("sub", lse, weight)
        if not part:
            return out, lse
        lse = self.concat([self.halves(whole_lse)[0], lse], SEQUENCE)
        return self.concat([self.halves(whole_out)[0], out], SEQUENCE), lse

    def backward(self, op: Op) -> list[EditedCall]:
        """Gradients of keys and values travel on with them, and are added up on the way."""
        self.begin(op)
        given, queries, keys, values = op.tensors[:4]
        at, (out, lse) = self.saved_for(op)
        others = op.outputs[3:]
        causal = _is_causal(op)
        dq, dk, dv = (self._zeros(tensor) for tensor in (queries, keys, values))
        sent: Tensor | None = None
        variables: set[int] = set()
        for step, (k, v) in enumerate(self.travelling(keys, values)):
            part = causal and step > 0
            q, o, g, column = (self.halves(t)[1] if part else t for t in (queries, out, given, lse))
            column = self.contiguous(column)
            made = [self.new(t.shape, t, stride=_dense_like(t, t.shape)) for t in (q, k, v)]
            self.attention({0: g, 1: q, 2: k, 3: v, at: o, at + 1: column}, (*made, *others), causal and not step)
            self.held |= dict.fromkeys(variables, made[0].storage)
            if sent is not None:
                dk, dv = self.separated(sent, (dk, dv))
            self.add_to(dk, made[1])
            self.add_to(dv, made[2])
            joined = self.joined(dk, dv)
            variables = {t.storage for t in (k, v, *made, dk, dv, joined)} & self.temporary
            sent = self.exchange("permute", joined)
            if part:
                head, tail = self.halves(dq)
                self.add_to(tail, made[0])
                dq = self.concat([head, tail], SEQUENCE)
            else:
                self.add_to(dq, made[0])
        assert sent is not None
        dk, dv = self.separated(self.cast(sent, keys.dtype), (dk, dv))
        for result, gradient in zip(op.outputs, (dq, dk, dv)):
            assert isinstance(result, Tensor)
            self.call("aten::clone", (self.cast(gradient, result.dtype),), (result,))
        return self.made

    def _zeros(self, like: Tensor) -> Tensor:
        made = self.new(like.shape, like, FULL, _dense_like(like, like.shape))
        self.call("aten::zeros_like", (like,), (made,))
        return made


class _AllToAll(_Sharing):
    """Attention of a part of the heads over whole sequences."""

    def forward(self, op: Op) -> list[EditedCall]:
        """Trade heads for sequence, and back after attention."""
        self.begin(op)
        given = op.tensors[:3]
        out, lse, *others = op.outputs
        assert isinstance(out, Tensor) and isinstance(lse, Tensor)
        for tensor in given:
            if tensor.shape[HEADS] % self.ranks:
                raise ForetraceError(
                    f"context parallel: {tensor.shape[HEADS]} heads in {op.module or 'attention'} can't be divided "
                    f"over {self.ranks} ranks",
                    "Give a number that divides them, or context_kind=ring.",
                )
        whole = [self._with_heads_split(tensor) for tensor in given]
        made = [self._on_heads(tensor) for tensor in (out, lse)]
        self.attention(dict(enumerate(whole)), (*made, *others), _is_causal(op))
        self._with_sequence_split(made[0], out)
        self.saved[out.storage] = [*whole, *made]
        kept = {t.storage for t in (*whole, *made)}
        self.temporary |= kept
        self.exchanged |= {t.storage for t in given}
        return self.made

    def backward(self, op: Op) -> list[EditedCall]:
        """The same for the gradients."""
        self.begin(op)
        at, (queries, keys, values, made, lse) = self.saved_for(op)
        gradient = self._with_heads_split(op.tensors[0])
        results = [value for value in op.outputs[:3] if isinstance(value, Tensor)]
        parts = [self._on_heads(tensor) for tensor in results]
        changed = {0: gradient, 1: queries, 2: keys, 3: values, at: made, at + 1: lse}
        self.attention(changed, (*parts, *op.outputs[3:]), _is_causal(op))
        for part, result in zip(parts, results):
            self._with_sequence_split(part, result)
        return self.made

    def _on_heads(self, tensor: Tensor) -> Tensor:
        """Like a tensor on this rank's heads, over whole sequences."""
        shape = list(tensor.shape)
        shape[HEADS] //= self.ranks
        shape[SEQUENCE] *= self.ranks
        return self.new(shape, tensor, stride=_dense_like(tensor, shape))

    def _with_heads_split(self, tensor: Tensor) -> Tensor:
        whole = self._on_heads(tensor)
        self._trade(tensor, whole)
        return whole

    def _with_sequence_split(self, tensor: Tensor, out: Tensor) -> None:
        self._trade(tensor, out)

    def _trade(self, tensor: Tensor, out: Tensor) -> None:
        """Copy into the order of the ranks that are sent to, send, and copy what arrived into its order."""
        packed = self.new((self.ranks, tensor.numel // self.ranks), tensor)
        self.call("aten::clone", (tensor,), (packed,))
        arrived = self.exchange("all_to_all", packed)
        self.call("aten::clone", (arrived,), (out,))
