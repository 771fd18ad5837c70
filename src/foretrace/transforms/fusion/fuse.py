"""Fusion by name: the registry of what can be fused."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.errors import ForetraceError
from foretrace.graph import Graph
from foretrace.transforms.fusion.cuda_graph import cudagraph
from foretrace.transforms.fusion.elementwise import fuse_elementwise
from foretrace.transforms.fusion.lookups import fuse_lookups
from foretrace.transforms.structure.optimizer import optimizer

FUSIONS: dict[str, Callable[[Graph], Graph]] = {
    "lookups": fuse_lookups,
    "elementwise": fuse_elementwise,
    "optimizer": lambda graph: optimizer(graph, "fused"),
    "launches": cudagraph,
}
"""Transforms that make few calls of many, by what they fuse."""


def fuse(graph: Graph, what: str) -> Graph:
    """The step with many calls as one.

    ``"lookups"``, ``"elementwise"`` chains, the calls of the ``"optimizer"``, or all ``"launches"``, as a CUDA graph.
    """
    return FUSIONS[parse_fusion(what)](graph)


def parse_fusion(what: str) -> str:
    """The name of a fusion; refuses any other."""
    if what not in FUSIONS:
        raise ForetraceError(f"{what!r} can't be fused", f"These can: {', '.join(FUSIONS)}.")
    return what
