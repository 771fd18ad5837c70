"""A software stack: by how much the frameworks, libraries and clocks of a cluster differ from those of the platform.

Kernel times and host times of a platform are those of one machine with one version of PyTorch. Published step times of
other clusters show what theirs add up to; a stack has that in a few factors, which `foretrace check-table` fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph import Graph
from foretrace.graph.op import HALF_DTYPES
from foretrace.platform.device import ATTENTION
from foretrace.platform.platform import Platform
from foretrace.platform.typed_json import Positive, as_text, read_as

STACKS = Path(__file__).parent / "data" / "stacks"
"""Shipped stacks, a file each, fitted on published step times."""
AUTO, NONE = "auto", "none"
UNKNOWN = "unknown"
"""The shipped stack that changes nothing, with the spread of published steps: where none is known for a device."""
FACTORS = ("gemm", "memory", "links", "host")
"""What a fit changes."""
MAX_FACTOR, MAX_SPREAD = 100, 2
"""Beyond these, a field of a stack's file is a mistake."""
P90 = 1.2816
"""Standard deviations from the median to the 90th percentile."""
SCORES, SOFTMAX, FUSED_ATTENTION = ("aten::bmm", "aten::baddbmm"), "aten::_softmax", "scaled_dot_product"


@dataclass(frozen=True)
class Stack:
    """Shares of a platform's modelled rates that a cluster's software achieves.

    >>> Stack("ours", "made up", gemm=0.8).changes
    'GEMMs and attention at 0.80 of the modelled rate'
    """

    name: str
    provenance: str
    gemm: Positive = 1.0
    """Share of the rate of GEMMs, convolutions and, without ``attention_rate``, attention: older libraries, clocks
    under a power limit."""
    attention_rate: Positive | None = None
    """The same of attention alone, where its library differs from that of GEMMs; else it is ``gemm``."""
    memory: Positive = 1.0
    """Share of the rate of all other kernels: fusion above 1, unfused framework code below."""
    links: Positive = 1.0
    """Share of the rate of links inside nodes and between them."""
    host: Positive = 1.0
    """How many times as fast the host is: framework time between calls."""
    attention: str = ""
    """The attention of its libraries, as `Device.attention`; empty for the device's own."""
    blocking_stages: bool = False
    """Whether the host waits for the device after each exchange of pipeline stages, as Megatron-LM's batched one."""
    spread: float = 0.0
    """Standard deviation of the logarithm of published step times around forecasts with it."""
    devices: tuple[str, ...] = ()
    """Devices that it is taken for where none is named."""
    unfused_attention: tuple[str, ...] = ()
    """The same, for jobs in half precision whose attention is no fused kernel: software from before those."""

    @classmethod
    def read(cls, path: Path) -> Stack:
        """Read a stack's file; an error names the field that is wrong."""
        stack = read_as(cls, path)
        if stack.attention not in ("", *ATTENTION):
            raise ForetraceError(
                f"{path}: the field 'attention' holds {stack.attention!r}", f"It should be {' or '.join(ATTENTION)}."
            )
        shares = dict.fromkeys((*FACTORS, "attention_rate"), (1 / MAX_FACTOR, MAX_FACTOR))
        for name, (least, most) in {**shares, "spread": (0, MAX_SPREAD)}.items():
            if (value := getattr(stack, name)) is not None and not least <= value <= most:
                raise ForetraceError(
                    f"{path}: the field {name!r} holds {getattr(stack, name):.4g}",
                    f"It should be a number from {least:g} to {most:g}.",
                )
        return stack

    def write(self, path: Path) -> None:
        """Write it, so that ``--stack FILE`` takes it."""
        from foretrace.output import STACK, open_output  # most who read do not write

        with open_output(path, STACK) as file:
            file.write(as_text(asdict(self)))

    @property
    def changes(self) -> str:
        """What the stack changes, as text."""
        shares = (
            *(
                [("GEMMs and attention", self.gemm)]
                if self.attention_rate is None
                else [("GEMMs", self.gemm), ("attention", self.attention_rate)]
            ),
            ("other kernels", self.memory),
            ("links", self.links),
        )
        parts = [f"{what} at {share:.2f} of the modelled rate" for what, share in shares if share != 1.0]
        parts += [f"the host {self.host:.2f} times as fast"] if self.host != 1.0 else []
        parts += [f"{self.attention} attention"] if self.attention else []
        parts += ["hosts wait for what pipeline stages receive"] if self.blocking_stages else []
        return ", ".join(parts) or "nothing"

    def applied(self, platform: Platform) -> Platform:
        """The platform under this stack."""
        from foretrace.platform.hypothetical import CrossDeviceScaling, scaled_fabric, scaled_host  # few have a stack

        device = replace(platform.device, attention=self.attention or platform.device.attention)
        scaling = platform.cross_device
        gain = 1.0 if self.attention_rate is None else self.attention_rate / self.gemm
        if scaling is None and (self.gemm, self.memory, gain) != (1.0, 1.0, 1.0):
            scaling = CrossDeviceScaling(platform.device)
            device = replace(device, matches=f"{device.matches}, scaled")
        if scaling is not None:
            shares = {"gemm": self.gemm, "memory": self.memory, "issue": self.memory, "attention_rate": gain}
            scaling = replace(scaling, **{name: getattr(scaling, name) * share for name, share in shares.items()})
        fabric = platform.fabric and scaled_fabric(platform.fabric, self.links, self.links)
        host = scaled_host(platform.host, self.host)
        return replace(platform, device=device, cross_device=scaling, host=host, fabric=fabric, stack=self)

    def note(self) -> str:
        """A note on a forecast that was made with it."""
        if self.name == UNKNOWN:
            how = f"{self.provenance}, were {100 * math.expm1(self.spread):.0f} % off, which widens the range"
            return f"the software stack of the job is unknown: {how}; --stack names one, foretrace check-table fits one"
        spread = f"; steps were {100 * math.expm1(self.spread):.0f} % off with it, which widens the range"
        return f"stack {self.name} ({self.changes}): {self.provenance}{spread if self.spread else ''}"


