"""The graph of a step that never runs: fake tensors, nothing computed, nothing allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.optim import optimizer

from foretrace.graph import ForetraceError, Graph
from foretrace.record.census import DeviceName
from foretrace.record.optimizers import listen
from foretrace.record.pretend_cuda import pretended_cuda
from foretrace.record.watch import Watch

STAND_INS: dict[Any, Any] = {torch.bool: False}
"""What reading a value gives where there are no values: False for a flag, 1 for a number."""


def sketch(step_fn: Callable[[], Any], device: str | None = None, world: int = 1, rank: int = 0) -> Graph:
    """The graph of a training step, without running it.

    Parameters
    ----------
    step_fn
        Does one training step; or builds the model and returns the function that does the step. What it builds is
        never allocated, so the second form sketches models larger than any machine.
    device
        ``"cuda"`` gives the step as a GPU would see it, on any machine; left out, the script's own choice stands.
    world, rank
        Pretend to be this rank of a process group of this size: DDP and FSDP2 scripts are sketched as they are.

    >>> def build():
    ...     model = torch.nn.Linear(100_000, 100_000)  # 40 GB, were it real
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     def step():
    ...         model(torch.randn(8, 100_000)).sum().backward()
    ...         optimizer.step()
    ...     return step
    >>> graph = sketch(build)
    >>> len([op for op in graph.ops if op.name in ("aten::addmm", "aten::mm")])
    2
    """
    with ExitStack() as stack:
        paper = stack.enter_context(Paper())
        device_name = stack.enter_context(pretended_cuda()) if device == "cuda" else None
        group = None
        if world > 1:
            from foretrace.record.pretend_group import pretended_group

            group = stack.enter_context(pretended_group(world, rank))
        stack.enter_context(_leaving_no_trace())
        stack.enter_context(patch.object(torch.nn.Module, "_apply", Moving().apply))
        # To the optimizers a fake weight is a weight: they choose foreach as they would for a real one.
        kinds = [*optimizer._foreach_supported_types, FakeTensor]
        stack.enter_context(patch.object(optimizer, "_foreach_supported_types", kinds))
        try:
            step = _warmed_up(step_fn)
            if group and group.reducing:
                step()
            graph = _watched(step, paper, device_name)
            graph.world, graph.rank, graph.source = world, rank, getattr(step_fn, "__name__", "a step")
            return graph
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
            raise ForetraceError(
                f"the step can't be sketched: what {error.func if hasattr(error, 'func') else error} gives depends on "
                "the data",
                "Record a real run instead: foretrace record --out DIR -- python train.py",
            ) from error


def _warmed_up(step_fn: Callable[[], Any]) -> Callable[[], Any]:
    """The step, called once: the first one makes the optimizer's state."""
    built = step_fn()
    if not callable(built):
        return step_fn
    built()
    return built  # type: ignore[no-any-return]


def _watched(step: Callable[[], Any], paper: Paper, device_name: DeviceName | None) -> Graph:
    watch = Watch(device_name) if device_name else Watch()
    paper.assumed = 0
    with watch:
        step()
    graph = watch.graph()
    if paper.assumed:
        graph.notes.append(f"{paper.assumed} values read on the host (.item()) were assumed to be 1")
    return graph


class Paper(FakeTensorMode):
    """Fake tensors on which a step may read values: logging a loss must not end a sketch."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.assumed = 0
        """Values that were read although there are none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            self.assumed += 1
            kind = args[0].dtype
            return STAND_INS.get(kind, 1.0 if kind.is_floating_point else 1)


class Moving:
    """Moves and casts modules of fake weights: PyTorch's own way swaps tensors, which fake ones do not bear."""

    def __init__(self) -> None:
        self._moved: dict[int, tuple[Any, Any]] = {}
        self._depth = 0

    @property
    def apply(self) -> Callable[..., Any]:
        """What to put in place of ``Module._apply``."""

        def _apply(module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:
            if not self._depth:
                self._moved.clear()
            self._depth += 1
            try:
                for child in module.children() if recurse else ():
                    child._apply(change)
                for held in (module._parameters, module._buffers):
                    held.update({name: self._changed(t, change) for name, t in held.items() if t is not None})
                return module
            finally:
                self._depth -= 1

        return _apply

    def _changed(self, tensor: Any, change: Callable[[Any], Any]) -> Any:
        """The tensor after the change; the same one wherever it is shared."""
        if id(tensor) not in self._moved:
            with torch.no_grad():
                made = change(tensor)
            if made is not tensor and isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            self._moved[id(tensor)] = (tensor, made)
        return self._moved[id(tensor)][1]


@contextmanager
def _leaving_no_trace() -> Iterator[None]:
    """Give real models their gradients and optimizer states back, whatever a sketch put in their place."""
    before: dict[int, tuple[Any, dict[Any, Any], list[tuple[Any, Any]]]] = {}

    def remember(chosen: Any) -> None:
        if id(chosen) not in before:
            weights = [w for group in chosen.param_groups for w in group["params"] if not isinstance(w, FakeTensor)]
            before[id(chosen)] = (
                chosen,
                {w: dict(chosen.state[w]) for w in weights if w in chosen.state},
                [(w, None if isinstance(w.grad, FakeTensor) else w.grad) for w in weights],
            )

    silence = listen(before=remember, after=lambda _: None)
    try:
        yield
    finally:
        silence()
        for touched, states, gradients in before.values():
            for weight, gradient in gradients:
                weight.grad = gradient
                touched.state.pop(weight, None)
            touched.state.update(states)
