"""Sharding of embedding tables: tables, sharding options, the cost of plans, and the search for the fastest one."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
