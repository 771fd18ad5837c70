"""Task graphs as arrays, when their tasks run, and the critical path through them."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
