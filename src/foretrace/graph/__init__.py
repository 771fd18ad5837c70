"""What a step is: ops, tensors, kernels, the graph of one rank and the job of all of them."""

from foretrace.errors import ForetraceError
from foretrace.graph.graph import MOST_RANKS, Collective, Content, Graph, Indices, Job, Span, Tf32, Timings
from foretrace.graph.op import PHASES, Constant, Op, Value, tensors_in
from foretrace.graph.tables import CallTable, KernelTable, Names, OpTable
from foretrace.graph.tensor import Storage, Tensor

__all__ = [
    "MOST_RANKS", "PHASES", "CallTable", "Collective", "Constant", "Content", "ForetraceError", "Graph", "Indices",
    "Job", "KernelTable", "Names", "Op", "OpTable", "Span", "Storage", "Tensor", "Tf32", "Timings", "Value",
    "tensors_in",
]  # fmt: skip
