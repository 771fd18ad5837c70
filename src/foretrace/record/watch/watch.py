"""A dispatch mode that records every call of a step with its exact arguments, below autograd and autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foretrace.graph import Constant, Graph, Op, OpTable, Value
from foretrace.graph.calls import collectives_of
from foretrace.graph.op import COMPILED_REGION
from foretrace.record.watch.autograd import SparseGradients, plain_ctc_loss, plain_form, without_saves
from foretrace.record.watch.communication import Communication, is_box
from foretrace.record.watch.compiled_programs import Program, ProgramCalls
from foretrace.record.watch.context import CallContext, noting_side_calls, settings
from foretrace.record.watch.products import plain_products
from foretrace.record.watch.tensors import TensorRegistry

UNSEEN = ("profiler::", "prim::device")
"""Dispatcher calls that are no work: annotations, and device queries on fake tensors."""
FUNCTIONAL = ("_c10d_functional::", "_dtensor::")
"""Collectives that name their group in plain text."""
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
KERNELS_OF_GPUS = ("aten::_fused_rms_norm",)
"""Calls that are made of others on the CPU alone."""
PLAIN = (type(None), bool, int, float, str)
NAMED = {
    torch.dtype: "dtype", torch.device: "device", torch.layout: "layout", torch.memory_format: "memory_format",
}  # fmt: skip


@cache
def _is_composite(func: Any) -> bool:
    """Whether PyTorch's C++ makes a call of others. (Decompositions in Python are for tracing, and differ.)"""
    if not isinstance(func, torch._ops.OpOverload) or func.name() in KERNELS_OF_GPUS:
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")


