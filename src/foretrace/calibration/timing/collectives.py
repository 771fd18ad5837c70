"""Measuring collectives between the processes of a torchrun, over message sizes and group sizes.

Where ranks run on a CPU, also how they slow each other down: by the same work on so many of them at once, and by
communication that goes on during the work, whose threads need processors too.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from foretrace._progress import OnProgress, Progress
from foretrace.calibration.timing.device import is_gpu, machine_facts, synchronize
from foretrace.errors import ForetraceError
from foretrace.platform.measurements.fabric import OVERLAPPED, WORK, TimedCollective, add_collectives, begin_run

MIN_BYTES = 256
"""Of the smallest messages."""
MAX_BYTES = {"nccl": 2**30, "gloo": 2**24}
"""Of the largest messages, by backend."""
CHUNK_SECONDS = 2e-3
"""Calls are timed in a row that takes about this long: too short a time can't be measured well."""
REPEATS = 5
WORK_SIDE, WORK_GEMMS, WORK_ELEMENTS = 640, 6, 2**21
"""Of the work on a CPU: GEMMs that fill some megabytes of new memory, and sums over memory that no core's cache holds.
Some tens of milliseconds in all, as long as a rank works between two collectives."""
OVERLAP_ELEMENTS = 2**23
"""Of the all_reduce during the work, which takes about as long."""

Call = Callable[[], None]


class World:
    """The processes that measure, and this one's rank among them."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.backend = str(dist.get_backend())
        local = int(os.environ.get("LOCAL_RANK", 0))
        self.device = torch.device("cuda", local) if self.backend == "nccl" else torch.device("cpu")
        self.per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks))

    def groups(self) -> Iterator[tuple[int, Any]]:
        """Groups of the first 2, 4, 8, … and of all ranks; each process makes all of them, as PyTorch requires."""
        sizes = {2**power for power in range(1, self.ranks.bit_length()) if 2**power <= self.ranks} | {self.ranks}
        for size in sorted(sizes):
            yield size, dist.new_group(list(range(size)))

    def largest(self, number: float) -> float:
        """The largest of the numbers of all ranks."""
        shared = torch.tensor([number], dtype=torch.float64, device=self.device)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return float(shared.item())

    def gathered(self, number: float) -> list[float]:
        """The numbers of all ranks."""
        each = [torch.zeros(1, dtype=torch.float64) for _ in range(self.ranks)]
        dist.all_gather(each, torch.tensor([number], dtype=torch.float64))
        return [one.item() for one in each]


def measure_collectives(path: Path, seconds: float, on_progress: OnProgress = lambda progress: None) -> int:
    """Time collectives of all kinds between the processes of this torchrun until the time is up.

    Rounds over all kinds, groups and sizes are repeated, at least one of them.

    Rank 0 appends the measurements to the file. Returns how many collectives were measured.
    """
    with process_group() as world:
        if world.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            known = machine_facts(world.device)
            where = f"{world.backend} between {world.ranks} ranks on {known['device']}, {known['made'][:10]}"
            begin_run(path, {**known, "provenance": where})
        work = [(kind, size, group) for size, group in world.groups() for kind in KINDS]
        begun = time.monotonic()
        count = 0
        while count == 0 or world.largest(time.monotonic() - begun) < seconds:
            for one in _round(work, world):
                count += 1
                if world.rank == 0:
                    add_collectives(path, [one])
                    text = f"{one.kind} of {one.ranks} ranks, {one.nbytes:,} bytes"
                    on_progress(Progress(text, time.monotonic() - begun, seconds))
        return count


@contextmanager
def process_group() -> Iterator[World]:
    """The process group of this torchrun; or the one that this process is in already."""
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


def _round(work: Sequence[tuple[str, int, Any]], world: World) -> Iterator[TimedCollective]:
    """Each collective at all sizes; and after each, where ranks run on a CPU, how they slow each other down."""
    for kind, size, group in work:
        yield from _measured(kind, size, group, world)
        if not is_gpu(world.device):
            yield from measure_oversubscription(world)


def _measured(kind: str, size: int, group: Any, world: World) -> Iterator[TimedCollective]:
    """One kind of collective among the first so many ranks, at all sizes."""
    nodes = -(-size // world.per_node)
    ranks = size
    if kind == "send":
        if size > 2 and nodes == 1:
            return  # the same link as between the first two
        ranks, nodes = 2, min(nodes, 2)
    nbytes = MIN_BYTES
    while nbytes <= MAX_BYTES[world.backend]:
        times = _times(kind, nbytes, size, group, world)
        if times:
            yield TimedCollective(kind, ranks, nodes, nbytes, tuple(round(us, 3) for us in times))
        nbytes *= 4


def _times(kind: str, nbytes: int, size: int, group: Any, world: World) -> list[float]:
    """Microseconds of a collective after its last rank's arrival; none where it doesn't fit or isn't supported."""
    outside = world.rank >= size
    call = None if outside else prepared(kind, nbytes, size, group, world)
    if world.largest(call is None and not outside):
        return []
    if world.largest(call is not None and not supported(call)):
        return []
    calls = max(1, min(100, int(CHUNK_SECONDS / max(world.largest(_seconds_per_call(call, 2, world)), 1e-9))))
    return [1e6 * _shared(kind, _seconds_per_call(call, calls, world), outside, world) for _ in range(REPEATS)]


