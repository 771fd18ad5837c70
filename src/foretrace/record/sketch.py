"""The graph of a step that never runs: fake tensors, nothing computed, nothing allocated."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import wraps
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
from torch.utils._python_dispatch import _disable_current_modes

from foretrace.formats.collector import no_collector
from foretrace.graph import ForetraceError, Graph
from foretrace.record.census import DeviceName
from foretrace.record.optimizers import listen
from foretrace.record.pretend_cuda import pretended_cuda
from foretrace.record.watch import Watch, desugars

BEYOND_PAPER = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What PyTorch raises where a call can't be followed without values."""
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
        ``"cuda"`` lets the script find a GPU, on any machine: what it puts there (``.to("cuda")``, or wherever
        ``torch.cuda.is_available()`` leads it) is sketched as the GPU would run it. Left out, the machine is as it is.
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
    _check(step_fn, device, world, rank)
    with ExitStack() as stack:
        stack.enter_context(_without_torchs_own_traceback())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # whoever copies a model does
        stack.enter_context(no_collector())  # it would walk a growing heap again and again, and find nothing
        paper = stack.enter_context(Paper())
        device_name = stack.enter_context(pretended_cuda(paper.copied)) if device == "cuda" else None
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
            if device == "cuda" and not any(t.device.startswith("cuda") for op in graph.ops for t in op.produced):
                graph.notes.append("the step puts nothing on the GPU: build the model on device cuda")
            return graph
        except BEYOND_PAPER as error:
            raise refusal(error) from error


def refusal(error: Exception, script: str = "train.py") -> ForetraceError:
    """What to say of a call that only a real run can follow.

    >>> str(refusal(DynamicOutputShapeException(torch.ops.aten.nonzero.default)))[:80]
    "the step can't be sketched: what aten.nonzero.default gives depends on the data."
    """
    record = f"record a real run instead: foretrace record --out DIR -- python {script}"
    call = getattr(error, "func", error)
    if isinstance(error, UnsupportedOperatorException):
        return ForetraceError(
            f"the step can't be sketched: what {call} gives, nobody says without running it",
            f"Tell its shapes with torch.library.register_fake; or {record}",
        )
    advice = "Sketches have shapes and no values: a shape that follows from values is known in a real run only"
    return ForetraceError(f"the step can't be sketched: what {call} gives depends on the data", f"{advice}; {record}")


def _check(step_fn: Any, device: str | None, world: int, rank: int) -> None:
    if not callable(step_fn):
        raise ForetraceError(f"{step_fn!r} is no function", "Give a function that does one training step.")
    if device not in (None, "cpu", "cuda"):
        raise ForetraceError(f"there are no sketches for device {device!r}", 'Say "cuda", or leave it out.')
    if not 0 <= rank < world:
        raise ForetraceError(f"there is no rank {rank} among {world}", f"Say a rank from 0 to {world - 1}.")


def _warmed_up(step_fn: Callable[[], Any]) -> Callable[[], Any]:
    """The step, called once: the first one makes the optimizer's state."""
    built = step_fn()
    if not callable(built):
        return step_fn
    built()
    return built  # type: ignore[no-any-return]


def _watched(step: Callable[[], Any], paper: Paper, device_name: DeviceName | None) -> Graph:
    watch = OnPaper(paper, *([device_name] if device_name else []))
    paper.assumed = 0
    with watch:
        step()
    graph = watch.graph()
    if paper.assumed:
        graph.notes.append(f"{paper.assumed} values read on the host (.item()) were assumed to be 1")
    return graph


def _refuse_a_real_gpu(kwargs: dict[str, Any]) -> None:
    """Fake CUDA tensors crash a build of torch without CUDA as soon as autograd touches them."""
    if not torch.version.cuda and getattr(kwargs.get("device"), "type", "") == "cuda":
        raise ForetraceError(
            "the step wants a GPU, and this torch knows none", 'Pretend one: sketch(…, device="cuda").'
        )


