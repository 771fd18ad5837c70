"""Modules inside modules, for a page to draw as areas: each as large as the time it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Words = dict[str, Any]

LARGEST = 0.3
"""Share of the time from which on a module is shown as the modules inside it."""
LEAST = 1e-3
"""Share of a module's time below which what it does itself is not shown beside what those inside do."""


def module_tree(rows: Sequence[Words]) -> list[Words]:
    """Modules inside modules: ``value`` is device and host time in milliseconds, ``host`` the host's part of it.

    >>> rows = [{"name": f"net.{i}", "device_ms": 2.0 - i, "host_ms": 1.0} for i in (0, 1)]
    >>> [(one["name"], one["value"], one["host"]) for one in module_tree(rows)]
    [('net.0', 3.0, 1.0), ('net.1', 2.0, 1.0)]
    """
    top = _empty()
    for row in rows:
        level = top
        for part in (row["name"] or "outside any module").split("."):
            level = level["children"].setdefault(part, _empty())
            level["value"] += row["device_ms"] + row["host_ms"]
            level["host"] += row["host_ms"]
    return _opened(_branches(top))


def _empty() -> Words:
    return {"value": 0.0, "host": 0.0, "children": {}}


def _opened(branches: list[Words]) -> list[Words]:
    """The largest branches opened until none is most of the tree: a model is one module with all others inside."""
    whole = sum(branch["value"] for branch in branches)
    while branches:
        largest = max(branches, key=lambda branch: float(branch["value"]))
        if largest["value"] < LARGEST * whole or "children" not in largest:
            break
        inner = [{**child, "name": f"{largest['name']}.{child['name']}"} for child in largest["children"]]
        branches = [*(branch for branch in branches if branch is not largest), *inner]
    return branches


def _branches(level: Words) -> list[Words]:
    found = []
    for name, inner in level["children"].items():
        branch: Words = {"name": name, "value": inner["value"], "host": inner["host"]}
        if inner["children"]:
            branch["children"] = _branches(inner)
            own = {word: inner[word] - sum(child[word] for child in branch["children"]) for word in ("value", "host")}
            if own["value"] > LEAST * inner["value"]:
                branch["children"].append({"name": "(itself)", **own})
        found.append(branch)
    return found
