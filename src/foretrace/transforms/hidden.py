"""Another hidden width: everything that is as wide as what a model's blocks pass on to each other follows."""

from __future__ import annotations

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.transforms.resize import checked_size
from foretrace.transforms.sharing import unshared
from foretrace.transforms.step import opened
from foretrace.transforms.stream import Stream
from foretrace.transforms.width import hidden_layers, width


def hidden(graph: Graph, new: int, old: int | None = None) -> Graph:
    """The step with another hidden width.

    In a model that repeats blocks, it is the width of what they add to and pass on. Embeddings, norms, projections and
    the state of the optimizer follow, and the layers between them keep their ratio to it. The number of heads stays;
    their size changes.

    In a model without such blocks, it is the number of outputs of every linear layer that another one reads.

    Gradients that DDP shares are put into its buckets anew.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    new
        The width.
    old
        The recorded one; found by what the blocks add where it is left out.
    """
    return Widths(graph, old).to(new)


class Widths:
    """The step with any hidden width: ``Widths(graph).to(1024)``; how it goes through the calls is found once."""

    def __init__(self, graph: Graph, old: int | None = None) -> None:
        self._as_it_was, _ = opened(graph)
        self._graph, self._shared = unshared(self._as_it_was, "hidden")
        ops = list(self._graph.ops)
        self._stream = Stream.of(ops, checked_size("hidden", old) if old is not None else None)
        self._resizable = self._stream.resizable(self._graph, keep="heads") if self._stream else None

    def to(self, new: int) -> Graph:
        """The step with that width."""
        checked_size("hidden", new)
        if self._stream is None or self._resizable is None:
            return self._shared(_layers(self._graph, new))
        if new == self._stream.width:
            return self._as_it_was
        check_heads(new, self._stream)
        return self._shared(self._resizable.to(new))


def check_heads(size: int, stream: Stream) -> None:
    """Refuse a width that the heads of a stream can't share."""
    heads = stream.heads
    if size % heads:
        near = [str(each) for each in (size // heads * heads, (size // heads + 1) * heads) if each]
        shared = [n for n in range(2, stream.width + 1) if size % n == stream.width % n == 0]
        other = min(shared, key=lambda n: (abs(n - heads), -n), default=1)
        raise ForetraceError(
            f"a hidden width of {size} can't be cut into {heads} heads",
            f"The nearest that can are {' and '.join(near)}; or set other heads before it: heads={other}.",
        )


def _layers(graph: Graph, size: int) -> Graph:
    layers = hidden_layers(graph)
    if not layers:
        has_modules = any(op.module for op in graph.ops)
        raise ForetraceError(
            f"{graph.title} shows neither repeated blocks nor linear layers behind each other",
            "It has no hidden width." if has_modules else "Record it, or sketch it: traces lack modules.",
        )
    for layer in layers:
        graph = width(graph, size, layer)
    return graph
