"""Another number of heads, of which each is so much smaller or larger."""

from __future__ import annotations

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.transforms.hidden import hidden
from foretrace.transforms.resize import checked_size
from foretrace.transforms.sharing import unshared
from foretrace.transforms.step import opened
from foretrace.transforms.stream import Stream


def heads(graph: Graph, count: int) -> Graph:
    """The step with its hidden width cut into another number of heads.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    count
        How many.
    """
    checked_size("heads", count)
    as_it_was, _ = opened(graph)
    graph, shared = unshared(as_it_was, "heads")
    stream = Stream.of(list(graph.ops))
    if stream is None or stream.heads == 1:
        raise ForetraceError(
            f"{graph.title} shows no blocks with heads of attention",
            "If it has some, record it, or sketch it: traces lack modules.",
        )
    if stream.width % count:
        near = sorted((n for n in range(1, stream.width + 1) if stream.width % n == 0), key=lambda n: abs(n - count))
        raise ForetraceError(
            f"{count} heads can't share a hidden width of {stream.width}",
            f"The nearest that can are {near[0]} and {near[1]}; or set another width before it.",
        )
    if count == stream.heads:
        return as_it_was
    # First as wide as so many heads of the same size are, then as wide as before.
    wider = stream.resizable(graph, keep="size").to(stream.width // stream.heads * count)
    made = hidden(wider, stream.width, stream.width // stream.heads * count)
    made.notes[-2:] = [f"{count} heads instead of {stream.heads}"]
    return shared(made)
