"""A local web server that shows a folder of recordings, traces and predictions."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
