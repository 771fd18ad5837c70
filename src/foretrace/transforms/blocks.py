"""Repeated blocks of a model, told from the names of its modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from string import digits

from foretrace.graph import Op

Names = tuple[str, ...]
NUMBER = re.compile(r"\d+")


def block_index(module: str, blocks: Sequence[str]) -> int:
    """Which of the blocks a module is in; -1 for none.

    >>> block_index("GPT.blocks.1.mlp.0", ["GPT.blocks.0", "GPT.blocks.1"])
    1
    """
    for place, block in enumerate(blocks):
        if module == block or module.startswith(f"{block}."):
            return place
    return -1


def repeated_blocks(ops: Iterable[Op]) -> list[str]:
    """The modules that a model repeats, in the order of its forward; none where it repeats nothing.

    Modules whose names differ in the number at their end are brothers; those that call the same are blocks. Of several
    such families the one that does most of the work is taken, for the part of its brothers that are in it.

    >>> layer = lambda n: [Op("aten::mm", phase="forward", module=f"net.layers.{n}.up")]
    >>> repeated_blocks([*layer(0), *layer(1), Op("aten::sum", phase="forward", module="net")])
    ['net.layers.0', 'net.layers.1']
    """
    called = _numbered(ops)
    families: dict[tuple[str, Names], list[str]] = {}
    for module, names in called.items():
        families.setdefault((_stem(module), tuple(names)), []).append(module)
    repeated = [members for members in families.values() if len(members) > 1]
    brothers = Counter(map(_stem, called))

    def worth(members: list[str]) -> float:
        # Outer ones hold inner ones. The first and the last stage of a ResNet may call the same, and are no blocks.
        return sum(len(called[m]) for m in members) * len(members) / brothers[_stem(members[0])]

    return max(repeated, key=worth, default=[])


def all_repeated_blocks(ops: Sequence[Op]) -> list[str]:
    """The modules that a model repeats, and all that are called like them but for numbers, as the blocks of all stages.

    >>> block = lambda name, op: Op(op, phase="forward", module=name)
    >>> all_repeated_blocks([block("net.1.0", "aten::mm"), block("net.2.0", "aten::mv"), block("net.2.1", "aten::mv")])
    ['net.1.0', 'net.2.0', 'net.2.1']
    """
    like = {NUMBER.sub("#", block) for block in repeated_blocks(ops)}
    return [module for module in _numbered(ops) if NUMBER.sub("#", module) in like]


def _numbered(ops: Iterable[Op]) -> dict[str, list[str]]:
    """What is called in forward by each module whose name ends in a number."""
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
