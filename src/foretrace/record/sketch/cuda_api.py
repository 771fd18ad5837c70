"""What ``torch.cuda`` and ``torch.accelerator`` answer on a pretended GPU: a Hopper that has done nothing yet.

Streams and events are stand-ins that order nothing. A module that is first imported in a sketch may keep a function of
these: after the sketch it does what the original does.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.backends.cudnn.rnn
from torch.utils._python_dispatch import _disable_current_modes

from foretrace.graph import ForetraceError
from foretrace.record.sketch.cuda_rnn import RNN_MODES

MEMORY = 150_754_820_096
"""Bytes of the pretended GPU: those of an H200."""
PROPERTIES = SimpleNamespace(
    name="pretended GPU", major=9, minor=0, total_memory=MEMORY, multi_processor_count=132, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    L2_cache_size=62914560, is_integrated=0, is_multi_gpu_board=0, gcnArchName="", uuid="", pci_bus_id=0,
    pci_device_id=0, pci_domain_id=0, clock_rate=1980000, memory_clock_rate=3201000, memory_bus_width=6144,
)  # fmt: skip
RNG_STATE = 16
"""Bytes of the state of CUDA's random generator."""
TENSOR_TYPES = tuple(
    f"{kind}Tensor" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
)
"""Names of tensor types of torch.cuda, from before there were dtypes."""
_handles = count(1)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Accept any arguments and do nothing."""


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _rng_state(device: Any = None) -> torch.Tensor:
    with _disable_current_modes():
        return torch.zeros(RNG_STATE, dtype=torch.uint8)


def gpu_is_visible() -> bool:
    """Whether PyTorch can use a real GPU here; a build with CUDA may stand on a machine without one."""
    return getattr(torch._C, "_cuda_getDeviceCount", int)() > 0


def _no_graphs(*args: Any, **kwargs: Any) -> Any:
    raise ForetraceError(
        "the step captures a CUDA graph, and what a graph replays can't be sketched",
        "Leave the capture out (call the function that it captures), or record a real run.",
    )


class PretendGraph:
    """``torch.cuda.CUDAGraph``, which can't be captured in a sketch."""

    __init__ = _no_graphs


SHARED: dict[str, Callable[..., Any]] = {
    "is_available": _always(True),
    "device_count": _always(1),
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "get_memory_info": _always((MEMORY, MEMORY)),
    "reset_peak_memory_stats": _nothing,
    "reset_accumulated_memory_stats": _nothing,
    "memory_stats": lambda *_: OrderedDict(),
    **dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), _always(0)),
}
"""Functions of both modules."""
ANSWERS: dict[str, Callable[..., Any]] = {
    **SHARED,
    **dict.fromkeys(("is_initialized", "is_bf16_supported", "is_tf32_supported"), _always(True)),
    **dict.fromkeys(("is_current_stream_capturing", "can_device_access_peer", "_is_in_bad_fork"), _always(False)),
    **dict.fromkeys(("current_device", "utilization", "memory_usage", "initial_seed", "memory_cached",
                     "max_memory_cached", "_get_nvml_device_index"), _always(0)),
    **dict.fromkeys(("init", "_lazy_init", "set_device", "manual_seed", "manual_seed_all", "seed", "seed_all",
                     "set_rng_state", "set_rng_state_all", "ipc_collect", "reset_max_memory_allocated",
                     "reset_max_memory_cached", "set_per_process_memory_fraction", "set_sync_debug_mode"), _nothing),
    "get_device_capability": _always((9, 0)),
    "get_device_name": _always(PROPERTIES.name),
    "get_device_properties": _always(PROPERTIES),
    "get_arch_list": _always(["sm_90"]),
    "mem_get_info": _always((MEMORY, MEMORY)),
    "memory_summary": _always(""),
    "memory_snapshot": lambda *_: [],
    "get_rng_state": _rng_state,
    "get_rng_state_all": lambda: [_rng_state()],
    "CUDAGraph": PretendGraph,
    "make_graphed_callables": _no_graphs,
}  # fmt: skip
"""What functions of torch.cuda return."""
ACCELERATOR: dict[str, Callable[..., Any]] = {
    **SHARED,
    "current_accelerator": lambda *_, **__: torch.device("cuda"),
    "current_device_index": _always(0),
    "current_device_idx": _always(0),
    "set_device_index": _nothing,
    "set_device_idx": _nothing,
    "device_index": lambda *_: nullcontext(),
    "get_device_capability": _always({"supported_dtypes": set()}),
}
"""What functions of torch.accelerator return."""


