"""Retracing: the forward of a step sketched again under autograd with a change, so that PyTorch decides what follows.

Autocast and an inserted op change what autograd does. The dispatcher calls of the forward are combined into the
functions that the program called (`composites`), and those are sketched. The forward is first sketched without the
change: if that does not reproduce the step call by call, the result with the change could not be trusted, and the step
is refused with the first call that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from foretrace.graph import ForetraceError, Graph, Op, Tensor
from foretrace.graph.operators import operator_path
from foretrace.transforms.composites import Composite, composites
from foretrace.transforms.dataflow import Dataflow, slots_in, substitute
from foretrace.transforms.meta_device import as_torch, torch_empty, torch_operator
from foretrace.transforms.step import EditedCall, SketchIds, assemble, editable_step, storages_in
from foretrace.transforms.structure.optimizer import updated_weights

Context: TypeAlias = Callable[[], AbstractContextManager[Any]]
Inserted: TypeAlias = Callable[[Sequence[Composite]], list[Composite]]


def retrace(graph: Graph, what: str, context: Context = nullcontext, inserted: Inserted = lambda known: []) -> Graph:
    """The step with its forward run in a context, or with more calls; its optimizer stays.

    ``what`` names the change in messages. ``inserted`` gives the composites to insert, given those of the forward: each
    comes after the one whose dispatcher calls it has.
    """
    step = _RetracedStep(graph, what)
    new = inserted(step.composites)
    check = step.sketch(nullcontext, ())
    step.compare(check)
    made = step.sketch(context, new)
    step.composites += new
    return step.assemble(made, check)


class _Sketch(NamedTuple):
    """A sketched forward and backward: the calls, and the composite that each comes from."""

    ops: list[Op]
    origin: list[int]
    known: list[Tensor]
    """Its inputs, then its gradients."""
    freed: tuple[int, ...]
    """Storages freed after the last call."""


class _RetracedStep:
    """A step whose forward is sketched again: what that calls and reads, and the weights that it trains."""

    def __init__(self, graph: Graph, what: str) -> None:
        self._graph, self.ops = editable_step(graph)
        self._what = what
        self.pairs = updated_weights(self._graph, self.ops)
        step = Dataflow(self.ops)
        end = max((row for row, op in enumerate(self.ops) if not op.is_side_call), default=-1)
        self._tail = range(end + 1, len(self.ops))
        """Rows of the side calls at the end, where a recorded step synchronizes with the device."""
        calls = [call for call in step.calls if call.op.phase in ("forward", "other") and call.row <= end]
        read = {slot for call in calls for slot in call.reads}
        self.inputs = {slot: tensor for slot, tensor in step.inputs.items() if slot in read}
        """Tensors that existed before the step and the forward reads, by slot."""
        self.composites = composites(calls, self.inputs.__contains__)
        self._rows = [row for row, op in enumerate(self.ops) if op.phase != "optimizer" and row <= end]

    def sketch(self, context: Context, inserted: Sequence[Composite]) -> _Sketch:
        """Sketch the forward and its backward."""
        from foretrace.record.sketch.sketch import sketch  # here, since it imports torch

        programs: list[_Program] = []

        def step() -> None:
            """Create the inputs at the first call: none of that needs a warm-up."""
            if programs:
                programs[0].step()
            else:
                programs.append(_Program(self, context, inserted))

        on_gpu = any(tensor.device.startswith("cuda") for tensor in self.inputs.values())
        try:
            made = sketch(step, "cuda" if on_gpu else None)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            text = str(error).strip().partition("\n")[0]
            raise ForetraceError(
                f"the forward of {self._graph.title} can't be retraced ({text})",
                f"So {self._what} is not possible.",
            ) from None
        # Without the detach calls by which the program marks its inputs first, its weights and gradients last.
        ops, first = list(made.ops), len(self.inputs)
        last = len(ops) - 2 * len(self.pairs)
        origin = [int(op.module.rpartition(".")[2]) if "." in op.module else -1 for op in ops[first:last]]
        known = [op.tensors[0] for op in (*ops[:first], *ops[last + 1 :: 2])]
        return _Sketch(ops[first:last], origin, known, tuple(number for op in ops[last:] for number in op.frees))

    def compare(self, check: _Sketch) -> None:
        """Raise if the sketch without the change does not reproduce the step."""
        for row, now in zip(self._rows, check.ops):
            was = self.ops[row]
            if now.name != was.name:
                raise self._not_reproduced(row, f"{now.name} came instead")
            if _shapes(now) != _shapes(was):
                raise self._not_reproduced(row, f"its tensors are {_shapes(now)} instead of {_shapes(was)}")
        if len(self._rows) != len(check.ops):
            last = self._rows[min(len(self._rows), len(check.ops)) - 1]
            raise self._not_reproduced(last, f"{len(check.ops)} calls came instead of {len(self._rows)}")

    def _not_reproduced(self, row: int, why: str) -> ForetraceError:
        return ForetraceError(
            f"retracing the forward does not reproduce call {row}, {self.ops[row].name} ({why})",
            f"So {self._what} is not possible. Record or sketch the step, and set checkpoint after it.",
        )

    def assemble(self, made: _Sketch, check: _Sketch) -> Graph:
        """The step of a sketch: inputs and gradients keep their ids, the optimizer's calls stay."""
        marked = [*self.inputs.values(), *(gradient for _, gradient in self.pairs)]
        ids = SketchIds(self.ops, zip(made.known, marked))
        calls = self._edited(made, check, ids)
        optimizer = self._optimizer(calls, ids.storages(made.freed))
        end = max((call.origin for call in optimizer), default=len(self.ops))
        later = next((place for place, call in enumerate(calls) if call.origin > end), len(calls))
        tail = [EditedCall(self.ops[row].__copy__(), row) for row in self._tail]
        born = {number: storage for number, storage in self._graph.storages.items() if storage.birth < 0}
        return assemble(replace(self._graph, storages=born), [*calls[:later], *optimizer, *calls[later:], *tail])

    def _edited(self, made: _Sketch, check: _Sketch, ids: SketchIds) -> list[EditedCall]:
        """The calls of forward and backward with their modules, and with the rows that they come from."""
        rows: dict[tuple[int, str], list[int]] = {}
        for row, origin, op in zip(self._rows, check.origin, check.ops):
            rows.setdefault((origin, op.name), []).append(row)
        calls = []
        for sketched, origin in zip(made.ops, made.origin):
            op, same = ids.op(sketched), rows.get((origin, sketched.name))
            op.module = self.composites[origin].calls[0].op.module if origin >= 0 else ""
            op.entered = 0
            calls.append(EditedCall(op, same.pop(0) if same else -1))
        # Modules are entered at the same calls as before, or at new ones right before them.
        position = {call.origin: place for place, call in enumerate(calls) if call.origin >= 0}
        for row, op in enumerate(self.ops):
            if op.entered and row in position:
                place = position[row]
                while place and calls[place - 1].origin < 0 and calls[place - 1].op.module == op.module:
                    place -= 1
                calls[place].op.entered += op.entered
        return calls

    def _optimizer(self, calls: Sequence[EditedCall], freed: tuple[int, ...]) -> list[EditedCall]:
        """The optimizer's calls; what backward left is freed before the first of them."""
        update = [EditedCall(op.__copy__(), row) for row, op in enumerate(self.ops) if op.phase == "optimizer"]
        used = storages_in(call.op for call in (*calls, *update))
        for call in update:
            call.op.frees = (*freed, *(number for number in call.op.frees if number in used))
            freed = ()
        return update


