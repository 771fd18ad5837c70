"""What the source of a Triton kernel that TorchInductor generated says of its work: memory accesses and arithmetic.

Such a kernel is plain Python: the sizes of its loops, index variables made of them by ``//`` and ``%``, loads and
stores at sums of those, and arithmetic between. It is parsed, and never run.
"""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Index: TypeAlias = int | NDArray[np.int64]
STREAM = 0
"""The last argument of a generated kernel in a recording."""
POINTER = re.compile(r"\w*ptr\d*")
WRITTEN = re.compile(r"(in_out|out)_ptr")
INSTRUCTIONS = {
    "libdevice.erf": 30, "libdevice.exp": 8, "libdevice.tanh": 20, "libdevice.pow": 40, "libdevice.log1p": 20,
    "tl_math.exp": 8, "tl_math.log": 10, "tl_math.sin": 20, "tl_math.cos": 20, "tl.sigmoid": 16, "tl.exp": 8,
    "tl.rand": 120, "tl.randn": 160, "triton_helpers.randint64": 120, "triton_helpers.online_softmax_reduce": 20,
    "triton_helpers.online_softmax_combine": 30, "triton_helpers.welford_reduce": 12, "triton_helpers.welford": 12,
    "tl.full": 0, "tl.broadcast_to": 0, "tl.zeros": 0, "tl.arange": 0, "tl.program_id": 0, "tl.num_programs": 0,
    "tl.debug_barrier": 0, "tl.range": 0, "tl.cdiv": 0,
}  # fmt: skip
"""About how many instructions a function takes for each element."""
LIBRARIES = {"libdevice": 8, "tl_math": 8, "tl": 1, "triton_helpers": 1}
"""The same of other functions, by their library."""
DIVISION = 8
LOAD = "load"
REDUCING = ("sum", "reduce", "any", "max2", "min2", "welford", "online_softmax_reduce", "online_softmax_combine",
            "max_with_index", "min_with_index", "associative_scan")  # fmt: skip
TILE = 1024
"""Elements that threads of a block access at about the same time."""
SECTOR = 8
"""Elements that are fetched from memory at once, if one has four bytes."""
WARP = 32
"""Threads that access memory in one instruction."""
SCATTERED = 16
"""Sectors that they access at places that were read from memory, about."""


def kernel_facts(source: str) -> dict[str, Any]:
    """How often a kernel accesses each of its tensors, and what it computes; empty where that is unknown.

    ``accessed`` has the elements of each tensor that are read and written, ``fetched`` with those beside them that come
    with a sector of memory though no thread nearby wants them; ``rows`` and ``along`` are the number of results and of
    what each is reduced from; ``instructions`` those for each element, about. ``read_sectors`` and ``written_sectors``
    are those that instructions ask for, also where a cache has them: threads side by side take a sector for eight
    elements in a row, or one each; ``inner`` are elements that lie in a row along what is reduced. The others count
    loads, stores, accesses at places that were read from memory (``indirect``), atomic additions, loops over what is
    reduced, reductions, and the dimensions of a block of threads (``tiled``).

    >>> facts = kernel_facts('''
    ... def triton_poi_fused_add_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    ...     xnumel = 4096
    ...     xindex = xoffset + tl.arange(0, XBLOCK)[:]
    ...     x2 = xindex
    ...     x0 = (xindex % 64)
    ...     x1 = xindex // 64
    ...     tmp0 = tl.load(in_ptr0 + (x2), None)
    ...     tmp1 = tl.load(in_ptr1 + (x0), None)
    ...     tmp2 = tmp0 + tmp1
    ...     tl.store(out_ptr0 + (x1 + 64*x0), tmp2, None)
    ... ''')
    >>> facts["accessed"], facts["fetched"], facts["rows"]
    ([4096, 64, 4096], [4096, 64, 4096], 4096)
    >>> facts["read_sectors"], facts["written_sectors"]
    (520, 4096)
    """
    return dict(_facts(source))


