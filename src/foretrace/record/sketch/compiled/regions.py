"""Compiled functions in a sketch: traced by TorchDynamo and AOTAutograd, lowered by TorchInductor for a pretended GPU.

Where a part of that fails, the function runs as the eager code that it was compiled from, and a caution of the sketch
says so with the reason.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._guards import Source
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _disable_current_modes

from foretrace.record.sketch import training
from foretrace.record.sketch.cuda import PretendedGpu
from foretrace.record.watch import context

TOO_OLD = "PyTorch is older than 2.6"
MADE_BY = "compiled by backend {!r} and not by TorchInductor: predicted as the calls that its result makes"
NOTHING = "torch.compile compiles nothing here: TorchDynamo breaks off in each function, which runs as eager code"
VISIBLE_GPU = "a GPU is visible: hide it, CUDA_VISIBLE_DEVICES="


GRAPHED = "reduce-overhead"
COMPILE = ("on", GRAPHED, "off")
"""What a sketch may be asked to do with the step's models, whatever the step does itself."""


class CompiledRegions:
    """Compiled functions that a sketch has called, and what became of them."""

    def __init__(self, wanted: str | None = None) -> None:
        self.wanted = wanted
        self.seen = False
        """Whether the step has called a compiled function."""
        self.has_graphs = False
        """Whether TorchDynamo has found a graph in one."""
        self._eager: dict[int, tuple[Any, str]] = {}
        self._failed: Counter[str] = Counter()
        self._not_captured: Counter[str] = Counter()
        self.on_gpu: Callable[[], Any] = nullcontext
        """A context in which fake tensors may be on the GPU."""
        self.wants_programs = True
        """Whether the sketch shall have the graphs of programs."""
        self.compiled_again: list[str] = []
        """Functions that were compiled in the step that is sketched: in the step before, for other sizes or values."""
        self.other_backends: Counter[str] = Counter()
        """Graphs that other backends than TorchInductor compiled, by their names."""
        self.unmeasured = False
        """Whether some kernels would be chosen by measuring them."""

    def eager(self, compiler: Any, why: str) -> None:
        """Note a call of a compiled function that runs eagerly; each call of torch.compile has its own compiler."""
        if callable(compiler) and self.wanted != "off":
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
        for backend, count in self.other_backends.items():
            graphs = "1 graph is" if count == 1 else f"{count} graphs are"
            said.append(f"{graphs} {MADE_BY.format(backend)}")
        if self.seen and not self.has_graphs and not reasons:
            said.append(NOTHING)
        if self.compiled_again:
            names = ", ".join(dict.fromkeys(self.compiled_again))
            said.append(
                f"compiled again in the second step, for other sizes or values: {names}; a step that compiles takes "
                "seconds longer than predicted"
            )
        if self.unmeasured:
            said.append(
                "max-autotune chooses kernels by measuring them: compiled regions are predicted with those of the "
                "default mode"
            )
        return said


DYNAMO = "torch._dynamo"
SOURCES = "torch._dynamo.source"
NEEDED = ("torch.fx.experimental.symbolic_shapes", "torch.distributed.tensor")
"""Modules that PyTorch imports with the first calls on fake tensors: faster before the guard is active."""


class DynamoNeededError(BaseException):
    """A script that calls torch.compile although TorchDynamo was put off; none of its own handlers is to catch it."""


class DeferredDynamo(ModuleType):
    """``torch._dynamo`` until something is asked of it that only TorchDynamo itself can answer.

    Fake tensors read its configuration and say where they come from, and optimizers tell it where not to compile;
    importing it for these takes half as long as importing PyTorch. It is imported too late to compile: what a sketch
    replaces in PyTorch must be replaced after it.
    """

    def __init__(self) -> None:
        super().__init__(DYNAMO)
        spec = find_spec(DYNAMO)
        assert spec is not None and spec.loader is not None
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin
        self.__path__ = list(spec.submodule_search_locations or ())
        self.optimize = refuse_to_compile

    def graph_break(self, msg: str = "") -> None:
        """Outside of what is compiled: nothing."""

    def disable(self, fn: Any = None, *args: Any, wrapping: bool = True, **kwargs: Any) -> Any:
        """The function itself where PyTorch asks at the first call of one of its own."""
        return self.imported().disable(fn, *args, wrapping=wrapping, **kwargs) if wrapping or fn is None else fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.imported(), name)

    def imported(self) -> Any:
        """TorchDynamo, from now on under this name."""
        if type(self) is DeferredDynamo:
            self.__class__ = ModuleType  # type: ignore[assignment]
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _DynamoFinder)]
            del sys.modules[SOURCES]
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                self.__loader__.exec_module(self)  # type: ignore[union-attr]
            self.optimize = refuse_to_compile
        return self


class _DeferredSources(ModuleType):
    """``torch._dynamo.source`` meanwhile: what PyTorch takes from it for each fake copy of a tensor."""

    class ConstantSource(Source):
        """A tensor of no known origin."""

        def __init__(self, name: str) -> None:
            pass

    RandomValueSource = ConstantSource

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of every module by who looks for the source of a function
            raise AttributeError(name)
        return getattr(sys.modules[DYNAMO].imported().source, name)