def _shapes(op: Op) -> list[tuple[int, ...]]:
    """Shapes of what a call takes and makes."""
    return [tensor.shape for tensor in (*op.tensors, *op.produced)]


class _Program:
    """The forward as a PyTorch program; each composite runs inside a module named by its number."""

    def __init__(self, step: _RetracedStep, context: Context, inserted: Sequence[Composite]) -> None:
        import torch

        numbered = type("Numbered", (torch.nn.Module,), {"forward": lambda module, call: call()})
        self._torch, self._context = torch, context
        self._calls = _with_inserted(step.composites, inserted)
        self._dropped = _dropped(step.ops, [composite for _, composite in self._calls])
        starts = zip(step.ops, step.ops[1:])
        self._losses = {row for row, (_, op) in enumerate(starts) if op.phase == "backward"}
        self._root: Any = numbered()
        for number, _ in self._calls:
            self._root.add_module(str(number), numbered())
        trained = {weight.storage for weight, _ in step.pairs}
        self._inputs = {slot: torch_empty(tensor, _device(tensor.device)) for slot, tensor in step.inputs.items()}
        for slot, tensor in step.inputs.items():
            if tensor.storage in trained:
                self._inputs[slot] = torch.nn.Parameter(self._inputs[slot])
        storages = {step.inputs[slot].storage: tensor for slot, tensor in self._inputs.items()}
        self._weights = [storages[weight.storage] for weight, _ in step.pairs]

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
        modules = dict(self._root.named_children())
        with ExitStack() as stack:
            stack.enter_context(self._context())
            for place, (number, composite) in enumerate(self._calls):
                for slot in self._dropped.get(place, ()):
                    tensors.pop(slot, None)
                first = composite.calls[0]
                if composite.name == "aten::ones_like" and first.row in self._losses:  # the gradient of the loss
                    stack.close()
                    tensors[first.reads[0]].backward()
                    stack.enter_context(self._context())
                else:
                    modules[str(number)](partial(self._call, composite, tensors))

    def _call(self, composite: Composite, tensors: dict[int, Any]) -> None:
        function, defaults = self._function(composite)
        given = substitute([composite.args, composite.kwargs], tensors.__getitem__)
        args, kwargs = as_torch(given, _device)
        made = function(*args, *defaults[len(args) :], **kwargs)
        results = made if isinstance(made, (list, tuple)) and len(composite.makes) != 1 else [made]
        for slot, result in zip(composite.makes, results):
            tensors.update(zip(slots_in(slot), result if isinstance(result, (list, tuple)) else [result]))

    def _function(self, composite: Composite) -> tuple[Any, list[Any]]:
        """The function to call, and the defaults of its arguments.

        A Python function of PyTorch where autocast knows it by that name, else the op itself, which has defaults.
        """
        from foretrace.record.sketch.autocast import FULL, FULL_RESULT, LOWER, WIDEST

        torch, short, op = self._torch, composite.name.removeprefix("aten::"), None
        if composite.is_op:
            path = operator_path(composite.name, composite.calls[0].op.overload)
            if path is None:
                raise ValueError(f"unknown operator {composite.name}")
            op = torch_operator(path)
            if not any(short in known for known in (LOWER, FULL, FULL_RESULT, WIDEST)):
                return op, []
        homes = (torch, torch.nn.functional, torch._C._nn, torch._C._linalg, torch.Tensor)
        function = next(getattr(home, short) for home in homes if hasattr(home, short))
        if op is None:
            return function, []
        schema = getattr(op, "_schema", None) or getattr(op, "default", op)._schema  # a trace may lack the overload
        return function, [argument.default_value for argument in schema.arguments if not argument.kwarg_only]


