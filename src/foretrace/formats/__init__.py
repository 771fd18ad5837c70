"""Readers and writers of the trace formats of other tools, each a module or a package.

A reader is a function from a path to a `Graph`, the steps of one rank, or a list of them for a file of several; a
writer takes a `Job`. `load_traces` recognises files by their content, reads ranks in parallel, joins the profiler trace
and the execution trace of a rank (``join``) and aligns the ranks (``ranks``).

To add a trace format: write ``formats/<name>.py`` (or a package) with a reader, add one entry to `FORMATS` in ``load``
that says how its files are recognised and what reads them, and test it in ``tests/formats/test_<name>.py``. Shared by
readers: ``call_tree`` (nesting, kinds and phases of ops) and ``values`` (dtypes, schemas and arguments of ops).

The short way, for formats with kernels and runtime calls: turn each record into an `Event` of a PyTorch profiler trace
(``kineto.decode``), collect them with `Columns.of` and let `graph_of_columns` build the graph, as ``rocprof`` does.
Files with ``traceEvents`` of other profilers are told apart inside the reader of profiler traces (``chrome_trace``).
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
