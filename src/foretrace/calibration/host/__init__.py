"""Measuring host time: small training steps, their calls and profiles, single calls, FSDP. Imports torch."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
