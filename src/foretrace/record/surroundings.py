"""Where in the program a call is made: phase, module, autograd node, thread, stream.

Hooks are registered while a step is watched, and removed after it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules import module as modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from foretrace.record.optimizers import listen
from foretrace.record.outside import leave_as_it_is
from foretrace.record.pretend_streams import are_pretended


class Surroundings:
    """Asked at each call; knows what Python was doing.

    >>> Surroundings().phase
    'forward'
    """

    def __init__(self) -> None:
        self._optimizing = 0
        self._stack: list[str] = []
        self._paths: dict[int, str] = {}
        self._entered = 0
        self._threads: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._forward_modules: dict[int, str] = {}

    @property
    def phase(self) -> str:
        """Which part of the step runs: autograd tells backward, the optimizers' hooks tell theirs."""
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return "optimizer" if self._optimizing else "forward"

    @property
    def node(self) -> str:
        """The autograd node that runs; empty outside backward."""
        node = torch._C._current_autograd_node()
        return node.name() if node is not None else ""

    @property
    def thread(self) -> int:
        """A small number for the calling thread, in the order threads are first seen."""
        return self._threads.setdefault(threading.get_ident(), len(self._threads))

    @property
    def stream(self) -> int:
        """A small number for the current device stream; 0 is the default one."""
        if not torch.cuda.is_initialized() and not are_pretended():
            return 0
        return self.stream_number(torch.cuda.current_stream())

    def stream_number(self, stream: Any) -> int:
        """The number of a given stream."""
        if not hasattr(stream, "cuda_stream"):  # as operators are given it: of no kind of device
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
    def watching(self) -> Iterator[Surroundings]:
        """Keep track of modules and optimizers while open."""
        leave_as_it_is(Surroundings._enter, Surroundings._leave)
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        silence = listen(before=lambda _: self._optimize(1), after=lambda _: self._optimize(-1))
        try:
            # Of such hooks a compiled module warns, and there are jobs whose warnings are errors.
            with patch.object(modules, "_has_any_global_hook", lambda: False, create=True):
                yield self
        finally:
            silence()
            for handle in handles:
                handle.remove()

    def _optimize(self, change: int) -> None:
        self._optimizing += change

    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        if torch.compiler.is_compiling():
            return
        if id(module) not in self._paths:
            root = type(module).__name__
            for path, child in module.named_modules():
                self._paths.setdefault(id(child), f"{root}.{path}" if path else root)
        self._stack.append(self._paths[id(module)])
        self._entered += 1

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        if not torch.compiler.is_compiling() and self._stack:
            self._stack.pop()
