"""PyTorch execution traces (``ExecutionTraceObserver``): every op with its arguments, without times."""

from foretrace.formats.execution_trace.read import read_execution_trace

__all__ = ["read_execution_trace"]
