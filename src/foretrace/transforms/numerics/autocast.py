"""Autocast turned on: a step in float32 as it would be under ``torch.autocast``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from foretrace.graph import ForetraceError, Graph
from foretrace.transforms.retrace import retraced
from foretrace.transforms.step import flatten

LOWER = {"bf16": "bfloat16", "fp16": "float16", "bfloat16": "bfloat16", "float16": "float16"}
"""Types that autocast casts to."""


def autocast(graph: Graph, name: str) -> Graph:
    """The step with its forward under autocast.

    PyTorch itself says what runs in the lower type, what is cast to it and back, and what backward makes of that.
    Weights stay in float32, as their gradients do, and are cast once. Attention is the one that PyTorch chooses for the
    type.

    Parameters
    ----------
    graph
        A step in float32: a recording, a sketch, or a trace with the arguments of its calls.
    name
        ``"bf16"`` or ``"fp16"``. The scaling of gradients that fp16 wants is not added.
    """
    dtype = parse_autocast_dtype(name)
    graph = flatten(graph)
    for row, op in enumerate(graph.ops):
        narrow = next((tensor.dtype for tensor in op.tensors if tensor.dtype in LOWER.values()), None)
        if narrow:
            raise ForetraceError(
                f"call {row}, {op.name}, is given {narrow}: the step is not in float32", "Set dtype=fp32 before it."
            )
    on_gpu = any(tensor.device.startswith("cuda") for op in graph.ops for tensor in op.tensors)

    def casting() -> AbstractContextManager[Any]:
        import torch

        opened: AbstractContextManager[Any] = torch.autocast("cuda" if on_gpu else "cpu", getattr(torch, dtype))
        return opened

    made = retraced(graph, "autocast", casting)
    made.notes.append(f"the forward runs under autocast to {dtype}")
    if dtype == "float16":
        made.notes.append("what a GradScaler calls to scale gradients, and to check them, is not added")
    return made


def parse_autocast_dtype(name: str) -> str:
    """The type of that name, if autocast casts to it.

    >>> parse_autocast_dtype("bf16")
    'bfloat16'
    """
    if name not in LOWER:
        raise ForetraceError(f"autocast does not cast to {name!r}", f"It casts to {', '.join(LOWER)}.")
    return LOWER[name]
