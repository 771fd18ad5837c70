"""Repeated blocks of a model, told from the names of its modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foretrace.graph import Op

Names = tuple[str, ...]


def block_of(module: str, blocks: Sequence[str]) -> int:
    """Which of the blocks a module is in; -1 for none.

    >>> block_of("GPT.blocks.1.mlp.0", ["GPT.blocks.0", "GPT.blocks.1"])
    1
    """
    for place, block in enumerate(blocks):
        if module == block or module.startswith(f"{block}."):
            return place
    return -1


def blocks_of(ops: Iterable[Op]) -> list[str]:
    """The modules that a model repeats, in the order of its forward; none where it repeats nothing.

    Modules with a number for a name are brothers; those that call the same, one after the other, are blocks. The
    outermost ones are taken.

    >>> layer = lambda n: [Op("aten::mm", phase="forward", module=f"net.layers.{n}.up")]
    >>> blocks_of([*layer(0), *layer(1), Op("aten::sum", phase="forward", module="net")])
    ['net.layers.0', 'net.layers.1']
    """
    called: dict[str, list[str]] = {}
    for op in ops:
        if op.phase != "forward":
            continue
        parts = op.module.split(".")
        for place, part in enumerate(parts):
            if part.isdigit():
                called.setdefault(".".join(parts[: place + 1]), []).append(op.name)
    families: dict[tuple[str, Names], list[str]] = {}
    for module, names in called.items():
        families.setdefault((module.rpartition(".")[0], tuple(names)), []).append(module)
    repeated = [members for members in families.values() if len(members) > 1 and len(called[members[0]]) > 0]
    if not repeated:
        return []
    # The family that does most of the work: outer ones hold inner ones.
    return max(repeated, key=lambda members: sum(len(called[m]) for m in members))
