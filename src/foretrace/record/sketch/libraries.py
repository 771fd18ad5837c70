"""Code that looks for fake tensors, or that can't run on them: transformers, Triton, scripted code, FlexAttention,
operators of control flow.

Libraries that a script has not imported yet are changed once it does.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import _meta_registrations
from torch._subclasses.fake_tensor import FakeTensor

from foretrace.graph import ForetraceError
from foretrace.record.sketch.cuda_ops import attention

Change = Callable[[ModuleType, ExitStack], None]
SCRIPTED = "torch.jit was left out, with the fusion of its compiler: {} predicted as eager code"
FLEXIBLE = "FlexAttention is predicted as attention over all blocks, with no mask and no score function: {}"

IN_PYTHON = "control flow is predicted as the Python code that it stands for, whose backward recomputes nothing: {}"


class LeftOut:
    """What a sketch runs in another way than the GPU would, and how often."""

    def __init__(self) -> None:
        self._scripted: set[int] = set()
        self._calls: Counter[str] = Counter()
        self._loops: Counter[str] = Counter()
        self._compiled = False

    def scripted(self, function: Any) -> None:
        """Note a call of a scripted function."""
        self._scripted.add(id(function))

    def flex_attention(self) -> None:
        """Note a call of FlexAttention. A compiled one is seen when it is traced, and then several times."""
        if torch._guards.TracingContext.try_get() is None:
            self._calls["call"] += 1
        else:
            self._compiled = True

    def control_flow(self, name: str) -> None:
        """Note a call of an operator of control flow, whose backward may recompute its forward."""
        self._loops[name] += torch.is_grad_enabled()

    def reset(self) -> None:
        """Forget calls so far: those of the step that is watched count."""
        self._calls.clear()
        self._loops.clear()

    @property
    def notes(self) -> list[str]:
        """Notes of the sketch about them."""
        said = []
        if self._scripted:
            said.append(
                SCRIPTED.format(
                    _counted(len(self._scripted), "scripted function") + (" is" if len(self._scripted) == 1 else " are")
                )
            )
        if self._calls or self._compiled:
            compiled = ["compiled calls"] if self._compiled else []
            calls = [_counted(self._calls["call"], "call")] if self._calls else []
            said.append(FLEXIBLE.format(" and ".join(calls + compiled)))
        if loops := +self._loops:
            counted = (_counted(count, f"call of {name}") for name, count in loops.items())
            said.append(IN_PYTHON.format(", ".join(counted)))
        return said


def _counted(count: int, what: str) -> str:
    noun, of, name = what.partition(" of ")
    return f"{count} {noun}{'' if count == 1 else 's'}{of}{name}"


@contextmanager
def libraries_on_fake_tensors() -> Iterator[None]:
    """Let libraries treat fake tensors as real ones, or say that they can't run on them.

    >>> with libraries_on_fake_tensors():
    ...     pass
    """
    load = torch.load

    @wraps(load)
    def load_anywhere(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # A function that places storages has none here: tensors are moved by their labels.
        return load(file, "cpu" if callable(map_location) else map_location, *args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "load", load_anywhere))
        if hasattr(_meta_registrations, "_create_grouped_mm_output_tensor"):
            stack.enter_context(patch.object(_meta_registrations, "_meta_grouped_mm_common", _grouped_product))
        waiting = {}
        for name, change in CHANGES.items():
            if name in sys.modules:
                change(sys.modules[name], stack)
            else:
                waiting[name] = change
        finder = _OnImport(waiting, stack)
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        yield


def _grouped_product(mat_a: Any, mat_b: Any, scale_a: Any, scale_b: Any, **options: Any) -> Any:
    """The result of a grouped product: fake kernels refuse dtypes that GPUs and CPUs take."""
    if scale_a is not None or mat_a.dtype == torch.bfloat16:
        return _check_grouped_product(mat_a, mat_b, scale_a, scale_b, **options)
    return _meta_registrations._create_grouped_mm_output_tensor(mat_a, mat_b, options["offs"], options["out_dtype"])


_check_grouped_product: Any = getattr(_meta_registrations, "_meta_grouped_mm_common", None)


class _OnImport(importlib.abc.MetaPathFinder):
    """Changes modules right after their import."""

    def __init__(self, changes: dict[str, Change], stack: ExitStack) -> None:
        self._changes, self._stack = changes, stack

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        change, run = self._changes.pop(name), spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            change(module, self._stack)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _transformers(module: ModuleType, stack: ExitStack) -> None:
    """A model drops a mask of ones, unless it is exported: fake tensors must not look like an export."""
    if hasattr(module, "is_fake_tensor"):
        stack.enter_context(patch.object(module, "is_fake_tensor", lambda x: False))


def _triton(module: ModuleType, stack: ExitStack) -> None:
    """A kernel of Triton can't run on fake tensors."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(getattr(self, "fn", self), "__name__", "one")
        raise ForetraceError(
            f"the step can't be sketched: it launches the Triton kernel {name!r} itself",
            "Wrap it into an operator that declares its output shapes (torch.library.custom_op and register_fake); "
            "or record a real run instead: foretrace record --out DIR -- python train.py",
        )

    if hasattr(module, "JITFunction"):
        stack.enter_context(patch.object(module.JITFunction, "run", refuse))


