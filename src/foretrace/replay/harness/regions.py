"""Compiled programs of a step: the calls of each become a graph again, which TorchInductor compiles on this machine.

``regions.py`` has a function for each, of plain calls: run with stand-ins for its tensors, it gives the graph. So the
device gets kernels of its own, and no code of the original is needed. Where a program can't be compiled, or is not to
be, its calls run one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from . import translations
from .files import WRITE_AGAIN, BenchmarkError, errors_with_line, read_text, short_path, summarize_error
from .host import device, runtime
from .source import translated

Function = Callable[..., Any]
CALLS = "compiled in the original, ran call by call"


def load_regions(path: Path, facts: dict[str, Any], kind: str, eager: bool) -> dict[int, Function]:
    """The programs of a benchmark by number, compiled unless ``eager``; what could not be is noted."""
    names: dict[str, Any] = {"__name__": "regions", "__file__": str(path), "translations": translations}
    text = "\n".join(translated(line, kind) for line in read_text(path).splitlines()) + "\n"
    with errors_with_line(path):
        import torch._inductor.inductor_prims  # noqa: F401  registers operators that graphs call

        exec(compile(text, str(path), "exec"), names)
    made: dict[int, Function] = {}
    failed: dict[str, int] = {}
    for number, of_program in facts["regions"].items():
        function = names.get(f"region_{int(number)}")
        if function is None:
            if f"region({int(number)}," in read_text(path.with_name("step.py")):
                raise BenchmarkError(f"{short_path(path)} has no region_{number}; {WRITE_AGAIN}")
            continue
        made[int(number)] = partial(_called, function)
        if eager or kind == "meta":
            continue
        try:
            made[int(number)] = compiled(function, of_program)
        except Exception as error:  # whatever a compiler fails with
            why = summarize_error(error)
            failed[why] = failed.get(why, 0) + 1
    if eager:
        runtime.notes.append(f"{_programs(len(made))} {CALLS}, as asked")
    for why, count in failed.items():
        runtime.notes.append(f"{_programs(count)} {CALLS}: it can't be compiled here ({why})")
    graphs = sum(bool(of_program.get("cuda_graph")) for of_program in facts["regions"].values())
    if graphs:
        runtime.notes.append(f"{_programs(graphs)} captured in a CUDA graph in the original: here kernels are launched")
    return made


def _programs(count: int) -> str:
    return "1 program," if count == 1 else f"{count} programs,"


def compiled(function: Function, facts: dict[str, Any]) -> Function:
    """A function of plain calls as a program that TorchInductor generates.

    ``facts`` has its tensors as ``given``, and how the original was compiled. The program takes a list, and empties it.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    module = traced(function, facts.get("origins", ()))
    mode = FakeTensorMode()
    with mode:
        fakes = [_empty(tensor) for tensor in facts["given"]]
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    output.meta["user_visible_output_idxs"] = list(facts.get("visible", ()))
    known = config.get_config_copy()
    settings = {name: value for name, value in facts.get("settings", {}).items() if name in known}
    settings |= {"triton.cudagraphs": False} if "triton.cudagraphs" in known else {}
    context = TracingContext(mode)
    context.fw_metadata = SimpleNamespace(bw_donated_idxs=list(facts.get("donated", ())))
    kind = {"is_backward": facts["kind"] == "backward", "is_inference": facts["kind"] == "inference"}
    with config.patch(settings), torch.no_grad(), tracing(context):
        made: Function = compile_fx_inner(module, fakes, static_input_idxs=list(facts.get("static", ())), **kind)
    return made


def _called(function: Function, given: list[Any]) -> Any:
    """The calls of a program, one by one."""
    arguments = tuple(given)
    given.clear()
    return function(*arguments)


def traced(function: Function, origins: Any = ()) -> torch.fx.GraphModule:
    """The graph of a function of plain calls; each call with the operator that it was a part of in the eager code.

    >>> names = {"aten": torch.ops.aten}
    >>> exec("def region_0(t0): return [aten.add.Tensor(t0, aten.ones.default([4]))]", names)
    >>> [node.name for node in traced(names["region_0"]).graph.nodes]
    ['t0', 'ones_default', 'add_tensor', 'output']
    """
    tracer = torch.fx.Tracer()
    names = {
        name: _Namespace(value, tracer) if isinstance(value, torch._ops._OpNamespace) else value
        for name, value in function.__globals__.items()
    }
    module = torch.fx.GraphModule({}, tracer.trace(FunctionType(function.__code__, names)))
    named = iter(origins)
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            node.meta["original_aten"] = _operator(next(named, "")) or node.target
        elif node.op == "call_function":  # a part of a result
            node.meta["original_aten"] = node.args[0].meta.get("original_aten")
    return module


class _Namespace:
    """Operators whose calls become nodes of a graph, also those that take no tensor."""

    def __init__(self, found: Any, tracer: torch.fx.Tracer) -> None:
        self._found, self._tracer = found, tracer

    def __getattr__(self, name: str) -> _Namespace:
        return _Namespace(getattr(self._found, name), self._tracer)

    def __call__(self, *args: Any, **kwargs: Any) -> torch.fx.Proxy:
        return self._tracer.create_proxy("call_function", self._found, args, kwargs)


def _operator(name: str) -> Any:
    """An overload of an operator, by which a kernel is named; None where there is none."""
    space, _, short = name.partition("::")
    packet = getattr(getattr(torch.ops, space, None), short, None) if space == "aten" else None
    return getattr(packet, packet.overloads()[0]) if isinstance(packet, torch._ops.OpOverloadPacket) else None


def _empty(tensor: dict[str, Any] | None) -> torch.Tensor:
    if tensor is None:
        raise ValueError("a tensor that is none")
    dtype = getattr(torch, tensor["dtype"])
    return torch.empty_strided(tensor["shape"], tensor["stride"], dtype=dtype, device=device(tensor["device"] or "cpu"))
