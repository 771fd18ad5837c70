"""Arguments that are not kept but read again: few who look at a step ever ask for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from foretrace.graph import Graph, Op


@dataclass
class Again:
    """Makes the ops of a file's rows, from when it is first asked: an op table's ``detail``.

    What a reader keeps of a file for its ops is large, and passed on to another process it would cost more than it is
    worth.

    >>> from foretrace.graph import OpTable
    >>> detail = Again(lambda path: Graph(OpTable.of([Op("aten::mm"), Op(f"read from {path}")])), Path("et.json"))
    >>> detail(1).name
    'read from et.json'
    """

    read: Callable[[Path], Graph]
    path: Path

    @cached_property
    def _detail(self) -> Callable[[int], Op]:
        return self.read(self.path).ops.__getitem__

    def __call__(self, row: int) -> Op:
        """The op of a source row."""
        return self._detail(row)