def _pipelining(module: ModuleType, stack: ExitStack) -> None:
    """Stages of a pipeline ask their neighbours for shapes, unless they are given."""
    prepare = module.PipelineStage._prepare_forward_infra

    @wraps(prepare)
    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return prepare(self, *args, **kwargs)
        except RuntimeError as error:
            if "metadata" not in str(error):
                raise
            raise ForetraceError(
                "the step can't be sketched: a stage of its pipeline learns its shapes from other ranks",
                "Give PipelineStage its input_args and output_args, as large as a microbatch; or record a real run.",
            ) from error

    stack.enter_context(patch.object(module.PipelineStage, "_prepare_forward_infra", prepared))


def _table_slices(module: ModuleType, stack: ExitStack) -> None:
    """A table among others in one tensor: a fake tensor stays one, and is part of the same storage."""
    kind = module.TableBatchedEmbeddingSlice
    make = kind.__new__

    def made(cls: Any, data: Any, start_offset: int, end_offset: int, num_embeddings: int, embedding_dim: int) -> Any:
        if not isinstance(data, FakeTensor):
            return make(cls, data, start_offset, end_offset, num_embeddings, embedding_dim)
        return data[start_offset:end_offset].view(num_embeddings, embedding_dim)

    stack.enter_context(patch.object(kind, "__new__", made))


CHANGES: dict[str, Change] = {
    "torchrec.distributed.composable.table_batched_embedding_slice": _table_slices,
    "transformers.utils.import_utils": _transformers,
    "triton.runtime.jit": _triton,
    "torch.distributed.pipelining.stage": _pipelining,
}


def _with_save(made: Any) -> Any:
    """What `torch.jit` gives, with the ``save`` of a scripted module where it is the eager one that was given to it."""
    if not isinstance(made, type) and not hasattr(made, "save"):

        def save(f: Any, **_: Any) -> None:
            torch.jit.save(made, f)

        with suppress(AttributeError, TypeError):  # a function of C
            made.save = save
    return made


@contextmanager
def control_flow_in_python(left_out: LeftOut) -> Iterator[None]:
    """Run ``cond``, ``while_loop``, ``scan``, ``associative_scan`` and ``map`` as branches and loops.

    So does eager code, but that TorchDynamo traces them first, on fake tensors of its own.

    >>> with control_flow_in_python(LeftOut()):
    ...     torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.zeros(1),))
    tensor([0.])
    """
    from torch._higher_order_ops import utils

    with ExitStack() as stack:
        if hasattr(utils, "_hop_compile_and_call"):
            uncompiled = lambda function, args, kwargs=None: function(*args, **(kwargs or {}))  # noqa: E731
            stack.enter_context(patch.object(utils, "_hop_compile_and_call", uncompiled))
        for (place, kind), run in CONTROL_FLOW.items():
            with suppress(ImportError, AttributeError):  # another version of torch
                operator = getattr(importlib.import_module(f"torch._higher_order_ops.{place}"), kind)
                call = _in_python(operator.__call__, run, place, left_out)
                stack.enter_context(patch.object(operator, "__call__", call))
        yield


