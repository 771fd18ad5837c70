"""The forward of a step as a program that calls it again, under autograd, on tensors like those that it had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from foretrace.graph import Constant, Graph, Op, Tensor
from foretrace.graph.operators import LAYOUTS, MEMORY_FORMATS, target
from foretrace.graph.tensor import ITEMSIZE
from foretrace.transforms.composites import Composite, composites
from foretrace.transforms.linked import Linked, Slot, slots_in
from foretrace.transforms.on_meta import empty, operator
from foretrace.transforms.step import needs_arguments
from foretrace.transforms.update import updated

Around = Callable[[], AbstractContextManager[Any]]


class Forward:
    """What a flat step's forward calls, and what it is given.

    Attributes
    ----------
    ops
        All calls of the step.
    tail
        Rows of the side calls at its end: there a recorded step waits for the device.
    composites
        Those of its forward, put together to what the program called.
    inputs
        What was there before the step and the forward reads, by slot.
    pairs
        Weights that the optimizer changes, each with its gradient.
    """

    def __init__(self, graph: Graph) -> None:
        self.ops: list[Op] = list(graph.ops)
        needs_arguments(self.ops, graph.source)
        self.pairs = updated(graph)
        step = Linked(self.ops)
        end = max((row for row, op in enumerate(self.ops) if not op.is_side_call), default=-1)
        self.tail = range(end + 1, len(self.ops))
        calls = [call for call in step.calls if call.op.phase in ("forward", "other") and call.row not in self.tail]
        read = {slot for call in calls for slot in call.reads}
        self.inputs: dict[int, Tensor] = {slot: tensor for slot, tensor in step.inputs.items() if slot in read}
        self.composites = composites(calls, self.inputs.__contains__)

    @property
    def on_gpu(self) -> bool:
        """Whether any of it is on a GPU."""
        return any(tensor.device.startswith("cuda") for tensor in self.inputs.values())


class Program:
    """The forward as a function that calls it; each composite inside a module whose name is its number."""

    def __init__(self, forward: Forward, around: Around, then: Sequence[Composite]) -> None:
        import torch

        numbered = type("Numbered", (torch.nn.Module,), {"forward": lambda module, call: call()})
        self._torch, self._forward, self._around = torch, forward, around
        self._root: Any = numbered()
        self._calls = _with(forward.composites, then)
        for number in {number for number, _ in self._calls}:
            self._root.add_module(str(number), numbered())
        trained = {weight.storage for weight, _ in forward.pairs}
        self._given = {slot: self._like(tensor, trained) for slot, tensor in forward.inputs.items()}
        storages = {forward.inputs[slot].storage: tensor for slot, tensor in self._given.items()}
        self._weights = [storages[weight.storage] for weight, _ in forward.pairs]

    def _like(self, tensor: Tensor, trained: set[int]) -> Any:
        made = empty(tensor, tensor.device.partition(":")[0] or "cpu")
        return self._torch.nn.Parameter(made) if tensor.storage in trained else made

    def step(self) -> None:
        """What is watched: inputs are shown first, weights and gradients last."""
        for weight in self._weights:
            weight.grad = None
        for tensor in self._given.values():
            tensor.detach()
        self._root(lambda: None)  # now the names of the modules in it are known
        self._run()
        for weight in self._weights:
            weight.detach()
            weight.grad.detach()

    def _run(self) -> None:
        held = dict(self._given)
        keep = Lifetimes(self._forward, self._calls)
        modules = dict(self._root.named_children())
        with ExitStack() as opened:
            opened.enter_context(self._around())
            for place, (number, composite) in enumerate(self._calls):
                for slot in keep.before(place):
                    held.pop(slot, None)
                if keep.begins_backward(composite):
                    opened.close()
                    held[composite.calls[0].reads[0]].backward()
                    opened.enter_context(self._around())
                else:
                    modules[str(number)](partial(self._call, composite, held))

    def _call(self, composite: Composite, held: dict[int, Any]) -> None:
        function, defaults = self._function(composite)
        args = [self._value(value, held) for value in composite.args]
        kwargs = {key: self._value(value, held) for key, value in composite.kwargs.items()}
        made = function(*args, *defaults[len(args) :], **kwargs)
        results = made if isinstance(made, (list, tuple)) and len(composite.makes) != 1 else [made]
        for slot, result in zip(composite.makes, results):
            numbers = list(slots_in(slot))
            held.update(zip(numbers, result if isinstance(result, (list, tuple)) else [result]))

    def _function(self, composite: Composite) -> tuple[Any, list[Any]]:
        """What to call, and what its arguments are where nobody gave them.

        A function of PyTorch where autocast knows it by that name, else the op itself, which knows its own defaults.
        """
        torch = self._torch
        short = composite.name.removeprefix("aten::")
        if not composite.is_op or short in _known_to_autocast():
            homes = (torch, torch.nn.functional, torch._C._nn, torch.Tensor)
            function = next(getattr(home, short) for home in homes if hasattr(home, short))
            return function, _defaults(self._op(composite)) if composite.is_op else []
        return self._op(composite), []

    def _op(self, composite: Composite) -> Any:
        known = target(composite.name, composite.calls[0].op.overload)
        if known is None:
            raise ValueError(f"nobody knows {composite.name}")
        return operator(known)

    def _value(self, value: Any, held: dict[int, Any]) -> Any:
        if isinstance(value, Slot):
            return held[value.number]
        if isinstance(value, Constant):
            return self._constant(value)
        return [self._value(item, held) for item in value] if isinstance(value, (list, tuple)) else value

    def _constant(self, value: Constant) -> Any:
        torch = self._torch
        if value.kind == "device":
            return torch.device(value.value.partition(":")[0])
        if value.kind == "dtype" and value.value in ITEMSIZE:
            return getattr(torch, value.value)
        if value.value in (*LAYOUTS, *MEMORY_FORMATS):
            return getattr(torch, value.value)
        return float(value.value) if value.kind == "float" else None


def _defaults(op: Any) -> list[Any]:
    """What an op's arguments are by default, None for those that have to be given."""
    schema = getattr(op, "_schema", None) or getattr(op, "default", op)._schema  # a trace may not say which overload
    return [argument.default_value for argument in schema.arguments if not argument.kwarg_only]


