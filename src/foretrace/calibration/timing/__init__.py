"""Timing on a device: calls with real arguments, kernel families, compiled kernels, collectives. Imports torch."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
