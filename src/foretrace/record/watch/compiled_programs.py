"""Programs that torch.compile generates for a job: the FX graph of each as plain calls, and each call of a program.

TorchInductor is given one FX graph for each program, after AOTAutograd has split forward and backward. A copy of it is
held until the recording ends. In the step whose structure is recorded, a call of a program is a side call that takes
the program's arguments, and the graph is run on fake tensors afterwards: so its calls have the sizes of that step, also
where the program was generated for any size.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from foretrace.graph import Op, Tensor, Value
from foretrace.graph.generated_kernels import kernel_facts
from foretrace.graph.op import COMPILED_PROGRAM

COMPILER = "torch._inductor.compile_fx"
SETTINGS = (
    "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning", "epilogue_fusion",
    "shape_padding", "layout_optimization", "conv_1x1_as_mm", "combo_kernels", "triton.cudagraphs",
    "triton.persistent_reductions", "triton.cooperative_reductions", "triton.multi_kernel", "emulate_precision_casts",
)  # fmt: skip
"""Options of TorchInductor by which it generates other kernels, and which a replay sets again."""
LAUNCH = re.compile(r"^\s+(?:(triton_\w+)\.run|(cpp_fused_\w+))\(", re.MULTILINE)
SOURCE = re.compile(r"async_compile\.triton\('(\w+)', '{3}(.*?)'{3}", re.DOTALL)
MAX_REASON, MAX_REASONS = 160, 16

_followed: list[bool] = []
_generated: dict[str, list[dict[str, Any]]] = {}
"""What the sources of generated kernels say of their work, by name; programs number their kernels anew."""


class Program:
    """A generated program, and the graph that it was generated from."""

    def __init__(self, module: Any, options: dict[str, Any]) -> None:
        import torch

        copy = torch.fx.Graph()
        copy.output(copy.graph_copy(module.graph, {}))
        self._module = torch.fx.GraphModule(module, copy)
        self._output = dict(next(node for node in reversed(module.graph.nodes) if node.op == "output").meta)
        self._options = options
        self.constants = [getattr(module, str(node.target)) for node in copy.nodes if node.op == "get_attr"]
        """Tensors that the graph itself holds: they are further arguments of the recorded calls."""
        self.updated: tuple[int, ...] = ()
        """Which arguments it changes."""
        self._kernels: list[str] = []
        self._without_cuda_graph = ""
        self._settings: dict[str, Value] = {}
        self._donated = _donated() if options.get("is_backward") else []

    def compiled(self, made: Any) -> None:
        """Note what was generated."""
        from torch._inductor import config

        self.updated = tuple(getattr(made, "mutated_input_idxs", ()))
        source = str(getattr(made, "source_code", "") or "")
        self._kernels = [triton or cpp for triton, cpp in LAUNCH.findall(source)]
        for name, text in SOURCE.findall(source):
            facts = kernel_facts(text)
            if facts and facts not in _generated.setdefault(name, []):
                _generated[name].append(facts)
        self._without_cuda_graph = str(getattr(made, "disabled_cudagraphs_reason", None) or "")[:MAX_REASON]
        known: dict[str, Any] = config.get_config_copy()
        self._settings = {name: known[name] for name in SETTINGS if isinstance(known.get(name), (bool, int))}

    @property
    def kind(self) -> str:
        """``forward``, ``backward``, or ``inference`` where nothing is differentiated."""
        if self._options.get("is_backward"):
            return "backward"
        return "inference" if self._options.get("is_inference") else "forward"

    def calls(self, given: Sequence[Value]) -> list[Op]:
        """The calls of the graph for such arguments, after a head that describes the program."""
        head = Op(COMPILED_PROGRAM, tuple(given), {"kind": self.kind, "kernels": list(self._kernels)})
        graphs = self._options.get("cudagraphs")
        head.kwargs |= {
            "cuda_graph": bool(getattr(graphs, "value", graphs)),
            "without_cuda_graph": self._without_cuda_graph,
            "static": _numbers(self._options.get("static_input_idxs")),
            "donated": self._donated,
            "visible": _numbers(self._output.get("user_visible_output_idxs")),
            "settings": dict(self._settings),
        }
        try:
            ops, origins, args, returned = _run(self._module, given)
        except Exception as error:  # whatever the graph holds: the recording says so
            head.kwargs["failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:MAX_REASON]}"
            return [head]
        head.args, head.outputs = args, returned
        head.kwargs |= {"origins": list(origins), "calls": len(ops)}
        return [head, *ops]


def _donated() -> list[Value]:
    """Arguments of the backward that is being compiled whose memory it may use for its results."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return _numbers(getattr(context.fw_metadata, "bw_donated_idxs", None) if context is not None else None)


def _numbers(values: Any) -> list[Value]:
    return [int(value) for value in values or () if isinstance(value, int)]


