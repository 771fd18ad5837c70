"""Compiled functions in a sketch: traced by TorchDynamo and AOTAutograd, lowered by TorchInductor for a pretended GPU.

Where a part of that fails, the function runs as the eager code that it was compiled from, and a caution of the sketch
says so with the reason.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _disable_current_modes

from foretrace.record.sketch.cuda import PretendedGpu

TOO_OLD = "PyTorch is older than 2.6"
VISIBLE_GPU = "a GPU is visible: hide it, CUDA_VISIBLE_DEVICES="


class CompiledRegions:
    """Compiled functions that a sketch has called, and what became of them."""

    def __init__(self) -> None:
        self._eager: dict[int, tuple[Any, str]] = {}
        self._failed: Counter[str] = Counter()
        self._not_captured: Counter[str] = Counter()
        self.unmeasured = False
        """Whether some kernels would be chosen by measuring them."""

    def eager(self, compiler: Any, why: str) -> None:
        """Note a call of a compiled function that runs eagerly; each call of torch.compile has its own compiler."""
        if callable(compiler):
            self._eager[id(compiler)] = compiler, why  # referenced, so that its id stays unique

    def failed(self, why: str) -> None:
        """Note a part of a compiled function that could not be compiled."""
        self._failed[why] += 1

    def without_graph(self, why: str) -> None:
        """Note a program that reduce-overhead could not capture."""
        self._not_captured[why] += 1

    @property
    def notes(self) -> list[str]:
        """Notes of the sketch about them."""
        reasons = self._failed + Counter(why for _, why in self._eager.values())
        said = []
        for why, count in reasons.items():
            regions = "1 compiled region is" if count == 1 else f"{count} compiled regions are"
            said.append(f"torch.compile was left out: {regions} predicted as eager code" + (f" ({why})" if why else ""))
        for why, count in self._not_captured.items():
            programs = "1 compiled program is" if count == 1 else f"{count} compiled programs are"
            said.append(f"{programs} not in a CUDA graph: {why}")
        if self.unmeasured:
            said.append(
                "max-autotune chooses kernels by measuring them: compiled regions are predicted with those of the "
                "default mode"
            )
        return said


@contextmanager
def compiled_regions(gpu: PretendedGpu | None) -> Iterator[CompiledRegions]:
    """Compile what torch.compile returns, or has returned before, for a pretended GPU; without one it runs eagerly.

    >>> with compiled_regions(None) as regions:
    ...     torch.compile(torch.neg)(torch.ones(1))
    tensor([-1.])
    >>> regions.notes
    ['torch.compile was left out: 1 compiled region is predicted as eager code']
    """
    regions = CompiledRegions()
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_compiling(regions, gpu))
        elif hasattr(torch, "compile"):
            stack.enter_context(_once_loaded(lambda: _compiling(regions, gpu)))
        yield regions


@contextmanager
def _once_loaded(begin: Callable[[], Any]) -> Iterator[None]:
    """The same once torch.compile is called: loading the compiler takes longer than many sketches."""
    compile = torch.compile
    with ExitStack() as stack:
        waiting = [begin]

        @functools.wraps(compile)
        def call(*args: Any, **kwargs: Any) -> Any:
            while waiting:
                stack.enter_context(waiting.pop()())
            return compile(*args, **kwargs)

        with patch.object(torch, "compile", call):
            try:
                yield
            finally:
                waiting.clear()  # a script may still hold the patched function


@contextmanager
def _compiling(regions: CompiledRegions, gpu: PretendedGpu | None) -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        import_module("torch._dynamo.eval_frame")
    if gpu is None:
        begin = eager_regions(regions, "")
    elif gpu.labels is None or not hasattr(torch.compiler, "set_stance"):
        begin = eager_regions(regions, VISIBLE_GPU if gpu.labels is None else TOO_OLD)
    else:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            from foretrace.record.sketch.compiled.dynamo import compiling_for
        begin = compiling_for(gpu, regions)
    with begin:
        yield


@contextmanager
def eager_regions(regions: CompiledRegions, why: str) -> Iterator[None]:
    """Keep torch.compile from compiling, and from running compiled code."""
    eval_frame: Any = sys.modules["torch._dynamo.eval_frame"]
    with ExitStack() as stack:
        if hasattr(torch.compiler, "set_stance"):
            chosen: Any = eval_frame._callback_from_stance  # called once for each call of a compiled function

            def noted(compiler: Any) -> Any:
                regions.eager(compiler, why)
                return chosen(compiler)

            stack.enter_context(patch.object(eval_frame, "_callback_from_stance", noted))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        else:  # before torch 2.6
            set_compiler: Any = eval_frame.set_eval_frame

            def without(compiler: Any) -> Any:
                regions.eager(compiler, why)
                return set_compiler(None if callable(compiler) else compiler)

            stack.enter_context(patch.object(eval_frame, "set_eval_frame", without))
        yield
