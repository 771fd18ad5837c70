"""Host time of a step's calls: T1 between calls, T2 to T5 inside them (T4: launch overhead).

T1 is a sum of terms, such as one per call of a phase and one per parameter. For each call `t1_terms` counts how much of
each term falls before it; a calibration fits the cost of each term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import PHASES, Graph, Names, Op, Tensor
from foretrace.graph.tables import CALL, Floats, Ints, Small
from foretrace.platform.host import TERMS, CallCost, Host, Sharded

if TYPE_CHECKING:
    from foretrace.platform.measurements.host import Calls

FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
CAST = "aten::_to_copy"
READ_SCALAR = "aten::_local_scalar_dense"
"""Some optimizers call it several times per parameter."""
LISTS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_", "aten::cat", "aten::stack", "aten::index")
"""Prefixes of the calls that take lists of tensors."""

PER_CALL = np.array([name.endswith(("_call", "_view")) for name in TERMS])
"""The terms of T1 that every call of a phase has."""
FSDP = "fsdp::"
"""Prefix of the calls that FSDP adds to a step."""
GATHER = "fsdp::all_gather_copy_in"
"""The first call of a gather; its longest list is the parameters."""
SMALL_STEP, LARGE_STEP = 150, 500
"""Eager calls of a model, forward and backward, up to which a GPU's host takes what their costs add up to, and from
which on it takes `Host.large_step` times as long."""
REPLANNED = ("aten::addcdiv_", "aten::_foreach_addcdiv_")
"""Calls to which Adam and its variants pass a number that changes with each step: DTensor plans them anew for each
shape."""


class HostCosts(NamedTuple):
    """Microseconds of host time, a row for each call. Waiting for the device is not included."""

    before: Floats
    """T1: between the previous call and this one."""
    gap: Floats
    """The part of T1 that every call of a phase has."""
    to_launch: Floats
    """T2: from the start to the first launch; all of a call that launches nothing."""
    launch: Floats
    """T4: in one launch."""
    between: Floats
    """T5: from one launch to the next."""
    after: Floats
    """T3: from the last launch to the end."""
    cold_penalty: Floats
    """Additional T1 per doubling of the milliseconds that the host waited before the step."""
    spread: Floats
    """Standard deviation of the logarithm of each call's time."""
    common: float
    """Standard deviation of the logarithm of a factor that all calls of a step share."""
    speeds: tuple[float, float] = (0.0, 0.0)
    """The same towards shorter and towards longer times, where that is more."""
    large_step: float = Host.large_step


def price_host(graph: Graph, rows: Ints, launches: Ints, host: Host) -> HostCosts:
    """Host time of dispatcher calls.

    ``rows`` are the dispatcher calls among the graph's ops, in order; ``launches`` how many each makes.
    """
    calls = HostCalls.of(graph, rows, launches)
    inside, counts, costs = _inside(calls, host), t1_terms(calls), np.array(astuple(host.before))
    # Without a backward there are no gradients to prepare for: a launch costs the same, all around it less.
    factor = host.inference if (calls.phase == FORWARD).all() else 1.0
    to_launch = inside["to_launch"] * np.where(calls.first, host.first, 1.0) + inside["tensor"] * calls.tensors
    return HostCosts(
        before=factor * (counts @ costs + fsdp_us(graph, rows, host.sharded)),
        gap=factor * (counts[:, PER_CALL] @ costs[PER_CALL]),
        to_launch=factor * to_launch,
        launch=inside["launch"],
        between=factor * inside["between"],
        after=factor * inside["after"],
        cold_penalty=cold_host_terms(calls) @ np.array(astuple(host.rested)),
        spread=inside["spread"],
        common=host.common,
        speeds=(host.faster, host.slower),
        large_step=host.large_step,
    )


def of_large_step(host: HostCosts, eager: NDArray[np.bool_], share: float = 1.0) -> HostCosts:
    """Host costs of the calls in a step of so many calls: a large model takes longer than they do one by one.

    ``eager`` are the model's calls that no compiled program and no CUDA graph makes: only these take longer. ``share``
    is how much of the model they are, where only some of its blocks are priced.

    >>> eager = np.ones(325, bool)
    >>> alone = HostCosts(*[np.full(325, 10.0)] * 8, common=0.1)
    >>> large = of_large_step(alone, eager)
    >>> large.before[0].round(3).item(), large.launch[0].item()
    (10.5, 10.0)
    """
    longer = np.interp(eager.sum() / share, (SMALL_STEP, LARGE_STEP), (1.0, host.large_step))
    factor = np.where(eager, longer, 1.0)
    return host._replace(
        before=factor * host.before,
        gap=factor * host.gap,
        to_launch=factor * host.to_launch,
        between=factor * host.between,
        after=factor * host.after,
    )


