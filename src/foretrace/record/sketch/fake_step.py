"""Tensors on paper: shapes and no values, on which a step can be called, watched, and its modules moved."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import _disable_current_modes

from foretrace.graph import ForetraceError
from foretrace.record.watch.tensors import DeviceName
from foretrace.record.watch.watch import Watch, desugars

STAND_INS: dict[Any, Any] = {torch.bool: False}
"""What reading a value gives where there are no values: False for a flag, 1 for a number."""


class Paper(FakeTensorMode):
    """Fake tensors on which a step may read values: logging a loss must not end a sketch."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.assumed = 0
        """Values that were read although there are none."""
        self._copies: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        """Real tensors, held so that their identity stays theirs, and what stands for them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Paper:
        """Itself: a copied weight is on the same paper, or what looks at it would seem to lie somewhere else."""
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _refuse_a_real_gpu(kwargs or {})
        args, kwargs = self.given(func, args), self.given(func, kwargs)
        if func is torch.ops.aten.is_coalesced.default:
            return False  # nobody knows which ids were looked up twice
        if func is torch.ops.aten._coalesce.default:
            raise DynamicOutputShapeException(func)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            self.assumed += 1
            kind = args[0].dtype
            return STAND_INS.get(kind, 1.0 if kind.is_floating_point else 1)

    def given(self, func: Any, values: Any) -> Any:
        """What a call is given; what a script writes down itself, as in torch.tensor(2), keeps its values."""
        return values if func in self.lift_fns else self.copied(values)

    def copied(self, values: Any) -> Any:
        """The values with a fake tensor for each real one, always the same: a sketch must not change a real model."""
        if isinstance(values, FakeTensor):
            return values
        if isinstance(values, torch.Tensor):
            return values if desugars(type(values)) else self._copy(values)
        if isinstance(values, dict):
            return {key: self.copied(value) for key, value in values.items()}
        return type(values)(map(self.copied, values)) if type(values) in (list, tuple) else values

    def _copy(self, tensor: torch.Tensor) -> FakeTensor:
        if id(tensor) not in self._copies:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                bare = tensor.detach()  # its gradient may be fake already
                self._copies[id(tensor)] = (tensor, self.from_tensor(bare))
        return self._copies[id(tensor)][1]


class OnPaper(Watch):
    """A watch that sees the fake tensors which stand for a real model's, so that views and changes in place show."""

    def __init__(self, paper: Paper, *device_name: DeviceName) -> None:
        super().__init__(*device_name)
        self._paper = paper

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = self._paper.given
        return super().__torch_dispatch__(func, types, given(func, args), given(func, kwargs))


class Moving:
    """Moves and casts modules of fake weights: PyTorch's own way swaps tensors, which fake ones do not bear."""

    def __init__(self) -> None:
        self._moved: dict[int, tuple[Any, Any]] = {}
        self._depth = 0

    @property
    def apply(self) -> Callable[..., Any]:
        """What to put in place of ``Module._apply``."""

        def _apply(module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:
            if not self._depth:
                self._moved.clear()
            self._depth += 1
            try:
                for child in module.children() if recurse else ():
                    child._apply(change)
                for held in (module._parameters, module._buffers):
                    held.update({name: self._changed(t, change) for name, t in held.items() if t is not None})
                return module
            finally:
                self._depth -= 1

        return _apply

    def _changed(self, tensor: Any, change: Callable[[Any], Any]) -> Any:
        """The tensor after the change; the same one wherever it is shared."""
        if id(tensor) not in self._moved:
            with torch.no_grad():
                made = change(tensor)
            if made is not tensor and isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            self._moved[id(tensor)] = (tensor, made)
        return self._moved[id(tensor)][1]


def _refuse_a_real_gpu(kwargs: dict[str, Any]) -> None:
    """Fake CUDA tensors crash a build of torch without CUDA as soon as autograd touches them."""
    if not torch.version.cuda and getattr(kwargs.get("device"), "type", "") == "cuda":
        raise ForetraceError(
            "the step wants a GPU, and this torch knows none", 'Pretend one: sketch(…, device="cuda").'
        )


# --- was record.uncompiled: Running compiled functions as the code they were compiled from, while a step is sketched.


class CompiledRegions:
    """What torch.compile made and a sketch has called."""

    def __init__(self) -> None:
        self._called: dict[int, Any] = {}

    def call(self, compiler: Any) -> None:
        """Note a call of what a compiler made; each call of torch.compile has a compiler of its own."""
        if callable(compiler):
            self._called[id(compiler)] = compiler  # held, so that its number stays its own

    @property
    def notes(self) -> list[str]:
        """What the sketch must say about them."""
        count = len(self._called)
        if not count:
            return []
        regions = "1 compiled region is" if count == 1 else f"{count} compiled regions are"
        return [f"torch.compile was left out: {regions} predicted as eager code"]


@contextmanager
def left_uncompiled() -> Iterator[CompiledRegions]:
    """Run all that torch.compile gives out, or gave out before, as it was written.

    >>> with left_uncompiled() as regions:
    ...     torch.compile(torch.neg)(torch.ones(1))
    tensor([-1.])
    >>> regions.notes
    ['torch.compile was left out: 1 compiled region is predicted as eager code']
    """
    regions = CompiledRegions()
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_eager(regions))
        elif hasattr(torch, "compile"):
            stack.enter_context(_eager_once_loaded(regions))
        yield regions


@contextmanager
def _eager_once_loaded(regions: CompiledRegions) -> Iterator[None]:
    """The same once torch.compile is called: it loads the compiler, which takes longer than many a sketch."""
    compile = torch.compile
    with ExitStack() as stack:
        waiting = [_eager(regions)]

        @functools.wraps(compile)
        def call(*args: Any, **kwargs: Any) -> Any:
            while waiting:
                stack.enter_context(waiting.pop())
            return compile(*args, **kwargs)

        with patch.object(torch, "compile", call):
            try:
                yield
            finally:
                waiting.clear()  # a script may keep what it found in torch's place


@contextmanager
def _eager(regions: CompiledRegions) -> Iterator[None]:
    """Keep torch.compile from compiling, and from running what is compiled."""
    from torch._dynamo import eval_frame

    with ExitStack() as stack:
        if hasattr(torch.compiler, "set_stance"):
            chosen: Any = eval_frame._callback_from_stance  # called once for each call of a compiled function

            def noted(compiler: Any) -> Any:
                regions.call(compiler)
                return chosen(compiler)

            stack.enter_context(patch.object(eval_frame, "_callback_from_stance", noted))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        else:  # before torch 2.6
            set_compiler: Any = eval_frame.set_eval_frame

            def without(compiler: Any) -> Any:
                regions.call(compiler)
                return set_compiler(None if callable(compiler) else compiler)

            stack.enter_context(patch.object(eval_frame, "set_eval_frame", without))
        yield
