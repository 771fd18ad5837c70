"""TorchDynamo and AOTAutograd in a sketch: they trace fake tensors that are labelled with a device, as a GPU's.

While they trace, the sketch's own modes are off: nothing that a compiler calls is a call of the step. The functions
that a GPU runs differently (attention, norms, dropout, autocast) are those of the sketch (`FunctionsOnCuda`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo.convert_frame
import torch._dynamo.eval_frame
import torch._dynamo.utils
import torch._functorch.config
import torch._functorch.partitioners
import torch._inductor.compile_fx
from torch._dynamo import types
from torch._dynamo.variables import builder, torch_function
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._functorch._aot_autograd.runtime_wrappers import FakifiedOutWrapper
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

import foretrace
from foretrace.errors import ForetraceError
from foretrace.record.sketch.compiled.decompositions import for_gpu
from foretrace.record.sketch.compiled.inductor import (
    AUTOTUNED,
    CannotLowerError,
    graph_form,
    lay_out_arguments,
    methods_without_driver,
    pretended_inductor,
    program_of,
    put_on_gpu,
    reason,
    register_patterns,
    result_names,
    result_strides,
)
from foretrace.record.sketch.compiled.program import Program, watching
from foretrace.record.sketch.compiled.regions import GRAPHED, CompiledRegions, eager_regions
from foretrace.record.sketch.cuda import CPU, CUDA, FunctionsOnCuda, PretendedGpu
from foretrace.record.sketch.cuda_ops import OWN_RESULTS
from foretrace.record.sketch.fake_step import quiet
from foretrace.record.watch.compiled_programs import Program as WatchedProgram

dynamo: Any = torch._dynamo
FULL_GRAPH = "fullgraph=True allows no graph break: leave it out, or take this out of what is compiled."
OWN_CODE = str(Path(foretrace.__file__).parent)
"""Where the sketch's own functions are, which eager parts of a compiled function call: these are not compiled."""


@contextmanager
def compiling_for(gpu: PretendedGpu, regions: CompiledRegions) -> Iterator[None]:
    """Compile functions for a pretended GPU, up to the programs that are generated for it."""
    with ExitStack() as stack:
        changes = Compiler(gpu, regions, stack).changes()
        missing = [name for home, name, _ in changes if not hasattr(home, name)]
        if missing:
            stack.enter_context(eager_regions(regions, f"PyTorch {torch.__version__} has no {missing[0]}"))
            yield
            return
        before = {name: Counter(counts) for name, counts in dynamo.utils.counters.items()}
        stack.callback(dynamo.utils.counters.update, before)
        stack.callback(dynamo.utils.counters.clear)
        torch._dynamo.reset()  # what was compiled for real must not run on fake tensors
        stack.callback(torch._dynamo.reset)
        for home, name, change in changes:
            stack.enter_context(patch.object(home, name, change(getattr(home, name))))
        for name in ("torch._dynamo", "torch._inductor", "torch._functorch"):
            stack.enter_context(quiet(name))
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        stack.enter_context(torch._inductor.config.patch(compile_threads=1))
        yield


