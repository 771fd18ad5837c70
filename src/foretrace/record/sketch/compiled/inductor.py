"""TorchInductor on a pretended GPU: a graph is lowered as for that GPU, up to the program, and nothing is compiled.

AOTAutograd traces on fake CPU tensors, since autograd asks the driver about others. Its graphs need no autograd any
more: they are put on fake CUDA tensors, so that all of TorchInductor, which asks tensors for their device, does what it
does on a GPU: joint-graph passes, fusion, splits of reductions, layouts.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from foretrace.record.sketch.cuda import HOST
from foretrace.record.sketch.cuda_api import PROPERTIES

CUDA = torch.device("cuda:0")
UNMEASURED = {
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "benchmark_kernel": False,
    "benchmark_fusion": False,
    "benchmark_epilogue_fusion": False,
    "benchmark_combo_kernel": False,
    "autotune_lookup_table": {},
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
    "autotune_local_cache": False,
    "compile_threads": 1,
    "worker_start_method": "subprocess",
    "cpp_wrapper": False,
    "fx_wrapper": False,
    "force_disable_caches": True,
    "cpp.simdlen": 1,
    "triton.autotune_at_compile_time": False,
}
"""Options of TorchInductor: nothing is measured, started or stored."""
UNRELATED = ("graph_id", "boxed_forward_device_index", "extern_node_serializer", "get_decomp_fn")
"""Arguments of TorchInductor that are others for each graph, and that do not change the program."""
UNALIGNED = {8: 1.0, 4: 1.1, 2: 1.5, 1: 3.0}
"""Time of a GEMM on Tensor Cores over that of an aligned one, by the elements that its rows are aligned to."""
WORTHWHILE = 1.1
"""How much faster the padded one must be."""
LAUNCH_BYTES = 8_000_000
"""What a GPU copies while a kernel is launched."""
FLOPS_PER_BYTE = 200.0
"""What a GPU of these years computes in half precision while it moves a byte."""
AUTOTUNED = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
"""Options by which TorchInductor chooses kernels by measuring them."""


class _GeneratedError(Exception):
    """Ends TorchInductor once it has generated the program."""


class CannotLowerError(Exception):
    """TorchInductor failed on a graph; the reason is the message."""


@contextmanager
def pretended_inductor() -> Iterator[None]:
    """Let TorchInductor find a GPU and Triton, and let it measure nothing."""
    from torch._dynamo.repro import after_aot
    from torch._inductor import config
    from torch._inductor.constant_folding import ConstantFolder
    from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
    from torch._inductor.runtime import hints

    create = hints.DeviceProperties.create

    def properties(cls: Any, device: torch.device) -> Any:
        if device.type != "cuda":
            return create(device)
        facts = {name: getattr(PROPERTIES, name, None) for name in cls._fields}
        return cls(**{**facts, "type": "cuda", "index": 0, "cc": 10 * PROPERTIES.major + PROPERTIES.minor})

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(config.patch({name: value for name, value in UNMEASURED.items() if _has(config, name)}))
        stack.enter_context(patch.object(hints.DeviceProperties, "create", classmethod(properties)))
        for name, answer in {"has_triton": True, "triton_hash_with_backend": "none", "triton_key": "none"}.items():
            for module in [each for place, each in list(sys.modules.items()) if place.startswith("torch.")]:
                if callable(vars(module).get(name)):
                    stack.enter_context(patch.object(module, name, lambda *_, answer=answer: answer))
        for passes in (joint_graph, post_grad):
            stack.enter_context(patch.object(passes, "lazy_init", lambda *_, **__: None))
        stack.enter_context(patch.object(ConstantFolder, "run_node", _folding(ConstantFolder.run_node)))
        stack.enter_context(patch.object(after_aot, "save_graph_repro", lambda *_, **__: None))  # would ask nvcc
        stack.enter_context(patch.object(torch, "full", _constant(torch.full)))
        stack.enter_context(_sparse_values())
        for name in ("_should_pad", "_should_pad_bench", "should_pad_bench"):
            if hasattr(pad_mm, name):
                stack.enter_context(patch.object(pad_mm, name, pays_to_pad))
                break
        yield


@cache
def register_patterns() -> None:
    """Register the patterns of TorchInductor's passes.

    They are traced with autograd, on tensors that must not be on a GPU; they hold for any device. The arguments are
    those that TorchInductor passes: both functions are cached by them, and a pattern registered twice is an error.
    """
    from torch._inductor.fx_passes import joint_graph, post_grad

    with _disable_current_modes(), patch.object(torch.cuda, "is_available", lambda: False):
        joint_graph.lazy_init(*[torch.device("cpu") for _ in inspect.signature(joint_graph.lazy_init).parameters])
        post_grad.lazy_init()


def _folding(run_node: Callable[..., Any]) -> Callable[..., Any]:
    """Constants are folded by computing them, which happens on the CPU."""

    def run(folder: Any, node: Any) -> Any:
        given = node.kwargs
        if getattr(given.get("device"), "type", "") != "cuda":
            return run_node(folder, node)
        node.kwargs = {**given, "device": torch.device("cpu")}
        try:
            return run_node(folder, node)
        finally:
            node.kwargs = given

    return run


@contextmanager
def methods_without_driver() -> Iterator[None]:
    """Methods of tensors that ask the driver for the current device, as calls that do not; and none starts it."""
    aten = torch.ops.aten
    methods = {"copy_": aten.copy_, "contiguous": aten.contiguous, "__invert__": aten.bitwise_not, "__getitem__": _part}

    def method(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tensor, *args, **kwargs: call(tensor, *args, **kwargs)

    with ExitStack() as stack:
        for name, call in methods.items():
            stack.enter_context(patch.object(FakeTensor, name, method(call), create=True))
        for name in ("init_gpu_context", "init_cuda_context"):  # the second up to torch 2.5; of CUDA builds alone
            stack.enter_context(patch.object(fake_tensor, name, lambda *_: None, create=True))
        formats = torch._C._conv_determine_backend_memory_format
        stack.enter_context(patch.object(torch._C, formats.__name__, _layouts_of_cudnn(formats)))
        yield


def _layouts_of_cudnn(formats: Callable[..., Any]) -> Callable[..., Any]:
    """The layout of a convolution's result: without a driver PyTorch thinks that there is no cuDNN."""

    def chosen(input: torch.Tensor, weight: torch.Tensor, backend: Any) -> Any:
        if input.device.type != "cuda":
            return formats(input, weight, backend)
        last = [given for given in map(suggest_memory_format, (input, weight)) if given != torch.contiguous_format]
        return last[0] if last else torch.contiguous_format

    return chosen


