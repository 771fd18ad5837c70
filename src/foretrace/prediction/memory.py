"""Whether a predicted step fits on its device: what PyTorch reserves on each rank, and what lies outside of it.

Outside of PyTorch's allocator are the CUDA context with the kernels that were loaded, and the buffers of each NCCL
communicator. Neither can be simulated: constants stand for them, and the verdict leaves room for their error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from foretrace.analysis.dispatched import DispatchedCalls, dispatched_calls
from foretrace.analysis.memory import peak_memory
from foretrace.analysis.report import StepReport
from foretrace.analysis.reserved_memory import ReservedMemory, Workspace, simulate_memory
from foretrace.errors import ForetraceError
from foretrace.graph import PHASES, Graph
from foretrace.platform.device import Device
from foretrace.prediction.rank_models import PricedRank, RankModel
from foretrace.simulation.caching_allocator import MIB, AllocatorSettings

CONTEXT_BYTES = 560 * MIB
"""CUDA context and loaded kernels of a PyTorch process on a data-centre GPU."""
COMMUNICATOR_BYTES = 350 * MIB
"""Buffers of an NCCL communicator: some 24 channels with 4 MiB and less for each of three protocols, both ways."""
UNCERTAIN = 0.1
"""By how much what is reserved may be more than simulated: the largest error that was seen."""
MAX_RANKS_SIMULATED = 8
"""Of a job whose ranks differ, the fullest ones are simulated."""
FITS, TIGHT, TOO_LARGE = "fits", "tight", "does not fit"
CONTEXT, COMMUNICATORS = "CUDA context", "NCCL buffers"


@dataclass
class MemoryNeed:
    """Memory that a rank needs of its device, and whether it fits; in bytes."""

    rank: int
    allocated: int
    """At the most."""
    reserved: int | None = None
    """By PyTorch's allocator, at the most, were there no limit; None where it is not PyTorch's CUDA allocator."""
    by_kind: dict[str, int] = field(default_factory=dict)
    """All that the process takes, by what it is for."""
    capacity: int = 0
    verdict: str | None = None
    margin: int | None = None
    """What is left of the capacity; negative: what is missing."""
    simulated: ReservedMemory | None = field(default=None, repr=False)


def rank_memory(graph: Graph, rank: RankModel | None, device: Device | None) -> MemoryNeed | None:
    """What a rank needs; None where its source says nothing about memory.

    ``graph`` is the rank as it was read; ``rank`` its model, where there is one: only a priced one needs workspaces.
    """
    capacity = device.memory_bytes if device else 0
    if graph.allocated or device is None or device.runs_on_host:
        held = peak_memory(graph)
        if held is None:
            return None
        fits = None if not capacity else FITS if held <= capacity else TOO_LARGE
        return MemoryNeed(graph.rank, held, capacity=capacity, verdict=fits, margin=capacity - held)
    calls = rank.dispatched if isinstance(rank, PricedRank) else dispatched_calls(graph) if rank is None else None
    workspaces = gemm_workspaces(calls, device) if calls else []
    settings = AllocatorSettings.parse(device.alloc_conf)
    found = simulate_memory([graph], workspaces, settings)
    if found is None:
        return None
    groups = {c.group for c in graph.collectives if len(c.ranks) != 1}
    outside = {CONTEXT: CONTEXT_BYTES, COMMUNICATORS: COMMUNICATOR_BYTES * len(groups)}
    left = capacity - sum(outside.values())
    need = MemoryNeed(
        graph.rank,
        found.allocated,
        found.reserved,
        {**found.by_kind, **{kind: nbytes for kind, nbytes in outside.items() if nbytes}},
        capacity,
        FITS if found.reserved * (1 + UNCERTAIN) <= left else TIGHT,
        left - found.reserved,
        found,
    )
    if found.reserved > left:
        released = simulate_memory([graph], workspaces, settings, max(left, 0))
        if released is None or released.failed_at is not None:
            # What is cached can be released: allocations and what the blocks in use keep from being released count.
            need.verdict, need.margin = TOO_LARGE, min(left - found.allocated, -1)
        else:
            need.margin = left - released.reserved
    return need


def job_memory(graphs: Sequence[Graph], ranks: Sequence[RankModel], device: Device | None) -> dict[int, MemoryNeed]:
    """What each rank needs, by its place; of many that differ, the fullest are simulated."""
    simulated: Sequence[int] = range(len(graphs))
    needs: dict[int, MemoryNeed] = {}
    if len(graphs) > MAX_RANKS_SIMULATED:
        held = [peak_memory(graph) or 0 for graph in graphs]
        simulated = sorted(np.argsort([-nbytes for nbytes in held], kind="stable")[:MAX_RANKS_SIMULATED].tolist())
        needs = {place: MemoryNeed(graphs[place].rank, nbytes) for place, nbytes in enumerate(held) if nbytes}
    for place in simulated:
        if (need := rank_memory(graphs[place], ranks[place], device)) is not None:
            needs[place] = need
    return needs


def memory_events(report: StepReport) -> tuple[list[tuple[bool, int, int, int, str, str]], dict[int, int]]:
    """Each allocation of the fullest rank over its first steps, and its segments: for `formats.memory_viz`.

    An event is whether it is an allocation, its address, bytes, stream, the call that makes it, and what it is for.
    """
    job = report.workings.job if report.workings else None
    device = report.workings.device if report.workings else None
    graphs = [graph for graph in job.graphs if graph.storages and not graph.allocated] if job else []
    if not graphs or device is None or device.runs_on_host:
        raise ForetraceError("the step says nothing about its allocations", "Record or sketch it, for a GPU.")
    graph = max(graphs, key=lambda graph: peak_memory(graph) or 0)
    workspaces = gemm_workspaces(dispatched_calls(graph), device)
    found = simulate_memory([graph], workspaces, AllocatorSettings.parse(device.alloc_conf), with_events=True)
    assert found is not None  # it has storages
    names = [(op.name, op.module) for op in graph.ops]
    before = ("before the step", "")
    events = []
    for event in found.events:
        call, module = names[event.row] if 0 <= event.row < len(names) else before
        place = f"{event.kind}, {module}" if module else event.kind
        events.append((event.is_allocation, event.address, event.nbytes, event.stream, call, place))
    return events, found.segments


def fullest_rank(needs: dict[int, MemoryNeed]) -> MemoryNeed | None:
    """The rank that needs most."""
    return max(needs.values(), key=lambda need: (need.reserved or 0, need.allocated), default=None)


FUSED_GEMMS = ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")
"""Calls that multiply matrices among other things."""


def gemm_workspaces(step: DispatchedCalls, device: Device) -> list[Workspace]:
    """The GEMM library's workspaces: for each stream, and for autograd's thread beside the main one."""
    if device.runs_on_host:
        return []
    from foretrace.cost_models.kernels.families.gemm import Gemm

    ops = step.calls.ops
    multiplies = np.flatnonzero(ops.names.matching({*Gemm.ops, *FUSED_GEMMS}.__contains__)[ops.name])
    backward = ops.phase == PHASES.index("backward")
    first: dict[tuple[int, bool], int] = {}
    for call in multiplies.tolist():
        first.setdefault((int(step.stream[call]), bool(backward[call])), call)
    nbytes = round(device.workspace_mib * MIB)
    return [Workspace(int(step.rows[call]), nbytes, stream) for (stream, _), call in first.items()]
