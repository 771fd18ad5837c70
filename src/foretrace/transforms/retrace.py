"""Retracing: the forward of a step sketched again under autograd with a change, so that PyTorch decides what follows.

Autocast and an inserted op change what autograd does. The dispatcher calls of the forward are combined into the
functions that the program called (`composites`), and those are sketched. The forward is first sketched without the
change: if that does not reproduce the step call by call, the result with the change could not be trusted, and the step
is refused with the first call that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from foretrace.graph import Constant, ForetraceError, Graph, Op, Tensor
from foretrace.graph.op import ITEMSIZE, with_tensors
from foretrace.graph.operators import LAYOUTS, MEMORY_FORMATS, operator_path
from foretrace.transforms.composites import Composite, composites
from foretrace.transforms.dataflow import Dataflow, Slot, slots_in
from foretrace.transforms.meta_device import torch_empty, torch_operator
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, flatten, require_arguments
from foretrace.transforms.structure.optimizer import updated_weights

Context: TypeAlias = Callable[[], AbstractContextManager[Any]]
Inserted: TypeAlias = Callable[[Sequence[Composite]], list[Composite]]


def retrace(graph: Graph, what: str, context: Context = nullcontext, inserted: Inserted = lambda known: []) -> Graph:
    """The step with its forward run in a context, or with more calls; its optimizer stays.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    what
        The change, for messages.
    context
        Makes the context in which the forward runs: autocast.
    inserted
        Given the composites of the forward, those to insert: each after the one whose dispatcher calls it has.
    """
    step = _RetracedStep(flatten(graph), what)
    new = inserted(step.forward.composites)
    check = step.sketch(nullcontext, ())
    step.compare(check)
    made = step.sketch(context, new)
    step.forward.composites += new
    return step.assemble(made, check)


class Forward:
    """What the forward of a flat step calls, and what it reads.

    Attributes
    ----------
    ops
        All calls of the step.
    tail
        Rows of the side calls at its end, where a recorded step synchronizes with the device.
    composites
        The functions that the forward calls.
    inputs
        Tensors that existed before the step and the forward reads, by slot.
    pairs
        Weights that the optimizer updates, each with its gradient.
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
        """Whether any input is on a GPU."""
        return any(tensor.device.startswith("cuda") for tensor in self.inputs.values())


@dataclass
class _Sketch:
    """A sketched forward and backward: the calls, and the composite that each comes from."""

    ops: list[Op]
    origin: list[int]
    inputs: list[Tensor]
    gradients: list[Tensor]
    freed: tuple[int, ...]
    """Storages freed after the last call."""


