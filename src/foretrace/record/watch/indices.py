"""Lookup statistics of a step (counts and reuse of ids), and summaries of its input tensors; never their values.

Taken in a step of its own, since reading values costs device work that the recorded structure must not show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from foretrace.graph import Content, Indices
from foretrace.graph.bindings import view_of
from foretrace.graph.op import COMPILED_REGION
from foretrace.record.watch.compiled_programs import Program
from foretrace.record.watch.tensors import TensorRegistry, content_of, histogram
from foretrace.record.watch.watch import Watch, desugars, op_name

ID_ARGUMENTS = ("indices", "index")
TABLE_ARGUMENTS = ("weight", "self")
LOOKUPS = ("embedding", "index_select", "lookup")
"""Parts of the names of ops that read rows by id: aten::embedding, aten::_embedding_bag, fbgemm's lookups."""
MADE_BY_WATCHING = "aten::detach"
"""A structure holds fewer of them than a watched step makes, so the n-th here is not the n-th there."""


class IndexWatch(TorchDispatchMode):
    """Dispatch mode that counts the ids of lookups and summarizes all tensors from before the step.

    An entry of ``seen`` has the name of an op, how many of that name came before, and statistics of its ids. An entry
    of ``held`` has the same two, then the position among the op's tensors, and what the tensor there held before the
    step.

    >>> with IndexWatch() as watch:
    ...     _ = torch.nn.functional.embedding(torch.tensor([3, 3, 5]), torch.zeros(10, 2))
    >>> name, nth, found = watch.seen[0]
    >>> name, found.rows, found.count, found.unique, found.reuse
    ('aten::embedding', 10, 3, 2, (1, 1))
    >>> [(name, position, content.kind) for name, _, position, content in watch.held]
    [('aten::lift_fresh', 0, 'values')]
    """

    supports_higher_order_operators = True
    ignore_compile_internals = Watch.ignore_compile_internals

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, Indices]] = []
        self.held: list[tuple[str, int, int, Content]] = []
        self._registry = TensorRegistry()
        self._looked_at: set[tuple[object, ...]] = set()
        self._called: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(desugars(kind) for kind in types):
            return NotImplemented
        name, _ = op_name(func)
        if any(part in name for part in LOOKUPS) and "backward" not in name:
            with suppress(Exception):  # a custom op may use the same argument names for something else
                named = dict(zip((a.name for a in func._schema.arguments), args)) | (kwargs or {})
                self.seen += [(name, self._called[name], found) for found in statistics(named)]
        with suppress(Exception):  # a tensor that can't be read is left out
            self._look_at_inputs(name, (*args, *(kwargs or {}).values()))
        self._called[name] += 1
        result = func(*args, **(kwargs or {}))
        with suppress(Exception):
            self._registry.now = 0
            # A replay makes views of earlier tensors again: their values need no summary.
            self._looked_at.update(view_of(self._registry.describe(tensor)) for tensor in _tensors_in([result]))
        return result

    def run_program(self, program: Program, inputs: list[Any], run: Callable[[list[Any]], Any]) -> Any:
        """Run a program that torch.compile generated, and summarize its arguments."""
        with suppress(Exception), _disable_current_modes():
            self._look_at_inputs(COMPILED_REGION, [*inputs, *program.constants])
        self._called[COMPILED_REGION] += 1
        result = run(inputs)
        with suppress(Exception):
            self._registry.now = 0
            self._looked_at.update(view_of(self._registry.describe(tensor)) for tensor in _tensors_in(result))
        return result

    def _look_at_inputs(self, name: str, arguments: Iterable[Any]) -> None:
        """Note the content of tensors that no call of the step has made."""
        self._registry.now = -1
        for position, tensor in enumerate(_tensors_in(arguments)):
            seen = self._registry.describe(tensor)
            view = view_of(seen)
            before = seen.storage >= 0 and self._registry.storages[seen.storage].birth < 0
            if name == MADE_BY_WATCHING or not before or view in self._looked_at:
                continue
            self._looked_at.add(view)
            with torch.no_grad():
                content = content_of(tensor)
            if content is not None:
                self.held.append((name, self._called[name], position, content))


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Tensors among values, however deep, in the order in which an `Op` counts them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


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
        reuse = tuple(histogram(hits))
    return Indices(op=-1, rows=rows, count=ids.numel(), unique=len(hits), bags=int(bags), reuse=reuse)
