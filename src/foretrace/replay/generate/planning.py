"""From a rank's graph to the plan of its benchmark: calls, variables for tensors, waits for collectives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from foretrace.graph import Constant, Content, Graph, Op, Storage, Tensor, Value
from foretrace.graph.bindings import Bindings
from foretrace.graph.execution_traces import CompletedTrace, lacks_overloads
from foretrace.graph.op import COMPILED_PROGRAM, RESIZE, end_in_storage
from foretrace.graph.operators import GEMMS, MASK_DTYPES, sparse_parts
from foretrace.graph.programs import fold, scratch_bytes
from foretrace.replay.generate.choices import Selection, select
from foretrace.replay.generate.contents import with_contents
from foretrace.replay.generate.literals import NUMBER
from foretrace.replay.generate.plan import Argument, Input, Memory, Name, Plan, PlanCall, Result
from foretrace.replay.generate.timing import collective_us, device_us, schedule_of, unsteady_pace_note
from foretrace.transforms.step import call_rows, require_arguments

MIN_UNOWNED_US = 1.0
TAKES_STORAGE = "aten::set_"
"""Gives a tensor another storage, of which only the size is known."""
SIZED_BY_DATA = frozenset(f"aten::{name}" for name in ("nonzero", "masked_select", "_unique2", "unique_consecutive"))
"""Operators whose results have sizes that depend on data."""
BLAS_CALLS = frozenset((*GEMMS, "aten::addmv", "aten::mv", "aten::dot"))


def plan_of(graph: Graph, selection: Selection | None = None, original: Graph | None = None) -> Plan:
    """The plan of a benchmark of one rank's step; ``original`` is the measured one, where ``graph`` was changed.

    >>> from foretrace.graph import OpTable
    >>> x, y = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in (0, 1))
    >>> plan = plan_of(Graph(OpTable.of([Op("aten::relu", (x,), outputs=(y,))])))
    >>> plan.calls[0].args, plan.calls[0].results, [given.name for given in plan.inputs]
    (('t0',), ('t1',), ['t0'])
    """
    rows = call_rows(graph)
    ops = [graph.ops[row] for row in rows]
    require_arguments(ops, graph.source)
    groups, notes = graph.groups, list(graph.notes)
    if lacks_overloads(ops):
        tidied = CompletedTrace(graph, rows)
        ops, groups = tidied.ops, tidied.groups
        notes += tidied.notes
    measured = graph if original is None else original
    ops, parts, ended = fold(ops, graph.programs)
    chosen = select(ops, selection or Selection())
    whole = len(chosen) == len(ops)
    variables = Variables(graph.storages, sparse_parts(ops))
    calls = _repeatable(_calls_of(ops, chosen, variables, ended), variables.inputs)
    tail_us, unowned_us = _timed(calls, measured, parts)
    used = {call.args[0] for call in calls if call.name == COMPILED_PROGRAM}
    programs = {number: program for number, program in enumerate(graph.programs) if number in used}
    for call in calls:
        if call.name == COMPILED_PROGRAM:
            call.scratch = scratch_bytes(graph.programs[int(str(call.args[0]))])
    plan = Plan(
        memories=list({entry.memory.name: entry.memory for entry in variables.inputs if entry.memory}.values()),
        inputs=variables.inputs,
        calls=with_waits(calls, variables.inputs),
        source=graph.source,
        rank=graph.rank,
        world=graph.world,
        groups=groups,
        settings=graph.settings,
        programs=programs,
        tail_us=tail_us if whole else 0.0,
        renumbered=set(variables.memories),
        sizes={number: storage.nbytes for number, storage in graph.storages.items()},
        threads=len({op.thread for op in ops if op.name in BLAS_CALLS}) or 1,
        unowned_us=unowned_us if whole else 0.0,
        whole=whole,
        notes=notes,
    )
    if plan.unowned_us >= MIN_UNOWNED_US:
        plan.notes.append(f"{plan.unowned_us / 1e3:.3f} ms of device time belong to no call: that part is not replayed")
    if unsteady := unsteady_pace_note(measured.unprofiled.synced_ms):
        plan.notes.append(unsteady)
    return with_contents(plan, graph, ops, [rows[part[0]] for part in parts])


def _timed(calls: Sequence[PlanCall], measured: Graph, parts: Sequence[tuple[int, ...]]) -> tuple[float, float]:
    """Set the measured times of calls. Returns the host time after the last one, and device time of no call."""
    rows = call_rows(measured)
    schedule, device = schedule_of(measured, rows), device_us(measured, rows)
    took = collective_us(measured, rows, [measured.ops[row] for row in rows])
    for call in calls:
        if call.number >= 0:
            first, *inside = part = list(parts[call.number])
            call.row, call.rows, call.device_us = rows[first], tuple(rows[p] for p in part), float(device[part].sum())
            call.gap_us = float(schedule.gap_us[first])
            call.host_us = float(schedule.call_us[part].sum() + schedule.gap_us[inside].sum())
            call.waits, call.took_us = bool(schedule.waits[part].any()), took.get(first, 0.0)
    return schedule.tail_us, float((measured.kernels.end - measured.kernels.start).sum() - device.sum())


def _calls_of(
    ops: Sequence[Op], chosen: Sequence[int], variables: Variables, within: Sequence[tuple[int, ...]]
) -> list[PlanCall]:
    """The chosen calls with variables for tensors; what others free is freed before the next chosen call.

    ``within`` are the storages that each call frees before it ends.
    """
    calls: list[PlanCall] = []
    pending: list[int] = []
    ended: list[Name] = []
    taken = set(chosen)
    last_use = _last_uses(ops)
    for number, op in enumerate(ops):
        pending += op.frees
        if number not in taken:
            pending += within[number]
            continue
        frees = list(dict.fromkeys([*variables.free(pending), *ended]))  # a sparse tensor may be among both
        pending, ended = [], []
        calls += _call(number, op, frees, variables)
        calls[-1].ends = tuple(variables.free(within[number]))
        ended += variables.end(last_use.get(number, ()))
    return calls


def _repeatable(calls: list[PlanCall], inputs: Sequence[Input]) -> list[PlanCall]:
    """The calls without resizes that leave an input smaller than the next step needs, since its growth was left out."""
    memory = {entry.name: entry.memory for entry in inputs if entry.memory is not None}
    last: dict[Name, tuple[PlanCall, bool]] = {}
    for call in calls:
        if call.resized and (given := memory.get(call.resized[0])) is not None:
            last[given.name] = (call, call.resized[1] < given.nbytes)
    left_out = {call.number for call, smaller in last.values() if smaller}
    repeatable: list[PlanCall] = []
    ended: tuple[Name, ...] = ()
    for call in calls:
        if call.number in left_out:
            ended += call.frees
            continue
        call.frees, ended = (*ended, *call.frees), ()
        repeatable.append(call)
    return repeatable


def _last_uses(ops: Sequence[Op]) -> dict[int, list[Tensor]]:
    """Sparse tensors of unknown parts, by the last call that uses them: they are freed there."""
    known = sparse_parts(ops)
    last: dict[int, tuple[int, Tensor]] = {}
    for number, op in enumerate(ops):
        for tensor in (*op.tensors, *op.produced):
            if tensor.layout != "strided" and tensor.id not in known:
                last[tensor.id] = (number, tensor)
    uses: dict[int, list[Tensor]] = {}
    for number, tensor in last.values():
        uses.setdefault(number, []).append(tensor)
    return uses


def _call(number: int, op: Op, frees: list[Name], variables: Variables) -> list[PlanCall]:
    """The call, preceded by those that make the views that it reads."""
    before: list[PlanCall] = []

    def named(value: Value) -> Argument:
        if isinstance(value, Tensor):
            name, maker = variables.read(value)
            if maker is not None:
                before.append(maker)
            return name
        if isinstance(value, (list, tuple)) and not isinstance(value, Constant):
            return [named(item) for item in value]
        if isinstance(value, dict):
            return {key: named(item) for key, item in value.items()}
        return (work_name(value) or value) if isinstance(value, Constant) else value

    args = tuple(named(value) for value in op.args)
    if op.name == RESIZE:
        old, new, nbytes = op.resized or (-1, -1, 0)
        args = (variables.resized(old, new), nbytes)
    elif op.name == TAKES_STORAGE and len(args) > 1 and isinstance(op.args[1], Constant):
        args = (args[0], max(map(variables.nbytes, op.produced), default=0), *args[2:])
    kwargs = {key: named(value) for key, value in op.kwargs.items()}
    masked = op.name == "aten::index" and any(tensor.dtype in MASK_DTYPES for tensor in op.tensors[1:])
    sized_by_data = masked or op.name in SIZED_BY_DATA
    call = PlanCall(number, op.name, op.overload, args=args, kwargs=kwargs, sized_by_data=sized_by_data)
    call.results = tuple(_result(value, call, variables) for value in op.outputs)
    calls = [*before, call]
    for made in calls:
        made.phase, made.module, made.stream = op.phase, op.module, op.stream
    calls[0].frees = tuple(frees)
    return calls


def _result(value: Value, call: PlanCall, variables: Variables) -> Result:
    if isinstance(value, Tensor):
        name = variables.make(value)
        if name is not None:
            call.made[name] = value
        return name
    if isinstance(value, (list, tuple)) and not isinstance(value, Constant):
        return [_result(item, call, variables) for item in value]
    return work_name(value) if isinstance(value, Constant) else None


class Variables:
    """Variables of tensors. A tensor that no call has made existed before the step: it becomes an input."""

    def __init__(self, storages: Mapping[int, Storage], sparse: dict[int, tuple[Tensor, Tensor]]) -> None:
        self.inputs: list[Input] = []
        self.memories: dict[int, Memory] = {}
        self._storages = storages
        self._sparse = sparse
        self._bindings = Bindings[Name]()
        self._tensors, self._pieces = 0, 0

    def read(self, tensor: Tensor) -> tuple[Name, PlanCall | None]:
        """The variable of a tensor, and the call that must make it first, or None."""
        known = self._bindings.find(tensor)
        if known is not None:
            return known, None
        base = self._bindings.base_of(tensor) if tensor.storage not in self.memories else None
        if base is None or tensor.stride is None:
            return self._input(tensor), None
        return self._viewed(tensor, base)

    def make(self, tensor: Tensor) -> Name | None:
        """A new variable for a result; None for an argument that was changed in place."""
        held = self._bindings.by_id(tensor)
        if held is not None:
            if tensor.storage >= 0 and held not in self._bindings.on(tensor.storage):
                self._bindings.rebind(tensor, held)
            return None
        name = self._new()
        self._bindings.bind(tensor, name)
        for part in self._sparse.get(tensor.id, ()):  # a sparse tensor holds the storages of its parts
            if part.storage >= 0:
                self._bindings.hold(part.storage, name, tensor)
        return name

    def end(self, tensors: Iterable[Tensor]) -> list[Name]:
        """End the variables of tensors that are not used again, and return them."""
        given = {entry.name for entry in self.inputs}
        held = (self._bindings.by_id(tensor) for tensor in tensors)
        ended = [name for name in held if name is not None and name not in given]
        for name in ended:
            self._bindings.forget(name)
        return ended

    def free(self, storages: Iterable[int]) -> list[Name]:
        """End the variables on these storages, and return them."""
        ended = (self._bindings.release(storage) for storage in storages if storage not in self.memories)
        return list(dict.fromkeys(name for names in ended for name in names))

    def resized(self, old: int, new: int) -> Name | None:
        """Move the variables of a resized storage to its new number. Returns one of them, or None."""
        if not self._bindings.knows(old):
            return self._bytes(old, new)
        if old in self.memories:
            self.memories[new] = self.memories[old]
        return next(iter(self._bindings.move(old, new)), None)

    def _bytes(self, old: int, new: int) -> Name | None:
        """An input over a whole storage that exists before the step and is resized before any call reads it."""
        known = [self._storages[number] for number in (old, new) if number in self._storages]
        if not known:
            return None
        name = self._new()
        nbytes = max(storage.nbytes for storage in known)
        whole = Tensor((nbytes,), "uint8", known[0].device, (1,), storage=new)
        self._bindings.hold(new, name, whole)
        gathered_later = known[0].nbytes == 0  # as in FSDP: it has no memory yet
        self.memories[new] = self._piece(0 if gathered_later else nbytes, whole.device)
        self.inputs.append(Input(name, whole, self.memories[new], Content("unknown")))
        return name

    def _new(self) -> Name:
        self._tensors += 1
        return Name(f"t{self._tensors - 1}")

    def _viewed(self, tensor: Tensor, base: Name) -> tuple[Name, PlanCall]:
        """A new view of a storage that a call has made, taken from another variable on it."""
        name = self._new()
        self._bindings.bind(tensor, name)
        arguments: tuple[Argument, ...] = (base, list(tensor.shape), list(tensor.stride or ()), tensor.offset)
        return name, PlanCall(-1, "aten::as_strided", "default", args=arguments, results=(name,), made={name: tensor})

    def _input(self, tensor: Tensor) -> Name:
        parts: tuple[Name, ...] = ()
        memory = None
        if tensor.layout != "strided":
            parts = tuple(self._part(part) for part in self._sparse.get(tensor.id, ()))
        else:
            memory = self._memory(tensor)
        name = self._new()
        self._bindings.bind(tensor, name)
        self.inputs.append(Input(name, tensor, memory, Content("unknown"), parts))
        return name

    def _part(self, tensor: Tensor) -> Name:
        """A part of a sparse input; a copy where a call of the step has made that part."""
        made = self._bindings.on(tensor.storage) and tensor.storage not in self.memories
        known = None if made else self.read(tensor)[0]
        if known is not None and any(known == entry.name for entry in self.inputs):
            return known
        name = self._new()
        own = replace(tensor, storage=-1)
        self.inputs.append(Input(name, own, self._memory(own), Content("unknown")))
        return name

    def nbytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor's storage: as recorded, and at least up to the tensor's end."""
        known = self._storages.get(tensor.storage)
        return max(known.nbytes if known else 0, end_in_storage(tensor))

    def _piece(self, nbytes: int, device: str) -> Memory:
        self._pieces += 1
        return Memory(Name(f"m{self._pieces - 1}"), nbytes, device)

    def _memory(self, tensor: Tensor) -> Memory:
        if tensor.storage not in self.memories:
            memory = self._piece(self.nbytes(tensor), tensor.device)
            if tensor.storage < 0:  # a trace without storages: each tensor has its own
                return memory
            self.memories[tensor.storage] = memory
        return self.memories[tensor.storage]