class _RetracedStep:
    """A step whose forward is sketched again."""

    def __init__(self, graph: Graph, what: str) -> None:
        self.forward = Forward(graph)
        self._graph, self._what = graph, what
        tail = self.forward.tail
        self._rows = [row for row, op in enumerate(self.forward.ops) if op.phase != "optimizer" and row not in tail]

    def sketch(self, context: Context, inserted: Sequence[Composite]) -> _Sketch:
        """Sketch the forward and its backward."""
        from foretrace.record.sketch.sketch import sketch  # here, since it imports torch

        programs: list[_Program] = []

        def step() -> None:
            """Create the inputs at the first call: none of that needs a warm-up."""
            if programs:
                programs[0].step()
            else:
                programs.append(_Program(self.forward, context, inserted))

        try:
            made = sketch(step, "cuda" if self.forward.on_gpu else None)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            text = str(error).strip().partition("\n")[0]
            raise ForetraceError(
                f"the forward of {self._graph.title} can't be retraced ({text})",
                f"So {self._what} is not possible.",
            ) from None
        return self._without_markers(list(made.ops))

    def _without_markers(self, ops: list[Op]) -> _Sketch:
        """The sketch without the detach calls by which the program marks its inputs and gradients."""
        first, last = len(self.forward.inputs), 2 * len(self.forward.pairs)
        inner = ops[first : len(ops) - last]
        origin = [int(op.module.rpartition(".")[2]) if "." in op.module else -1 for op in inner]
        marked = [op.tensors[0] for op in ops[len(ops) - last :]]
        freed = tuple(number for op in ops[len(ops) - last :] for number in op.frees)
        return _Sketch(inner, origin, [op.tensors[0] for op in ops[:first]], marked[1::2], freed)

    def compare(self, check: _Sketch) -> None:
        """Raise if the sketch without the change does not reproduce the step."""
        for row, now in zip(self._rows, check.ops):
            if _name_and_shapes(self.forward.ops[row]) != _name_and_shapes(now):
                raise self._not_reproduced(row, f"{now.name} came instead")
        if len(self._rows) != len(check.ops):
            last = self._rows[min(len(self._rows), len(check.ops)) - 1]
            raise self._not_reproduced(last, f"{len(check.ops)} calls came instead of {len(self._rows)}")

    def _not_reproduced(self, row: int, why: str) -> ForetraceError:
        return ForetraceError(
            f"retracing the forward does not reproduce call {row}, {self.forward.ops[row].name} ({why})",
            f"So {self._what} is not possible. Record or sketch the step, and set checkpoint after it.",
        )

    def assemble(self, made: _Sketch, check: _Sketch) -> Graph:
        """The step of a sketch: inputs and gradients keep their ids, the optimizer's calls stay."""
        ids = _Ids(self.forward, made)
        calls = self._edited(made, check, ids)
        optimizer = self._optimizer(calls, ids.storages(made.freed))
        end = max((call.origin for call in optimizer), default=len(self.forward.ops))
        later = next((place for place, call in enumerate(calls) if call.origin > end), len(calls))
        tail = [EditedCall(self.forward.ops[row].__copy__(), row) for row in self.forward.tail]
        born = {number: storage for number, storage in self._graph.storages.items() if storage.birth < 0}
        return assemble(replace(self._graph, storages=born), [*calls[:later], *optimizer, *calls[later:], *tail])

    def _edited(self, made: _Sketch, check: _Sketch, ids: _Ids) -> list[EditedCall]:
        """The calls of forward and backward, with the rows that they come from."""
        rows: dict[tuple[int, str], list[int]] = {}
        for row, origin, op in zip(self._rows, check.origin, check.ops):
            rows.setdefault((origin, op.name), []).append(row)
        calls = []
        for op, origin in zip(made.ops, made.origin):
            same = rows.get((origin, op.name))
            calls.append(EditedCall(self._with_module(ids.op(op), origin), same.pop(0) if same else -1))
        self._set_entered(calls)
        return calls

    def _optimizer(self, calls: Sequence[EditedCall], freed: tuple[int, ...]) -> list[EditedCall]:
        """The optimizer's calls; what backward left is freed before the first of them."""
        update = [EditedCall(op.__copy__(), row) for row, op in enumerate(self.forward.ops) if op.phase == "optimizer"]
        used = {tensor.storage for call in (*calls, *update) for tensor in (*call.op.tensors, *call.op.produced)}
        for call in update:
            call.op.frees = (*freed, *(number for number in call.op.frees if number in used))
            freed = ()
        return update

    def _with_module(self, op: Op, origin: int) -> Op:
        """The call in the module of the composite that it comes from."""
        op.module, op.entered = "", 0
        if 0 <= origin < len(self.forward.composites):
            op.module = self.forward.composites[origin].calls[0].op.module
        return op

    def _set_entered(self, calls: Sequence[EditedCall]) -> None:
        """Count entered modules at the same calls as before."""
        position = {call.origin: place for place, call in enumerate(calls) if call.origin >= 0}
        for row, op in enumerate(self.forward.ops):
            if op.entered and row in position:
                place = position[row]
                while place and calls[place - 1].origin < 0 and calls[place - 1].op.module == op.module:
                    place -= 1
                calls[place].op.entered += op.entered


def _name_and_shapes(op: Op) -> tuple[Any, ...]:
    return (op.name, *(tensor.shape for tensor in (*op.tensors, *op.produced)))


class _Ids:
    """Ids for a sketch: inputs and gradients keep those of the step, everything else gets unused ones."""

    def __init__(self, forward: Forward, made: _Sketch) -> None:
        known = [*forward.inputs.values(), *(gradient for _, gradient in forward.pairs)]
        pairs = list(zip((*made.inputs, *made.gradients), known))
        self._tensors = {new.id: was.id for new, was in pairs}
        self._storages = {new.storage: was.storage for new, was in pairs if new.storage >= 0}
        ids = IdAllocator(forward.ops)
        self._next_tensor, self._next_storage = ids.next_tensor, ids.next_storage

    def storages(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._storages.get(number, number + self._next_storage) for number in numbers)

    def _tensor(self, tensor: Tensor) -> Tensor:
        number = self._tensors.get(tensor.id, tensor.id + self._next_tensor)
        return replace(tensor, id=number, storage=self.storages([tensor.storage])[0] if tensor.storage >= 0 else -1)

    def op(self, op: Op) -> Op:
        new = with_tensors(op, self._tensor)
        new.frees = self.storages(op.frees)
        return new


