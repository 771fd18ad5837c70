"""What a fleet's store holds of a recording: a few kilobytes, enough to answer every question about the fleet.

Device time by kernel family and op with shape buckets, host overheads, idle causes, communication by kind and size,
memory, utilisation, and the step's response to faster or slower parts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from foretrace.graph import Op
from foretrace.graph.codec import op_of, to_lines


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Device time of calls of one op in one phase whose sizes are alike: within a factor of two in bytes and FLOPs."""

    phase: str
    family: str
    op: str
    dtype: str
    shapes: str
    """Of the call among them that takes longest; empty where unknown."""
    ms: float
    count: int
    """Kernels."""
    gflop: float
    mbytes: float
    """The fewest that must be moved."""
    least_ms: float
    """At the device's peak rates; 0 where device or sizes are unknown."""
    call: str = ""
    """One of the calls, as a line of a recording; empty for most of the small ones."""


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Collectives of one kind whose sizes are within a factor of two of each other."""

    kind: str
    log2_bytes: int
    count: int
    transfer_ms: float
    wait_ms: float


@dataclass(frozen=True, slots=True)
class NamedMs:
    """Milliseconds by name, and how often."""

    name: str
    ms: float
    count: float = 0.0


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A part of a recording that may stand in a suite by itself: a phase, a module, or a range of calls."""

    name: str
    phase: str = ""
    module: str = ""
    first: str = ""
    last: str = ""
    """Of a range, its first and last call, as ``aten::mm#3``."""
    step_ms: float = 0.0
    """What it takes alone, without what runs before it."""
    active_ms: float = 0.0
    memory_bytes: int = 0
    settings_ms: list[float] = field(default_factory=list)
    """What it takes in each of `foretrace.fleet.response.SETTINGS`."""
    groups: list[int] = field(default_factory=list)
    """Places of the record's kernel groups that it has device time in, and how many milliseconds of each."""
    ms: list[float] = field(default_factory=list)


@dataclass
class StepRecord:
    """A recording, reduced. Times are milliseconds of one step, the mean over its ranks."""

    id: str = ""
    """Hash of the contents."""
    name: str = ""
    source: str = ""
    stamp: str = ""
    """Sizes and times of the files, so that what is there already is not read again."""
    made: str = ""
    """When the step ran, as ISO date; empty where unknown."""
    measured: bool = True
    """Whether its times were measured; else they were predicted."""
    clean: bool = True
    """Whether host times are those of unprofiled steps."""
    device: str = ""
    world: int = 1
    dtype: str = ""
    """That of most of the device time."""
    step_ms: float = 0.0
    active_ms: float = 0.0
    idle_ms: float = 0.0
    kernel_ms: float = 0.0
    bound: str = ""
    exposed_ms: float = 0.0
    hidden_ms: float = 0.0
    wait_ms: float = 0.0
    """In collectives, before the last rank has arrived."""
    balanced_ms: float = 0.0
    """The step if all ranks were equally fast; 0 for one rank."""
    memory_bytes: int = 0
    tflop: float = 0.0
    mfu: float = 0.0
    gbps: float = 0.0
    compiled: float = 0.0
    """Share of the device time in kernels that torch.compile generated."""
    launches: int = 0
    fused_ms: float = 0.0
    """Device time that goes away if chains of element-wise calls are one kernel each, as in a compiled step."""
    fused_launches: int = 0
    """Launches that go away with it."""
    kernels: list[KernelGroup] = field(default_factory=list)
    collectives: list[CollectiveGroup] = field(default_factory=list)
    idle: list[NamedMs] = field(default_factory=list)
    overheads: list[NamedMs] = field(default_factory=list)
    """T1 to T5."""
    host_ops: list[NamedMs] = field(default_factory=list)
    """The ops with most host time."""
    path: list[NamedMs] = field(default_factory=list)
    """The critical path by what it goes through."""
    response: list[list[float]] = field(default_factory=list)
    """Rows of `StepResponse`: milliseconds by `COMPONENTS`."""
    parts: list[PartRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    job: str = ""
    team: str = ""
    model: str = ""
    cluster: str = ""
    gpu_hours: float | None = None
    labels: list[tuple[str, str]] = field(default_factory=list)
    """Others, by name."""
    revision: int = 0
    """How often its labels were changed."""

    @property
    def hours(self) -> float:
        """GPU hours that it stands for: one where no label says how many."""
        return 1.0 if self.gpu_hours is None else self.gpu_hours


ON_DEVICE = "cuda:0"


def packed_call(op: Op) -> str:
    """A call as one short line, with nothing of its model but sizes: no ids, no module.

    >>> from foretrace.graph import Tensor
    >>> square = Tensor((64, 64), "float16", ON_DEVICE, (64, 1), id=7, storage=9)
    >>> packed_call(Op("aten::mm", (square, square), phase="forward"))
    '{"op":"aten::mm","args":[{"t":0},{"t":0}],"new":[["float16",[64,64],[64,1]]]}'
    >>> unpacked_call(packed_call(Op("aten::mm", (square, square)))).tensors[0].shape
    (64, 64)
    """
    bare = replace(op, module="", node="", frees=(), thread=0, stream=0, entered=0, line="")
    line = json.loads(next(iter(to_lines([bare]))))
    del line["phase"]
    line["new"] = [
        [dtype, shape, stride, *([layout, device, *stored] if (layout, device) != ("strided", ON_DEVICE) else [])]
        for shape, dtype, device, stride, _, _, _, layout, *stored in line.get("new", ())
    ]
    return json.dumps(line, separators=(",", ":"))


def unpacked_call(text: str) -> Op:
    """The call that `packed_call` wrote; tensors have storages of their own."""
    line = json.loads(text)
    line["new"] = [
        [shape, dtype, device, stride, 0, number, number, layout, *stored]
        for number, (dtype, shape, stride, *more) in enumerate(line["new"])
        for layout, device, *stored in [more or ("strided", ON_DEVICE)]
    ]
    return op_of({**line, "phase": "other"}, [])
