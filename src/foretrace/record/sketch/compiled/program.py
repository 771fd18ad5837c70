"""Running the program that TorchInductor generates, on fake tensors: each of its kernels is recorded as a call.

The program is Python: it allocates buffers, launches kernels, calls PyTorch for GEMMs, and frees what it no longer
needs. It runs as it is, with stand-ins for what only a GPU has. So a sketch has the launches of the real program in
their order, with their arguments, and its memory.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from foretrace.graph.generated_kernels import STREAM, kernel_facts, written_arguments
from foretrace.graph.op import COMPILED_REGION, GRAPH_LAUNCH, Op
from foretrace.record.sketch.cuda import CUDA, Labels
from foretrace.record.sketch.fake_step import FakeStepMode
from foretrace.record.watch.compiled_programs import Program as WatchedProgram
from foretrace.record.watch.watch import Watch

LEFT_OUT = ("triton", "torch._inductor.async_compile", "torch._inductor.runtime.triton_heuristics")
"""Modules that the program imports to compile its kernels."""
HELPERS = ("get_args", "benchmark_compiled_module")
"""Functions of the program that only benchmarks call."""


class Program:
    """A generated program, ready to be called with a list of arguments, which it empties."""

    def __init__(
        self,
        source: str,
        changed: Sequence[int],
        labels: Labels,
        static: Container[int] | None = None,
        watched: WatchedProgram | None = None,
    ) -> None:
        """``changed``: which arguments it changes; ``static``: for a CUDA graph, which stay at their addresses."""
        self._changed, self._labels, self._static, self._watched = changed, labels, static, watched
        self._captured: dict[int, torch.Tensor] = {}
        """The arguments that a CUDA graph was captured with, where others are copied to."""
        self._boxed_call = True  # AOTAutograd then hands over its only references to the arguments
        self._call = self._loaded(source)

    def __call__(self, args: list[Any]) -> Any:
        """The results of the program."""
        watch = watching()
        updates = watch is not None and any(isinstance(args[place], torch.nn.Parameter) for place in self._changed)
        with torch.no_grad(), watch.context.optimizing() if watch and updates else nullcontext():
            if self._static is not None:
                self._copy_arguments(args)
            with _counted(COMPILED_REGION, len(args)) as mark:
                self._describe_arguments(watch, mark, args)
                with nullcontext() if self._static is None else _counted(GRAPH_LAUNCH):
                    results = self._call(args)
                if watch is not None and mark is not None:
                    with _disable_current_modes():
                        mark.outputs = tuple(watch.describe(each) for each in results)
                return results

    def _describe_arguments(self, watch: Watch | None, mark: Op | None, args: list[Any]) -> None:
        """Note which arguments the program is called with."""
        if watch is None or mark is None or self._watched is None or self._watched.constants:
            return
        mode = fake_step()
        with _disable_current_modes(), watch.unharmed(), patch.object(watch.registry, "now", -1):
            given = [watch.describe(mode.copied(each)) for each in args]
            mark.kwargs = {"given": given, "program": watch.programs.number(self._watched, given)}

    def _copy_arguments(self, args: list[Any]) -> None:
        """Copy arguments to the addresses that a CUDA graph was captured with."""
        assert self._static is not None
        moved = [
            place
            for place, value in enumerate(args)
            if place not in self._static and isinstance(value, torch.Tensor) and self._labels.of(value) == CUDA
        ]
        for place in moved:
            if place not in self._captured:
                given = args[place]
                self._captured[place] = self._empty(CUDA)(given.size(), given.stride(), given.dtype)
        if moved:
            torch._foreach_copy_([self._captured[place] for place in moved], [args[place] for place in moved])
        for place in moved:
            args[place] = self._captured[place]

    def _loaded(self, source: str) -> Callable[[list[Any]], Any]:
        given: dict[str, Any] = {
            "AsyncCompile": lambda: self,
            "empty_strided_cuda": self._empty("cuda:0"),
            "empty_strided_cpu": self._empty("cpu"),
            "empty_strided_cpu_pinned": self._empty("cpu"),
            "reinterpret_tensor": self._reinterpreted,
            "copy_if_misaligned": lambda tensor: tensor,
            **dict.fromkeys(("assert_size_stride", "assert_alignment", "start_graph", "end_graph"), _nothing),
            "get_raw_stream": lambda device: STREAM,
        }
        module = ast.parse(source)
        module.body = [each for each in module.body if not _is_left_out(each, given)]
        exec(compile(module, "<generated by TorchInductor>", "exec"), given)
        return given["call"]  # type: ignore[no-any-return]

    def _empty(self, device: str) -> Callable[..., torch.Tensor]:
        def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            with self._unseen():
                made = torch.empty_strided(size, stride, dtype=dtype)
            self._labels.put(made, device)
            if (watch := watching()) is not None:
                with patch.object(watch.registry, "now", len(watch.ops)):  # it is born in the call that comes next
                    watch.registry.storage_id(made.untyped_storage(), device)
            return made

        return empty_strided

    def _reinterpreted(self, tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Any:
        with self._unseen(), torch._C._AutoDispatchBelowAutograd():  # no view, for autograd
            return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Calls that pass no dispatcher in the real program: of all dispatch modes only that of fake tensors is on."""
        fake = fake_step()
        with _disable_current_modes(), torch._C.DisableTorchFunction(), self._labels.true_devices(), fake:
            yield

    # What the program asks of AsyncCompile.

    def triton(self, name: str, source: str, **_: Any) -> Kernel:
        """A kernel of Triton."""
        return Kernel(name, written_arguments(source), kernel_facts(source))

    def cpp_pybinding(self, types: Sequence[str], source: str, **_: Any) -> Callable[..., None]:
        """A function in C++, for tensors on the host."""
        found = re.search(r'extern "C"\s+void\s+(\w+)', source)
        return Kernel(found[1] if found else "cpp_fused", [not each.startswith("const") for each in types]).launch

    def wait(self, scope: dict[str, Any]) -> None:
        """All is there."""


