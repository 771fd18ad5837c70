"""The calls of a step, as a recording of it would hold them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from foretrace.graph import PHASES
from foretrace.platform.host_measurements import Calls
from foretrace.platform.measure.host_training import Training

FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
UNSEEN = ("profiler::", "prim::device")
"""What passes the dispatcher without being work."""
GENERATED_NODE = re.compile(r"Backward\d+$")
TAKEN = ("aten::_indices", "aten::_values", "aten::_sparse_coo_tensor_unsafe")
"""Calls with which autograd makes a sparse gradient a parameter's own."""


class Made(NamedTuple):
    """One call that was made."""

    name: str
    phase: int
    entered: int
    tensors: int
    node: Any
    """The autograd node that made it; None outside backward."""


class HostWatch(TorchDispatchMode):
    """Notes every call of a step; holds on to no tensor.

    >>> with HostWatch() as watch:
    ...     _ = torch.cat([torch.ones(2), torch.ones(2)])
    >>> [(made.name, made.tensors) for made in watch.made]
    [('aten::ones', 0), ('aten::ones', 0), ('aten::cat', 2)]
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []
        self.optimizing = False
        self._entered = 0
        self._hook: Any = None

    def __enter__(self) -> HostWatch:
        self._hook = register_module_forward_pre_hook(self._enter)
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        self._hook.remove()

    def _enter(self, module: Any, inputs: Any) -> None:
        self._entered += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if not name.startswith(UNSEEN):
            backward = torch._C._current_graph_task_id() != -1
            phase = BACKWARD if backward else OPTIMIZER if self.optimizing else FORWARD
            node = torch._C._current_autograd_node() if backward else None
            self.made.append(Made(name, phase, self._entered, longest_list((*args, *kwargs.values())), node))
            self._entered = 0
        return func(*args, **kwargs)


def longest_list(values: tuple[Any, ...]) -> int:
    """Tensors in the longest list among some values.

    >>> longest_list((1, [torch.ones(1), torch.ones(2)], [3, 4, 5]))
    2
    """
    lists = [value for value in values if isinstance(value, (list, tuple))]
    return max((sum(isinstance(item, torch.Tensor) for item in items) for items in lists), default=0)


def calls_of(training: Training) -> Calls:
    """Run a step once under watch; its calls.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> calls_of(Training(lambda: weight.exp().sum(), torch.optim.SGD([weight], lr=0.5))).name
    ['aten::exp', 'aten::sum', 'aten::ones_like', 'aten::expand', 'aten::mul', 'aten::add_']
    """
    training.optimizer.zero_grad(set_to_none=True)
    with HostWatch() as watch:
        training.loss().backward()
        watch.optimizing = True
        training.before_update()
        training.optimizer.step()
    made = as_in_a_plain_step(watch.made)
    return Calls(
        [call.name for call in made],
        [call.phase for call in made],
        [call.entered for call in made],
        [call.tensors for call in made],
    )


def as_in_a_plain_step(made: list[Made]) -> list[Made]:
    """The calls less what autograd does only because somebody watches: detaching what it saves, cloning gradients.

    None of the small steps detaches anything of its own accord.
    """
    kept: list[Made] = []
    taken: set[int] = set()
    for call in made:
        node = call.node.name() if call.node is not None else ""
        if call.name == "aten::detach" and (not node or GENERATED_NODE.search(node)):
            continue
        if not node.endswith("AccumulateGrad"):
            kept.append(call)
        elif call.name == TAKEN[0] and id(call.node) not in taken:
            taken.add(id(call.node))
            kept += [call._replace(name=name) for name in TAKEN]
        elif call.name != "aten::detach" and id(call.node) not in taken:
            kept.append(call)
    return kept