def _part(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """``tensor[index]``, for integers and slices."""
    places = index if isinstance(index, tuple) else (index,)
    if Ellipsis in places:
        at = places.index(Ellipsis)
        places = (*places[:at], *[slice(None)] * (tensor.dim() - len(places) + 1), *places[at + 1 :])
    dim = 0
    for place in places:
        if isinstance(place, slice):
            if place != slice(None):
                tensor = torch.ops.aten.slice(tensor, dim, place.start, place.stop, place.step or 1)
            dim += 1
        elif isinstance(place, int):
            tensor = torch.ops.aten.select(tensor, dim, place)
        else:
            return torch.Tensor.__getitem__(tensor, index)
    return tensor


def _constant(full: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        try:
            return full(*args, **kwargs)
        except NotImplementedError:  # no fake tensor, and no GPU
            return full(*args, **{**kwargs, "device": "cpu"})

    return made


def _has(config: Any, name: str) -> bool:
    try:
        return config.patch({name: None}) is not None and name in config.get_config_copy()
    except (AttributeError, KeyError):
        return False


def pays_to_pad(match: Any, mat1: torch.Tensor, mat2: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Whether a GEMM of odd sizes is padded, which TorchInductor finds out by measuring both.

    Tensor Cores take longer for rows that are not aligned. Padding copies an operand, unless the kernel that makes it
    can write it padded.
    """
    from torch._inductor.fx_passes import pad_mm

    if mat1.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32:
        return False
    rows, inner, columns = (int(n) for n in (mat1.shape[-2], mat1.shape[-1], mat2.shape[-1]))
    batch = int(mat1.shape[0]) if mat1.dim() > 2 else 1
    align = int(pad_mm.get_alignment_size(mat1))
    copied = 0
    for name, matrix in (("mat1", mat1), ("mat2", mat2)):
        if any(int(size) % align for size in matrix.shape[-2:]) and not _written_padded(pad_mm, match, name):
            copied += 2 * matrix.numel() * matrix.element_size() + LAUNCH_BYTES
    sizes = (inner, columns) if mat1.stride(-1) == 1 else (rows, inner, columns)
    slower = UNALIGNED[min(math.gcd(size, align) for size in sizes)] if align in UNALIGNED else 1.0
    work = 2 * batch * rows * inner * columns / FLOPS_PER_BYTE
    return work * (slower - WORTHWHILE) > copied


def _written_padded(pad_mm: Any, match: Any, name: str) -> bool:
    """Whether the kernel that makes an operand can write it padded."""
    try:
        return bool(pad_mm.should_exclude_padding_time(match, name))
    except (AttributeError, KeyError):  # another version of PyTorch, or another name
        return False


def put_on_gpu(module: torch.fx.GraphModule, device_of: Callable[[torch.Tensor], str]) -> None:
    """Give the nodes of a graph fake CUDA tensors, but for those that would be on the host."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in placeholders]
    tensors = [value for value in values if isinstance(value, FakeTensor)]
    here = [node.meta["val"] for node in module.graph.nodes if isinstance(node.meta.get("val"), FakeTensor)]
    if not here or any(each.fake_device.type == "cuda" for each in here):
        return
    if tensors and not any(device_of(tensor).startswith("cuda") for tensor in tensors):
        return
    mode = here[0].fake_mode

    def placed(value: Any) -> Any:
        if not isinstance(value, FakeTensor) or not device_of(value).startswith("cuda"):
            return value
        with mode:
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=CUDA)

    for node in module.graph.nodes:
        if node.op == "call_function":
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _on_gpu)
            node.args = torch.fx.node.map_aggregate(node.args, _on_gpu)
    module.recompile()
    with torch.no_grad(), _sparse_values():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*map(placed, values))


