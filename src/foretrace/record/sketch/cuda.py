"""A pretended GPU: sketches of CUDA steps where torch was built without CUDA, or finds no GPU.

A build without CUDA can't make CUDA tensors, not even fake ones. There the step is sketched on fake CPU tensors: each
storage is labelled with the device it would be on, a script that asks for it gets that label, and where PyTorch would
choose another op for a GPU, that one is called.

Every function of torch that a script or PyTorch's own Python code calls passes a function mode (`FunctionsOnCuda`), so
nothing of torch is replaced that a script could have imported before, or could keep.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import _meta_registrations
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from foretrace.record.sketch.autocast import CudaAutocast, counting_regions
from foretrace.record.sketch.cuda_api import gpu_is_visible, pretended_api
from foretrace.record.sketch.cuda_ops import ON_CUDA, ORDER_ON_HOPPER, OTHER_RESULTS, OWN_RESULTS
from foretrace.record.sketch.fake_step import DEVICE, FakeStepMode
from foretrace.record.sketch.fbgemm import looked_up, lookup_of, result_on_gpu
from foretrace.record.sketch.threads import TURN
from foretrace.record.sketch.view_replays import changed_view
from foretrace.record.watch.tensors import DeviceName, TensorRegistry
from foretrace.record.watch.watch import desugars

CUDA, CPU = "cuda:0", "cpu"
HOST = torch.device("cpu:0")
"""The device of what torch.compile moves to the host: all that it traces is on the CPU, which has no number."""
MOVES = (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.type)
RESULTS_ON_CUDA: dict[Any, Any] = {}
"""What PyTorch keeps of fake calls, by their arguments, of those on the GPU: to it, all of them are on the CPU."""
PLAIN_FUNCTION = torch._C._disabled_torch_function_impl

QUESTIONS: dict[Any, Callable[[str], Any]] = {
    torch.Tensor.device.__get__: torch.device,
    torch.Tensor.is_cuda.__get__: lambda label: label == CUDA,
    torch.Tensor.is_cpu.__get__: lambda label: label == CPU,
    torch.Tensor.get_device: lambda label: 0 if label == CUDA else -1,
}
"""Queries of a tensor's device, and the answer by its label."""


