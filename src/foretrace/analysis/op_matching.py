"""Ops of two steps matched by module, name and position: what was renamed, fused or split from one to the other.

Both steps are sequences of the ops that launch work. What has the same name, in the same module where both tell
modules, and stands in the same order is the same work. Between two such ops, what only one side has was added or left
out; where both sides have something, the one takes the place of the other: attention by three ops that of one fused op.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from foretrace.analysis.breakdown import NO_OP, STEP_MARK, kernel_family, labels_of, own_time
from foretrace.graph import PHASES, Graph
from foretrace.graph.operators import LAUNCH_FREE_OPS
from foretrace.graph.tables import CALL, Longs

WINDOW = 8192
"""Units that are aligned at once: longer steps are aligned piece by piece."""
LEAST_ALIKE, MIN_SHARED_LAYERS = 0.3, 0.6
"""Steps with a smaller share of units that are the same, or of products, convolutions and lookups, are of different
models: then nothing takes the place of anything."""
SAME_OPTIMIZER = 0.8
"""Share of an optimizer's units that another one has too, where both do the same by the same ops."""
LAYERS = {"matrix product": 1, "convolution": 1, "lookup": 1, "attention": 2}
"""Families that fusing leaves, and how many of them a unit is: fused attention is two products."""
TELLING = {"matrix product", "convolution", "attention", "lookup", "norm", "softmax", "communication"}
"""Families of which two kernels at about the same place do the same work; element-wise ones are everywhere."""
WRAPPERS = re.compile(r"\b(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What DDP, torch.compile, FSDP and checkpointing put into the names of modules."""

Key = tuple[tuple[str, ...], tuple[str, ...], str]
Span = tuple[list[int], list[int]]
"""Units of the first and of the second step that stand at the same place."""


@dataclass(slots=True)
class Unit:
    """An op that launches work, or a kernel without one."""

    name: str
    family: str
    module: str
    phase: str
    op: int
    """Its row; -1 for a kernel without an op."""
    device_us: float = 0.0


class Share(NamedTuple):
    """What a replacement takes of an op of one step, the mean over ranks."""

    device_ms: float
    host_ms: float
    calls: float


@dataclass
class Replacement:
    """Ops of one step that do the work of others in another one."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    """Distinct names, in their order."""
    phase: str
    modules: set[str] = field(default_factory=set)
    places: int = 0
    """How often, the mean over ranks, one at least."""
    how: str = "position"
    """``module``: between ops of the same module; ``position``: between ops that are the same."""
    taken: tuple[dict[str, Share], dict[str, Share]] = field(default_factory=lambda: ({}, {}))
    """What it takes of each op of both steps."""

    @property
    def where(self) -> str:
        """Its module, with * for what differs between places; empty where unknown."""
        patterns = {re.sub(r"\d+", "*", module) for module in self.modules}
        if len(self.modules) == 1:
            return next(iter(self.modules))
        return next(iter(patterns)) if len(patterns) == 1 else ""


def units_of(graph: Graph) -> list[Unit]:
    """The units of a step in the order of their calls; of a step without device work, its innermost calls."""
    codes, names = labels_of(graph)
    ops, kernels = graph.ops, graph.kernels
    modules = [WRAPPERS.sub("", name) for name in ops.modules.items]

    def unit(row: int, family: str) -> Unit:
        return Unit(names[codes[row]], family, modules[ops.module[row]], PHASES[ops.phase[row]], row)

    if not len(kernels):
        outer = np.zeros(len(ops) + 1, bool)
        outer[ops.parent[ops.kind == CALL]] = True
        works = (ops.kind == CALL) & ~outer[:-1] & ~ops.names.matching(LAUNCH_FREE_OPS.__contains__)[ops.name]
        return [unit(row, kernel_family("", ops.names[ops.name[row]])) for row in np.flatnonzero(works).tolist()]
    found: list[tuple[float, Unit]] = []
    of_op: dict[int, tuple[Unit, float]] = {}
    launched = np.append(graph.calls.start, np.nan)[kernels.call]
    place = np.searchsorted(ops.start, launched) - 0.5 if np.isfinite(ops.start).all() else np.full(len(kernels), -1.0)
    marks = np.append(ops.names.matching(lambda name: name.startswith(STEP_MARK))[ops.name], True)
    owner = np.where(marks[kernels.op], -1, kernels.op)
    columns = (kernels.name.tolist(), owner.tolist(), kernels.call.tolist(), place.tolist())
    for name, op, call, at, us in zip(*columns, (kernels.end - kernels.start).tolist()):
        kernel = kernels.names[name]
        if op < 0:
            if call >= 0 or not len(graph.calls):
                found.append((at, Unit(kernel, kernel_family(kernel), "", "other", -1, us)))
            continue
        if op not in of_op:
            of_op[op] = unit(op, ""), -1.0
            found.append((float(op), of_op[op][0]))
        one, longest = of_op[op]
        if us > longest:
            one.family = kernel_family(kernel, ops.names[ops.name[op]])
        of_op[op] = one, max(us, longest)
        one.device_us += us
    return [one for _, one in sorted(found, key=lambda each: each[0])]


def common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Positions of a longest common subsequence, by bits of large integers (Hyyrö): 10,000 by 10,000 takes 0.1 s.

    >>> common_subsequence("abcabc", "acbc")
    [(0, 0), (2, 1), (4, 2), (5, 3)]
    """
    found: list[tuple[int, int]] = []
    first = second = 0
    while first < len(a) and second < len(b):
        ours, theirs = a[first : first + WINDOW], b[second : second + WINDOW]
        pairs = _aligned(ours, theirs)
        whole = len(ours) == len(a) - first and len(theirs) == len(b) - second
        if not whole:  # what is aligned near the end of a window may be better aligned by the next
            pairs = [pair for pair in pairs if max(pair) < WINDOW // 2]
        found += [(first + i, second + j) for i, j in pairs]
        last = (WINDOW // 2, WINDOW // 2) if whole or not pairs else (pairs[-1][0] + 1, pairs[-1][1] + 1)
        first, second = (len(a), len(b)) if whole else (first + last[0], second + last[1])
    return found


def _aligned(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    where: dict[Hashable, int] = defaultdict(int)
    for position, token in enumerate(b):
        where[token] |= 1 << position
    state = mask = (1 << len(b)) - 1
    rows = []
    for token in a:
        match = state & where.get(token, 0)
        state = ((state + match) | (state - match)) & mask
        rows.append(state)
    found, row, column = [], len(a), len(b)
    while row and column:
        if rows[row - 1] >> (column - 1) & 1:
            column -= 1
            continue
        row -= 1
        if not row or rows[row - 1] >> (column - 1) & 1:
            column -= 1
            found.append((row, column))
    return found[::-1]


def _gathered(pairs: list[tuple[int, int]], a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The pairs with gaps of one side moved along equal tokens to a gap of the other: ``x y`` for ``p x q y`` leaves
    ``p x q`` in one piece where something takes its place.
    """
    pairs = [(-1, -1), *pairs, (len(a), len(b))]
    for side, tokens in ((0, a), (1, b)):
        other = 1 - side
        for at in range(1, len(pairs) - 1):
            before, here, after = pairs[at - 1], pairs[at], pairs[at + 1]
            gap = after[side] - here[side] - 1
            if gap and after[other] == here[other] + 1 and here[other] > before[other] + 1:
                moved = here[side] + gap
                if tokens[moved] == tokens[here[side]]:
                    pairs[at] = (moved, here[1]) if side == 0 else (here[0], moved)
        for at in range(len(pairs) - 2, 0, -1):
            before, here, after = pairs[at - 1], pairs[at], pairs[at + 1]
            gap = here[side] - before[side] - 1
            if gap and here[other] == before[other] + 1 and after[other] > here[other] + 1:
                moved = here[side] - gap
                if tokens[moved] == tokens[here[side]]:
                    pairs[at] = (moved, here[1]) if side == 0 else (here[0], moved)
    return pairs[1:-1]


def _gaps(span: Span, pairs: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """What lies between pairs of positions in a span."""
    first = second = 0
    for i, j in [*pairs, (len(span[0]), len(span[1]))]:
        if i > first or j > second:
            yield span[0][first:i], span[1][second:j]
        first, second = i + 1, j + 1


def match_units(a: Sequence[Unit], b: Sequence[Unit]) -> list[tuple[Span, str]]:
    """Which units of one step stand where others of another one stand, and how that is known.

    Units that are the same are in none, nor are those that only one side has. Empty where the steps are of different
    models.
    """
    has_modules = all(any(unit.module for unit in units) for units in (a, b))
    found = list[tuple[Span, str]]()
    optimizers = _other_optimizer(a, b) or ([], [])
    if optimizers[0]:
        found.append((optimizers, "position"))
    ours, theirs = set(optimizers[0]), set(optimizers[1])
    rest = [i for i in range(len(a)) if i not in ours], [j for j in range(len(b)) if j not in theirs]
    names = [[(unit[i].module if has_modules else "", unit[i].name) for i in some] for unit, some in zip((a, b), rest)]
    pairs = _gathered(common_subsequence(*names), *names)
    same = [rest[0][i] for i, _ in pairs]
    for gap in _gaps(rest, pairs):
        for span, how in _by_module(a, b, gap) if has_modules else [(gap, "position")]:
            more, replaced = _matched_gap(a, b, span)
            same += more
            found += [(each, how) for each in replaced]
    return found if _of_one_model(a, b, [a[i] for i in same], has_modules) else []


def _other_optimizer(a: Sequence[Unit], b: Sequence[Unit]) -> Span | None:
    """The optimizers of both steps, where the one does the work by other ops than the other: all of them take the place
    of each other, since what single ops of both are for differs, also where they have a name in common.
    """
    ours, theirs = ([i for i, unit in enumerate(units) if unit.phase == "optimizer"] for units in (a, b))
    names = [a[i].name for i in ours], [b[i].name for i in theirs]
    most = max(len(ours), len(theirs))
    if not ours or not theirs or len(common_subsequence(*names)) >= SAME_OPTIMIZER * most:
        return None
    return ours, theirs


def _of_one_model(a: Sequence[Unit], b: Sequence[Unit], same: Sequence[Unit], modules: bool) -> bool:
    """Whether two steps have so many units in common, the optimizer's aside, that what lies between them is the same
    work: some of all, and most of their layers or, where both tell ``modules``, of their modules.
    """
    fewest = min(sum(unit.phase != "optimizer" for unit in units) for units in (a, b))
    if len(same) < LEAST_ALIKE * fewest:
        return False
    if modules:
        both = {unit.module for unit in a} & {unit.module for unit in b}
        return all(sum(u.module in both for u in units) >= MIN_SHARED_LAYERS * len(units) for units in (a, b))
    layers = [sum(LAYERS.get(unit.family, 0) for unit in units) for units in (a, b, same)]
    if not any(layers[:2]):
        return 2 * len(same) >= max(len(a), len(b))
    return layers[2] >= MIN_SHARED_LAYERS * max(layers[:2])


def _by_module(a: Sequence[Unit], b: Sequence[Unit], gap: Span) -> Iterator[tuple[Span, str]]:
    """A gap cut by the modules that both of its sides have; the rest of it by position."""
    ours, theirs = ({unit[i].module for i in some} for unit, some in zip((a, b), gap))
    both = {module for module in ours & theirs if module}
    for module in sorted(both):
        yield ([i for i in gap[0] if a[i].module == module], [j for j in gap[1] if b[j].module == module]), "module"
    rest = [i for i in gap[0] if a[i].module not in both], [j for j in gap[1] if b[j].module not in both]
    if rest[0] or rest[1]:
        yield rest, "position"


def _matched_gap(a: Sequence[Unit], b: Sequence[Unit], gap: Span) -> tuple[list[int], list[Span]]:
    """Which units of a gap's first side have a counterpart of their name, or are renamed one by one; and what takes the
    place of what.
    """
    if not gap[0] or not gap[1]:
        return [], []
    names = [[unit[i].name for i in some] for unit, some in zip((a, b), gap)]
    pairs = _gathered(common_subsequence(*names), *names)
    same, found = [gap[0][i] for i, _ in pairs], list[Span]()
    for part in _gaps(gap, pairs):
        if not part[0] or not part[1]:
            continue
        kin = _of_one_family(a, b, part)
        same += part[0] if len(kin) == len(part[0]) == len(part[1]) else []
        for ours, theirs in (_of_one_kind(a, b, piece) for piece in _pieces(part, kin)):
            if ours and theirs and Counter(a[i].name for i in ours) != Counter(b[j].name for j in theirs):
                found.append((ours, theirs))
    return same, found


def _of_one_family(a: Sequence[Unit], b: Sequence[Unit], part: Span) -> list[tuple[int, int]]:
    """Positions of units in a part that do the same kind of work, one for one."""
    ours, theirs = ([(unit[i].phase, unit[i].family) for i in some] for unit, some in zip((a, b), part))
    if ours == theirs:
        return [(at, at) for at in range(len(ours))]
    telling = [[(at, one) for at, one in enumerate(some) if one[1] in TELLING] for some in (ours, theirs)]
    pairs = common_subsequence(*([one for _, one in some] for some in telling))
    return [(telling[0][i][0], telling[1][j][0]) for i, j in pairs]


def _of_one_kind(a: Sequence[Unit], b: Sequence[Unit], piece: Span) -> Span:
    """A piece without communication that only one side has: no compute takes its place."""
    talks = [[unit[i].family == "communication" for i in some] for unit, some in zip((a, b), piece)]
    if all(map(any, talks)):
        return piece
    ours, theirs = ([i for i, talk in zip(some, each) if not talk] for some, each in zip(piece, talks))
    return ours, theirs


def _pieces(part: Span, kin: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """A part without a common name, cut after each pair of one family: what one side has more belongs to the pair
    before it, an added bias to the product.
    """
    if not kin:
        yield part
        return
    cuts = [(0, 0), *kin[1:], (len(part[0]), len(part[1]))]
    for (i, j), (i_end, j_end) in pairwise(cuts):
        yield part[0][i:i_end], part[1][j:j_end]


def compared_ranks(before: Sequence[Graph], after: Sequence[Graph]) -> list[tuple[Graph, Graph]]:
    """Ranks of two jobs with the same number; where none is the same, the first of both."""
    numbers = {graph.rank: graph for graph in after}
    both = [(graph, numbers[graph.rank]) for graph in before if graph.rank in numbers]
    return both or list(zip(before[:1], after[:1]))


def find_replacements(before: Sequence[Graph], after: Sequence[Graph]) -> list[Replacement]:
    """What takes the place of what from the step of some ranks to that of others; times are means over the ranks that
    are compared.
    """
    both = compared_ranks(before, after)
    known: dict[Hashable, list[tuple[Span, str]]] = {}
    found: dict[Key, Replacement] = {}
    for pair in both:
        units = units_of(pair[0]), units_of(pair[1])
        sequence = tuple(tuple((u.module, u.name, u.family) for u in each) for each in units)
        if sequence not in known:
            known[sequence] = match_units(*units)
        spans, keys = known[sequence], list[Key]()
        for span, how in spans:
            ours, theirs = (tuple(dict.fromkeys(u[i].name for i in some)) for u, some in zip(units, span))
            some = [units[0][i] for i in span[0]]
            keys.append((ours, theirs, some[0].phase))
            one = found.setdefault(keys[-1], Replacement(ours, theirs, some[0].phase, how=how))
            one.modules |= {unit.module for unit in some}
            one.places += 1
        for side in (0, 1):
            for place, name, share in _taken(pair[side], units[side], [span[side] for span, _ in spans]):
                taken = found[keys[place]].taken[side]
                had = taken.get(name, Share(0.0, 0.0, 0.0))
                taken[name] = Share(*(a + b / len(both) for a, b in zip(had, share)))
    for one in found.values():
        one.places = -(-one.places // len(both))
    return list(found.values())


def _taken(graph: Graph, units: Sequence[Unit], places: Sequence[Sequence[int]]) -> Iterator[tuple[int, str, Share]]:
    """What each place takes of which op, as `by_op` counts it: with an op go the calls around it that launch nothing
    else.
    """
    group = np.full(len(graph.ops), -1, np.int64)
    for place, some in enumerate(places):
        for unit in (units[i] for i in some):
            if unit.op >= 0:
                group[unit.op] = place
            else:
                yield place, NO_OP, Share(unit.device_us / 1e3, 0.0, 0)
    if not places:
        return
    inside = _with_calls_around(graph, units, group, len(places))
    codes, names = labels_of(graph)
    own, device = own_time(graph), {unit.op: unit.device_us for unit in units}
    for row in np.flatnonzero(inside >= 0).tolist():
        called = graph.ops.kind[row] == CALL
        if called or row in device:
            host_us = float(own[row]) if called else 0.0
            yield int(inside[row]), names[codes[row]], Share(device.get(row, 0.0) / 1e3, host_us / 1e3, 1)


def _with_calls_around(graph: Graph, units: Sequence[Unit], group: Longs, places: int) -> Longs:
    """The place of each op: also of those around ops of one place alone, and of what these call besides."""
    low, high = np.where(group >= 0, group, places), group.copy()
    rows = np.array([unit.op for unit in units if unit.op >= 0], np.int64)
    high[rows[group[rows] < 0]] = places  # units outside of all places
    launches = np.zeros(len(group), bool)
    launches[rows] = True
    parents = graph.ops.parent.tolist()
    for row in range(len(parents) - 1, -1, -1):
        if (up := parents[row]) >= 0 and high[row] >= 0:
            low[up], high[up] = min(low[up], low[row]), max(high[up], high[row])
    inside = np.where(launches, group, np.where(low == high, np.where(high < places, high, -1), -1))
    for row, up in enumerate(parents):
        if up >= 0 and high[row] < 0 and inside[up] >= 0 and graph.ops.kind[up] == CALL:
            inside[row] = inside[up]
    return inside
