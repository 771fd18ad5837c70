"""Benchmarks from graphs: writing them (`generate`), running them (`harness`), and comparing replays with originals."""

from foretrace._lazy import keep_callable, lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

keep_callable(__name__)
