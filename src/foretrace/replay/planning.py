"""From a rank's graph to the plan of its benchmark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.graph import Constant, Graph, Op, Tensor, Value
from foretrace.graph.calls import enclosing_calls
from foretrace.graph.execution_traces import CompletedTrace, lacks_overloads
from foretrace.graph.op import RESIZE
from foretrace.graph.operators import sparse_parts
from foretrace.graph.tables import Floats
from foretrace.replay.fillings import with_contents
from foretrace.replay.literals import Name
from foretrace.replay.plan import Argument, Call, Input, Plan, Result
from foretrace.replay.schedule import doubt, schedule_of
from foretrace.replay.selection import Selection, select
from foretrace.replay.variables import Variables
from foretrace.replay.works import under_way, with_waits, work_name
from foretrace.transforms.step import call_rows, require_arguments

SHORTEST_UNOWNED_US = 1.0
TAKES_STORAGE = "aten::set_"
"""Gives a tensor another storage, which has no name of its own: all that is known of it is its size."""
BY_DATA = frozenset(f"aten::{name}" for name in ("nonzero", "masked_select", "_unique2", "unique_consecutive"))
"""Operators whose results are as large as the data has it."""
MASKS = ("bool", "uint8")
PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"))


def plan_of(graph: Graph, selection: Selection | None = None, original: Graph | None = None) -> Plan:
    """The plan of a benchmark.

    Parameters
    ----------
    graph
        One rank's step, with the arguments of its calls.
    selection
        Which calls to take; all where it is left out.
    original
        The step before its calls were given other arguments: what was measured is measured of this one.

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
    chosen = select(ops, selection or Selection())
    whole = len(chosen) == len(ops)
    variables = Variables(graph.storages, sparse_parts(ops))
    calls = _repeatable(_calls_of(ops, chosen, variables), variables.inputs)
    tail_us, unowned_us = _timed(calls, measured, ops)
    plan = Plan(
        memories=list({entry.memory.name: entry.memory for entry in variables.inputs if entry.memory}.values()),
        inputs=variables.inputs,
        calls=with_waits(calls, variables.inputs),
        source=graph.source,
        rank=graph.rank,
        world=graph.world,
        groups=groups,
        settings=graph.settings,
        tail_us=tail_us if whole else 0.0,
        renumbered=set(variables.memories),
        sizes={number: storage.nbytes for number, storage in graph.storages.items()},
        threads=len({op.thread for op in ops if op.name in PRODUCTS}) or 1,
        unowned_us=unowned_us if whole else 0.0,
        whole=whole,
        notes=notes,
    )
    if plan.unowned_us >= SHORTEST_UNOWNED_US:
        plan.notes.append(f"{plan.unowned_us / 1e3:.3f} ms of device time are of no call: that part is not replayed")
    unsure = doubt(measured.plain.synced_ms)
    if unsure is not None:
        plan.notes.append(unsure)
    return with_contents(plan, graph, ops, rows)


def _timed(calls: Sequence[Call], measured: Graph, ops: Sequence[Op]) -> tuple[float, float]:
    """Give the calls their measured times. What is left: the host's after the last call, the device's of no call."""
    rows = call_rows(measured)
    schedule, device = schedule_of(measured, rows), _device_us(measured, rows)
    took = under_way(measured, rows, ops)
    for call in calls:
        if call.number >= 0:
            call.row, call.device_us = rows[call.number], float(device[call.number])
            call.gap_us, call.host_us = float(schedule.gap_us[call.number]), float(schedule.call_us[call.number])
            call.waits, call.took_us = bool(schedule.waits[call.number]), took.get(call.number, 0.0)
    return schedule.tail_us, float((measured.kernels.end - measured.kernels.start).sum() - device.sum())


def _device_us(graph: Graph, rows: Sequence[int]) -> Floats:
    """Device time that each call launched."""
    whose = enclosing_calls(graph, np.array(rows, np.int32))[graph.kernels.op]
    known = whose >= 0
    spent = (graph.kernels.end - graph.kernels.start)[known]
    return np.bincount(whose[known], spent, minlength=len(rows)).astype(np.float64)


def _calls_of(ops: Sequence[Op], chosen: Sequence[int], variables: Variables) -> list[Call]:
    """The chosen calls with variables for tensors; what ends in calls left out ends before the next one taken."""
    calls: list[Call] = []
    pending: list[int] = []
    loose: list[Name] = []
    taken = set(chosen)
    last_use = _last_uses(ops)
    for number, op in enumerate(ops):
        pending += op.frees
        if number not in taken:
            continue
        frees = list(dict.fromkeys([*variables.free(pending), *loose]))  # a sparse tensor may be among both
        pending, loose = [], []
        calls += _call(number, op, frees, variables)
        loose += variables.end(last_use.get(number, ()))
    return calls


def _repeatable(calls: list[Call], inputs: Sequence[Input]) -> list[Call]:
    """The calls, less those that leave memory smaller than the next step needs it: what made it larger was left out."""
    memory = {entry.name: entry.memory for entry in inputs if entry.memory is not None}
    last: dict[Name, tuple[Call, bool]] = {}
    for call in calls:
        if call.resized and (given := memory.get(call.resized[0])) is not None:
            last[given.name] = (call, call.resized[1] < given.nbytes)
    left_out = {call.number for call, smaller in last.values() if smaller}
    kept: list[Call] = []
    ended: tuple[Name, ...] = ()
    for call in calls:
        if call.number in left_out:
            ended += call.frees
            continue
        call.frees, ended = (*ended, *call.frees), ()
        kept.append(call)
    return kept


def _last_uses(ops: Sequence[Op]) -> dict[int, list[Tensor]]:
    """Sparse tensors made of nobody knows what, by the last call that sees them: they end there."""
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


def _call(number: int, op: Op, frees: list[Name], variables: Variables) -> list[Call]:
    """The call, after those that look at a storage as it wants to see it."""
    before: list[Call] = []

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
    call = Call(number, op.name, op.overload, args=args, kwargs=kwargs, sized_by_data=_sized_by_data(op))
    call.results = tuple(_result(value, call, variables) for value in op.outputs)
    calls = [*before, call]
    for made in calls:
        made.phase, made.module, made.stream = op.phase, op.module, op.stream
    calls[0].frees = tuple(frees)
    return calls


def _sized_by_data(op: Op) -> bool:
    """Whether values say how large a result is: those of a mask, for one."""
    masked = op.name == "aten::index" and any(tensor.dtype in MASKS for tensor in op.tensors[1:])
    return masked or op.name in BY_DATA


def _result(value: Value, call: Call, variables: Variables) -> Result:
    if isinstance(value, Tensor):
        name = variables.make(value)
        if name is not None:
            call.made[name] = value
        return name
    if isinstance(value, (list, tuple)) and not isinstance(value, Constant):
        return [_result(item, call, variables) for item in value]
    return work_name(value) if isinstance(value, Constant) else None
