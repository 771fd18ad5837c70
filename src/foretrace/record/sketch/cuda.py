"""A pretended GPU: sketches of CUDA steps where torch was built without CUDA, or finds no GPU.

A build without CUDA can't make CUDA tensors, not even fake ones. There the step is sketched on fake CPU tensors: each
storage is labelled with the device it would be on, a script that asks for it gets that label, and where PyTorch would
choose another op for a GPU, that one is called. Streams and events are stand-ins that order nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from foretrace.record.sketch.cuda_ops import OTHER_RESULTS, casting_like_cuda, choosing_like_cuda, counting_regions
from foretrace.record.watch.tensors import DeviceName
from foretrace.record.watch.watch import desugars

CUDA, CPU = "cuda:0", "cpu"
MOVES = (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu)

QUESTIONS: dict[Any, Callable[[str], Any]] = {
    torch.Tensor.is_cuda.__get__: lambda label: label == CUDA,
    torch.Tensor.is_cpu.__get__: lambda label: label == CPU,
    torch.Tensor.get_device: lambda label: 0 if label == CUDA else -1,
}
"""Queries of a tensor's device, and the answer by its label."""

ANSWERS: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: False,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "synchronize": lambda device=None: None,
    "is_bf16_supported": lambda including_emulation=True: True,
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_name": lambda device=None: "pretended GPU",
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
    "empty_cache": lambda: None,
    "memory_allocated": lambda device=None: 0,
    "max_memory_allocated": lambda device=None: 0,
    "reset_peak_memory_stats": lambda device=None: None,
}
"""What functions of torch.cuda return."""
_handles = count(1)