class Watch(TorchDispatchMode):
    """Records the calls of a step, on real or fake tensors.

    >>> with Watch() as watch:
    ...     _ = torch.ones(2, 2) @ torch.ones(2, 2)
    >>> [op.name for op in watch.ops]
    ['aten::ones', 'aten::ones', 'aten::mm']
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run as compiled: under other modes torch.compile falls back to eager, permanently."""
        return True

    def __init__(self, registry: TensorRegistry | None = None) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.registry = registry or TensorRegistry()
        self.context = CallContext()
        self.communication = Communication()
        self.programs = ProgramCalls()
        self._in_program = 0
        self._sparse = SparseGradients(self)
        self._open = ExitStack()
        self._failure: Exception | None = None

    def __enter__(self) -> Watch:
        with ExitStack() as opened:
            opened.enter_context(self.context.watching())
            opened.enter_context(self.communication.noting_reductions())
            opened.enter_context(noting_side_calls(self))
            opened.enter_context(plain_ctc_loss())
            opened.enter_context(plain_products(self))
            opened.callback(self._sparse.close)
            super().__enter__()
            self._open = opened.pop_all()
        return self

    def __exit__(self, *failure: Any) -> None:
        with self._open:
            super().__exit__(*failure)
        if self._failure is not None and not any(failure):
            raise self._failure
        self.registry.freed()
        for model in self.context.models:
            for tensor in (*model.parameters(), *model.buffers()):
                with suppress(RuntimeError, NotImplementedError):  # a subclass of tensors may have no storage
                    self.registry.hold(self.recorded(getattr(tensor, "_local_tensor", tensor)))
        self.context.models.clear()
        self.ops = without_saves(self.ops, self.registry.storages)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(desugars, types)):
            return NotImplemented  # the subclass decomposes the call, and its parts are recorded
        name, overload = op_name(func)
        if name.startswith(UNSEEN):
            return func(*args, **(kwargs or {}))
        if _is_composite(func):
            # Autograd, which takes composite calls apart, is left out: in inference mode, and by tensor subclasses.
            with self._going_on():
                return func._op_dk(COMPOSITE, *args, **(kwargs or {}))
        with self.unharmed():
            self._sparse.expect(func, args)
            func, args = plain_form(func, args, self.context.node, self._is_fresh(args))
            name, overload = op_name(func)
            op = self.note(name, overload, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        with self.unharmed():
            results = result if isinstance(result, tuple) else (result,)
            op.outputs = tuple(self.describe(value) for value in results)
            _use_output_device(op)
        return result

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Watch what the call in flight calls: a mode is off while it handles one."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    def run_program(self, program: Program, inputs: list[Any], run: Callable[[list[Any]], Any]) -> Any:
        """Run a program that torch.compile generated, and record the call."""
        updates = any(isinstance(inputs[place], torch.nn.Parameter) for place in program.updated)
        op = Op(COMPILED_REGION)
        with self.context.optimizing() if updates else nullcontext():
            with self.unharmed():
                given = [*inputs, *program.constants]
                op = self.note(COMPILED_REGION, "", (0, len(inputs)), {"given": given})
                described = op.kwargs["given"]
                op.kwargs["program"] = self.programs.number(program, described if isinstance(described, list) else [])
                del given  # the program frees arguments that it no longer needs
            begin, self._in_program = len(self.ops), self._in_program + 1
            try:
                result = run(inputs)
            finally:
                self._in_program -= 1
        with self.unharmed():
            op.args = (sum(not each.is_side_call for each in self.ops[begin:]), op.args[1])
            self.registry.now = len(self.ops) - 1
            op.outputs = tuple(self.describe(value) for value in result)
        return result

    def recorded(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that calls are recorded with, for one of the job's."""
        return tensor

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """Defer errors of the watch itself: they must not end the step, and are raised when the watch ends."""
        try:
            yield
        except Exception as error:
            self._failure = self._failure or error

    def _is_fresh(self, args: Any) -> bool:
        """Whether the first argument is zeros made by the previous call."""
        if not self.ops or "zeros" not in self.ops[-1].name or not args or not isinstance(args[0], torch.Tensor):
            return False
        return any(made.id == self.registry.tensor_id(args[0]) for made in self.ops[-1].produced)

    def note(self, name: str, overload: str, args: Any, kwargs: dict[str, Any]) -> Op:
        """Append a call with its context."""
        frees = self.registry.freed()
        self.registry.now = len(self.ops)
        where = self.context
        module, node = where.place()
        op = Op(
            name=name,
            overload=overload,
            phase=where.phase,
            thread=where.thread,
            stream=where.stream,
            module=module,
            node=node,
            entered=where.entered(),
            frees=frees,
        )
        self.ops.append(op)
        # Inputs first seen here were there before the step, unless a compiled program has allocated them.
        self.registry.now = len(self.ops) - 1 if self._in_program else -1
        op.args = tuple(self.describe(value) for value in args)
        op.kwargs = {key: self.describe(value) for key, value in kwargs.items()}
        if name.startswith(FUNCTIONAL):
            self.communication.named(args)
        self.registry.now = len(self.ops) - 1
        return op

    def describe(self, value: Any) -> Value:
        """A dispatcher argument as a value of the graph."""
        if isinstance(value, torch.Tensor):
            return self.registry.describe(value)
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, (list, tuple)):
            return [self.describe(item) for item in value]
        if isinstance(value, dict):
            return {str(key): self.describe(item) for key, item in value.items()}
        return self._describe_rare(value)

    def _describe_rare(self, value: Any) -> Value:
        if type(value) in NAMED:
            return Constant(NAMED[type(value)], str(value).removeprefix("torch."))
        for symbolic, plain in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool)):
            if isinstance(value, symbolic):
                return plain(value)
        if isinstance(value, complex):
            return Constant("complex", repr(value))
        if isinstance(value, torch.Generator):
            return Constant("generator", str(value.device))
        if isinstance(value, torch.Stream):
            return Constant("stream", str(self.context.stream_number(value)))
        if is_box(value):
            return self.communication.describe(value)
        return Constant("object", type(value).__name__)

    def graph(self) -> Graph:
        """The recorded calls as a graph without times."""
        groups = dict(self.communication.groups)
        return Graph(
            ops=OpTable.of(self.ops),
            storages=dict(self.registry.storages),
            groups=groups,
            collectives=collectives_of(self.ops, groups),
            settings=settings(),
        )


def _use_output_device(op: Op) -> None:
    """Set a requested device to that of the outputs: with a pretended GPU, calls are given the CPU."""
    asked = op.kwargs.get("device")
    if isinstance(asked, Constant) and op.produced:
        made = op.produced[0].device
        if made.partition(":")[0] != asked.value.partition(":")[0]:
            op.kwargs["device"] = Constant("device", made)


def op_name(func: Any) -> tuple[str, str]:
    """Name and overload of an operator: ('aten::add', 'Tensor')."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return f"higher_order::{func.name()}", ""
    return schema.name, schema.overload_name or "default"


def desugars(kind: Any) -> bool:
    """Whether a tensor subclass decomposes calls into others: DTensor, AsyncCollectiveTensor, and custom ones."""
    return _desugars(kind)


@cache
def _desugars(kind: Any) -> bool:
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return False
    if kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl:
        return False
    return not any(str(each.__module__).startswith("torch._subclasses") for each in kind.__mro__)