class _Program:
    """The forward as a PyTorch program; each composite runs inside a module named by its number."""

    def __init__(self, forward: Forward, context: Context, inserted: Sequence[Composite]) -> None:
        import torch

        numbered = type("Numbered", (torch.nn.Module,), {"forward": lambda module, call: call()})
        self._torch, self._forward, self._context = torch, forward, context
        self._root: Any = numbered()
        self._calls = _with_inserted(forward.composites, inserted)
        for number in {number for number, _ in self._calls}:
            self._root.add_module(str(number), numbered())
        trained = {weight.storage for weight, _ in forward.pairs}
        self._inputs = {slot: self._like(tensor, trained) for slot, tensor in forward.inputs.items()}
        storages = {forward.inputs[slot].storage: tensor for slot, tensor in self._inputs.items()}
        self._weights = [storages[weight.storage] for weight, _ in forward.pairs]

    def _like(self, tensor: Tensor, trained: set[int]) -> Any:
        made = torch_empty(tensor, tensor.device.partition(":")[0] or "cpu")
        return self._torch.nn.Parameter(made) if tensor.storage in trained else made

    def step(self) -> None:
        """The step that is sketched: inputs are marked by detach first, weights and gradients last."""
        for weight in self._weights:
            weight.grad = None
        for tensor in self._inputs.values():
            tensor.detach()
        self._root(lambda: None)  # registers the names of the modules in it
        self._run()
        for weight in self._weights:
            weight.detach()
            weight.grad.detach()

    def _run(self) -> None:
        tensors = dict(self._inputs)
        lifetimes = _Lifetimes(self._forward, self._calls)
        modules = dict(self._root.named_children())
        with ExitStack() as stack:
            stack.enter_context(self._context())
            for place, (number, composite) in enumerate(self._calls):
                for slot in lifetimes.ending_before(place):
                    tensors.pop(slot, None)
                if lifetimes.starts_backward(composite):
                    stack.close()
                    tensors[composite.calls[0].reads[0]].backward()
                    stack.enter_context(self._context())
                else:
                    modules[str(number)](partial(self._call, composite, tensors))

    def _call(self, composite: Composite, tensors: dict[int, Any]) -> None:
        function, defaults = self._function(composite)
        args = [self._value(value, tensors) for value in composite.args]
        kwargs = {key: self._value(value, tensors) for key, value in composite.kwargs.items()}
        made = function(*args, *defaults[len(args) :], **kwargs)
        results = made if isinstance(made, (list, tuple)) and len(composite.makes) != 1 else [made]
        for slot, result in zip(composite.makes, results):
            numbers = list(slots_in(slot))
            tensors.update(zip(numbers, result if isinstance(result, (list, tuple)) else [result]))

    def _function(self, composite: Composite) -> tuple[Any, list[Any]]:
        """The function to call, and the defaults of its arguments.

        A Python function of PyTorch where autocast knows it by that name, else the op itself, which has defaults.
        """
        torch = self._torch
        short = composite.name.removeprefix("aten::")
        if not composite.is_op or short in _known_to_autocast():
            homes = (torch, torch.nn.functional, torch._C._nn, torch.Tensor)
            function = next(getattr(home, short) for home in homes if hasattr(home, short))
            return function, _defaults(self._op(composite)) if composite.is_op else []
        return self._op(composite), []

    def _op(self, composite: Composite) -> Any:
        path = operator_path(composite.name, composite.calls[0].op.overload)
        if path is None:
            raise ValueError(f"unknown operator {composite.name}")
        return torch_operator(path)

    def _value(self, value: Any, tensors: dict[int, Any]) -> Any:
        if isinstance(value, Slot):
            return tensors[value.number]
        if isinstance(value, Constant):
            return self._constant(value)
        return [self._value(item, tensors) for item in value] if isinstance(value, (list, tuple)) else value

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
    """Default values of an op's positional arguments, None for required ones."""
    schema = getattr(op, "_schema", None) or getattr(op, "default", op)._schema  # a trace may not name the overload
    return [argument.default_value for argument in schema.arguments if not argument.kwarg_only]


def _known_to_autocast() -> frozenset[str]:
    from foretrace.record.sketch.cuda_ops import FULL, FULL_RESULT, LOWER, WIDEST

    return frozenset((*LOWER, *FULL, *FULL_RESULT, *WIDEST))


def _with_inserted(known: Sequence[Composite], inserted: Sequence[Composite]) -> list[tuple[int, Composite]]:
    """Composites with others inserted after some; inserted ones have numbers of their own."""
    after = {id(new.calls[-1]): (len(known) + place, new) for place, new in enumerate(inserted)}
    calls = []
    for number, composite in enumerate(known):
        calls.append((number, composite))
        calls += [after[id(call)] for call in composite.calls if id(call) in after]
    return calls


class _Lifetimes:
    """When the program drops its references to tensors.

    A tensor that the step freed in its forward is dropped at the same place. One that was freed in backward was held by
    autograd: the program drops it after its last use. What outlived backward outlives it again.
    """

    def __init__(self, forward: Forward, calls: Sequence[tuple[int, Composite]]) -> None:
        ops = forward.ops
        freed = {number: row for row, op in enumerate(ops) for number in op.frees}
        self._phases = [op.phase for op in ops]
        position = {call.row: place for place, (_, one) in enumerate(calls) for call in one.calls}
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
            self._ends.setdefault(max(position.get(row, 0), last[slot] + 1), []).append(slot)

    def ending_before(self, place: int) -> list[int]:
        """Slots that are dropped before a call."""
        return self._ends.get(place, [])

    def starts_backward(self, composite: Composite) -> bool:
        """Whether it is the first call of ``backward``: the gradient of the loss."""
        row = composite.calls[0].row + 1
        return composite.name == "aten::ones_like" and row < len(self._phases) and self._phases[row] == "backward"