class Compiler:
    """Traces functions and lowers their graphs."""

    def __init__(self, gpu: PretendedGpu, regions: CompiledRegions, stack: ExitStack) -> None:
        assert gpu.labels is not None and gpu.functions is not None
        self._labels, self._functions, self._regions = gpu.labels, gpu.functions, regions
        regions.on_gpu = self._on_gpu
        self._stack = stack
        self._optimizers: set[type] = set()
        """Classes whose objects make their state as the step does."""
        self._modes: list[Any] = []
        """The step's own dispatch modes, which are off while it is traced."""
        self._failed: set[Any] = set()
        """Code that could not be compiled."""
        self._programs: dict[str, tuple[str, Any]] = {}
        """Generated programs by the form of their graphs: layers that are compiled one by one share theirs."""
        self._kept_strides: dict[str, tuple[int, ...]] = {}
        """How the last program lays out its results, by name: a backward is compiled right after its forward."""

    def changes(self) -> list[tuple[Any, str, Callable[[Any], Any]]]:
        """Functions of PyTorch to replace: where each is, and the function from it to its replacement."""
        fx: Any = torch._inductor.compile_fx
        return [
            (dynamo.eval_frame, "_callback_from_stance", self._tracing_callbacks),
            (torch._TorchCompileWrapper, "__call__", self._by_another_backend),
            (torch_function.SymbolicTorchFunctionState, "__init__", self._without_our_mode),
            (OptimizerVariable, "move_step_if_cpu", self._making_states),
            (OptimizerVariable, "_set_capturable", self._capturable),
            (builder, "wrap_to_fake_tensor_and_record", self._labelling_inputs),
            (dynamo.utils, "run_node", self._with_gpu_functions),
            (torch.fx.Interpreter, "call_function", self._with_gpu_functions),
            (torch.fx.Interpreter, "call_method", self._with_gpu_functions),
            (FakeTensorMode, "__torch_dispatch__", self._on_true_devices),
            (FakeTensorMode, "from_tensor", self._from_true_devices),
            (torch._functorch.partitioners, "functionalize_rng_ops", _without_random_states),
            (fx, "compile_fx", self._lowering),
            (fx, "_recursive_joint_graph_passes", self._joint_passes),
            (FakifiedOutWrapper, "_compute_output_meta_with_inductor_strides", self._traced_outputs),
        ]

    # Tracing.

    def _tracing_callbacks(self, chosen: Any) -> Any:
        """The function that TorchDynamo calls for each frame that it has not compiled yet."""

        def callback_for(compiler: Any) -> Any:
            callback = chosen(compiler)
            if not callable(callback):
                return callback
            self._regions.seen = True

            @wraps(callback)
            def trace(frame: Any, *rest: Any, **options: Any) -> Any:
                code = frame.f_code
                if code.co_filename.startswith(OWN_CODE) or code in self._failed:
                    return eager_frame(code in self._failed)
                self._modes = _get_current_dispatch_mode_stack() or self._modes
                watched, graphs = watching() is not None, dynamo.utils.counters["stats"]["unique_graphs"]
                try:
                    with _disable_current_modes(), self._labels.compiling():
                        made = callback(frame, *rest, **options)
                    if dynamo.utils.counters["stats"]["unique_graphs"] > graphs:
                        self._regions.has_graphs = True
                        if watched:
                            self._regions.compiled_again.append(code.co_name)
                    return made
                except dynamo.exc.Unsupported as error:  # with graph breaks allowed there would be one
                    raise ForetraceError(f"the step can't be compiled: {reason(error)}", FULL_GRAPH) from error
                except Exception as error:  # whatever a compiler fails with
                    self._failed.add(code)
                    self._regions.failed(reason(error))
                    return eager_frame(recursive=True)

            trace._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]
            return trace

        return callback_for

    def _by_another_backend(self, compile_graph: Any) -> Any:
        """Graphs of a backend that is not TorchInductor run as what it makes of them."""

        def compiled(wrapper: Any, *graph: Any) -> Any:
            made = compile_graph(wrapper, *graph)
            if not any("flex_attention" in str(node.target) for node in graph[0].graph.nodes):  # PyTorch's own use
                self._regions.other_backends[wrapper.compiler_name] += 1
            return made

        return compiled

    def _without_our_mode(self, begin: Any) -> Any:
        def begun(state: Any, py_stack: Any, *rest: Any, **options: Any) -> None:
            begin(state, [mode for mode in py_stack if not isinstance(mode, FunctionsOnCuda)], *rest, **options)

        return begun

    def _making_states(self, move: Any) -> Any:
        """An optimizer makes its state while it is traced, and not as a part of what is compiled."""

        def moved(variable: Any) -> None:
            kind = type(variable.value)
            if kind not in self._optimizers:
                self._optimizers.add(kind)
                self._stack.enter_context(patch.object(kind, "_init_group", self._as_step(kind._init_group)))
            self._as_step(move)(variable)

        return moved

    def _capturable(self, choose: Any) -> Any:
        """An optimizer of weights on the GPU counts its steps there, if it is compiled from the first one on."""

        def chosen(variable: Any, *rest: Any) -> None:
            known = variable.value.state
            for group in variable.value.param_groups:
                if "capturable" in group and all(w not in known and self._label(w) == CUDA for w in group["params"]):
                    group["capturable"] = True
            choose(variable, *rest)

        return chosen

    def _label(self, tensor: torch.Tensor) -> str:
        """The device of one of the step's own tensors."""
        with patch.object(self._labels, "compiles", False):
            return self._labels.of(tensor)

    def _as_step(self, function: Any) -> Any:
        """The function as the step itself calls it."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                stack.enter_context(patch.object(self._labels, "compiles", False))
                for mode in (*self._modes, self._functions):
                    stack.enter_context(mode)
                return function(*args, **kwargs)

        return call

    def _labelling_inputs(self, wrap: Any) -> Any:
        """TorchDynamo's own fake tensor of an input is on the same device."""

        @wraps(wrap)
        def wrapped(value: Any, *rest: Any, **options: Any) -> Any:
            made = wrap(value, *rest, **options)
            if isinstance(value, torch.Tensor) and isinstance(made, FakeTensor):
                self._labels.put(made, self._label(value))
            return made

        return wrapped

    def _with_gpu_functions(self, run: Any) -> Any:
        """Functions that are traced, by TorchDynamo and by AOTAutograd, do what they do on a GPU."""

        @wraps(run)
        def traced(*args: Any, **kwargs: Any) -> Any:
            if not self._labels.compiles or self._labels.in_dispatch:
                return run(*args, **kwargs)
            with self._functions:
                return run(*args, **kwargs)

        return traced

    def _on_true_devices(self, dispatch: Any) -> Any:
        """Fake tensors that are traced are on the CPU, whatever device they are labelled with."""

        def answered(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            try:
                return dispatch(mode, func, types, args, kwargs)
            except (NotImplementedError, UnsupportedOperatorException):
                if func not in OWN_RESULTS:
                    raise
            with mode:  # PyTorch asks the GPU's kernel itself
                return OWN_RESULTS[func](*args, **(kwargs or {}))

        def dispatched(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not self._labels.compiles:
                return dispatch(mode, func, types, args, kwargs)
            if self._labels.in_dispatch:
                return answered(mode, func, types, args, kwargs)
            if (kwargs or {}).get("device") is not None:
                kwargs = {**kwargs, "device": torch.device(CPU)}
            with self._labels.true_devices():
                return answered(mode, func, types, args, kwargs)

        return dispatched

    def _from_true_devices(self, convert: Any) -> Any:
        @wraps(convert)
        def from_tensor(*args: Any, **kwargs: Any) -> Any:
            if not self._labels.compiles:
                return convert(*args, **kwargs)
            with self._labels.true_devices():
                return convert(*args, **kwargs)

        return from_tensor

    # Lowering.

    @contextmanager
    def _on_gpu(self) -> Iterator[None]:
        """TorchInductor works on fake CUDA tensors: no label or function stands in for anything."""
        with self._labels.compiling(), self._labels.true_devices(), torch._C.DisableTorchFunction():
            register_patterns()
            with methods_without_driver():
                yield

    def _lowering(self, compile_fx: Any) -> Any:
        @wraps(compile_fx)
        def compile(module: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            if not rest and "inner_compile" not in options:  # it calls itself with the options of the mode set
                settings = dict(options.get("config_patches") or {})
                self._regions.unmeasured |= any(settings.get(name) for name in AUTOTUNED)
                settings = {name: value for name, value in settings.items() if name not in AUTOTUNED}
                if self._regions.wanted == GRAPHED:
                    settings["triton.cudagraphs"] = True
                options = {**options, "config_patches": settings, "inner_compile": self._lowered}
                options["decompositions"] = for_gpu(options.get("decompositions") or select_decomp_table())
            with patch.object(self._labels, "hidden", True):
                return compile_fx(module, inputs, *rest, **options)

        return compile

    def _joint_passes(self, passes: Any) -> Any:
        """Passes over the graph of forward and backward, on the GPU's tensors."""

        @wraps(passes)
        def on_gpu(module: Any, *rest: Any, **options: Any) -> Any:
            with self._on_gpu(), pretended_inductor():
                put_on_gpu(module, self._labels.of)
                return passes(module, *rest, **options)

        return on_gpu

    def _traced_outputs(self, compute: Any) -> Any:
        """Results of one part of a graph that is split for DDP, as the next part is traced with them: on the CPU."""

        @wraps(compute)
        def outputs(wrapper: Any) -> list[Any]:
            with _disable_current_modes(), self._labels.true_devices(), torch._C.DisableTorchFunction():
                return [_on_cpu(each) for each in compute(wrapper)]

        return outputs

    def _lowered(self, module: Any, inputs: Any, **options: Any) -> Any:
        with _disable_current_modes(), self._on_gpu():
            put_on_gpu(module, self._labels.of)
            if options.get("is_backward"):
                lay_out_arguments(module, self._kept_strides)
            kept, results = torch.fx.GraphModule(module, _copied(module.graph)), result_names(module)
            form = graph_form(module, options)
            if form not in self._programs:
                try:
                    self._programs[form] = program_of(module, options)
                except CannotLowerError as error:
                    self._regions.failed(str(error))
                    return torch._functorch.aot_autograd.make_boxed_func(kept.forward)
            source, graph = self._programs[form]
            self._kept_strides = result_strides(results, graph)
        changed = [place for place, name in enumerate(graph.graph_input_names) if name in graph.mutated_inputs]
        return Program(source, changed, self._labels, self._static(graph, options), WatchedProgram(kept, options))

    def _static(self, graph: Any, options: dict[str, Any]) -> frozenset[int] | None:
        """Arguments that stay at their addresses, where the program is captured in a CUDA graph; None where not."""
        wanted = options.get("cudagraphs")
        if not getattr(wanted, "value", wanted):
            return None
        why = getattr(graph, "disable_cudagraphs_reason", None)
        if "cpu" in getattr(graph, "device_types", ()):
            why = why or "a part of it runs on the CPU"
        if why:
            self._regions.without_graph(str(why).partition(". ")[0].partition("\n")[0])
            return None
        return frozenset(options.get("static_input_idxs") or ())


def eager_frame(recursive: bool) -> Any:
    """What tells TorchDynamo to run a frame as it is, and with ``recursive`` the functions that it calls too."""
    result = dynamo.convert_frame.ConvertFrameReturn()
    if recursive and hasattr(types, "FrameExecStrategy"):
        result.frame_exec_strategy = types.FrameExecStrategy(types.FrameAction.SKIP, types.FrameAction.SKIP)
    return result


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, FakeTensor) or value.fake_device.type == CPU:
        return value
    with value.fake_mode:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=CPU)


def _copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def _without_random_states(original: Any) -> Any:
    """Recomputed calls that draw random numbers: a GPU's generator is set back before them, which is no call."""
    return lambda joint, forward, backward, *_: (forward, backward)
