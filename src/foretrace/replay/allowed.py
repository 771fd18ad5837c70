"""What a benchmark may call beside PyTorch's own operators: what its user names."""

from __future__ import annotations

from collections.abc import Iterable

from foretrace.graph import ForetraceError
from foretrace.graph.operators import is_identifier


def packages(entries: Iterable[str]) -> dict[str, str]:
    """Namespaces that a user allows, and the package that brings the operators of each, or none.

    >>> packages(["fbgemm=fbgemm_gpu", "mine"])
    {'fbgemm': 'fbgemm_gpu', 'mine': ''}
    """
    found = dict(entry.partition("=")[::2] for entry in entries)
    for namespace, package in found.items():
        if not is_identifier(namespace) or not all(is_identifier(part) for part in package.split(".") if package):
            raise ForetraceError(
                f"{namespace}{'=' if package else ''}{package} names no operators",
                "Give a namespace and the package that brings it: --ops fbgemm=fbgemm_gpu.",
            )
    return found