@contextmanager
def pretended_cuda(fake_of: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[PretendedGpu]:
    """Pretend that this machine has a GPU.

    ``fake_of`` returns the fake tensor that represents a real one.
    """
    with ExitStack() as stack:
        stack.enter_context(pretended_api())
        if gpu_is_visible():  # fake CUDA tensors work as they are
            yield PretendedGpu(lambda tensor: str(tensor.device))
            return
        labels = Labels(fake_of)
        stack.enter_context(_sharding_on_cuda())
        stack.enter_context(counting_regions())
        stack.enter_context(_attention_as_on_hopper())
        stack.enter_context(_all_functions_seen())
        stack.enter_context(_grouping_by_label(labels))
        stack.enter_context(_subclasses_on_the_host())
        # Fake kernels ask this way whether a result has another layout on CUDA.
        kind = lambda tensor: labels.of(tensor).partition(":")[0]  # noqa: E731
        stack.enter_context(patch.object(_meta_registrations, "device_hint", kind))
        stack.enter_context(patch.object(FakeTensorMode, "cache", FakeTensorMode.cache))  # set by `Follower`
        for name, mover in _module_movers(labels).items():
            stack.enter_context(patch.object(torch.nn.Module, name, mover))
        stack.callback(torch.set_default_device, torch.get_default_device() if _device.CURRENT_DEVICE else None)
        functions = FunctionsOnCuda(labels)
        follower = Follower(labels)
        stack.enter_context(functions)
        stack.enter_context(follower)
        stack.enter_context(patch.object(FakeTensor, "device", _device_property(labels)))
        # Threads that are not `threading`'s have no modes.
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", lambda tensor, *_: labels.pin(tensor)))
        yield PretendedGpu(labels.of, labels, functions, follower)


class PretendedGpu(NamedTuple):
    """A GPU that sketches pretend."""

    device_name: DeviceName
    """The device that a tensor would be on."""
    labels: Labels | None = None
    """Labels of storages; none where there is a real GPU."""
    functions: FunctionsOnCuda | None = None
    """The mode in which functions do what they do on a GPU."""
    follower: Follower | None = None
    """The mode that labels the results of calls."""

    def registry(self) -> TensorRegistry:
        """A new registry, which describes tensors as they would be on the GPU."""
        return TensorRegistry(self.device_name, *([self.labels.is_pinned] if self.labels else []))


@contextmanager
def _attention_as_on_hopper() -> Iterator[None]:
    """The order in which PyTorch tries implementations of attention."""
    if not hasattr(torch._C, "_set_sdp_priority_order"):  # before torch 2.6
        yield
        return
    before = torch._C._get_sdp_priority_order()
    torch._C._set_sdp_priority_order(ORDER_ON_HOPPER)
    try:
        yield
    finally:
        torch._C._set_sdp_priority_order(before)


@contextmanager
def _all_functions_seen() -> Iterator[None]:
    """Let functions of torch that are written in Python run, so that the mode sees those which they call.

    Where a function mode is on, they ask ``has_torch_function`` and hand themselves to the mode, out of its sight.
    """

    def overrides(tensor: Any) -> bool:
        return getattr(type(tensor), "__torch_function__", PLAIN_FUNCTION) is not PLAIN_FUNCTION and (
            type(tensor) is not torch.Tensor
        )

    active = [True]

    def answer(original: Any, tensors_of: Callable[..., Any]) -> Any:
        def has_torch_function(*args: Any) -> bool:
            if not active:
                return bool(original(*args))
            enabled: bool = torch._C._is_torch_function_enabled()
            return enabled and any(map(overrides, tensors_of(*args)))

        return has_torch_function

    answers = {
        "has_torch_function": lambda tensors: tensors,
        "has_torch_function_unary": lambda tensor: (tensor,),
        "has_torch_function_variadic": lambda *tensors: tensors,
    }
    with ExitStack() as stack:
        stack.callback(active.clear)  # a module that is imported in the sketch keeps the function
        for name, tensors_of in answers.items():
            original = getattr(torch.overrides, name)
            replacement = answer(original, tensors_of)
            for module in [module for place, module in list(sys.modules.items()) if place.startswith("torch.")]:
                if vars(module).get(name) is original:
                    stack.enter_context(patch.object(module, name, replacement))
        yield


@contextmanager
def _grouping_by_label(labels: Labels) -> Iterator[None]:
    """Groups of tensors by device, for foreach functions: PyTorch's own sees them all on the CPU."""
    original = torch._C._group_tensors_by_device_and_dtype

    def group(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
        groups: dict[Any, Any] = {}
        for (_, dtype), (members, indices) in original(lists, with_indices).items():
            rows: dict[str, list[int]] = {}
            for row, tensor in enumerate(members[0]):
                rows.setdefault(labels.of(tensor), []).append(row)
            for label, chosen in rows.items():
                part = [[each[row] for row in chosen] if each else each for each in members]
                groups[torch.device(label), dtype] = part, [indices[row] for row in chosen] if indices else indices
        return groups

    with patch.object(torch._C, "_group_tensors_by_device_and_dtype", group):
        yield


@contextmanager
def _subclasses_on_the_host() -> Iterator[None]:
    """Let tensors that wrap others, as nested ones do, be made on the device where those truly are."""
    make = torch.Tensor._make_wrapper_subclass

    def on_host(value: Any) -> Any:
        return torch.device(CPU) if isinstance(value, torch.device) and value.type == "cuda" else value

    def made(*args: Any, **options: Any) -> Any:
        return make(*map(on_host, args), **{name: on_host(value) for name, value in options.items()})

    with patch.object(torch.Tensor, "_make_wrapper_subclass", staticmethod(made)):
        yield


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
        self.compiles = False
        """Whether torch.compile is at work: tensors of its own are on the GPU, unless they are labelled."""
        self.hidden = False
        """Whether only calls are asked for labels, and not tensors: AOTAutograd decomposes calls by true devices."""
        self._labels: Any = WeakIdKeyDictionary()
        self._addresses: Any = WeakIdKeyDictionary()
        self._pinned: Any = WeakIdKeyDictionary()

    def of(self, tensor: torch.Tensor) -> str:
        """The device of a tensor; where it has no label, the CPU, or while torch.compile is at work the GPU."""
        if not self.compiles:
            return str(self._labels.get(self._holder(tensor), CPU))
        return str(self._labels.get(tensor.untyped_storage(), CUDA)) if isinstance(tensor, FakeTensor) else CUDA

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """torch.compile is at work."""
        before, self.compiles = self.compiles, True
        try:
            yield
        finally:
            self.compiles = before

    @contextmanager
    def true_devices(self) -> Iterator[None]:
        """Let fake tensors say which device they are on."""
        self.in_dispatch += 1
        try:
            yield
        finally:
            self.in_dispatch -= 1

    def put(self, tensor: torch.Tensor, label: str) -> None:
        """Label a tensor's storage, unless it has a label."""
        self._labels.setdefault(self._holder(tensor), label)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that a tensor's storage is page-locked."""
        self._pinned[self._holder(tensor)] = True
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in page-locked memory of the host."""
        return self._holder(tensor) in self._pinned

    def move(self, module: torch.nn.Module, label: str) -> None:
        """Label all weights and buffers of a module anew."""
        for tensor in (*module.parameters(), *module.buffers()):
            self._labels[self._holder(tensor)] = label

    def expected(self, arguments: Iterable[Any]) -> str:
        """The label of a call's results: the requested device, else that of its arguments."""
        if self.requested is not None:
            return self.requested
        given = [a for a in arguments if isinstance(a, torch.Tensor)]
        return CUDA if not given or any(self.of(t) == CUDA for t in given) else CPU

    def address(self, tensor: torch.Tensor) -> int:
        """An address for a tensor: equal for tensors that begin at the same place, different for others."""
        fake = self._fake_of(_innermost(tensor))
        storage = self._addresses.setdefault(self._holder(fake), (len(self._addresses) + 1) << 40)
        return int(storage) + fake.storage_offset() * fake.element_size() if fake.numel() else 0

    def _holder(self, tensor: torch.Tensor) -> Any:
        fake = self._fake_of(_innermost(tensor))
        return fake.untyped_storage() if fake.layout == torch.strided else fake


def leaves(value: Any) -> Iterator[Any]:
    """What lists, tuples and dictionaries hold: in a tenth of the time of `tree_leaves`, which knows any container.

    >>> [*leaves(([1, (2,)], {"dim": 3}))]
    [1, 2, 3]
    """
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    else:
        yield value


def _innermost(tensor: Any) -> Any:
    """The tensor that a subclass wraps, as DTensor does, or a transform of `torch.func`; itself for others."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    while desugars(type(tensor)) and hasattr(tensor, "__tensor_flatten__"):
        tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
    return tensor


def _module_movers(labels: Labels) -> dict[str, Any]:
    """``Module.to``, ``cuda`` and ``cpu``: fake weights stay where they are and get another label."""
    original = torch.nn.Module.to

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = (CUDA, *args[1:])
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = CUDA
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None:
            labels.move(module, _label(device))
        formatted = {} if memory_format is None else {"memory_format": memory_format}
        if dtype or formatted:
            return original(module, dtype=dtype, **formatted)
        for recurrent in (each for each in module.modules() if isinstance(each, torch.nn.RNNBase)):
            recurrent.flatten_parameters()
        return module

    return {"to": to, "cuda": lambda module, device=None: to(module, CUDA), "cpu": lambda module: to(module, CPU)}


def _device_property(labels: Labels) -> property:
    """``FakeTensor.device`` for scripts: the device that the tensor is labelled with."""
    true = FakeTensor.device

    def device(tensor: Any) -> torch.device:
        with TURN:
            seen = not labels.in_dispatch and not labels.hidden
            return torch.device(labels.of(tensor)) if seen else true.__get__(tensor)

    return property(device)


class Follower(TorchDispatchMode):
    """Dispatch mode that labels the results of calls."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self._labels = labels
        self._others = FakeTensorMode.cache

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile: under other modes it falls back to eager."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with TURN:
            return self._called(func, types, args, kwargs)

    def _called(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(map(desugars, types)):
            return NotImplemented
        if func is DEVICE:
            if isinstance(mode := getattr(args[0], "fake_mode", None), FakeStepMode):
                return mode.device_of(args[0])
            with self._labels.true_devices(), torch._C.DisableTorchFunction():
                return func(*args)
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("device"), "type", CPU) != CPU:  # hooks of backward are not asked by `Answers`
            kwargs["device"] = torch.device(CPU)
        if not isinstance(func, torch._ops.OpOverload):  # it calls functions of the step
            return self._labelled(func, args, kwargs)
        with torch._C.DisableTorchFunction():  # PyTorch's own code asks fake tensors about themselves, again and again
            return self._labelled(func, args, kwargs)

    def _labelled(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        label = self._labels.expected(leaves((args, kwargs)))
        with self._labels.true_devices():
            on_cuda = label == CUDA
            FakeTensorMode.cache = RESULTS_ON_CUDA if on_cuda else self._others
            result = result_on_gpu(func, args, kwargs) if on_cuda and func.namespace == "fbgemm" else None
            if result is None:
                own = OWN_RESULTS[func] if on_cuda and func in OWN_RESULTS else func
                result = own(*args, **kwargs)
            if on_cuda and func in OTHER_RESULTS:
                result = OTHER_RESULTS[func](args, result)
        for made in leaves(result):
            if isinstance(made, FakeTensor):  # a real one, as sizes of packed sequences are, is on the CPU
                self._labels.put(made, label)
        return result


class FunctionsOnCuda(TorchFunctionMode):
    """Function mode for device queries, moves between devices, factory functions, and what a GPU does differently."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self._labels = labels
        self._autocast = CudaAutocast(lambda tensor: labels.of(tensor) == CUDA)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with TURN:
            return self._called(func, args, kwargs)

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._labels.compiles and self._labels.in_dispatch:
            return func(*args, **(kwargs or {}))
        if func in QUESTIONS:
            return QUESTIONS[func](self._labels.of(args[0]))
        if isinstance(func, torch._ops.OpOverloadPacket):  # what libraries call
            lookup = lookup_of(func, args, kwargs or {})
            return (
                looked_up(lookup)
                if lookup and self._labels.of(lookup.weights) == CUDA
                else func(*args, **(kwargs or {}))
            )
        if getattr(func, "__name__", "") == "__get__" or isinstance(
            func, torch._ops.OpOverload
        ):  # what PyTorch itself calls
            return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return torch.device(CUDA) if args and isinstance(args[0], int) else func(*args, **kwargs)
        if func is torch.Tensor.is_pinned:
            return self._labels.is_pinned(args[0])
        if func is torch.Tensor.data_ptr:
            return 0 if _called_by_deepcopy() else self._labels.address(args[0])
        if func in MOVES:
            return self._move(func, args, kwargs)
        args, kwargs = self._autocast.cast(func, args, kwargs)
        if func in ON_CUDA and self._labels.of(args[0] if args else next(iter(kwargs.values()))) == CUDA:
            return ON_CUDA[func](*args, **kwargs)
        return self._made(func, args, kwargs)

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call that may make tensors: note the device it asks for and make them on the CPU."""
        asked = kwargs.get("device")
        if asked is None and _device.CURRENT_DEVICE is not None and func in _device._device_constructors():
            asked = _device.CURRENT_DEVICE
        if asked is not None:
            kwargs["device"] = CPU
        pinned = kwargs.pop("pin_memory", False)
        if asked is not None:
            label: str | None = _label(asked)
        elif func is torch.Tensor.new_tensor:
            label = self._labels.of(args[0])
        else:
            label = None if any(isinstance(a, torch.Tensor) for a in leaves((args, kwargs))) else CPU
        changed = changed_view(func, args)
        with self._requesting(label):
            made = func(*args, **kwargs)
        if pinned:
            self._labels.pin(made)
        return changed(made) if changed else made

    def _move(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor, *rest = args
        memory_format = kwargs.get("memory_format")
        if func in (torch.Tensor.cuda, torch.Tensor.cpu):
            target, dtype = (CUDA if func is torch.Tensor.cuda else CPU), None
        elif func is torch.Tensor.type:
            named = kwargs.get("dtype", rest[0] if rest else None)
            if named is None:
                name = str(func(tensor))
                return name.replace("torch.", "torch.cuda.") if self._labels.of(tensor) == CUDA else name
            target, dtype = self._type(tensor, named)
        elif rest and isinstance(rest[0], torch.Tensor):
            target, dtype = self._labels.of(rest[0]), rest[0].dtype
        else:
            target, dtype, memory_format = self._parsed(tensor, rest, kwargs)
        layout = {} if memory_format is None else {"memory_format": memory_format}
        if target == self._labels.of(tensor):
            return tensor.to(dtype or tensor.dtype, copy=kwargs.get("copy", False), **layout)
        with self._requesting(target):
            return torch.ops.aten._to_copy(
                tensor, dtype=dtype or tensor.dtype, **layout,
                device=HOST if self._labels.compiles and target == CPU else torch.device(CPU),
                **({"non_blocking": True} if _non_blocking(func, rest, kwargs) else {}),
            )  # fmt: skip

    def _parsed(self, tensor: torch.Tensor, rest: list[Any], kwargs: dict[str, Any]) -> tuple[str, Any, Any]:
        """Device, dtype and memory format that ``Tensor.to`` is given."""
        known = {key: value for key, value in kwargs.items() if key != "copy"}
        if "device" in known and known["device"] is not None:
            known["device"] = torch.device(_label(known["device"]))
        if rest and isinstance(rest[0], int):
            rest = [torch.device(CUDA), *rest[1:]]
        device, dtype, _, memory_format = torch._C._nn._parse_to(*rest, **known)
        return _label(device) if device is not None else self._labels.of(tensor), dtype, memory_format

    def _type(self, tensor: torch.Tensor, named: Any) -> tuple[str, Any]:
        """Device and dtype of a tensor type: a dtype, torch.cuda.FloatTensor, or the name of one."""
        if isinstance(named, torch.dtype):
            return self._labels.of(tensor), named
        name = named if isinstance(named, str) else f"{named.__module__}.{named.__name__}"
        short = name.rpartition(".")[2]
        kind = getattr(torch, short, None)
        return CUDA if ".cuda." in name else CPU, getattr(kind, "dtype", None)

    @contextmanager
    def _requesting(self, label: str | None) -> Iterator[None]:
        before, self._labels.requested = self._labels.requested, label
        try:
            yield
        finally:
            self._labels.requested = before


def _called_by_deepcopy() -> bool:
    """Whether ``Tensor.__deepcopy__`` asks: it copies a tensor without an address by a call, others byte by byte."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == "__deepcopy__"


def _non_blocking(func: Any, rest: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a move says that the host need not wait for it."""
    positional = next((value for value in rest if isinstance(value, bool)), False)
    return bool(kwargs.get("non_blocking", positional)) and func is not torch.Tensor.cpu


def _label(device: Any) -> str:
    return CUDA if isinstance(device, int) or torch.device(device).type == "cuda" else CPU
