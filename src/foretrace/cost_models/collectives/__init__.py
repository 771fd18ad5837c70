"""Collectives: their time on a fabric, from measured curves and link specifications, and their contention with
kernels."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
