"""Calling a step on fake tensors: values are assumed where they are read, and modules move."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from foretrace.graph import ForetraceError, Op
from foretrace.record.guard.guard import is_elsewhere
from foretrace.record.guard.side_effects import script_line
from foretrace.record.sketch.assumptions import ARRAY, MATH, Assumptions, followed
from foretrace.record.sketch.cuda_api import gpu_is_visible
from foretrace.record.sketch.selections import Selections
from foretrace.record.sketch.sparse_tensors import SparseTensors
from foretrace.record.sketch.threads import TURN, ScriptThreads
from foretrace.record.sketch.torch_classes import packed
from foretrace.record.sketch.values import CHECKED, COUNTED, DRAWN, MAX_INTEGERS, RANKED, UNKNOWN, Values
from foretrace.record.sketch.view_replays import ViewReplays
from foretrace.record.watch.tensors import TensorRegistry
from foretrace.record.watch.watch import Watch, desugars

aten: Any = torch.ops.aten
ALREADY_FAKE = frozenset((FakeTensor, type(None), bool, int, float, str, torch.dtype, torch.device))
"""Types of arguments without real tensors."""
PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout))
"""Types of arguments that are what they say."""
FILLS = (aten.index_put_.default, aten.index_put.default)
"""``tensor[mask] = value``: with one value, the number of elements that the mask chooses decides nothing."""
DEVICE: Any = torch.ops.prim.device.default
META = torch.device("meta")
NO_FAKE = "no fake impl registered"
"""In PyTorch's error where a custom operator does not say what it gives."""


@cache
def _makes_new(func: Any) -> bool:
    """Whether a call's results are new tensors: where its arguments begin in their storages then decides nothing."""
    arguments, returns = func._schema.arguments, func._schema.returns
    return not func.is_view and all(each.alias_info is None for each in (*arguments, *returns))


class _InFlight(threading.local):
    """The call that a thread is in."""

    depth = 0
    """Calls in flight: PyTorch decomposes some calls on fake tensors into others."""
    in_kernel = False