WAIT = "c10d::wait"
WORK = re.compile(r"w\d+")


def work_name(value: Constant) -> Name | None:
    """The variable of a work; None for another constant.

    >>> work_name(Constant("work", "3")), work_name(Constant("dtype", "int8"))
    ('w3', None)
    """
    return Name(f"w{value.value}") if value.kind == "work" and NUMBER.fullmatch(value.value) else None


def with_waits(calls: Sequence[PlanCall], inputs: Sequence[Input]) -> list[PlanCall]:
    """The calls, with a wait for each work, and its variable freed.

    C++ waits for some works unseen (DDP's reducer): these are waited for before the first call that uses their
    tensors, or at the end.

    >>> reduced = PlanCall(0, "c10d::allreduce_", args=([Name("t0")],), results=([None], Name("w0")))
    >>> used = PlanCall(1, "aten::relu", args=(Name("t0"),))
    >>> [call.name for call in with_waits([reduced, used], [])]
    ['c10d::allreduce_', 'c10d::wait', 'aten::relu']
    """
    storages: dict[Name, int] = {entry.name: entry.tensor.storage for entry in inputs}
    waited_for = {name for call in calls if call.name == WAIT for name in call.variables}
    pending: dict[Name, set[object]] = {}
    settled: list[PlanCall] = []
    ended: list[Name] = []

    def place(name: Name) -> object:
        """What identifies the memory of a variable: its storage, or else its name."""
        storage = storages.get(name, -1)
        return storage if storage >= 0 else name

    def add(call: PlanCall) -> None:
        call.frees = (*call.frees, *ended)
        ended.clear()
        settled.append(call)

    def wait(work: Name, before: PlanCall) -> None:
        del pending[work]
        add(PlanCall(-1, WAIT, args=(work,), phase=before.phase, module=before.module, stream=before.stream))
        ended.append(work)

    for call in calls:
        if call.name == WAIT:
            works = [name for name in call.variables if name in pending]
            if not works:  # the call that issued it was left out
                ended += call.frees
                continue
            del pending[works[0]]
            add(replace(call, args=(works[0],)))
            ended.append(works[0])
            continue
        touched = {place(name) for name in call.variables if not WORK.fullmatch(name)}
        for work in [name for name, held in pending.items() if name not in waited_for and held & touched]:
            wait(work, call)
        storages.update({name: tensor.storage for name, tensor in call.made.items()})
        pending.update((name, touched) for name in call.new if WORK.fullmatch(name))
        add(call)
    for work in list(pending):
        wait(work, settled[-1])
    return settled
