"""Small training steps: host time of their parts, and their calls as a recording holds them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from foretrace.graph import PHASES
from foretrace.platform.measurements.host import Calls

Phases = tuple[float, float, float, float]
"""Microseconds of host time in clearing gradients, in forward, backward and optimizer."""


@dataclass
class Training:
    """A training step: its loss and its optimizer.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> training = Training(lambda: weight.sum(), torch.optim.SGD([weight], lr=0.5))
    >>> len(training.timed_step()), weight.tolist()
    (4, [0.5, 0.5, 0.5])
    """

    loss: Callable[[], torch.Tensor]
    optimizer: torch.optim.Optimizer
    before_update: Callable[[], Any] = field(default=lambda: None)
    """Runs between backward and update, as gradient clipping does."""

    def timed_step(self) -> Phases:
        """Do one step; the host time of each part, without waiting for the device."""
        stamps = [time.perf_counter_ns()]
        self.optimizer.zero_grad(set_to_none=True)
        stamps.append(time.perf_counter_ns())
        loss = self.loss()
        stamps.append(time.perf_counter_ns())
        loss.backward()
        stamps.append(time.perf_counter_ns())
        self.before_update()
        self.optimizer.step()
        del loss  # and with it the autograd graph, as at the end of any training step
        stamps.append(time.perf_counter_ns())
        clearing, forward, backward, optimizer = ((end - begin) / 1e3 for begin, end in pairwise(stamps))
        return clearing, forward, backward, optimizer

    def timed_inference(self) -> float:
        """Do the forward without gradients; its host time in microseconds."""
        with torch.no_grad():
            begin = time.perf_counter_ns()
            self.loss()
            return (time.perf_counter_ns() - begin) / 1e3


def trained(model: torch.nn.Module, loss: Callable[[], torch.Tensor], optimizer: str = "adamw") -> Training:
    """The training of a model with an optimizer of `OPTIMIZERS`."""
    return Training(loss, OPTIMIZERS[optimizer](model.parameters()))


def _adam(kind: Any, **options: Any) -> Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: kind(parameters, lr=1e-3, **options)


OPTIMIZERS: dict[str, Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": _adam(torch.optim.SGD),
    "momentum": _adam(torch.optim.SGD, momentum=0.9),
    "adam": _adam(torch.optim.Adam),
    "adamw": _adam(torch.optim.AdamW),
    "adamw one by one": _adam(torch.optim.AdamW, foreach=False),
    "fused adamw": _adam(torch.optim.AdamW, fused=True),
    "fused sgd": _adam(torch.optim.SGD, momentum=0.9, fused=True),
    "rmsprop": _adam(torch.optim.RMSprop),
}
"""By name: how an optimizer is made from parameters."""


FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
UNSEEN = ("profiler::", "prim::device")
"""Dispatched names that are no work."""
GENERATED_NODE = re.compile(r"Backward\d+$")
TAKEN = ("aten::_indices", "aten::_values", "aten::_sparse_coo_tensor_unsafe")
"""Calls with which autograd takes over a sparse gradient."""


class DispatchedCall(NamedTuple):
    """One dispatcher call."""

    name: str
    phase: int
    entered: int
    tensors: int
    node: Any
    """The autograd node that made it; None outside backward."""


class CallRecorder(TorchDispatchMode):
    """Records every dispatcher call of a step; holds no tensor.

    >>> with CallRecorder() as recorder:
    ...     _ = torch.cat([torch.ones(2), torch.ones(2)])
    >>> [(made.name, made.tensors) for made in recorder.calls]
    [('aten::ones', 0), ('aten::ones', 0), ('aten::cat', 2)]
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[DispatchedCall] = []
        self.optimizing = False
        self._entered = 0
        self._hook: Any = None

    def __enter__(self) -> CallRecorder:
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
            self.calls.append(DispatchedCall(name, phase, self._entered, longest_list((*args, *kwargs.values())), node))
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
    """Run a step once; its calls.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> calls_of(Training(lambda: weight.exp().sum(), torch.optim.SGD([weight], lr=0.5))).name
    ['aten::exp', 'aten::sum', 'aten::ones_like', 'aten::expand', 'aten::mul', 'aten::add_']
    """
    training.optimizer.zero_grad(set_to_none=True)
    with CallRecorder() as recorder:
        training.loss().backward()
        recorder.optimizing = True
        training.before_update()
        training.optimizer.step()
    made = without_recording_artifacts(recorder.calls)
    return Calls(
        [call.name for call in made],
        [call.phase for call in made],
        [call.entered for call in made],
        [call.tensors for call in made],
    )


def without_recording_artifacts(made: list[DispatchedCall]) -> list[DispatchedCall]:
    """The calls without those that autograd makes only under a dispatch mode: detached saved tensors, cloned gradients.

    None of the small steps detaches anything itself.
    """
    real: list[DispatchedCall] = []
    taken: set[int] = set()
    for call in made:
        node = call.node.name() if call.node is not None else ""
        if call.name == "aten::detach" and (not node or GENERATED_NODE.search(node)):
            continue
        if not node.endswith("AccumulateGrad"):
            real.append(call)
        elif call.name == TAKEN[0] and id(call.node) not in taken:
            taken.add(id(call.node))
            real += [call._replace(name=name) for name in TAKEN]
        elif call.name != "aten::detach" and id(call.node) not in taken:
            real.append(call)
    return real
