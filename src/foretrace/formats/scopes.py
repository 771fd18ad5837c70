"""What PyTorch's record scopes and names tell about a call: its kind, and the part of the step it belongs to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import PHASES, Names
from foretrace.graph.tables import ANNOTATION, CALL, NODE, Ints, Small

FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(p) for p in ("forward", "backward", "optimizer"))
BACKWARD_SCOPE, USER_SCOPE = 1, 7
"""Two of PyTorch's record scopes: an autograd node, and a user's annotation."""


def kinds(names: Names, name: Ints, scope: Ints, parent: Ints) -> Small:
    """Calls, nodes around calls, and annotations.

    >>> kinds(Names(["step", "aten::mm"]), np.array([0, 1]), np.array([7, 0]), np.array([-1, 0])).tolist()
    [2, 0]
    """
    plain = names.matching(lambda n: "::" not in n and n != "record_param_comms")[name]
    around = np.zeros(len(name), bool)
    around[parent[parent >= 0]] = True
    kind = np.full(len(name), CALL, np.int8)
    kind[_autograd(names, name) | (scope == BACKWARD_SCOPE) | (plain & around)] = NODE
    kind[scope == USER_SCOPE] = ANNOTATION
    return kind


def phases(names: Names, name: Ints, backward: NDArray[np.bool_], parent: Ints) -> Small:
    """Backward below autograd's nodes and what is said to be backward, optimizer below its step, else forward.

    >>> names, none = Names(["Optimizer.step#SGD.step", "aten::add_"]), np.zeros(2, bool)
    >>> [PHASES[p] for p in phases(names, np.array([0, 1]), none, np.array([-1, 0]))]
    ['optimizer', 'optimizer']
    """
    own = np.full(len(name), -1, np.int8)
    own[_autograd(names, name) | backward] = BACKWARD
    own[names.matching(lambda n: n.startswith("Optimizer.step#"))[name]] = OPTIMIZER
    phase: list[int] = []
    for mine, above in zip(own.tolist(), parent.tolist()):
        phase.append(mine if mine >= 0 else phase[above] if above >= 0 else FORWARD)
    return np.array(phase, np.int8)


def _autograd(names: Names, name: Ints) -> NDArray[np.bool_]:
    return names.matching(lambda n: n.startswith(("autograd::engine::", "torch::autograd::")))[name]