class Paper(FakeTensorMode):
    """Fake tensors on which a step may read values: logging a loss must not end a sketch."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.assumed = 0
        """Values that were read although there are none."""
        self._copies: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        """Real tensors, held so that their identity stays theirs, and what stands for them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Paper:
        """Itself: a copied weight is on the same paper, or what looks at it would seem to lie somewhere else."""
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _refuse_a_real_gpu(kwargs or {})
        args, kwargs = self.given(func, args), self.given(func, kwargs)
        if func is torch.ops.aten.is_coalesced.default:
            return False  # nobody knows which ids were looked up twice
        if func is torch.ops.aten._coalesce.default:
            raise DynamicOutputShapeException(func)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            self.assumed += 1
            kind = args[0].dtype
            return STAND_INS.get(kind, 1.0 if kind.is_floating_point else 1)

    def given(self, func: Any, values: Any) -> Any:
        """What a call is given; what a script writes down itself, as in torch.tensor(2), keeps its values."""
        return values if func in self.lift_fns else self.copied(values)

    def copied(self, values: Any) -> Any:
        """The values with a fake tensor for each real one, always the same: a sketch must not change a real model."""
        if isinstance(values, FakeTensor):
            return values
        if isinstance(values, torch.Tensor):
            return values if desugars(type(values)) else self._copy(values)
        if isinstance(values, dict):
            return {key: self.copied(value) for key, value in values.items()}
        return type(values)(map(self.copied, values)) if type(values) in (list, tuple) else values

    def _copy(self, tensor: torch.Tensor) -> FakeTensor:
        if id(tensor) not in self._copies:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                bare = tensor.detach()  # its gradient may be fake already
                self._copies[id(tensor)] = (tensor, self.from_tensor(bare))
        return self._copies[id(tensor)][1]


class OnPaper(Watch):
    """A watch that sees the fake tensors which stand for a real model's, so that views and changes in place show."""

    def __init__(self, paper: Paper, *device_name: DeviceName) -> None:
        super().__init__(*device_name)
        self._paper = paper

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = self._paper.given
        return super().__torch_dispatch__(func, types, given(func, args), given(func, kwargs))


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
def _without_torchs_own_traceback() -> Iterator[None]:
    """PyTorch logs a page of its own insides when a call on a fake tensor fails, besides raising it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _leaving_no_trace() -> Iterator[None]:
    """Give real models their gradients and optimizer states back, whatever a sketch put in their place."""
    gradients: dict[int, tuple[Any, Any]] = {}
    states: dict[int, tuple[Any, dict[Any, Any]]] = {}

    def keep_gradients(weights: Iterable[Any]) -> None:
        for weight in weights:
            if not isinstance(weight, FakeTensor):
                gradient = None if isinstance(weight.grad, FakeTensor) else weight.grad
                gradients.setdefault(id(weight), (weight, gradient))

    def keep_all(chosen: Any) -> None:
        weights = [weight for group in chosen.param_groups for weight in group["params"]]
        keep_gradients(weights)
        states.setdefault(id(chosen), (chosen, {key: copy(state) for key, state in chosen.state.items()}))

    silence = listen(before=keep_all, after=lambda _: None)
    try:
        with (
            _calling_first(keep_all, optimizer.Optimizer, "zero_grad"),
            _calling_first(lambda module: keep_gradients(module.parameters()), torch.nn.Module, "zero_grad"),
        ):
            yield
    finally:
        silence()
        for weight, gradient in gradients.values():
            weight.grad = gradient
        for chosen, kept in states.values():
            chosen.state.clear()
            chosen.state.update(kept)


def _calling_first(function: Callable[[Any], None], owner: Any, name: str) -> Any:
    method = getattr(owner, name)

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        function(self)
        return method(self, *args, **kwargs)

    return patch.object(owner, name, call)