def _inside(calls: HostCalls, host: Host) -> dict[str, Floats]:
    """The fields of each call's `CallCost`, as columns: looked up once per name, with launches and without."""
    views, launching = ([host.cost(name, launches) for name in calls.names.items] for launches in (0, 1))
    code = calls.name + np.where(calls.launches > 0, len(views), 0)
    return {f.name: np.array([getattr(c, f.name) for c in views + launching])[code] for f in fields(CallCost)}


def fsdp_us(graph: Graph, rows: Ints, costs: Sharded) -> Floats:
    """Microseconds that FSDP adds to T1 of each call: Python around gathers, and around the optimizer's calls.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> small, large = (Op("aten::addcdiv_", (Tensor((n,), "float32"),), phase="optimizer") for n in (8, 9))
    >>> gather = Op("fsdp::all_gather_copy_in", ([Tensor((8,), "float32"), Tensor((9,), "float32")],))
    >>> graph = Graph(OpTable.of([gather, small, small, large]))
    >>> costs = Sharded(call=40.0, planned=1000.0, gather=500.0, gathered=50.0)
    >>> fsdp_us(graph, np.arange(4, dtype=np.int32), costs).tolist()
    [600.0, 1040.0, 40.0, 1040.0]
    """
    ops = graph.ops
    us = np.zeros(len(rows))
    if costs == Sharded() or not any(name.startswith(FSDP) for name in ops.names.items):
        return us
    updates = ops.phase[rows] == PHASES.index("optimizer")
    us[updates] = costs.call
    for place in np.flatnonzero(ops.names.matching(GATHER.__eq__)[ops.name[rows]]).tolist():
        us[place] += costs.gather + costs.gathered * longest_list(ops[int(rows[place])])
    replanned = updates & ops.names.matching(REPLANNED.__contains__)[ops.name[rows]]
    seen: set[object] = set()
    for place in np.flatnonzero(replanned).tolist():
        op = ops[int(rows[place])]
        key = op.name, tuple(tensor.shape for tensor in op.tensors)
        us[place] += costs.planned * (key not in seen)
        seen.add(key)
    return us


