"""Repeated blocks of a model (transformer layers, residual blocks), found by the names of its modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from string import digits

from foretrace.graph import Op

Names = tuple[str, ...]
NUMBER = re.compile(r"\d+")


def block_index(module: str, blocks: Sequence[str]) -> int:
    """The index of the block that a module is part of; -1 for none.

    >>> block_index("GPT.blocks.1.mlp.0", ["GPT.blocks.0", "GPT.blocks.1"])
    1
    """
    for place, block in enumerate(blocks):
        if module == block or module.startswith(f"{block}."):
            return place
    return -1


def is_named(module: str, wanted: str) -> bool:
    """Whether a module is meant by a pattern of its name, or by the end of it.

    >>> is_named("GPT.blocks.0.mlp.1", "mlp.1"), is_named("GPT.blocks.0.mlp.1", "*.blocks.*")
    (True, True)
    """
    return fnmatchcase(module, wanted) or module.endswith(f".{wanted}")


def repeated_blocks(ops: Iterable[Op]) -> list[str]:
    """The modules that a model repeats, in the order of its forward; empty if it repeats none.

    Modules whose names differ only in the number at the end are siblings; siblings with equal calls are blocks. Of
    several sets of blocks the one with the most calls is taken, weighted by its share of the siblings.

    >>> layer = lambda n: [Op("aten::mm", phase="forward", module=f"net.layers.{n}.up")]
    >>> repeated_blocks([*layer(0), *layer(1), Op("aten::sum", phase="forward", module="net")])
    ['net.layers.0', 'net.layers.1']
    """
    called = _numbered(ops)
    candidates: dict[tuple[str, Names], list[str]] = {}
    for module, names in called.items():
        candidates.setdefault((_stem(module), tuple(names)), []).append(module)
    repeated = [members for members in candidates.values() if len(members) > 1]
    siblings = Counter(map(_stem, called))

    def weight(members: list[str]) -> float:
        # Outer blocks contain inner ones. The first and last stage of a ResNet may make equal calls, and are no blocks.
        return sum(len(called[m]) for m in members) * len(members) / siblings[_stem(members[0])]

    return max(repeated, key=weight, default=[])


def numbered_blocks(ops: Sequence[Op]) -> list[str]:
    """The repeated modules and those numbered with them whose calls differ, such as dense layers before mixtures.

    >>> layer = lambda n, op: Op(op, phase="forward", module=f"net.layers.{n}")
    >>> numbered_blocks([layer(0, "aten::mm"), layer(1, "aten::bmm"), layer(2, "aten::bmm")])
    ['net.layers.0', 'net.layers.1', 'net.layers.2']
    """
    stems = {_stem(block) for block in repeated_blocks(ops)}
    return [module for module in _numbered(ops) if _stem(module) in stems]


def all_repeated_blocks(ops: Sequence[Op]) -> list[str]:
    """The repeated modules, and all others whose names differ from theirs only in numbers: the blocks of all stages.

    >>> block = lambda name, op: Op(op, phase="forward", module=name)
    >>> all_repeated_blocks([block("net.1.0", "aten::mm"), block("net.2.0", "aten::mv"), block("net.2.1", "aten::mv")])
    ['net.1.0', 'net.2.0', 'net.2.1']
    """
    patterns = {NUMBER.sub("#", block) for block in repeated_blocks(ops)}
    return [module for module in _numbered(ops) if NUMBER.sub("#", module) in patterns]


def _numbered(ops: Iterable[Op]) -> dict[str, list[str]]:
    """Names of the forward ops of each module whose name ends in a number."""
    called: dict[str, list[str]] = {}
    for op in ops:
        if op.phase != "forward":
            continue
        parts = op.module.split(".")
        for place, part in enumerate(parts):
            if part[-1:].isdigit():
                called.setdefault(".".join(parts[: place + 1]), []).append(op.name)
    return called


def _stem(module: str) -> str:
    return module.rstrip(digits)