def _shared(kind: str, seconds: float, outside: bool, world: World) -> float:
    """Time of a collective, from its times on each rank.

    Ranks do not arrive at the same moment: the last one did not wait, so the shortest time counts. Where one rank only
    sends, it is done before the others, and the longest counts.
    """
    if kind in ONE_SENDER:
        return world.largest(seconds)
    return -world.largest(-math.inf if outside else -seconds)


def _seconds_per_call(call: Call | None, calls: int, world: World) -> float:
    """Seconds per call, over several in a row; 0 for a rank that makes none."""
    dist.barrier()
    if call is None:
        return 0.0
    synchronize(world.device)
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(world.device)
    return (time.perf_counter() - begun) / calls


def _call(kind: str, whole: torch.Tensor, ranks: int, group: Any, rank: int) -> Call:
    """A collective of a buffer: all of it is gathered or scattered, or is what a rank sends."""
    part = torch.zeros_like(whole[: len(whole) // ranks])
    received = torch.zeros_like(whole) if kind == "all_to_all" else whole
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(received, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
    }
    if kind != "send":
        return calls[kind]
    if rank == 0:  # to the last one of the group; the others do nothing
        return lambda: dist.send(whole, ranks - 1, group=group)
    return (lambda: dist.recv(whole, 0, group=group)) if rank == ranks - 1 else (lambda: None)


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
"""As `foretrace.graph.Collective` names them, and so are sizes counted."""
ONE_SENDER = ("broadcast", "send")
"""The kinds in which one rank only sends."""


def prepared(kind: str, nbytes: int, ranks: int, group: Any, world: World) -> Call | None:
    """A collective of this size with its buffers; None where they do not fit into memory."""
    elements = max(1, nbytes // 4 // ranks) * ranks
    try:
        return _call(kind, torch.zeros(elements, device=world.device), ranks, group, world.rank)
    except (torch.OutOfMemoryError, MemoryError):
        return None


def supported(call: Call) -> bool:
    """Whether the backend has this collective; makes the call once."""
    try:
        call()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def measure_oversubscription(world: World) -> Iterator[TimedCollective]:
    """Let 1, 2, 4, … and all processes of the first node work at once, and time each; the others wait meanwhile.

    Every process of the group must call this. Which of them share a core changes by chance, and slowly: it takes
    several measurements, apart from each other, to know.
    """
    most = min(world.ranks, world.per_node)
    sizes = {2**power for power in range(most.bit_length()) if 2**power <= most} | {most}
    square, large = torch.randn(WORK_SIDE, WORK_SIDE), torch.randn(WORK_ELEMENTS)
    for size in sorted(sizes):
        dist.barrier()
        took = world.gathered(_work_us(square, large) if world.rank < size else 0.0)
        yield TimedCollective(WORK, size, 1, 0, tuple(round(us, 1) for us in took[:size]))
    if most == world.ranks:
        yield from _measure_overlap(world, square, large)


def _measure_overlap(world: World, square: Any, large: Any) -> Iterator[TimedCollective]:
    """The work of all ranks during an all_reduce, and that all_reduce without the work and during it."""
    sent, took = torch.zeros(OVERLAP_ELEMENTS), [0.0]
    alone = _all_reduce_us(sent, lambda: None)
    overlapped = _all_reduce_us(sent, lambda: took.append(_work_us(square, large)))
    work = world.gathered(took[-1])
    yield TimedCollective(WORK, world.ranks, 1, sent.nbytes, tuple(round(us, 1) for us in work))
    transfers = (round(min(world.gathered(us)), 1) for us in (alone, overlapped))  # the last rank waited for no other
    yield TimedCollective(OVERLAPPED, world.ranks, 1, sent.nbytes, tuple(transfers))


def _all_reduce_us(sent: Any, meanwhile: Callable[[], None]) -> float:
    """Microseconds of an all_reduce over all ranks, during which each does something else."""
    ended: list[float] = []
    dist.barrier()
    began = time.perf_counter()
    pending = dist.all_reduce(sent, async_op=True)
    done = pending.get_future().then(lambda _: ended.append(time.perf_counter()))
    meanwhile()
    pending.wait()
    done.wait()
    return (ended[0] - began) * 1e6


def _work_us(square: Any, large: Any) -> float:
    """Do the work; microseconds that it took."""
    began = time.perf_counter()
    made = [square @ square for _ in range(WORK_GEMMS)]
    for one in made:
        large.add_(one[0, 0])
    return (time.perf_counter() - began) * 1e6
