"""The ranks of a job: their process groups, and values that they exchange besides collectives.

Until `connect` is called a process runs alone: groups and reductions are None, and no work is waited for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .collectives import DelayedWork, PartialGroup
from .memory import DispatchMode

TIMEOUT = timedelta(seconds=120)
"""How long a rank waits for the others before it gives up."""
GroupKey = tuple[str, tuple[int, ...]]
"""Name and ranks of a process group."""


@dataclass
class RankState:
    """Rank of this process, and its process groups."""

    rank: int = 0
    world: int = 1
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name of a group in the step: its ``ranks``, their ``places`` in the original group, and ``of`` how many."""
    connected: bool = False
    groups: dict[GroupKey, Any] = field(default_factory=dict)
    reductions: dict[str, Any] = field(default_factory=dict)
    turns: int = 0
    """Number of values gathered so far."""
    store: Any = None


rank_state = RankState()


def local_rank() -> int:
    """The number of this rank on its machine, as torchrun sets it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def ranks_sharing_memory(kind: str) -> int:
    """Number of ranks that share this one's memory: all of the machine on CPUs, those of one GPU on GPUs."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    return ranks if kind != "cuda" else -(-ranks // max(torch.cuda.device_count(), 1))


def backend(kind: str) -> str:
    """Backend of the collectives: gloo between CPUs, nccl between GPUs unless ranks must share one.

    >>> backend("cpu")
    'gloo'
    """
    alone = kind == "cuda" and dist.is_nccl_available() and ranks_sharing_memory(kind) == 1
    return "cpu:gloo,cuda:nccl" if alone else "gloo"


def connect(groups: Sequence[tuple[str, Sequence[int]]], kind: str) -> None:
    """Connect with the other ranks that torchrun started, and make the process groups of the whole job."""
    if rank_state.connected:
        return
    dist.init_process_group(backend(kind), timeout=TIMEOUT)
    rank_state.rank, rank_state.world, rank_state.connected = dist.get_rank(), dist.get_world_size(), True
    rank_state.store = dist.PrefixStore("replay", dist.distributed_c10d._get_default_store())
    for name, ranks in groups:  # every rank makes every group, in the same order
        rank_state.groups[name, tuple(ranks)] = dist.new_group(list(ranks))


def disconnect() -> None:
    """Wait until all ranks are done, and destroy the process groups."""
    if rank_state.connected:
        gather_from_ranks(None)
        dist.destroy_process_group()
        rank_state.connected = False


def gather_from_ranks(value: Any) -> list[Any]:
    """The values of all ranks, each of which calls this with its own JSON value."""
    if not rank_state.connected:
        return [value]
    turn, rank_state.turns = rank_state.turns, rank_state.turns + 1
    rank_state.store.set(f"{turn}/{rank_state.rank}", json.dumps(value))
    return [json.loads(rank_state.store.get(f"{turn}/{rank}")) for rank in range(rank_state.world)]


def _group(name: str) -> Any:
    return rank_state.groups[name, tuple(rank_state.members[name]["ranks"])]


def group(name: str) -> Any:
    """The process group of that name, as collectives take it; None for a process that runs alone."""
    if not rank_state.connected:
        return None
    entry = rank_state.members[name]
    if len(entry["ranks"]) == entry["of"]:
        return _group(name).boxed()
    box = _group(name).boxed() if len(entry["ranks"]) > 1 else None
    return PartialGroup(box, entry["of"], tuple(entry["places"]))


def group_name(name: str) -> str:
    """Name in this process of the process group of that name in the recording."""
    return str(_group(name).group_name) if rank_state.connected else name


def reduction(name: str) -> Any:
    """A reduction by name, as collectives take it; None for a process that runs alone."""
    if not rank_state.connected:
        return None
    if name not in rank_state.reductions:
        rank_state.reductions[name] = _boxed_reduction(name)
    return rank_state.reductions[name]


class _Captured(Exception):  # noqa: N818
    pass


class _CaptureReduction(DispatchMode):
    """Captures the reduction that a collective is called with, instead of making the call."""

    box: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        self.box = args[2]
        raise _Captured


def _boxed_reduction(name: str) -> Any:
    """A reduction boxed as operators take it; Python can get one only by intercepting a collective."""
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, name.upper())
    with suppress(_Captured), _CaptureReduction() as capture:
        dist.distributed_c10d._get_default_group().allreduce([torch.zeros(1)], options)
    return capture.box


def wait(work: Any) -> None:
    """Wait for a collective; one on a GPU only makes the current stream wait."""
    delay = work if isinstance(work, DelayedWork) else None
    box = delay.work if delay else work
    if box is not None:
        torch._C._distributed_c10d.Work.unbox(box).wait()
    if delay:
        delay.wait()