@lru_cache(maxsize=1 << 12)
def _facts(source: str) -> dict[str, Any]:
    try:
        function = next(each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef))
    except (SyntaxError, StopIteration):
        return {}
    kernel = _Kernel()
    kernel.visit(function)
    pointers = [each.arg for each in function.args.args if POINTER.fullmatch(each.arg)]
    kernel.end_part()
    rows = [part.rows for part in kernel.parts]
    return {
        "accessed": [sum(kernel.accessed[name].values()) for name in pointers],
        "fetched": [sum(kernel.fetched[name].values()) for name in pointers],
        "rows": sum(rows),
        "along": max(part.along for part in kernel.parts),
        **kernel.counts,
        **kernel.accesses("read", "loads", lambda how: how == LOAD),
        **kernel.accesses("written", "stores", lambda how: how != LOAD),
        "tiled": sum(each.arg.endswith("BLOCK") for each in function.args.args),
        "instructions": round(sum(part.instructions * part.rows for part in kernel.parts) / max(1, sum(rows))),
    }


def written_arguments(source: str) -> list[bool]:
    """Whether a kernel of Triton writes each of its pointers, which TorchInductor names by that.

    >>> written_arguments("def k(in_out_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):")
    [True, False, True]
    """
    head = re.search(r"^def \w+\((.*?)\)", source, re.MULTILINE | re.DOTALL)
    mutated = re.search(r"'mutated_arg_names': (\[.*?\])", source)
    changed = ast.literal_eval(mutated[1]) if mutated else []
    names = [each.partition(":")[0].strip() for each in head[1].split(",")] if head else []
    return [bool(WRITTEN.match(name)) or name in changed for name in names if POINTER.fullmatch(name)]


class _Part(NamedTuple):
    """A loop nest; a kernel of several tensors (of a foreach call) has one for each, in branches."""

    rows: int
    along: int
    instructions: int


