"""The data model of a training step: Tensor, Op, Graph (the step of one rank) and Job (the graphs of all ranks).

``tables`` holds ops, runtime calls and kernels as numpy columns, ``calls`` finds the dispatcher calls in them,
``operators`` knows PyTorch's operators by name, ``bindings`` follows tensors through a step, ``codec`` reads and writes
ops as JSON lines, ``execution_traces`` completes the calls of PyTorch's own traces. Nothing here imports torch.
"""

from foretrace.errors import ForetraceError
from foretrace.graph.graph import MAX_RANKS, Collective, Content, Graph, Indices, Job, Span, Tf32, Timings
from foretrace.graph.op import PHASES, Constant, Op, Storage, Tensor, Value, tensors_in
from foretrace.graph.tables import CallTable, KernelTable, Names, OpTable

__all__ = [
    "MAX_RANKS", "PHASES", "CallTable", "Collective", "Constant", "Content", "ForetraceError", "Graph", "Indices",
    "Job", "KernelTable", "Names", "Op", "OpTable", "Span", "Storage", "Tensor", "Tf32", "Timings", "Value",
    "tensors_in",
]  # fmt: skip