@contextmanager
def _sparse_values() -> Iterator[None]:
    """Nodes keep sparse values as they are, where others are detached: for that, a CUDA build asks for a driver."""
    from torch.fx.passes import fake_tensor_prop

    detached = fake_tensor_prop.snapshot_fake

    def snapshot(value: torch.Tensor, *rest: Any, **options: Any) -> Any:
        return value if value.layout != torch.strided else detached(value, *rest, **options)

    with patch.object(fake_tensor_prop, "snapshot_fake", snapshot):
        yield


def result_names(module: torch.fx.GraphModule) -> list[str]:
    """The names of the nodes whose values a graph returns; an empty one for a constant."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    return [node.name if isinstance(node, torch.fx.Node) else "" for node in output.args[0]]


def result_strides(names: Sequence[str], graph: Any) -> dict[str, tuple[int, ...]]:
    """Strides of what a program returns, by name, where they are numbers."""
    found = {}
    for name, result in zip(names, graph.graph_outputs):
        strides = result.maybe_get_stride() if hasattr(result, "maybe_get_stride") else None
        if strides and all(str(stride).isdigit() for stride in strides):
            found[name] = tuple(map(int, strides))
    return found


def lay_out_arguments(module: torch.fx.GraphModule, strides: Mapping[str, tuple[int, ...]]) -> None:
    """Give the arguments of a backward the strides that the forward's program writes them with.

    Both graphs were traced before these were known.
    """
    for node in module.graph.nodes:
        traced, wanted = node.meta.get("val"), strides.get(node.name)
        if node.op == "placeholder" and isinstance(traced, FakeTensor) and wanted and len(wanted) == traced.dim():
            with traced.fake_mode:
                node.meta["val"] = torch.empty_strided(traced.size(), wanted, dtype=traced.dtype, device=traced.device)


def _on_gpu(value: Any) -> Any:
    """The device that a call would name; decompositions name that of their arguments, which are traced on the CPU."""
    if not isinstance(value, torch.device):
        return value
    return torch.device("cpu") if value == HOST else CUDA


def program_of(module: torch.fx.GraphModule, options: dict[str, Any]) -> tuple[str, Any]:
    """The program that TorchInductor generates for a graph, and what it knows of the graph."""
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering

    found: list[tuple[str, Any]] = []

    def stop(graph: Any) -> Any:
        code, _ = graph.codegen()
        found.append((str(getattr(code, "value", code)), graph))
        raise _GeneratedError

    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    with patch.object(GraphLowering, "compile_to_module", stop), pretended_inductor():
        try:
            compile_fx.compile_fx_inner(module, inputs, **options)
        except Exception as error:  # whatever TorchInductor fails with
            if not found:
                raise CannotLowerError(reason(error)) from error
    return found[0]


def graph_form(module: torch.fx.GraphModule, options: dict[str, Any]) -> str:
    """A text that is the same for graphs from which the same program is generated."""
    names = {node: f"%{number}" for number, node in enumerate(module.graph.nodes)}
    lines = [repr([(name, str(value)) for name, value in sorted(options.items()) if name not in UNRELATED])]
    for node in module.graph.nodes:
        value, meta = node.meta.get("val"), node.meta
        if node.op == "get_attr":  # a constant: its values count as well
            lines.append(str(id(getattr(module, str(node.target), None))))
        if isinstance(value, torch.Tensor):
            lines.append(f"{value.dtype} {value.device} {tuple(value.size())} {value.stride()}")
        given = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: names[each])
        lines.append(f"{node.op} {node.target if node.op == 'call_function' else ''} {given!r}")
        lines.append(f"{meta.get('original_aten')} {meta.get('user_visible_output_idxs')} {meta.get('recompute')}")
    return "\n".join(lines)


def reason(error: BaseException) -> str:
    """The first line of what went wrong inside."""
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    first: Sequence[str] = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:160]}" if first else type(error).__name__
