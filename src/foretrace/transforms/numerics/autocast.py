"""Autocast: a float32 step as it would run under ``torch.autocast``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from foretrace.graph import ForetraceError, Graph
from foretrace.transforms.retrace import retrace
from foretrace.transforms.step import flatten

LOWER_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "bfloat16": "bfloat16", "float16": "float16"}


def autocast(graph: Graph, name: str) -> Graph:
    """The float32 step with its forward under autocast to ``"bf16"`` or ``"fp16"``.

    PyTorch itself decides what runs in the lower dtype, what is cast, and what backward does, since the forward is
    retraced. Weights and gradients stay float32; weights are cast once. Attention is the one that PyTorch selects. The
    gradient scaling that fp16 needs is not added.
    """
    dtype = parse_autocast_dtype(name)
    graph = flatten(graph)
    for row, op in enumerate(graph.ops):
        lower = next((tensor.dtype for tensor in op.tensors if tensor.dtype in LOWER_DTYPES.values()), None)
        if lower:
            raise ForetraceError(
                f"call {row}, {op.name}, takes {lower}: the step is not in float32", "Set dtype=fp32 before it."
            )
    on_gpu = any(tensor.device.startswith("cuda") for op in graph.ops for tensor in op.tensors)

    def context() -> AbstractContextManager[Any]:
        import torch

        opened: AbstractContextManager[Any] = torch.autocast("cuda" if on_gpu else "cpu", getattr(torch, dtype))
        return opened

    made = retrace(graph, "autocast", context)
    made.notes.append(f"the forward runs under autocast to {dtype}")
    if dtype == "float16":
        made.notes.append("the calls of a GradScaler are not added")
    return made


def parse_autocast_dtype(name: str) -> str:
    """The full name of a dtype that autocast casts to."""
    if name not in LOWER_DTYPES:
        raise ForetraceError(f"autocast does not cast to {name!r}", f"It casts to {', '.join(LOWER_DTYPES)}.")
    return LOWER_DTYPES[name]