class _Kernel(ast.NodeVisitor):
    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.accessed: dict[str, dict[str, int]] = defaultdict(dict)
        """Elements of each pointer, by where and how it is accessed."""
        self.fetched: dict[str, dict[str, int]] = defaultdict(dict)
        self.sectors: dict[tuple[str, str, str], tuple[int, int]] = {}
        """Elements that instructions access, and sectors that they ask for, by how, pointer and place."""
        self.counts = dict.fromkeys(("indirect", "atomics", "loops", "reductions", "inner"), 0)
        self._begin_part()

    def _begin_part(self) -> None:
        self._instructions = 0
        self._sizes: dict[str, int] = {}
        """How many values each index takes."""
        self._loops: list[str] = []
        """The indices that are no function of others."""
        self._meaning: dict[str, ast.expr] = {}
        """What an index variable is computed from."""

    def end_part(self) -> None:
        """Note the loop nest that was visited, so that another may begin."""
        rows, along = (self._elements(reduced) for reduced in (False, True))
        self.parts.append(_Part(rows, along, self._instructions))
        self._begin_part()

    def accesses(self, done: str, each: str, which: Callable[[str], bool]) -> dict[str, int]:
        """The number of loads or of stores, their elements, and the sectors that they ask for."""
        found = [counts for (how, _, _), counts in self.sectors.items() if which(how)]
        return {each: len(found), done: sum(n for n, _ in found), f"{done}_sectors": sum(n for _, n in found)}

    def _elements(self, reduced: bool) -> int:
        """Places of the loops that are reduced, or of the others."""
        return math.prod(self._sizes[loop] for loop in self._loops if loop.startswith("r") == reduced)

    def visit_For(self, node: ast.For) -> None:
        self.counts["loops"] += 1
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        name = target.id if isinstance(target, ast.Name) else ""
        if name.endswith("numel") and isinstance(node.value, ast.Constant):
            loop = name.removesuffix("numel") + "index"
            if loop in self._sizes:
                self.end_part()
            self._sizes[loop] = int(str(node.value.value))
            self._loops.append(loop)
        elif name and not name.startswith(("tmp", "_tmp")) and (size := self._size(node.value)):
            if name not in self._sizes:
                self._sizes[name], self._meaning[name] = size, node.value
            return
        self.visit(node.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._instructions += DIVISION if isinstance(node.op, ast.Div) else 1
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func)
        library, _, name = function.rpartition(".")
        if library == "tl" and name in ("load", "store", "atomic_add"):
            self._access(name, node.args[0])
            self.counts["atomics"] += name == "atomic_add"
            if name != "load":
                self.visit(node.args[1])
            return
        self._instructions += INSTRUCTIONS.get(function, LIBRARIES.get(library, 0))
        self.counts["reductions"] += name in REDUCING
        self.generic_visit(node)

    def _access(self, how: str, address: ast.expr) -> None:
        pointer = next((n.id for n in ast.walk(address) if isinstance(n, ast.Name) and POINTER.fullmatch(n.id)), "")
        index = address.right if isinstance(address, ast.BinOp) else ast.Constant(0)
        names = {n.id for n in ast.walk(index) if isinstance(n, ast.Name)}
        used = [name for name in names if name in self._sizes]
        place = f"{len(self.parts)} {self.counts['loops']} {how} {ast.unparse(index)}"
        if any(name.startswith(("tmp", "_tmp")) for name in names):
            self.counts["indirect"] += 1
            elements = math.prod(self._sizes[name] for name in self._loops)
            self.accessed[pointer][place] = self.fetched[pointer][place] = elements
            self.sectors[how, pointer, place] = elements, elements * SCATTERED // WARP
            return
        elements = math.prod(self._sizes[name] for name in used)
        last = self._value(index, {name: self._sizes[name] - 1 for name in used})
        if last is not None and last >= 0:
            elements = min(elements, int(last) + 1)
        self.accessed[pointer][place] = elements
        self.fetched[pointer][place] = round(elements * self._waste(index))
        sectors, inner = self._of_a_warp(index)
        self.sectors[how, pointer, place] = elements, -(-elements * sectors // WARP)
        self.counts["inner"] += elements if inner else 0

    def _waste(self, index: ast.expr) -> float:
        """Elements in the sectors that a block of threads fetches, over those that it wants."""
        loops = [loop for loop in self._loops if self._sizes[loop] > 1]
        side = round(TILE ** (1 / max(1, len(loops))))
        places = np.meshgrid(*(np.arange(min(side, self._sizes[loop])) for loop in loops), indexing="ij")
        found = self._value(index, dict.fromkeys(self._loops, 0) | dict(zip(loops, places)))
        if not isinstance(found, np.ndarray):
            return 1.0
        wanted, sectors = np.unique(found), np.unique(found // SECTOR)
        return max(1.0, len(sectors) * SECTOR / max(len(wanted), SECTOR))

    def _of_a_warp(self, index: ast.expr) -> tuple[int, bool]:
        """The fewest sectors that the threads of a warp access, and whether they lie along what is reduced.

        Triton lets threads follow each other along any of the dimensions of a block, whichever lies in memory so.
        """
        found: list[tuple[int, bool]] = []
        for first in [loop for loop in self._loops if self._sizes[loop] > 1]:
            lanes, at = np.arange(WARP), {}
            for loop in (first, *(other for other in reversed(self._loops) if other != first)):
                at[loop] = lanes % self._sizes[loop]
                lanes = lanes // self._sizes[loop]
            places = self._value(index, at)
            sectors = len(np.unique(places // SECTOR)) if isinstance(places, np.ndarray) else 1
            found.append((sectors, first.startswith("r")))
        return min(found, default=(1, False))

    def _value(self, node: ast.expr, at: Mapping[str, Index]) -> Index | None:
        """The value of an index expression at these values of its variables."""
        match node:
            case ast.Constant(int(value)):
                return value
            case ast.Name(name):
                if name in at or name not in self._meaning:
                    return at.get(name)
                return self._value(self._meaning[name], at)
            case ast.BinOp(left, operation, right):
                a, b = self._value(left, at), self._value(right, at)
                return None if a is None or b is None else _computed(operation, a, b)
            case ast.UnaryOp(ast.USub(), operand):
                inner = self._value(operand, at)
                return None if inner is None else -inner
        return None

    def _size(self, node: ast.expr) -> int:
        """How many values an index variable takes; 0 for what is none."""
        match node:
            case ast.Name(name):
                return self._sizes.get(name, 0)
            case ast.BinOp(left, ast.FloorDiv(), ast.Constant(int(by))) if by > 0:
                return -(-self._size(left) // by)
            case ast.BinOp(left, ast.Mod(), ast.Constant(int(by))):
                return min(self._size(left), by)
        return 0


def _computed(operation: ast.operator, a: Index, b: Index) -> Index | None:
    match operation:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.FloorDiv():
            return a // b if np.all(b) else None
        case ast.Mod():
            return a % b if np.all(b) else None
    return None
