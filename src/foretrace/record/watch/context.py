"""Context of a dispatcher call (phase, module, autograd node, thread, stream), and calls that bypass the dispatcher.

Streams wait for events, the host waits for the device or for a collective, FSDP resizes a storage to free it: such side
calls are noted among the ops, in order, under names of their own. Hooks and patches are in place only while a step is
watched, and change nothing that it does. `settings` reads the switches of PyTorch that select other kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.nn.modules import module as modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from foretrace.graph import Constant, Value
from foretrace.graph.op import RESIZE
from foretrace.record.watch.communication import c10d
from foretrace.record.watch.compiled_calls import skip_compilation
from foretrace.record.watch.step_boundaries import listen, running_closures

if TYPE_CHECKING:
    from foretrace.record.watch.watch import Watch
Describe = Callable[..., "tuple[Value, ...] | None"]


class CallContext:
    """What the program is doing while a call is made: phase, module, autograd node, thread and stream.

    >>> CallContext().phase
    'forward'
    """

    def __init__(self) -> None:
        self._optimizing = 0
        self._stack: list[str] = []
        self._paths: dict[int, str] = {}
        self.models: list[torch.nn.Module] = []
        """Modules that were called, not by another."""
        self._entered = 0
        self._threads: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._forward_modules: dict[int, str] = {}

    @property
    def phase(self) -> str:
        """``forward``, ``backward`` (from autograd) or ``optimizer`` (from the optimizers' hooks)."""
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return "optimizer" if self._optimizing > running_closures() else "forward"

    @property
    def node(self) -> str:
        """The autograd node that runs; empty outside backward."""
        node = torch._C._current_autograd_node()
        return node.name() if node is not None else ""

    @property
    def thread(self) -> int:
        """Number of the calling thread, in the order of first calls."""
        return self._threads.setdefault(threading.get_ident(), len(self._threads))

    @property
    def stream(self) -> int:
        """Number of the current device stream; 0 is the default one."""
        if not torch.cuda.is_initialized() and not streams_are_pretended():
            return 0
        return self.stream_number(torch.cuda.current_stream())

    def stream_number(self, stream: Any) -> int:
        """The number of a given stream."""
        if not hasattr(stream, "cuda_stream"):  # a generic torch.Stream, as operators get it
            places = {"stream_id": stream.stream_id, "device_index": stream.device_index}
            stream = torch.cuda.Stream(**places, device_type=stream.device_type)
        handle = stream.cuda_stream
        return self._streams.setdefault(handle, len(self._streams) + 1) if handle else 0

    def entered(self) -> int:
        """Modules entered since the last call."""
        count, self._entered = self._entered, 0
        return count

    def place(self) -> tuple[str, str]:
        """The module and the autograd node the call belongs to.

        In backward it is the module whose forward made the node: nodes and forward calls share a sequence number.
        """
        if torch._C._current_graph_task_id() == -1:
            module = self._stack[-1] if self._stack else ""
            if module:
                # A node made by this call has been numbered just before the dispatcher is reached.
                self._forward_modules[torch.autograd._get_sequence_nr() - 1] = module
            return module, ""
        node = torch._C._current_autograd_node()
        if node is None:
            return "", ""
        recomputing = self._stack[-1] if self._stack else ""
        return recomputing or self._forward_modules.get(node._sequence_nr(), ""), node.name()

    @contextmanager
    def watching(self) -> Iterator[CallContext]:
        """Track modules and optimizers."""
        skip_compilation(CallContext._enter, CallContext._leave)
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        silence = listen(before=lambda _: self._optimize(1), after=lambda _: self._optimize(-1))
        try:
            # A compiled module warns about global hooks, and some jobs turn warnings into errors.
            with patch.object(modules, "_has_any_global_hook", lambda: False, create=True):
                yield self
        finally:
            silence()
            for handle in handles:
                handle.remove()

    @contextmanager
    def optimizing(self) -> Iterator[None]:
        """Calls that update weights, where no optimizer's hook tells."""
        self._optimize(1)
        try:
            yield
        finally:
            self._optimize(-1)

    def _optimize(self, change: int) -> None:
        self._optimizing += change

    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        if torch.compiler.is_compiling():
            return
        if id(module) not in self._paths:
            self.models.append(module)
            root = type(module).__name__
            for path, child in module.named_modules():
                self._paths.setdefault(id(child), f"{root}.{path}" if path else root)
        self._stack.append(self._paths[id(module)])
        self._entered += 1

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        if not torch.compiler.is_compiling() and self._stack:
            self._stack.pop()


def streams_are_pretended() -> bool:
    """Whether a sketch has put stand-ins in the place of torch.cuda's streams.

    >>> streams_are_pretended()
    False
    """
    return getattr(torch.cuda.Stream, "pretended", False)


@contextmanager
def noting_side_calls(watch: Watch) -> Iterator[None]:
    """Note side calls on a watch.

    >>> from foretrace.record.watch.watch import Watch
    >>> with Watch() as watch:
    ...     _ = torch.zeros(4).untyped_storage().resize_(0)
    >>> watch.ops[-1].name, watch.ops[-1].args  # old storage, new storage, bytes
    ('storage::resize_', (0, 1, 0))
    """
    patched = [_patch(watch, *target) for target in _targets(watch) if hasattr(target[0], target[1])]
    try:
        yield
    finally:
        for owner, attribute, own in reversed(patched):
            if own is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, own)