def _in_python(original: Any, run: Callable[..., Any], name: str, left_out: LeftOut) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch._guards.TracingContext.try_get() is not None:
            return original(self, *args, **kwargs)
        left_out.control_flow(name)
        return run(*args, *(kwargs[name] for name in ("additional_inputs",) if name in kwargs))

    return call


def _loop(condition: Any, body: Any, carried: Any, additional: Any) -> Any:
    if not condition(*carried, *additional):
        return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in carried)
    while True:
        carried = body(*carried, *additional)
        if not condition(*carried, *additional):
            return carried


def _scan(combine: Any, start: Any, sequences: Any, additional: Any) -> Any:
    from torch._higher_order_ops.scan import generic_scan

    return generic_scan(combine, start, sequences, additional_inputs=additional)


def _associative_scan(combine: Any, sequences: Any, additional: Any) -> Any:
    from torch._higher_order_ops.associative_scan import generic_associative_scan

    return generic_associative_scan(combine, sequences, additional_inputs=additional)


def _map(function: Any, sequences: Any, additional: Any) -> Any:
    from torch._higher_order_ops.map import map_dense

    return map_dense(function, sequences, additional)


CONTROL_FLOW: dict[tuple[str, str], Callable[..., Any]] = {
    ("cond", "CondOp"): lambda chosen, yes, no, operands: (yes if chosen else no)(*operands),
    ("while_loop", "WhileLoopOp"): _loop,
    ("scan", "ScanOp"): _scan,
    ("associative_scan", "AssociativeScanOp"): _associative_scan,
    ("map", "MapImpl"): _map,
}
"""The module and class of each operator, and what eager code does in its place."""


@contextmanager
def eager_code_on_cuda(left_out: LeftOut) -> Iterator[None]:
    """Run scripted functions as the Python code that they came from, and FlexAttention as another attention.

    The JIT's interpreter asks tensors for their device in C++, where a pretended GPU is none; FlexAttention is fused by
    torch.compile.
    """
    call_function: Any = torch.jit.ScriptFunction.__call__
    call_method: Any = torch._C.ScriptMethod.__call__
    compile_script, enabled = torch.jit.script, torch.jit._state._enabled

    def function(self: Any, *args: Any, **kwargs: Any) -> Any:
        left_out.scripted(self)
        source = getattr(self, "_torchdynamo_inline", None)
        return source(*args, **kwargs) if source else call_function(self, *args, **kwargs)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        left_out.scripted(self.owner)  # its source is not known any more: the interpreter runs it
        return call_method(self, *args, **kwargs)

    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if str(getattr(obj, "__module__", "")).startswith("torch._"):  # PyTorch's own: derivatives in forward mode
            with patch.object(enabled, "enabled", True):
                return compile_script(obj, *args, **kwargs)
        left_out.scripted(obj)
        return _with_save(compile_script(obj, *args, **kwargs))

    def trace(compile_trace: Any, *args: Any, **kwargs: Any) -> Any:
        return _with_save(compile_trace(*args, **kwargs))

    def flex_attention(self: Any, query: Any, key: Any, value: Any, *rest: Any, **kwargs: Any) -> Any:
        left_out.flex_attention()
        scale = kwargs.get("scale", rest[2] if len(rest) > 2 else None)
        made = attention(query, key, value, scale=scale, enable_gqa=True)
        saved = made.new_empty(made.shape[:-1], dtype=torch.float32)
        return made, saved, saved

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.jit.ScriptFunction, "__call__", function))
        stack.enter_context(patch.object(torch._C.ScriptMethod, "__call__", method))
        stack.enter_context(patch.object(enabled, "enabled", False))
        stack.enter_context(patch.object(torch.jit, "script", script))
        for name in ("trace", "trace_module"):
            stack.enter_context(patch.object(torch.jit, name, partial(trace, getattr(torch.jit, name))))
        with suppress(ImportError):  # before torch 2.6
            from torch._higher_order_ops.flex_attention import FlexAttentionHOP

            stack.enter_context(patch.object(FlexAttentionHOP, "__call__", flex_attention))
        yield