def _known_to_autocast() -> frozenset[str]:
    from foretrace.record.cuda_autocast import FULL, FULL_RESULT, LOWER, WIDEST

    return frozenset((*LOWER, *FULL, *FULL_RESULT, *WIDEST))


def _with(known: Sequence[Composite], then: Sequence[Composite]) -> list[tuple[int, Composite]]:
    """Composites with more behind some; new ones have numbers of their own."""
    behind = {id(new.calls[-1]): (len(known) + place, new) for place, new in enumerate(then)}
    calls = []
    for number, composite in enumerate(known):
        calls.append((number, composite))
        calls += [behind[id(call)] for call in composite.calls if id(call) in behind]
    return calls


class Lifetimes:
    """When a program lets go of what it made.

    A tensor that the step freed in its forward is let go at the same place. One that it freed in backward was held by
    autograd by then: the program let go of it after its last use. What outlived backward outlives it again.
    """

    def __init__(self, forward: Forward, calls: Sequence[tuple[int, Composite]]) -> None:
        ops = forward.ops
        freed = {number: row for row, op in enumerate(ops) for number in op.frees}
        self._phases = [op.phase for op in ops]
        place_of = {call.row: place for place, (_, one) in enumerate(calls) for call in one.calls}
        last: dict[int, int] = {}
        storage: dict[int, int] = {}
        for place, (_, composite) in enumerate(calls):
            for call in composite.calls:
                last.update(dict.fromkeys((*call.reads, *call.made), place))
                storage.update({slot: tensor.storage for slot, tensor in call.made.items()})
        self._ends: dict[int, list[int]] = {}
        for slot, number in storage.items():
            row = freed.get(number)
            if row is None or ops[row].phase == "optimizer":
                continue
            self._ends.setdefault(max(place_of.get(row, 0), last[slot] + 1), []).append(slot)

    def before(self, place: int) -> list[int]:
        """Slots that nobody holds when a call is made."""
        return self._ends.get(place, [])

    def begins_backward(self, composite: Composite) -> bool:
        """Whether it is what ``backward`` calls first: the gradient of the loss."""
        row = composite.calls[0].row + 1
        return composite.name == "aten::ones_like" and row < len(self._phases) and self._phases[row] == "backward"