def _run(module: Any, given: Sequence[Value]) -> tuple[list[Op], list[str], tuple[Value, ...], tuple[Value, ...]]:
    """Calls of a graph on fake tensors, what each was decomposed from, the arguments and the results."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _disable_current_modes

    from foretrace.record.watch.watch import Watch, op_name

    watch = Watch()
    origins: list[str] = []

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        layout = {"dtype": getattr(torch, value.dtype), "device": value.device}
        return torch.empty_strided(value.shape, value.stride, **layout)

    class Calls(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            self.node = node
            return super().run_node(node)

        def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
            return held.pop(0)

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if not isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
                return target(*args, **kwargs)  # a part of a result, or arithmetic of sizes
            name, overload = op_name(target)
            op = watch.note(name, overload, args, kwargs)
            op.phase, op.module, op.node = "forward", "", ""
            origin = self.node.meta.get("original_aten")
            origins.append(origin._schema.name if isinstance(origin, torch._ops.OpOverload) else "")
            result = target(*args, **kwargs)
            op.outputs = tuple(map(watch.describe, result if isinstance(result, tuple) else (result,)))
            return result

    with _disable_current_modes(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [fake(value) for value in given]
        args = tuple(map(watch.describe, fakes))
        inputs = sum(node.op == "placeholder" for node in module.graph.nodes)
        held = fakes[inputs:]
        returned = Calls(module, garbage_collect_values=False).run(*fakes[:inputs], enable_io_processing=False)
        results = returned if isinstance(returned, (tuple, list)) else (returned,)
        return watch.ops, origins, args, tuple(map(watch.describe, results))


class ProgramCalls:
    """Calls of programs in one step: each distinct program, for arguments of these sizes, has a number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._found: list[tuple[Program, list[Value]]] = []

    def number(self, program: Program, given: Sequence[Value]) -> int:
        """The number of a program that is called with such arguments."""
        form = [(v.shape, v.stride, v.dtype, v.device) if isinstance(v, Tensor) else v for v in given]
        key = id(program), repr(form)
        if key not in self._numbers:
            self._numbers[key] = len(self._found)
            self._found.append((program, list(given)))
        return self._numbers[key]

    def lines(self) -> list[Op]:
        """For each program a head, and the calls of its graph."""
        return [op for program, given in self._found for op in program.calls(given)]


def follow_programs() -> None:
    """Follow the programs that are generated in this process from now on."""
    from foretrace.record.watch.attach import after_import

    if not _followed:
        _followed.append(True)
        after_import(COMPILER, _follow)


def _follow() -> None:
    """Wrap the function of TorchInductor that turns a graph into a program."""
    import torch._functorch.config as aot

    compiler: Any = sys.modules[COMPILER]
    original: Callable[..., Any] | None = getattr(compiler, "_compile_fx_inner", None)
    if original is None:  # before torch 2.5
        return
    # Its cache would return programs without their graphs; TorchInductor's own, which saves the time, stays.
    if hasattr(aot, "enable_autograd_cache"):
        aot.enable_autograd_cache = False

    def compile(module: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        try:
            program = Program(module, options)
        except Exception:  # the job must run whatever its graphs hold
            return original(module, inputs, *rest, **options)
        made = original(module, inputs, *rest, **options)
        run = getattr(made, "current_callable", None)
        if run is None:
            return made
        try:
            program.compiled(made)
        except Exception:  # and whatever its kernels hold
            return made
        made.current_callable = _calling(run, program)
        return made

    compiler._compile_fx_inner = compile


def compilation() -> dict[str, Any]:
    """What torch.compile did in this process: graphs, graph breaks and recompilations by their reasons, kernels."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return {}
    found: dict[str, Any] = {"graphs": int(dynamo.counters["stats"].get("unique_graphs", 0))}
    found["graph_breaks"] = _by_reason(dynamo.counters["graph_break"].elements())
    metrics = dynamo.get_compilation_metrics() if hasattr(dynamo, "get_compilation_metrics") else ()
    found["recompilations"] = _by_reason(filter(None, (getattr(each, "recompile_reason", "") for each in metrics)))
    return found | ({"kernels": _generated} if _generated else {})


def _by_reason(reasons: Iterable[Any]) -> dict[str, int]:
    """How often there was each reason, by its first line."""
    lines = (next((line.strip() for line in str(reason).splitlines() if line.strip()), "") for reason in reasons)
    return dict(Counter(line[:MAX_REASON] for line in lines).most_common(MAX_REASONS))


def _calling(run: Callable[[Any], Any], program: Program) -> Callable[[Any], Any]:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    def call(inputs: Any) -> Any:
        for mode in _get_current_dispatch_mode_stack():
            if hasattr(mode, "run_program"):
                return mode.run_program(program, inputs, run)
        return run(inputs)

    return call
