"""What ops are shown as."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretrace.cost_models.kernels.launches import NAMES
from foretrace.graph import Graph, OpTable
from foretrace.graph.tables import Ints, Names


def labels(ops: OpTable, owner: Ints, kernels: Sequence[str]) -> tuple[Ints, list[str]]:
    """A code for each op, and the names of the codes.

    A kernel that an extension launches without a dispatcher call is credited to the call before it. Where that is one
    which launches nothing by itself, as ``aten::empty``, the two are shown by the kernel's name.

    Parameters
    ----------
    ops
        The ops.
    owner, kernels
        For each kernel the op that it is credited to, and its name.

    >>> from foretrace.graph import Op
    >>> ops = OpTable.of([Op("aten::empty"), Op("aten::mm"), Op("aten::empty")])
    >>> codes, names = labels(ops, np.array([1, 2], np.int32), ["gemm", "fused_softmax"])
    >>> [names[code] for code in codes]
    ['aten::empty', 'aten::mm', 'fused_softmax']
    """
    names, code = Names(ops.names.items), ops.name.copy()
    silent = ops.names.matching(NAMES.__contains__)
    credited = np.flatnonzero(owner >= 0)
    for kernel in credited[silent[ops.name[owner[credited]]]][::-1].tolist():  # the first kernel of an op names it
        code[owner[kernel]] = names.code(kernels[kernel])
    return code, names.items


def labels_of(graph: Graph) -> tuple[Ints, list[str]]:
    """Those of a graph whose kernels were seen to run."""
    kernels = graph.kernels
    return labels(graph.ops, kernels.op, [kernels.names[code] for code in kernels.name.tolist()])
