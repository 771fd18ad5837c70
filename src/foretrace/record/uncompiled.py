"""Running compiled functions as the code they were compiled from, while a step is sketched.

Generated kernels can't run on fake tensors: they would read and write memory that is not there.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch


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
