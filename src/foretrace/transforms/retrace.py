"""A step's forward called again on paper, so that PyTorch itself says what follows: casts, backward, memory.

The calls of the forward are put together to what the program called, and sketched under autograd. This is first done
without the change: if it does not give back the step, nobody knows what a change would give. Then the step is refused,
with the first call that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from foretrace.graph import Constant, ForetraceError, Graph, Op, Tensor
from foretrace.graph.op import with_tensors
from foretrace.graph.operators import LAYOUTS, MEMORY_FORMATS, operator_path
from foretrace.graph.tensor import ITEMSIZE
from foretrace.transforms.composites import Composite, composites
from foretrace.transforms.dataflow import Dataflow, Slot, slots_in
from foretrace.transforms.meta_device import torch_empty, torch_operator
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, flatten, require_arguments
from foretrace.transforms.structure.optimizer import updated_weights

More = Callable[[Sequence[Composite]], list[Composite]]


def retraced(graph: Graph, what: str, around: Around = nullcontext, more: More = lambda known: []) -> Graph:
    """The step with its forward called again inside of something, or with more calls; its optimizer stays.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    what
        What is changed, for errors.
    around
        What is open while the forward is called: autocast.
    more
        Given the calls that were made, calls to make besides: each behind the one whose dispatcher calls it names.
    """
    step = _Step(flatten(graph), what)
    then = more(step.forward.composites)
    check = step.sketched(nullcontext, ())
    step.compare(check)
    made = step.sketched(around, then)
    step.forward.composites += then
    return step.assembled(made, check)


@dataclass
class _Sketched:
    """A forward and its backward called again: the calls, and the composite of the forward that each comes from."""

    ops: list[Op]
    origin: list[int]
    inputs: list[Tensor]
    gradients: list[Tensor]
    freed: tuple[int, ...]
    """Storages that died behind the last call."""


class _Step:
    """A step whose forward is called again."""

    def __init__(self, graph: Graph, what: str) -> None:
        self.forward = Forward(graph)
        self._graph, self._what = graph, what
        tail = self.forward.tail
        self._places = [row for row, op in enumerate(self.forward.ops) if op.phase != "optimizer" and row not in tail]

    def sketched(self, around: Around, then: Sequence[Composite]) -> _Sketched:
        """The forward and its backward, called again on paper."""
        from foretrace.record.sketch import sketch  # here, since it brings torch

        programs: list[Program] = []

        def step() -> None:
            """Build what there is before a step when called first: nothing of it has to be warmed up."""
            if programs:
                programs[0].step()
            else:
                programs.append(Program(self.forward, around, then))

        try:
            made = sketch(step, "cuda" if self.forward.on_gpu else None)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            text = str(error).strip().partition("\n")[0]
            raise ForetraceError(
                f"the forward of {self._graph.title} can't be called again ({text})",
                f"So nobody can tell what {self._what} makes of it.",
            ) from None
        return self._told(list(made.ops))

    def _told(self, ops: list[Op]) -> _Sketched:
        """What a program noted, without the calls by which it showed its inputs and gradients."""
        first, last = len(self.forward.inputs), 2 * len(self.forward.pairs)
        inner = ops[first : len(ops) - last]
        origin = [int(op.module.rpartition(".")[2]) if "." in op.module else -1 for op in inner]
        shown = [op.tensors[0] for op in ops[len(ops) - last :]]
        freed = tuple(number for op in ops[len(ops) - last :] for number in op.frees)
        return _Sketched(inner, origin, [op.tensors[0] for op in ops[:first]], shown[1::2], freed)

    def compare(self, check: _Sketched) -> None:
        """Refuse a step that calling its forward again does not give back."""
        for row, now in zip(self._places, check.ops):
            if _form(self.forward.ops[row]) != _form(now):
                raise self._lost(row, f"{now.name} came instead")
        if len(self._places) != len(check.ops):
            last = self._places[min(len(self._places), len(check.ops)) - 1]
            raise self._lost(last, f"{len(check.ops)} calls came instead of {len(self._places)}")

    def _lost(self, row: int, why: str) -> ForetraceError:
        return ForetraceError(
            f"calling the forward again does not give back call {row}, {self.forward.ops[row].name} ({why})",
            f"So nobody can tell what {self._what} makes of the step. Record or sketch it, and checkpoint it later.",
        )

    def assembled(self, made: _Sketched, check: _Sketched) -> Graph:
        """The step of what was sketched: inputs and gradients have the numbers they had, the optimizer is as it was."""
        named = _Names(self.forward, made)
        rows = self._rows(made, check, named)
        optimizer = self._optimizer(rows, named.storages(made.freed))
        end = max((row.origin for row in optimizer), default=len(self.forward.ops))
        later = next((place for place, row in enumerate(rows) if row.origin > end), len(rows))
        tail = [EditedCall(self.forward.ops[row].__copy__(), row) for row in self.forward.tail]
        born = {number: storage for number, storage in self._graph.storages.items() if storage.birth < 0}
        return assemble(replace(self._graph, storages=born), [*rows[:later], *optimizer, *rows[later:], *tail])

    def _rows(self, made: _Sketched, check: _Sketched, named: _Names) -> list[EditedCall]:
        """The calls of the forward and the backward; those that were there come from where they were."""
        was: dict[tuple[int, str], list[int]] = {}
        for place, origin, op in zip(self._places, check.origin, check.ops):
            was.setdefault((origin, op.name), []).append(place)
        rows = []
        for op, origin in zip(made.ops, made.origin):
            like = was.get((origin, op.name))
            rows.append(EditedCall(self._placed(named.op(op), origin), like.pop(0) if like else -1))
        self._enter(rows)
        return rows

    def _optimizer(self, rows: Sequence[EditedCall], freed: tuple[int, ...]) -> list[EditedCall]:
        """The optimizer's calls; before the first of them dies what backward left behind."""
        calls = [EditedCall(op.__copy__(), row) for row, op in enumerate(self.forward.ops) if op.phase == "optimizer"]
        seen = {tensor.storage for row in (*rows, *calls) for tensor in (*row.op.tensors, *row.op.produced)}
        for row in calls:
            row.op.frees = (*freed, *(number for number in row.op.frees if number in seen))
            freed = ()
        return calls

    def _placed(self, op: Op, origin: int) -> Op:
        """The call in the module of the one that it comes from."""
        op.module, op.entered = "", 0
        if 0 <= origin < len(self.forward.composites):
            op.module = self.forward.composites[origin].calls[0].op.module
        return op

    def _enter(self, rows: Sequence[EditedCall]) -> None:
        """Modules are entered before the same calls as before."""
        place_of = {row.origin: place for place, row in enumerate(rows) if row.origin >= 0}
        for number, op in enumerate(self.forward.ops):
            if op.entered and number in place_of:
                place = place_of[number]
                while place and rows[place - 1].origin < 0 and rows[place - 1].op.module == op.module:
                    place -= 1
                rows[place].op.entered += op.entered