class PretendDevice:
    """``torch.cuda.device`` and ``device_of``: a context in which the only GPU is the current one."""

    def __init__(self, device: Any = None) -> None:
        self.idx = self.prev_idx = 0

    def __enter__(self) -> None:
        """It is the current one already."""

    def __exit__(self, *failure: Any) -> None:
        """It stays the current one."""


class PretendStream:
    """A CUDA stream that does nothing. All its methods go through events, so that noting events is enough.

    >>> PretendStream(priority=-1).query()
    True
    """

    pretended = True

    def __init__(self, *args: Any, default: bool = False, **kwargs: Any) -> None:
        self.cuda_stream = self.stream_id = 0 if default else next(_handles)
        self.device, self.device_index = torch.device("cuda:0"), 0

    def wait_event(self, event: PretendEvent) -> None:
        """What comes next on this stream comes after the event."""
        event.wait(self)

    def wait_stream(self, other: PretendStream) -> None:
        """What comes next on this stream comes after what the other was given so far."""
        self.wait_event(other.record_event())

    def record_event(self, event: PretendEvent | None = None) -> PretendEvent:
        """The event of all that this stream was given so far."""
        event = event if event is not None else PretendEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Everything is done already."""

    def query(self) -> bool:
        """Whether everything is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether its calls are captured by a CUDA graph: never."""
        return False


class PretendEvent:
    """A CUDA event that does nothing.

    >>> PretendEvent().query()
    True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept and ignore the options."""

    def record(self, stream: PretendStream | None = None) -> None:
        """The event is what the stream was given so far."""

    def wait(self, stream: PretendStream | None = None) -> None:
        """The stream waits for the event."""

    def synchronize(self) -> None:
        """Return at once: nothing runs."""

    def query(self) -> bool:
        """Whether it is complete: always."""
        return True

    def elapsed_time(self, end: PretendEvent) -> float:
        """Always 0: nothing runs."""
        return 0.0


class _TensorTypes(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.type() == f"torch.cuda.{cls.__name__}"


def _tensor_type(name: str) -> type:
    """A type such as ``torch.cuda.FloatTensor``, which makes tensors of a dtype on the GPU."""
    made = lambda cls, *args: getattr(torch, name)(*args).to("cuda")  # noqa: E731
    return _TensorTypes(name, (), {"__new__": made, "__module__": "torch.cuda", "dtype": getattr(torch, name).dtype})


class _GeneratorType(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class PretendGenerator(torch._C.Generator, metaclass=_GeneratorType):
    """A random generator that says which device it was made for, and is one of the CPU.

    >>> PretendGenerator(device="cuda").manual_seed(1).device
    device(type='cuda', index=0)
    """

    def __new__(cls, device: Any = "cpu") -> PretendGenerator:
        """The generator of a device."""
        made: PretendGenerator = super().__new__(cls)
        made._where = torch.device("cpu" if torch.device(device).type == "cpu" else "cuda:0")
        return made

    def __init__(self, device: Any = "cpu") -> None:
        """Nothing more to do."""

    @property
    def device(self) -> torch.device:
        """The device that it was made for."""
        return self._where


@contextmanager
def pretended_api() -> Iterator[None]:
    """Replace the functions of ``torch.cuda`` and ``torch.accelerator`` that need a GPU."""
    active = [True]
    streams = [PretendStream(default=True)]

    @contextmanager
    def on(stream: PretendStream | None) -> Iterator[None]:
        streams.append(stream or streams[-1])
        try:
            yield
        finally:
            streams.pop()

    def until_the_end(home: Any, name: str, answer: Callable[..., Any]) -> Any:
        """A function that is the original one again when the sketch has ended."""
        original = getattr(home, name, None)
        if not callable(original) or isinstance(original, type):
            return answer

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (answer if active else original)(*args, **kwargs)

        return call

    with ExitStack() as patches:
        patches.callback(active.clear)

        def replace(home: Any, answers: dict[str, Any]) -> None:
            for name, answer in answers.items():
                patches.enter_context(patch.object(home, name, until_the_end(home, name, answer), create=True))

        replace(torch.cuda, ANSWERS)
        if not gpu_is_visible():
            current = {"current_stream": lambda device=None: streams[-1], "set_stream": _nothing}
            if hasattr(torch, "accelerator"):
                replace(torch.accelerator, {**ACCELERATOR, **current})
            replace(torch.cuda, {**current, "Stream": PretendStream, "Event": PretendEvent, "stream": on,
                                 "default_stream": lambda device=None: streams[0], "device": PretendDevice,
                                 "device_of": PretendDevice, "_DeviceGuard": PretendDevice})  # fmt: skip
            replace(torch.cuda, {name: _tensor_type(name) for name in TENSOR_TYPES})
            begin: Any = torch.autograd.profiler.profile.__init__

            def on_the_host(self: Any, *args: Any, **kwargs: Any) -> None:
                begin(self, *args, **{**kwargs, "use_device": None})  # it would look for events of CUDA

            patches.enter_context(patch.object(torch.autograd.profiler.profile, "__init__", on_the_host))
            patches.enter_context(patch.object(torch.cuda, "_initialized", True))
            patches.enter_context(patch.object(torch.cuda, "default_generators", (PretendGenerator("cuda"),)))
            patches.enter_context(patch.object(torch, "Generator", PretendGenerator))
            replace(torch.cuda.nvtx, {"range": lambda *_, **__: nullcontext(), "range_push": _always(0),
                                      "range_pop": _always(0), "mark": _nothing})  # fmt: skip
            replace(torch.backends.cudnn, {"is_available": _always(True), "version": _always(91002),
                                           "is_acceptable": _cudnn_takes})  # fmt: skip
            replace(torch.backends.cudnn.rnn, {"get_cudnn_mode": lambda mode: RNN_MODES[mode.lower()]})
            replace(torch._C, {"_get_accelerator": lambda *_: torch.device("cuda"),
                               "_cuda_getCurrentRawStream": _always(0), "_scatter": _scatter})  # fmt: skip
            replace(torch.Tensor, {"record_stream": _nothing})
            patches.enter_context(patch.object(torch.version, "cuda", torch.version.cuda or "12.8"))
            # Imported from now on, it would warn of a PyTorch for CUDA without Triton.
            logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
            replace(torch.cuda.nccl, {"version": _always((2, 27, 5))})
            replace(torch.distributed, {"is_nccl_available": _always(True)})
            replace(torch, {"Stream": PretendStream, "Event": PretendEvent,
                            "_use_cudnn_rnn_flatten_weight": _always(True)})  # fmt: skip
        yield


def _cudnn_takes(tensor: torch.Tensor) -> bool:
    enabled: bool = torch._C._get_cudnn_enabled()
    return enabled and tensor.device.type == "cuda" and tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES


def _scatter(tensor: torch.Tensor, gpus: Any, sizes: Any, dim: int, streams: Any = None) -> tuple[torch.Tensor, ...]:
    """Chunks of a tensor on each of the given GPUs, of which there is one."""
    chunks = tensor.split(sizes, dim) if sizes else tensor.chunk(len(gpus), dim)
    return tuple(chunk.to("cuda", non_blocking=True) for chunk in chunks)
