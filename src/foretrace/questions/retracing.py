"""A step's forward called again on paper, so that PyTorch itself says what follows: casts, backward, memory.

The calls of the forward are put together to what the program called, and sketched under autograd. This is first done
without the change: if it does not give back the step, nobody knows what a change would give. Then the step is refused,
with the first call that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from foretrace.graph import ForetraceError, Graph, Op, Tensor
from foretrace.questions.retraced_program import Around, Forward, Program
from foretrace.transforms.composites import Composite
from foretrace.transforms.fresh import Fresh
from foretrace.transforms.other_tensors import with_tensors
from foretrace.transforms.step import Row, assembled, flattened

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
    step = _Step(flattened(graph), what)
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
        tail = [Row(self.forward.ops[row].__copy__(), row) for row in self.forward.tail]
        born = {number: storage for number, storage in self._graph.storages.items() if storage.birth < 0}
        return assembled(replace(self._graph, storages=born), [*rows[:later], *optimizer, *rows[later:], *tail])

    def _rows(self, made: _Sketched, check: _Sketched, named: _Names) -> list[Row]:
        """The calls of the forward and the backward; those that were there come from where they were."""
        was: dict[tuple[int, str], list[int]] = {}
        for place, origin, op in zip(self._places, check.origin, check.ops):
            was.setdefault((origin, op.name), []).append(place)
        rows = []
        for op, origin in zip(made.ops, made.origin):
            like = was.get((origin, op.name))
            rows.append(Row(self._placed(named.op(op), origin), like.pop(0) if like else -1))
        self._enter(rows)
        return rows

    def _optimizer(self, rows: Sequence[Row], freed: tuple[int, ...]) -> list[Row]:
        """The optimizer's calls; before the first of them dies what backward left behind."""
        calls = [Row(op.__copy__(), row) for row, op in enumerate(self.forward.ops) if op.phase == "optimizer"]
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

    def _enter(self, rows: Sequence[Row]) -> None:
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
        fresh = Fresh(forward.ops)
        self._next, self._next_storage = fresh.number(), fresh.storage()

    def storages(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._storage.get(number, number + self._next_storage) for number in numbers)

    def _tensor_of(self, tensor: Tensor) -> Tensor:
        number = self._tensor.get(tensor.id, tensor.id + self._next)
        return replace(tensor, id=number, storage=self.storages([tensor.storage])[0] if tensor.storage >= 0 else -1)

    def op(self, op: Op) -> Op:
        new = with_tensors(op, self._tensor_of)
        new.frees = self.storages(op.frees)
        return new
