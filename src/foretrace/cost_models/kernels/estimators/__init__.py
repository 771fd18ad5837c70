"""Estimators of kernel times: scaled rooflines, boosted trees, nets and their blend, on the features of a family's
calls."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
