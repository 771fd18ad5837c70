"""Whether a sketched step trains what it seems to train: a backward, updates, and weights on one device.

A step that was led astray by an assumed value often lacks its backward or its optimizer; the graph alone looks fine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from foretrace.graph import Graph
from foretrace.record.guard.side_effects import OURS, script_line
from foretrace.record.sketch.fake_step import FakeStepMode
from foretrace.record.watch.step_boundaries import listen


class TrainingCheck:
    """Follows the models of a step, and says what is missing of their training."""

    def __init__(self, fake_step: FakeStepMode) -> None:
        self._fake_step = fake_step
        self._models: dict[int, tuple[torch.nn.Module, str]] = {}
        """Modules that are called, not by another, each with the line that calls it first."""
        self._inside: set[int] = set()
        self._with_grad = False
        self._optimizes = False
        """Whether there is an optimizer: the step is meant to train."""
        self._with_gradient: dict[int, Any] = {}

    def expecting_updates(self) -> AbstractContextManager[Any]:
        """Note optimizers that are made."""
        return before(torch.optim.Optimizer, "__init__", self._expect_update)

    def _expect_update(self, optimizer: Any) -> None:
        self._optimizes = True

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow what is called while a step is sketched."""
        hook = register_module_forward_pre_hook(self._enter)
        silence = listen(before=self.note_gradients)
        self._fake_step.values.written.clear()
        try:
            with (
                before(torch.optim.Optimizer, "zero_grad", self.note_gradients),
                before(torch.nn.Module, "zero_grad", lambda module: self.note_gradients()),
            ):
                yield
            self.note_gradients()
        finally:
            silence()
            hook.remove()

    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        self._with_grad |= torch.is_grad_enabled()
        if id(module) not in self._inside:
            self._inside.update(map(id, module.modules()))
            self._models[id(module)] = (module, script_line())

    def note_gradients(self, optimizer: Any = None) -> None:
        """Remember which weights have a gradient by now: an optimizer is about to run, or gradients to be zeroed."""
        self._optimizes |= optimizer is not None
        groups = optimizer.param_groups if optimizer is not None else []
        for weight in (*(w for group in groups for w in group["params"]), *self._weights()):
            if weight.requires_grad and weight.grad is not None:
                self._with_gradient[id(weight)] = weight

    def notes(self, graph: Graph, step: Callable[[], Any] | None) -> list[str]:
        """What is missing of a training step; nothing of a step that does not train."""
        line = (_line_of(step) if step else "") or next((line for _, line in self._models.values()), "")
        return [note for note in (self._missing(graph, f" ({line})" if line else ""), *self._elsewhere()) if note]

    def _missing(self, graph: Graph, line: str) -> str:
        trained = [weight for weight in self._weights() if weight.requires_grad]
        if "backward" not in {op.phase for op in graph.ops}:
            if not (self._with_grad and self._optimizes and trained):
                return ""
            inference = "inference runs under torch.no_grad()"
            return f"the step has no backward: {_count(trained)} would be trained{line}; {inference}"
        written = self._fake_step.values.written
        left = [weight for weight in self._with_gradient.values() if self._storage(weight) not in {None, *written}]
        if not left:
            return ""
        return f"weights without an update: {_count(left)} of {len(self._with_gradient):,} with gradients{line}"

    def _elsewhere(self) -> Iterator[str]:
        """Weights of a model that are not on the device of most of it."""
        for model, line in self._models.values():
            places: dict[str, list[str]] = {}
            for name, weight in model.named_parameters():
                for device in {str(weight.device), str(_local(weight).device)}:
                    places.setdefault(device, []).append(name)
            if len(places) > 1:
                most, *others = sorted(places, key=lambda device: -len(places[device]))
                few = "; ".join(f"{_named(places[device])} on {device}" for device in others)
                at = f" ({line})" if line else ""
                yield f"weights on different devices: {type(model).__name__} is on {most}, {few}{at}"

    def _weights(self) -> Iterator[Any]:
        return (weight for model, _ in self._models.values() for weight in held_weights(model))

    def _storage(self, weight: Any) -> int | None:
        """The address of a weight's storage; None where a subclass of tensors hides it."""
        fake = self._fake_step.copied(_local(weight))
        return fake.untyped_storage()._cdata if type(fake).__module__.startswith("torch._subclasses") else None


def held_weights(model: torch.nn.Module) -> Iterator[Any]:
    """Weights as modules hold them: ``parameters()`` may be overridden, and make calls that belong to no step."""
    seen: set[int] = set()
    for module in model.modules():
        for weight in module._parameters.values():
            if weight is not None and id(weight) not in seen:
                seen.add(id(weight))
                yield weight


def _local(weight: Any) -> Any:
    """The part of a distributed weight that this rank holds."""
    return getattr(weight, "_local_tensor", weight)


def _count(weights: list[Any]) -> str:
    return "1 weight" if len(weights) == 1 else f"{len(weights):,} weights"


def _named(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


def _line_of(step: Callable[[], Any]) -> str:
    """Where a step is defined; empty for one that no file of the user's defines."""
    code = getattr(getattr(step, "__wrapped__", step), "__code__", None)
    if code is None or code.co_filename.startswith(("<", OURS)):
        return ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def before(kind: Any, name: str, function: Callable[[Any], None]) -> AbstractContextManager[Any]:
    """Patch a method to call a function first."""
    method = getattr(kind, name)

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        function(self)
        return method(self, *args, **kwargs)

    return patch.object(kind, name, call)