class FakeStepMode(FakeTensorMode):
    """Fake tensor mode in which a step may read values: logging a loss must not end a sketch."""

    def __init__(self) -> None:
        self._local = _InFlight()
        super().__init__(allow_non_fake_inputs=True)
        self.threads = ScriptThreads()
        self.values = Values()
        self.assumptions = Assumptions()
        self._sparse = SparseTensors(self)
        self._selections = Selections(self)
        self.assumes_arrays = False
        """Whether unknown tensors may become arrays: in programs, and of steps on a GPU, which log, save and act on
        them."""
        self.calls = 0
        """How many calls were made so far."""
        self._ragged = 0
        self._keys: dict[tuple[Any, ...], Any] = {}
        """PyTorch's keys of calls, under which it finds their results, by what `_brief` says of these calls."""
        self._copies: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        """Fake copies by id of the real tensor, which is referenced so that its id stays unique."""

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeStepMode:
        """Itself: copied weights must belong to the same fake tensor mode."""
        return self

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
        """The ragged size of a nested tensor: a new one, which is no symbol."""
        self._ragged += 1
        return torch._C._get_nested_int(self._ragged, 1)

    @property
    def in_kernel_invocation(self) -> bool:
        """Whether this thread is inside of a fake kernel, where PyTorch lets tensors be on the device meta."""
        return self._local.in_kernel

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._local.in_kernel = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE:
            return self.device_of(args[0])
        _refuse_a_real_gpu(kwargs or {})
        with TURN:
            self.calls += not self.threads.in_background(args)
            return self._called(func, types, args, kwargs)

    def _called(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = self.given(func, args), self.given(func, kwargs)
        if (made := self._sparse.call(func, args, kwargs or {})) is not None:
            return made
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._read(args[0])
        self._selections.count(func, args)
        if func in FILLS and (filled := self._filled(func, args)) is not None:
            return filled
        self._local.depth += 1
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            made = self._shaped_by_values(func, args, kwargs or {})
            made = self._assumed(func, args, kwargs or {}) if made is UNKNOWN else made
            made = self._selections.result(func, args, kwargs or {}) if made is UNKNOWN else made
            if made is UNKNOWN:
                raise
            return made
        except RuntimeError as error:
            if NO_FAKE not in str(error):
                raise
            raise UnsupportedOperatorException(func) from error
        finally:
            self._local.depth -= 1
        if isinstance(result, FakeTensor) and result.layout != torch.strided:
            result = self._sparse.filled(args, result)
        if isinstance(func, torch._ops.OpOverload) and result is not NotImplemented and not self._local.depth:
            if func in self.lift_fns and not isinstance(args[0], FakeTensor):
                self._lifted(result, args[0])
            else:
                self.values.follow(func, args, kwargs or {}, result)
        return result

    def _cache_key(self, *given: Any) -> Any:
        """PyTorch's key of a call, which takes it longer to make than all else that it does with a known call.

        It is asked for by a state, which PyTorch before 2.6 does not give, and by the call.
        """
        func, args, kwargs = given[-3:]
        brief: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        plain = self.shape_env is None and isinstance(func, torch._ops.OpOverload) and get_proxy_mode() is None
        if not plain or not self._brief(brief, args, _makes_new(func)):
            return super()._cache_key(*given)
        brief.extend(kwargs)
        if not self._brief(brief, kwargs.values(), _makes_new(func)):
            return super()._cache_key(*given)
        if (key := self._keys.get(known := tuple(brief))) is None:
            key = self._keys[known] = super()._cache_key(*given)
        return key

    def _brief(self, brief: list[Any], values: Any, makes_new: bool) -> bool:
        """Add what tells the results of a call with these arguments; False for what is not plain."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.layout != torch.strided or value.fake_mode is not self or value.constant is not None:
                    return False
                if value.is_conj() or value.is_neg() or value.is_inference() or value.is_quantized:
                    return False
                brief += (value.dtype, value.shape, value.stride(), value.fake_device, value.requires_grad)
                if not makes_new:
                    brief += (value.storage_offset(), value.untyped_storage().nbytes())
            elif kind in PLAIN:
                brief += (kind, value)
            elif kind in (list, tuple):
                brief += (kind, len(value))
                if not self._brief(brief, value, makes_new):
                    return False
            else:
                return False
        return True

    def device_of(self, tensor: Any) -> torch.device:
        """The true device of a tensor: two of three calls ask for one, from autograd and other code in C++."""
        with TURN:
            self.calls += not self.threads.in_background((tensor,))
            fake = self.copied(tensor)
        return META if fake.fake_mode.in_kernel_invocation else fake.fake_device

    def _read(self, fake: Any) -> Any:
        """The only element of a tensor: its value where it is known, else an assumed one."""
        known = self._known(fake)
        if known is None:
            assumed, at_random = self.assumptions.unknown(fake.dtype, self.calls), self.values.at_random(fake)
            return assumed if at_random is None or self.assumptions.number is not None else at_random
        with no_dispatch():
            return known.item()

    def _known(self, fake: Any) -> torch.Tensor | None:
        """The values of a tensor that is read, noted with what they rest on; None where they are unknown."""
        known = self._readable(fake)
        if known is not None and (assumed := self.values.assumed(fake)):
            self.assumptions.known(assumed, self.calls)
        return known

    def _readable(self, fake: Any) -> torch.Tensor | None:
        """The values of a tensor; a number that follows from draws, as an accuracy does, is as unknown as a loss."""
        drawn = fake.is_floating_point() and not self.values.assumed(fake).isdisjoint((DRAWN, RANKED))
        return None if drawn else self.values.of(fake)

    def item(self, fake: Any) -> Any:
        """``Tensor.item``: a number that is assumed tells where it decides something."""
        numbers = self.assumptions.numbers
        value = torch.Tensor.item(fake)
        return value if self.assumptions.numbers == numbers else self.assumptions.tracked(value)

    def number(self, fake: Any) -> float:
        """``float(tensor)``: Python makes a plain number of any other."""
        numbers = self.assumptions.numbers
        value = float(torch.Tensor.__float__(fake))
        if self.assumptions.numbers != numbers:
            self.assumptions.unfollowed()
        return value

    def integer(self, fake: Any) -> int:
        """``int(tensor)``: where a number is assumed, so is the integer, which may be a size."""
        if fake.is_floating_point() and self._known(fake.detach()) is None:
            return int(self.assumptions.unknown(torch.int64, self.calls))
        return int(torch.Tensor.__int__(fake))

    def tolist(self, fake: Any) -> Any:
        """``Tensor.tolist``: a copy to the host, whose elements are no calls."""
        fake = fake.cpu() if fake.is_cuda else fake
        if not fake.dim():
            return self.item(fake)
        known = self._known(fake)
        value = self.assumptions.unknown(fake.dtype, self.calls) if known is None and fake.numel() else 0
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return torch.full(fake.shape, value).tolist() if known is None else known.tolist()

    def numpy(self, fake: Any, **options: Any) -> Any:
        """``Tensor.numpy``, of tensors with values; a single number may be assumed, as a loss that is logged."""
        readable = not fake.requires_grad and not fake.is_cuda
        known = self._readable(fake) if readable else None
        if known is None and readable and self.assumes_arrays and fake.numel() != 1:
            value = self.assumptions.unknown(fake.dtype, self.calls, ARRAY)
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                one = torch.full((), value, dtype=fake.dtype).numpy(**options)
            every = np.broadcast_to(one, fake.shape)
            return every.copy() if every.size <= MAX_INTEGERS else every
        if known is None and not (readable and fake.numel() == 1 and fake.is_floating_point()):
            return torch.Tensor.numpy(fake, **options)
        value = self.tolist(fake)
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return (torch.tensor(value, dtype=fake.dtype) if known is None else known).numpy(**options)

    def format(self, fake: Any, how: str) -> str:
        """``format(tensor, how)``: that of a tensor of one element is that of its value."""
        return object.__format__(fake, how) if fake.dim() else format(self.item(fake.detach()), how)

    def _shaped_by_values(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a call whose shapes depend on values; `UNKNOWN` where those are."""
        packs = func is torch.ops.aten._pack_padded_sequence.default
        given = [args[1]] if packs else tree_leaves((args, kwargs))
        lengths = self.values.of(args[1]) if packs else None
        made: Any = self.values.compute(func, args, kwargs) if lengths is None else packed(args[0], lengths, args[2])
        if made is UNKNOWN:
            return UNKNOWN
        assumed = self.values.assumed(*(leaf for leaf in given if isinstance(leaf, FakeTensor)))
        if assumed:
            self.assumptions.known(assumed, self.calls)

        return made if packs else tree_map_only(torch.Tensor, lambda real: self.held(real, assumed), made)

    def _assumed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a call that unknown values decide in theory only; `UNKNOWN` of others."""
        if func is aten.allclose.default:
            self.assumptions.known(frozenset({CHECKED}), self.calls)
            return True
        if func is aten.equal.default:
            return self.assumptions.unknown(torch.bool, self.calls)
        if func is aten.bincount.default:
            given = dict(zip(("self", "weights", "minlength"), args)) | kwargs
            if (length := given.get("minlength", 0)) > 0:
                self.assumptions.known(frozenset({COUNTED}), self.calls)
                kind = getattr(given.get("weights"), "dtype", None)
                sums = torch.int64 if kind is None else kind if kind == torch.float32 else torch.float64
                return args[0].new_empty(length, dtype=sums)
        return UNKNOWN

    def _filled(self, func: Any, args: Any) -> Any:
        """The result of ``tensor[mask] = value`` by an unknown mask with one value; None of other fills."""
        masks = [place for place in args[1] if isinstance(place, FakeTensor) and place.dtype == torch.bool]
        if all(self.values.of(mask) is not None for mask in masks):
            return None
        if args[2].numel() != 1:
            self._selections.fill(args[1], args[2])
            return None
        made = args[0] if func is aten.index_put_.default else torch.empty_like(args[0])
        self.values.follow(func, args, {}, made)
        return made

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call as fake tensor mode makes it, with no values."""
        return super().__torch_dispatch__(func, (), args, kwargs)

    def held(self, real: torch.Tensor, assumed: frozenset[str]) -> FakeTensor:
        """A fake tensor that has the values of a real one."""
        result = self.from_tensor(real)
        self.values.hold(result, real, assumed)
        return result

    def _lifted(self, fake: Any, real: torch.Tensor) -> None:
        """A constant of the script has its values; PyTorch's own way of following them loses aliases."""
        fake.constant = None
        self.values.hold(fake, real)

    def given(self, func: Any, values: Any) -> Any:
        """Arguments of a call, made fake; constants of the script, as in torch.tensor(2), keep their values."""
        return values if func in self.lift_fns else self.copied(values)

    def copied(self, values: Any) -> Any:
        """The values with one fake copy for each real tensor: a sketch must not change a real model."""
        if isinstance(values, FakeTensor):
            return values
        if isinstance(values, torch.Tensor):
            return values if desugars(type(values)) else self._copy(values)
        if isinstance(values, dict):
            return {key: self.copied(value) for key, value in values.items()}
        if type(values) not in (list, tuple) or ALREADY_FAKE.issuperset(map(type, values)):
            return values
        return type(values)(map(self.copied, values))

    def _copy(self, tensor: torch.Tensor) -> FakeTensor:
        if id(tensor) not in self._copies:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                bare = tensor.detach()  # its gradient may be fake already
                fake = self.from_tensor(bare)
                self._copies[id(tensor)] = (tensor, fake)
                if tensor.device.type == "cpu" and not tensor.requires_grad and tensor.layout == torch.strided:
                    self.values.hold(fake, bare)
        return self._copies[id(tensor)][1]


@contextmanager
def readable(fake_step: FakeStepMode) -> Iterator[None]:
    """Let scripts read fake tensors by methods that bypass the dispatcher."""
    methods: dict[str, Callable[..., Any]] = {
        "item": lambda fake: fake_step.item(fake),
        "tolist": lambda fake: fake_step.tolist(fake),
        "numpy": lambda fake, **options: fake_step.numpy(fake, **options),
        "__int__": lambda fake: fake_step.integer(fake),
        "__float__": lambda fake: fake_step.number(fake),
        "__format__": lambda fake, how: fake_step.format(fake, how),
    }
    with ExitStack() as stack:
        for name, method in methods.items():
            stack.enter_context(patch.object(FakeTensor, name, method, create=True))
        for name in MATH.split():
            stack.enter_context(patch.object(math, name, followed(getattr(math, name))))
        yield


class FakeStepWatch(Watch):
    """A watch that records the fake copies of real tensors, so that views and in-place changes are tracked."""

    def __init__(self, fake_step: FakeStepMode, registry: TensorRegistry | None = None) -> None:
        super().__init__(registry)
        self._fake_step = fake_step
        self._replays = ViewReplays()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_elsewhere():
            return func(*args, **(kwargs or {}))
        args, kwargs = self._fake_step.given(func, args), self._fake_step.given(func, kwargs)
        if any(map(desugars, types)):
            return super().__torch_dispatch__(func, types, args, kwargs)
        if func is DEVICE:
            return self._fake_step.device_of(args[0])
        if not isinstance(func, torch._ops.OpOverload):
            return self._seen(func, types, args, kwargs)
        with torch._C.DisableTorchFunction():  # describing tensors asks them, and no function mode has an answer
            return self._seen(func, types, args, kwargs)

    def _seen(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        node = self.context.node
        if self._replays.is_replay(func, args):
            result = func(*args, **(kwargs or {}))
            self._replays.replayed(result)
            return result
        self._replays.ended(self._note_view)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._replays.called(func, args, result, node)
        return result

    def note(self, name: str, overload: str, args: Any, kwargs: dict[str, Any]) -> Op:
        """Append a call with its context, and the line of the user's code that makes it."""
        op = super().note(name, overload, args, kwargs)
        op.line = script_line()
        return op

    def _note_view(self, base: torch.Tensor, view: torch.Tensor) -> None:
        """Append the call that makes a view of a gradient in a real step."""
        with self.unharmed():
            geometry = list(view.shape), list(view.stride()), view.storage_offset()
            self.note("aten::as_strided", "default", (base, *geometry), {}).outputs = (self.describe(view),)

    def recorded(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake copy of a real tensor."""
        return self._fake_step.copied(tensor)


class ModuleMover:
    """Moves and casts modules of fake weights: PyTorch swaps tensors, which fails on fake ones."""

    def __init__(self) -> None:
        self._moved: dict[int, tuple[Any, Any]] = {}
        self._depth = 0

    @property
    def apply(self) -> Callable[..., Any]:
        """The replacement of ``Module._apply``."""

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


def _refuse_a_real_gpu(kwargs: dict[str, Any]) -> None:
    """Fake CUDA tensors crash where there is no GPU as soon as autograd touches them."""
    if not gpu_is_visible() and getattr(kwargs.get("device"), "type", "") == "cuda":
        raise ForetraceError(
            "the step needs a GPU, and PyTorch finds none here", 'Pretend one: sketch(…, device="cuda").'
        )


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Silence a log of PyTorch: what matters of it is raised, or in the sketch's notes."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