def _targets(watch: Watch) -> list[tuple[Any, str, str, Describe]]:
    where = watch.context
    events: dict[int, int] = {}

    def event(value: Any) -> Constant:
        return Constant("event", str(events.setdefault(id(value), len(events))))

    def stream(value: Any) -> Constant:
        return Constant("stream", str(where.stream_number(value)))

    def current(value: Any = None) -> Constant:
        return stream(value if value is not None else torch.cuda.current_stream())

    def resized(storage: Any, nbytes: int) -> tuple[Value, ...]:
        return *watch.registry.resized(storage, int(nbytes)), int(nbytes)

    cuda = torch.cuda
    targets: list[tuple[Any, str, str, Describe]] = [
        (cuda.Event, "record", "cuda::event_record", lambda e, stream=None: (event(e), current(stream))),
        (cuda.Event, "wait", "cuda::stream_wait_event", lambda e, stream=None: (current(stream), event(e))),
        (cuda.Event, "synchronize", "cuda::event_synchronize", lambda e: (event(e),)),
        (cuda.Stream, "synchronize", "cuda::stream_synchronize", lambda s: (stream(s),)),
        (cuda, "synchronize", "cuda::device_synchronize", lambda device=None: ()),
        (torch.UntypedStorage, "resize_", RESIZE, resized),
    ]
    if c10d is not None:
        targets.append((c10d.Work, "wait", "c10d::wait", lambda w, *_, **__: _some(watch.communication.waited(w))))
    return targets


def _some(value: Value) -> tuple[Value, ...] | None:
    return None if value is None else (value,)


def _patch(watch: Watch, owner: Any, attribute: str, name: str, describe: Describe) -> tuple[Any, str, Any]:
    """Replace a method by one that notes its calls. Returns what to restore: None where it was inherited."""
    original = getattr(owner, attribute)
    own = vars(owner).get(attribute)  # what getattr gives of a C++ class can't be put back: it has lost its self

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        # Inside a call (fake tensors being made, say) the watch is off the stack: that is no call of the step.
        seen = watch in _get_current_dispatch_mode_stack()
        with watch.unharmed():
            arguments = describe(*args, **kwargs) if seen else None
            if arguments is not None:
                watch.note(name, "", (), {}).args = arguments
        return original(*args, **kwargs)

    skip_compilation(call)
    setattr(owner, attribute, call)
    return owner, attribute, own


def settings() -> dict[str, bool | int | str]:
    """Current values of the PyTorch switches that select other kernels.

    >>> settings()["cudnn_benchmark"]
    False
    """
    matmul = torch.backends.cuda.matmul
    return {
        "threads": torch.get_num_threads(),
        "matmul_precision": _matmul_precision(),
        "reduced_bf16": bool(matmul.allow_bf16_reduced_precision_reduction),
        "reduced_fp16": bool(matmul.allow_fp16_reduced_precision_reduction),
        "cudnn_tf32": _cudnn_tf32(),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
    }


def _matmul_precision() -> str:
    """``highest`` where float32 GEMMs stay in float32, ``high`` or ``medium`` where they may run as TF32."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # the script sets fp32_precision, and PyTorch refuses the older query
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _cudnn_tf32() -> bool:
    """Whether convolutions of float32 may run as TF32."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # as above
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")
