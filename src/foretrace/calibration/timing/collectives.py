"""Times collectives between the processes of a torchrun, over message sizes and group sizes."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from foretrace.graph import ForetraceError
from foretrace.platform.fabric_measurements import Exchange, add_exchanges, open_run
from foretrace.platform.measure.crowd import crowd
from foretrace.platform.measure.fabric_calls import FROM_ONE, KINDS, Call, prepared, supported
from foretrace.platform.measure.machine import facts

LEAST = 256
"""Bytes of the smallest messages."""
MOST = {"nccl": 2**30, "gloo": 2**24}
"""Bytes of the largest, by backend."""
CHUNK_SECONDS = 2e-3
"""What is timed at once takes about this long: calls follow each other, since a clock stops too few of them alone."""
REPEATS = 5


class FabricProgress(NamedTuple):
    """What was measured last, and for how long altogether."""

    exchange: Exchange
    seconds: float


class World:
    """The processes that measure together."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.backend = str(dist.get_backend())
        local = int(os.environ.get("LOCAL_RANK", 0))
        self.device = torch.device("cuda", local) if self.backend == "nccl" else torch.device("cpu")
        self.per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks))

    def groups(self) -> Iterator[tuple[int, Any]]:
        """Groups of the first 2, 4, 8, … and of all ranks; each process makes all of them, as PyTorch wants it."""
        sizes = {2**power for power in range(1, self.ranks.bit_length()) if 2**power <= self.ranks} | {self.ranks}
        for size in sorted(sizes):
            yield size, dist.new_group(list(range(size)))

    def agreed(self, number: float) -> float:
        """The largest of what the ranks say."""
        shared = torch.tensor([number], dtype=torch.float64, device=self.device)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return float(shared.item())

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def calibrate_fabric(
    path: Path, seconds: float, report: Callable[[FabricProgress], None] = lambda progress: None
) -> int:
    """Time collectives of all kinds between the processes of this torchrun until the time is up.

    Rounds over all sizes are measured again and again, at least one of them.

    Parameters
    ----------
    path
        The file that rank 0 adds the measurements to.
    seconds
        How long.
    report
        Told on rank 0 after each collective.

    Returns
    -------
    How many collectives were measured.
    """
    with joined() as world:
        if world.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            known = facts(world.device)
            where = f"{world.backend} between {world.ranks} ranks on {known['device']}, {known['made'][:10]}"
            open_run(path, {**known, "provenance": where})
        work = [(kind, size, group) for size, group in world.groups() for kind in KINDS]
        begun = time.monotonic()
        count = 0
        while count == 0 or world.agreed(time.monotonic() - begun) < seconds:
            for exchange in _round(work, world):
                count += 1
                if world.rank == 0:
                    add_exchanges(path, [exchange])
                    report(FabricProgress(exchange, time.monotonic() - begun))
        return count


@contextmanager
def joined() -> Iterator[World]:
    """This process as one of those that torchrun started; where they are a group already, as one of these."""
    if dist.is_initialized():
        yield World()
        return
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        raise ForetraceError(
            "a fabric is measured between processes, and this one is alone",
            "Start one a GPU: torchrun --nproc-per-node 8 --no-python foretrace calibrate fabric --out my-platform",
        )
    if int(os.environ["WORLD_SIZE"]) < 2:
        raise ForetraceError("a fabric needs two processes at least", "Give torchrun --nproc-per-node 2 or more.")
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch renames its collectives now and then
            yield World()
    finally:
        dist.destroy_process_group()


def _round(work: Sequence[tuple[str, int, Any]], world: World) -> Iterator[Exchange]:
    """Each collective at all sizes; and in between, where processors do the ranks' work, that."""
    for kind, size, group in work:
        yield from _measured(kind, size, group, world)
        if world.device.type == "cpu":
            yield from crowd(world)


def _measured(kind: str, size: int, group: Any, world: World) -> Iterator[Exchange]:
    """One collective among the first so many ranks, at all sizes."""
    nodes = -(-size // world.per_node)
    ranks = size
    if kind == "send":
        if size > 2 and nodes == 1:
            return  # the same link as between the first two
        ranks, nodes = 2, min(nodes, 2)
    nbytes = LEAST
    while nbytes <= MOST[world.backend]:
        times = _times(kind, nbytes, size, group, world)
        if times:
            yield Exchange(kind, ranks, nodes, nbytes, tuple(round(us, 3) for us in times))
        nbytes *= 4


def _times(kind: str, nbytes: int, size: int, group: Any, world: World) -> list[float]:
    """Microseconds of a collective from its last rank's arrival on; none where it does not fit or is not supported."""
    outside = world.rank >= size
    call = None if outside else prepared(kind, nbytes, size, group, world)
    if world.agreed(call is None and not outside):
        return []
    if world.agreed(call is not None and not supported(call)):
        return []
    calls = max(1, min(100, int(CHUNK_SECONDS / max(world.agreed(_chunk(call, 2, world)), 1e-9))))
    return [1e6 * _shared(kind, _chunk(call, calls, world), outside, world) for _ in range(REPEATS)]


def _shared(kind: str, seconds: float, outside: bool, world: World) -> float:
    """What a collective takes, of what it took on each rank.

    Ranks do not come at the same moment: who was last had nobody to wait for. But who only sends is done before it.
    """
    if kind in FROM_ONE:
        return world.agreed(seconds)
    return -world.agreed(-math.inf if outside else -seconds)


def _chunk(call: Call | None, calls: int, world: World) -> float:
    """Seconds per call, over several in a row; 0 for a rank that makes none."""
    dist.barrier()
    if call is None:
        return 0.0
    world.wait()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    world.wait()
    return (time.perf_counter() - begun) / calls