class Kernel:
    """A generated kernel: launching it records a call."""

    def __init__(self, name: str, writes: Sequence[bool], facts: dict[str, Any] | None = None) -> None:
        self.name = name
        self._facts = facts or {}
        """Keywords of the recorded call, from which it is priced."""
        self._writes = writes
        """Whether it writes each of its arguments; what is not known is left out."""

    def run(self, *args: Any, stream: int = STREAM, **_: Any) -> None:
        """Launch it, as the program does."""
        self.launch(*args, stream)

    def launch(self, *args: Any) -> None:
        """Record the call with its arguments, and the tensors that it writes as its results."""
        mode, watch = fake_step(), watching()
        args = tuple(mode.copied(a) for a in args)
        pointers = [a for a in args if isinstance(a, torch.Tensor)]
        with _disable_current_modes():
            for tensor, writes in zip(pointers, self._writes):
                if writes:
                    mode.values.overwrite(tensor)
            if watch is not None:
                with watch.unharmed():
                    op = watch.note(self.name, "", args, self._facts)
                    op.outputs = tuple(t for t, writes in zip(op.tensors, self._writes) if writes)


@contextmanager
def _counted(name: str, *facts: int) -> Iterator[Op | None]:
    """Note a side call with the number of calls that come until the end, which are those of a region."""
    watch = watching()
    if watch is None:
        yield None
        return
    with _disable_current_modes():
        op = watch.note(name, "", (), {})
    begin = len(watch.ops)
    try:
        yield op
    finally:
        op.args = (sum(not each.is_side_call for each in watch.ops[begin:]), *facts)


def fake_step() -> FakeStepMode:
    """The mode that the step's fake tensors belong to."""
    return next(mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, FakeStepMode))


def watching() -> Watch | None:
    """The watch that records calls; none while the step warms up."""
    return next((mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Watch)), None)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Accept any arguments and do nothing."""


def _is_left_out(statement: ast.stmt, given: dict[str, Any]) -> bool:
    """Whether a statement of the program compiles kernels, benchmarks it, or gives a name that has a stand-in."""
    if isinstance(statement, ast.Import):
        return statement.names[0].name.startswith(LEFT_OUT)
    if isinstance(statement, ast.ImportFrom):
        return (statement.module or "").startswith(LEFT_OUT) or any(
            (each.asname or each.name) in given for each in statement.names
        )
    if isinstance(statement, ast.Assign):
        return isinstance(statement.targets[0], ast.Name) and statement.targets[0].id in given
    if isinstance(statement, ast.FunctionDef):
        return statement.name in HELPERS
    return isinstance(statement, ast.If)
