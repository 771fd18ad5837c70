"""Readers and writers of trace formats of other tools, each a module or a package.

A reader is a function from a path to a `foretrace.graph.Graph`, the step of one rank; a writer takes a
`foretrace.graph.Job`. `load_traces` recognises the files of a job by their content, reads them in parallel, joins the profiler
trace and the execution trace of a rank (``join``) and aligns the ranks (``ranks``).

To add a trace format: write ``formats/<name>.py``, or a package if it is large, with a reader; add one entry to
`foretrace.formats.load.FORMATS` that says how its files are recognised and which function reads them; add
``tests/formats/test_<name>.py``. Shared parts: ``call_tree`` (nesting, kinds and phases of ops) and ``values`` (dtypes,
operator schemas and arguments as PyTorch writes them).
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
