"""Fleets: a store of reduced recordings, where their GPU hours go, what would save some, and a suite of few of them."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