def _device(name: str) -> str:
    return name.partition(":")[0] or "cpu"


def _with_inserted(known: Sequence[Composite], inserted: Sequence[Composite]) -> list[tuple[int, Composite]]:
    """Composites with others inserted after some; inserted ones have numbers of their own."""
    after = {id(new.calls[-1]): (len(known) + place, new) for place, new in enumerate(inserted)}
    calls = []
    for number, composite in enumerate(known):
        calls.append((number, composite))
        calls += [after[id(call)] for call in composite.calls if id(call) in after]
    return calls


def _dropped(ops: Sequence[Op], program: Sequence[Composite]) -> dict[int, list[int]]:
    """Slots of the tensors to which the program drops its references before each of its calls.

    A tensor that the step freed in its forward is dropped at the same place. One that was freed in backward was held by
    autograd: the program drops it after its last use. What outlived backward outlives it again.
    """
    freed = {number: row for row, op in enumerate(ops) for number in op.frees}
    position = {call.row: place for place, composite in enumerate(program) for call in composite.calls}
    last: dict[int, int] = {}
    storage: dict[int, int] = {}
    for place, composite in enumerate(program):
        for call in composite.calls:
            last.update(dict.fromkeys((*call.reads, *call.made), place))
            storage.update({slot: tensor.storage for slot, tensor in call.made.items()})
    ends: dict[int, list[int]] = {}
    for slot, number in storage.items():
        row = freed.get(number)
        if row is not None and ops[row].phase != "optimizer":
            ends.setdefault(max(position.get(row, 0), last[slot] + 1), []).append(slot)
    return ends