class _DynamoFinder(MetaPathFinder):
    """Imports TorchDynamo before one of its modules, which it may import itself."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module, where TorchDynamo has imported it."""
        if not name.startswith(f"{DYNAMO}."):
            return None
        sys.modules[DYNAMO].imported()
        found = sys.modules.get(name)
        return None if found is None else ModuleSpec(name, _Imported(found))


class _Imported(Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def refuse_to_compile(*args: Any, **kwargs: Any) -> Any:
    """Stands for torch.compile where TorchDynamo was put off."""
    raise DynamoNeededError


_ahead = _deferred = False
"""Whether `prepare_dynamo` has imported TorchDynamo here, before any code could call torch.compile, or put it off."""


def prepare_dynamo(compiles: bool) -> None:
    """Import TorchDynamo, or put it off, in a process where no code of a script has run yet."""
    global _ahead, _deferred
    if DYNAMO in sys.modules:
        return
    _ahead, _deferred = compiles, not compiles
    if _deferred:
        sys.modules[DYNAMO] = torch._dynamo = DeferredDynamo()
    import_module(f"{DYNAMO}.config")
    if _deferred:
        sys.modules[SOURCES] = _DeferredSources(SOURCES)
        sys.meta_path.insert(0, _DynamoFinder())
        for module in NEEDED:
            with suppress(ImportError):  # a PyTorch without distributed jobs
                import_module(module)


def compile_called() -> bool:
    """Whether torch.compile may have been called: where something else has imported TorchDynamo."""
    return DYNAMO in sys.modules and not (_ahead or _deferred)


@contextmanager
def compiled_regions(
    gpu: PretendedGpu | None, wanted: str | None = None, called_before: bool = True
) -> Iterator[CompiledRegions]:
    """Compile what torch.compile returns, or has returned before, for a pretended GPU; without one it runs eagerly.

    ``called_before`` says whether torch.compile may have been called by now.

    >>> with compiled_regions(None) as regions:
    ...     torch.compile(torch.neg)(torch.ones(1))
    tensor([-1.])
    >>> regions.notes
    ['torch.compile was left out: 1 compiled region is predicted as eager code']
    """
    regions = CompiledRegions(wanted)
    with ExitStack() as stack:
        if called_before:
            stack.enter_context(_compiling(regions, gpu))
        elif hasattr(torch, "compile"):
            stack.enter_context(_once_called(lambda: _compiling(regions, gpu)))
        yield regions


class ModuleHooks:
    """Hooks of all modules that come and go while one pair of hooks stays.

    TorchDynamo compiles anew where there are other hooks than before: a step that is watched must not differ from the
    one before it.
    """

    def __init__(self) -> None:
        self._before: list[Any] = []
        self._after: list[Any] = []

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Register the pair, and let the hooks of a sketch be called by it."""
        handles = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ]
        with (
            patch.object(context, "register_module_forward_pre_hook", self._adding(self._before)),
            patch.object(context, "register_module_forward_hook", self._adding(self._after)),
            patch.object(training, "register_module_forward_pre_hook", self._adding(self._before)),
            patch.object(modules, "_has_any_global_hook", lambda: False, create=True),  # of which PyTorch warns
        ):
            try:
                yield
            finally:
                for handle in handles:
                    handle.remove()

    def _adding(self, hooks: list[Any]) -> Callable[..., Any]:
        def register(hook: Any, **options: Any) -> Any:
            hooks.append(hook)
            return SimpleNamespace(remove=lambda: hooks.remove(hook))

        return register

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            for hook in self._before:
                hook(module, inputs)

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            for hook in self._after:
                hook(module, inputs, output)


@contextmanager
def outermost_modules() -> Iterator[list[torch.nn.Module]]:
    """The modules that are called meanwhile, but for those inside others."""
    found: list[torch.nn.Module] = []
    inside: set[int] = set()

    def note(module: torch.nn.Module, inputs: Any) -> None:
        if id(module) not in inside:
            inside.update(map(id, module.modules()))
            found.append(module)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield found
    finally:
        handle.remove()


@contextmanager
def _once_called(begin: Callable[[], Any]) -> Iterator[None]:
    """The same once torch.compile is called: loading TorchInductor takes longer than many sketches."""
    waiting = [begin]
    with ExitStack() as begun, ExitStack() as patches:

        def beginning(compile: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(compile)
            def call(*args: Any, **kwargs: Any) -> Any:
                while waiting:
                    begun.enter_context(waiting.pop()())
                return compile(*args, **kwargs)

            return call

        patches.enter_context(patch.object(torch, "compile", beginning(torch.compile)))
        if dynamo := sys.modules.get(DYNAMO):  # called by a torch.compile that was imported before, too
            patches.enter_context(patch.object(dynamo, "optimize", beginning(dynamo.optimize)))
        try:
            yield
        finally:
            waiting.clear()  # a script may still hold the patched functions


@contextmanager
def _compiling(regions: CompiledRegions, gpu: PretendedGpu | None) -> Iterator[None]:
    if _deferred:
        refuse_to_compile()
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        import_module("torch._dynamo.eval_frame")
    if gpu is None or regions.wanted == "off":
        begin = eager_regions(regions, "")
    elif gpu.labels is None or not hasattr(torch.compiler, "set_stance"):
        begin = eager_regions(regions, VISIBLE_GPU if gpu.labels is None else TOO_OLD)
    else:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            from foretrace.record.sketch.compiled.dynamo import compiling_for
        begin = compiling_for(gpu, regions)
    with begin, ModuleHooks().staying():
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