def _form(op: Op) -> tuple[Any, ...]:
    return (op.name, *(tensor.shape for tensor in (*op.tensors, *op.produced)))


class _Names:
    """Numbers for what was sketched: inputs and gradients have theirs, all else gets some that nobody has."""

    def __init__(self, forward: Forward, made: _Sketched) -> None:
        old = [*forward.inputs.values(), *(gradient for _, gradient in forward.pairs)]
        self._tensor = {new.id: was.id for new, was in zip((*made.inputs, *made.gradients), old)}
        self._storage = {
            new.storage: was.storage for new, was in zip((*made.inputs, *made.gradients), old) if new.storage >= 0
        }
        fresh = IdAllocator(forward.ops)
        self._next, self._next_storage = fresh.tensor_id(), fresh.storage_id()

    def storages(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._storage.get(number, number + self._next_storage) for number in numbers)

    def _tensor_of(self, tensor: Tensor) -> Tensor:
        number = self._tensor.get(tensor.id, tensor.id + self._next)
        return replace(tensor, id=number, storage=self.storages([tensor.storage])[0] if tensor.storage >= 0 else -1)

    def op(self, op: Op) -> Op:
        new = with_tensors(op, self._tensor_of)
        new.frees = self.storages(op.frees)
        return new


# --- was questions.retraced_program: The forward of a step as a program that calls it again, under autograd, on tensors like those that it had.

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
        require_arguments(self.ops, graph.source)
        self.pairs = updated_weights(graph)
        step = Dataflow(self.ops)
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
        made = torch_empty(tensor, tensor.device.partition(":")[0] or "cpu")
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
        known = operator_path(composite.name, composite.calls[0].op.overload)
        if known is None:
            raise ValueError(f"nobody knows {composite.name}")
        return torch_operator(known)

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