@dataclass(eq=False)
class HostCalls:
    """The calls of a step as columns: what their host time depends on."""

    name: Ints
    names: Names
    phase: Small
    entered: Ints
    """Modules entered before each call."""
    tensors: Ints
    """Length of the longest list of tensors among the arguments."""
    launches: Floats

    def __len__(self) -> int:
        return len(self.name)

    @property
    def parameters(self) -> int:
        """Number of parameters that the step updates: the length of its optimizer's lists, or the repeats of a call."""
        updates = self.phase == OPTIMIZER
        if not updates.any():
            return 0
        reads = self.names.matching(READ_SCALAR.__eq__)[self.name]
        repeats = np.bincount(self.name[updates & ~reads], minlength=1).max()
        return max(int(self.tensors[updates].max()), int(repeats))

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """Whether each call is the first of its name in its phase."""
        first = np.zeros(len(self), bool)
        first[
            np.unique(self.phase.astype(np.int64) * (len(self.names.items) + 1) + self.name, return_index=True)[1]
        ] = True
        return first

    @cached_property
    def recomputed(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Where recomputed blocks of activation checkpointing begin, and which calls are theirs.

        Backward enters modules only there. From then on it repeats calls of the forward, as far as it needs them.
        """
        begins, again = np.zeros((2, len(self)), bool)
        backward, forward = (np.flatnonzero(self.phase == phase) for phase in (BACKWARD, FORWARD))
        now, before = self.name[backward].tolist(), self.name[forward].tolist()
        end = 0
        for place in np.flatnonzero(self.entered[backward]).tolist():
            if place >= end:
                end = place + max(1, _repeated(now, place, before))
                begins[backward[place]], again[backward[place:end]] = True, True
        return begins, again

    @classmethod
    def measured(cls, calls: Calls, launches: Floats) -> HostCalls:
        """The calls of a measured step."""
        names = Names()
        codes = np.array([names.code(name) for name in calls.name], np.int32)
        entered, tensors = (np.array(column, np.int32) for column in (calls.entered, calls.tensors))
        return cls(codes, names, np.array(calls.phase, np.int8), entered, tensors, launches)

    @classmethod
    def of(cls, graph: Graph, rows: Ints, launches: Ints) -> HostCalls:
        """The calls of a graph; only ops that matter are read, since reading ops of a trace is slow."""
        ops, count = graph.ops, len(rows)
        entered, tensors = np.zeros((2, count), np.int32)
        takes_list = ops.names.matching(lambda name: name.startswith(LISTS))[ops.name[rows]] if count else entered > 0
        flat = not bool(((ops.parent >= 0) & (ops.kind == CALL)).any())
        recomputing = (ops.phase[rows] == BACKWARD) & flat
        for place in np.flatnonzero(takes_list | recomputing).tolist() if ops.detail else ():
            op = ops[int(rows[place])]
            entered[place], tensors[place] = op.entered, longest_list(op) if takes_list[place] else 0
        phase = np.where(ops.phase[rows] == OTHER, FORWARD, ops.phase[rows]).astype(np.int8)
        return cls(ops.name[rows], ops.names, phase, entered, tensors, launches.astype(np.float64))


def longest_list(op: Op) -> int:
    """Length of the longest list of tensors among an op's arguments.

    >>> longest_list(Op("aten::cat", ([Tensor((2,), "int8"), Tensor((3,), "int8")], 0)))
    2
    """
    lists = [value for value in (*op.args, *op.kwargs.values()) if isinstance(value, (list, tuple))]
    return max((sum(isinstance(item, Tensor) for item in items) for items in lists), default=0)


def t1_terms(calls: HostCalls) -> Floats:
    """A row per call, a column per term of `TERMS`: multiplied with the costs of the terms they give T1 of each call.

    A term per phase counts at the phase's first call; a term per parameter is distributed over the phase's calls.
    """
    forward, backward, optimizer = (calls.phase == phase for phase in (FORWARD, BACKWARD, OPTIMIZER))
    view = calls.launches < 0.5
    cast = calls.names.matching(CAST.__eq__)[calls.name] if len(calls) else view
    blocks, again = calls.recomputed
    python, autograd = forward | again, backward & ~again
    begins = np.arange(len(calls)) == 0
    columns = {
        "clearing": begins,
        "cleared": np.where(begins, calls.parameters, 0),
        "forward": _begins(forward),
        "forward_call": python & ~view & ~cast,
        "forward_view": python & view & ~cast,
        "forward_cast": python & cast,
        "backward": _begins(backward),
        "backward_call": autograd & ~view,
        "backward_view": autograd & view,
        "backward_parameter": _distributed(calls.parameters, backward),
        "optimizer": _begins(optimizer),
        "optimizer_call": optimizer,
        "optimizer_parameter": _distributed(calls.parameters, optimizer),
        "released": _distributed(int(backward.sum()), optimizer),
        "recomputed_forward": _distributed(int(blocks.sum()), forward),
        "recomputed_backward": blocks,
        "new_name": calls.first,
    }
    return np.stack([columns[name].astype(np.float64) for name in TERMS], axis=1)


def cold_host_terms(calls: HostCalls) -> Floats:
    """A row per call, a column per part of a step: where the penalty of a host that has waited falls.

    That of zeroing gradients falls on the first call, the others on the first calls of each name in a phase.
    """
    columns = np.zeros((len(calls), 4))
    columns[:1, 0] = 1.0
    for phase in (FORWARD, BACKWARD, OPTIMIZER):
        first = calls.first & (calls.phase == phase)
        columns[first, phase + 1] = 1 / max(1, int(first.sum()))
    return columns


MAX_KEPT = 3
"""Calls in a row whose results selective checkpointing keeps, so that they are not made again."""


def _repeated(calls: Sequence[int], start: int, before: Sequence[int]) -> int:
    """Length of the longest run of calls from a position on that was made before in the same order.

    Calls whose results were kept may be missing from it: after these come two or more that were made before.
    """
    places = (place for place, name in enumerate(before) if name == calls[start])
    return max((_run_with_kept(calls, start, before, place) for place in places), default=0)


def _run_with_kept(one: Sequence[int], start: int, other: Sequence[int], place: int) -> int:
    """As `_common_run`, going on where the other list has a few items more.

    >>> _run_with_kept([1, 2, 5, 6, 9], 0, [1, 2, 3, 4, 5, 6, 7], 0)
    4
    """
    found = 0
    while more := _common_run(one, start + found, other, place):
        found, place = found + more, place + more
        kept = range(1, MAX_KEPT + 1)
        place += next((skip for skip in kept if _common_run(one, start + found, other, place + skip) > 1), 0)
    return found


def _common_run(one: Sequence[int], start: int, other: Sequence[int], place: int) -> int:
    """How many items of two lists are equal from two positions on."""
    most = min(len(one) - start, len(other) - place)
    return next((number for number in range(most) if one[start + number] != other[place + number]), most)


def _begins(phase: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where a phase begins: several times in a step that accumulates gradients."""
    begins = phase.copy()
    begins[1:] &= ~phase[:-1]
    return begins


def _distributed(amount: int, phase: NDArray[np.bool_]) -> Floats:
    return np.where(phase, amount / max(1, int(phase.sum())), 0.0)