def stacks() -> dict[str, Path]:
    """The files of the shipped stacks, by name.

    >>> all(Stack.read(path).name == name for name, path in stacks().items())
    True
    """
    return {path.stem: path for path in sorted(STACKS.glob("*.json"))}


def find_stack(named: Stack | str | Path, platform: Platform, ranks: int, graphs: Sequence[Graph] = ()) -> Stack | None:
    """The stack of a job: by its name or file; ``auto`` for that of the device, where that was not measured here.

    Where no stack is known for the device and the attention of the job's graphs, the range is as wide as published
    steps are off.

    One rank alone needs none: what was published of single GPUs was met without.

    >>> find_stack("auto", Platform.named("h200"), 8)
    """
    if str(named) == AUTO:
        if platform.cross_device is None or platform.stack is not None or ranks == 1 or ":" in platform.name:
            return None
        old = any(map(has_unfused_attention, graphs))
        known = stacks()
        every = [Stack.read(path) for path in known.values()]
        fitting = (one for one in every if platform.device.name in (one.unfused_attention if old else one.devices))
        return next(fitting, Stack.read(known[UNKNOWN]))
    found = named_stack(named)
    return found if isinstance(found, Stack) else None


def named_stack(named: Stack | str | Path) -> Stack | str:
    """The stack of a name or file; ``auto`` and ``none`` stay words.

    >>> named_stack("torch-2.6").attention, named_stack("none")
    ('flash', 'none')
    """
    if isinstance(named, Stack) or str(named) in (AUTO, NONE):
        return named if isinstance(named, Stack) else str(named)
    known = stacks()
    if str(named) in known:
        return Stack.read(known[str(named)])
    path = Path(named)
    if not path.is_file():
        raise unknown_name("stack", str(named), [AUTO, NONE, *known])
    return Stack.read(path)


def has_unfused_attention(graph: Graph) -> bool:
    """Whether a step in half precision computes the scores of attention, their softmax and its product one by one.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> scores = Tensor((8, 512, 512), "float16")
    >>> ops = OpTable.of([Op("aten::bmm", (scores, scores)), Op("aten::_softmax", (scores, -1))])
    >>> has_unfused_attention(Graph(ops))
    True
    """
    names = graph.ops.names.items
    if not any(name in names for name in SCORES) or any(FUSED_ATTENTION in name for name in names):
        return False
    return any(
        tensor.dtype in HALF_DTYPES and tensor.shape and tensor.shape[-1] > 1
        for op in graph.ops
        if op.name == SOFTMAX
        for tensor in op.tensors
    )


def widened(step_ms: float, low_ms: float, high_ms: float, spread: float) -> tuple[float, float]:
    """The range of a step, with the spread of published steps added to it.

    >>> [round(ms) for ms in widened(100.0, 95.0, 105.0, 0.1)]
    [87, 115]
    """
    more = P90 * spread
    down, up = math.log(step_ms / low_ms), math.log(high_ms / step_ms)
    return step_ms * math.exp(-math.hypot(down, more)), step_ms * math.exp(math.hypot(up, more))
