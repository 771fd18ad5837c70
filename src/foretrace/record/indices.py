"""How a step reads tables: counts and reuse of the ids, never the ids themselves.

Taken in a step of its own, since counting costs device work that the recorded structure must not show.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foretrace.graph import Indices
from foretrace.record.watch import Watch, desugars, op_name

ID_ARGUMENTS = ("indices", "index")
TABLE_ARGUMENTS = ("weight", "self")
LOOKUPS = ("embedding", "index_select", "lookup")
"""Parts of the names of ops that read rows by id: aten::embedding, aten::_embedding_bag, fbgemm's lookups."""


class IndexWatch(TorchDispatchMode):
    """Looks at the ids that lookups are given. ``seen`` holds (op name, how many of that name came before, statistics).

    >>> with IndexWatch() as watch:
    ...     _ = torch.nn.functional.embedding(torch.tensor([3, 3, 5]), torch.zeros(10, 2))
    >>> name, nth, found = watch.seen[0]
    >>> name, found.rows, found.count, found.unique, found.reuse
    ('aten::embedding', 10, 3, 2, (1, 1))
    """

    supports_higher_order_operators = True
    ignore_compile_internals = Watch.ignore_compile_internals

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, Indices]] = []
        self._called: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(desugars(kind) for kind in types):
            return NotImplemented
        name, _ = op_name(func)
        if any(part in name for part in LOOKUPS) and "backward" not in name:
            with suppress(Exception):  # an op of others may mean something else by the same words
                named = dict(zip((a.name for a in func._schema.arguments), args)) | (kwargs or {})
                self.seen += [(name, self._called[name], found) for found in statistics(named)]
        self._called[name] += 1
        return func(*args, **(kwargs or {}))


def statistics(arguments: dict[str, Any]) -> list[Indices]:
    """Statistics of the ids among a lookup's named arguments: one per table; none where there are no ids.

    >>> weight, ids, offsets = torch.zeros(8, 4), torch.tensor([1, 1, 1, 7]), torch.tensor([0, 2])
    >>> found, = statistics({"weight": weight, "indices": ids, "offsets": offsets})
    >>> found.bags, found.pooling, found.reuse
    (2, 2.0, (1, 1))
    """
    ids = next((arguments[name] for name in ID_ARGUMENTS if isinstance(arguments.get(name), torch.Tensor)), None)
    if ids is None or ids.is_floating_point() or ids.dtype == torch.bool:
        return []
    offsets = arguments.get("offsets")
    cumulated = arguments.get("hash_size_cumsum")
    if isinstance(cumulated, torch.Tensor) and isinstance(offsets, torch.Tensor):
        return _of_many_tables(ids, offsets, cumulated, arguments)
    table = next((arguments[name] for name in TABLE_ARGUMENTS if isinstance(arguments.get(name), torch.Tensor)), None)
    rows = int(table.shape[arguments.get("dim", 0) if "dim" in arguments else 0]) if table is not None else 0
    bags = ids.numel()
    if isinstance(offsets, torch.Tensor):
        bags = offsets.numel() - bool(arguments.get("include_last_offset"))
    return [_count(ids, rows, bags)]


def _of_many_tables(ids: Any, offsets: Any, cumulated: Any, arguments: dict[str, Any]) -> list[Indices]:
    """FBGEMM's table-batched layout: bags of all tables one after the other."""
    dims = arguments["D_offsets"]
    tables = dims.numel() - 1
    bags = (offsets.numel() - 1) // tables
    starts, firsts = offsets.cpu(), cumulated.tolist()
    # Features that share a table begin at the same row; a table ends where the next one begins.
    rows = [min(later for later in firsts if later > first) - first for first in firsts[:tables]]
    return [_count(ids[starts[t * bags] : starts[(t + 1) * bags]], rows[t], bags) for t in range(tables)]


def _count(ids: torch.Tensor, rows: int, bags: int) -> Indices:
    with torch.no_grad():
        hits = torch.unique(ids, return_counts=True)[1]
        exponents = torch.frexp(hits.double())[1].long() - 1
        reuse = torch.bincount(exponents) if len(hits) else exponents
    return Indices(
        op=-1,
        rows=rows,
        count=ids.numel(),
        unique=len(hits),
        bags=int(bags),
        reuse=tuple(int(n) for n in reuse.tolist()),
    )