@contextmanager
def pretended_cuda(fake_of: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[DeviceName]:
    """Pretend that this machine has a GPU. Yields the function that names the device a tensor would be on.

    ``fake_of`` returns the fake tensor that represents a real one.
    """
    with ExitStack() as stack:
        for name, answer in ANSWERS.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        if torch.version.cuda:  # fake CUDA tensors work as they are
            yield lambda tensor: str(tensor.device)
            return
        labels = Labels(fake_of)
        stack.enter_context(pretended_streams())
        stack.enter_context(_sharding_on_cuda())
        stack.enter_context(counting_regions())
        stack.enter_context(choosing_like_cuda())
        stack.enter_context(casting_like_cuda(lambda tensor: labels.of(tensor) == CUDA))
        for name, mover in _module_movers(labels).items():
            stack.enter_context(patch.object(torch.nn.Module, name, mover))
        stack.enter_context(Answers(labels))
        stack.enter_context(Follower(labels))
        stack.enter_context(patch.object(FakeTensor, "device", _device_property(labels)))
        yield labels.of


def _sharding_on_cuda() -> AbstractContextManager[Any]:
    """Let FSDP2 put its weights on the GPU: a mesh that was made without CUDA would send them to the CPU."""
    if not torch.distributed.is_available():
        return nullcontext()
    from torch.distributed.fsdp._fully_shard import _fully_shard

    return patch.object(_fully_shard, "_get_device_from_mesh", lambda mesh: torch.device(CUDA))


class Labels:
    """Which device each storage would be on."""

    def __init__(self, fake_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._fake_of = fake_of
        self.requested: str | None = None
        """The device that the call in flight asks for; None for calls that PyTorch makes by itself."""
        self.in_dispatch = 0
        """How many calls are in flight: inside one, fake tensors must see their true device."""
        self._labels: Any = WeakIdKeyDictionary()

    def of(self, tensor: torch.Tensor) -> str:
        """The device of a tensor; the CPU where it has no label."""
        return str(self._labels.get(self._holder(tensor), CPU))

    def put(self, tensor: torch.Tensor, label: str) -> None:
        """Label a tensor's storage, unless it has a label."""
        self._labels.setdefault(self._holder(tensor), label)

    def move(self, module: torch.nn.Module, label: str) -> None:
        """Label all weights and buffers of a module anew."""
        for tensor in (*module.parameters(), *module.buffers()):
            self._labels[self._holder(tensor)] = label

    def follow(self, arguments: list[Any], result: Any) -> None:
        """Label a call's results with the requested device, else with that of its arguments."""
        given = [a for a in arguments if isinstance(a, torch.Tensor)]
        label = self.requested
        if label is None:
            label = CUDA if not given or any(self.of(t) == CUDA for t in given) else CPU
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor):
                self.put(made, label)

    def _holder(self, tensor: torch.Tensor) -> Any:
        fake = self._fake_of(tensor)
        return fake.untyped_storage() if fake.layout == torch.strided else fake


def _module_movers(labels: Labels) -> dict[str, Any]:
    """``Module.to``, ``cuda`` and ``cpu``: fake weights stay where they are and get another label."""
    original = torch.nn.Module.to

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None:
            labels.move(module, _label(device))
        formatted = {} if memory_format is None else {"memory_format": memory_format}
        return original(module, dtype=dtype, **formatted) if dtype or formatted else module

    return {"to": to, "cuda": lambda module, device=None: to(module, CUDA), "cpu": lambda module: to(module, CPU)}


def _device_property(labels: Labels) -> property:
    """``FakeTensor.device`` for scripts: the device that the tensor is labelled with."""
    true = FakeTensor.device

    def device(tensor: Any) -> torch.device:
        return true.__get__(tensor) if labels.in_dispatch else torch.device(labels.of(tensor))

    return property(device)


class Follower(TorchDispatchMode):
    """Dispatch mode that labels the results of calls."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self._labels = labels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(desugars(kind) for kind in types):
            return NotImplemented
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("device"), "type", CPU) != CPU:  # hooks of backward are not asked by `Answers`
            kwargs["device"] = torch.device(CPU)
        self._labels.in_dispatch += 1
        try:
            result = func(*args, **kwargs)
            if func in OTHER_RESULTS and self._labels.of(args[0]) == CUDA:
                result = OTHER_RESULTS[func](args, result)
        finally:
            self._labels.in_dispatch -= 1
        self._labels.follow(tree_leaves((args, kwargs)), result)
        return result


class Answers(TorchFunctionMode):
    """Function mode for device queries, moves between devices, and factory functions."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self._labels = labels

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in QUESTIONS:
            return QUESTIONS[func](self._labels.of(args[0]))
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func in MOVES:
            return self._move(func, args, kwargs)
        if isinstance(func, torch._ops.OpOverload):  # a mode passes on what PyTorch calls: buckets of DDP
            return func(*args, **kwargs)
        return self._made(func, args, kwargs)

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call that may make tensors: note the device it asks for and make them on the CPU."""
        asked = kwargs.get("device")
        if asked is not None:
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        from_nothing = not any(isinstance(a, torch.Tensor) for a in tree_leaves((args, kwargs)))
        with self._requesting(_label(asked) if asked is not None else CPU if from_nothing else None):
            return func(*args, **kwargs)

    def _move(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor, *rest = args
        if func is not torch.Tensor.to:
            target, dtype = (CUDA if func is torch.Tensor.cuda else CPU), None
        elif rest and isinstance(rest[0], torch.Tensor):
            target, dtype = self._labels.of(rest[0]), rest[0].dtype
        else:
            device, dtype, _, _ = torch._C._nn._parse_to(*rest, **{k: v for k, v in kwargs.items() if k != "copy"})
            target = _label(device) if device is not None else self._labels.of(tensor)
        if target == self._labels.of(tensor):
            return tensor.to(dtype or tensor.dtype, copy=kwargs.get("copy", False))
        with self._requesting(target):
            return torch.ops.aten._to_copy(tensor, dtype=dtype or tensor.dtype, device=torch.device(CPU))

    @contextmanager
    def _requesting(self, label: str | None) -> Iterator[None]:
        before, self._labels.requested = self._labels.requested, label
        try:
            yield
        finally:
            self._labels.requested = before


def _label(device: Any) -> str:
    return CUDA if torch.device(device).type == "cuda" else CPU


class PretendStream:
    """A CUDA stream that does nothing. All its methods go through events, so that noting events is enough.

    >>> PretendStream(priority=-1).query()
    True
    """

    pretended = True

    def __init__(self, *args: Any, default: bool = False, **kwargs: Any) -> None:
        self.cuda_stream = 0 if default else next(_handles)

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


@contextmanager
def pretended_streams() -> Iterator[None]:
    """Replace torch.cuda's streams and events by stand-ins, and track the current stream."""
    stack = [PretendStream(default=True)]

    @contextmanager
    def on(stream: PretendStream | None) -> Iterator[None]:
        stack.append(stream or stack[-1])
        try:
            yield
        finally:
            stack.pop()

    answers = {
        "Stream": PretendStream,
        "Event": PretendEvent,
        "stream": on,
        "current_stream": lambda device=None: stack[-1],
        "default_stream": lambda device=None: stack[0],
    }
    with ExitStack() as patches:
        for name, answer in answers.items():
            patches.enter_context(patch.object(torch.cuda, name, answer))
        yield
